package idmap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func needRoot(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t)
}

func open(t testing.TB, source string, o Options) *os.File {
	t.Helper()
	f, _, err := Open(source, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// as runs f on a thread whose file system accesses are those of another user, without root's privileges. The thread ends
// with it.
func as(uid, gid int, f func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // never unlocked
		if _, err := unix.SetfsgidRetGid(gid); err != nil {
			panic(err)
		}
		if _, err := unix.SetfsuidRetUid(uid); err != nil {
			panic(err)
		}
		f()
	})
	wg.Wait()
}

func create(dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err == nil {
		_, err = unix.Write(fd, []byte("hello"))
		_ = unix.Close(fd)
	}
	return err
}

func read(dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func owner(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

// volume is a directory 0700 of an owner, with a file 0600 of its own.
func volume(t *testing.T, uid, gid int) string {
	t.Helper()
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(dir+"/secret", []byte("x"), 0o600), os.Chown(dir+"/secret", uid, gid), os.Chown(dir, uid, gid), os.Chmod(dir, 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// With Keep, a process can make files and change their owner to the sandbox's user; other ids stay unmapped.
func TestKeep(t *testing.T) {
	needRoot(t)
	const maker, user = 500_000, 500_001
	dir := volume(t, 1234, 1234)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	m := open(t, dir, Options{Writable: true, Owner: &Owner{UID: user, GID: user, Keep: maker}})
	plain := open(t, dir, Options{Writable: true, Owner: &Owner{UID: user, GID: user}})
	as(maker, maker, func() {
		if err := create(m, "made"); err != nil {
			t.Errorf("make: %v", err)
		}
		if err := create(plain, "control"); !errors.Is(err, unix.EOVERFLOW) {
			t.Errorf("control: make without being kept: %v", err)
		}
	})
	as(maker+7, maker+7, func() {
		if err := create(m, "other"); !errors.Is(err, unix.EOVERFLOW) {
			t.Errorf("another user: %v", err)
		}
	})
	if err := unix.Fchownat(int(m.Fd()), "made", user, user, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.Errorf("give away: %v", err)
	}
	if got := owner(t, dir+"/made"); got != "1234:1234" {
		t.Errorf("on the host the file belongs to %s", got)
	}
}

func TestMapped(t *testing.T) {
	needRoot(t)
	for _, from := range []int{1234, 0} {
		dir := volume(t, from, from)
		m := open(t, dir, Options{Writable: true, Map: &Mapping{FromUID: uint32(from), ToUID: 500_000, FromGID: uint32(from), ToGID: 500_001}})
		plain := open(t, dir, Options{Writable: true})
		as(500_000, 500_001, func() {
			if err := create(m, "made"); err != nil {
				t.Errorf("owner %d: create through the mapping: %v", from, err)
			}
			if err := read(m, "secret"); err != nil {
				t.Errorf("owner %d: read through the mapping: %v", from, err)
			}
			if err := create(plain, "other"); !errors.Is(err, unix.EACCES) {
				t.Errorf("owner %d: control: create without the mapping: %v", from, err)
			}
			if err := read(plain, "secret"); !errors.Is(err, unix.EACCES) {
				t.Errorf("owner %d: control: read without the mapping: %v", from, err)
			}
		})
		if got, want := owner(t, dir+"/made"), fmt.Sprintf("%d:%d", from, from); got != want {
			t.Errorf("on the host the file belongs to %s, want %s", got, want)
		}
		as(500_777, 500_777, func() {
			if err := read(m, "secret"); !errors.Is(err, unix.EACCES) {
				t.Errorf("owner %d: a third user reads through the mapping: %v", from, err)
			}
		})
	}
}

func TestReadOnly(t *testing.T) {
	needRoot(t)
	dir := volume(t, 0, 0)
	ro, rw := open(t, dir, Options{}), open(t, dir, Options{Writable: true})
	if err := create(ro, "a"); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only volume: %v", err)
	}
	if err := create(rw, "a"); err != nil {
		t.Errorf("positive control: %v", err)
	}
	for _, f := range []*os.File{ro, rw} {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
			t.Errorf("flags %#x, %v", st.Flags, err)
		}
	}
	mapped := open(t, dir, Options{Map: &Mapping{ToUID: 500_000, ToGID: 500_000}})
	as(500_000, 500_000, func() {
		if err := read(mapped, "secret"); err != nil {
			t.Errorf("read root's file 0600 as the mapped user: %v", err)
		}
		if err := create(mapped, "b"); !errors.Is(err, unix.EROFS) {
			t.Errorf("write to a read-only mapped volume: %v", err)
		}
	})
}

func TestFileSource(t *testing.T) {
	needRoot(t)
	dir := volume(t, 0, 0)
	f, isFile, err := Open(dir+"/secret", Options{})
	if err != nil || !isFile {
		t.Fatalf("%v %v", isFile, err)
	}
	_ = f.Close()
	if f, isFile, err := Open(dir, Options{}); err != nil || isFile {
		t.Errorf("%v %v", isFile, err)
	} else {
		_ = f.Close()
	}
}

// Mounts below the source are cloned under the same rules, later ones are not.
func TestSubmounts(t *testing.T) {
	needRoot(t)
	dir := volume(t, 0, 0)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // the thread, with its mount namespace, ends with the goroutine
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			os.Mkdir(dir+"/sub", 0o755), os.Mkdir(dir+"/later", 0o755),
			unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"), // a mount of the test's own, shared, so that it could propagate
			unix.Mount("", dir, "", unix.MS_SHARED, ""),
			os.Mkdir(dir+"/sub", 0o755), os.Mkdir(dir+"/later", 0o755),
			unix.Mount("tmpfs", dir+"/sub", "tmpfs", 0, "mode=0755"),
			os.WriteFile(dir+"/sub/inside", nil, 0o644),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		ro, rw := open(t, dir, Options{}), open(t, dir, Options{Writable: true})
		if err := unix.Mount("tmpfs", dir+"/later", "tmpfs", 0, ""); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(dir+"/later/new", nil, 0o644); err != nil {
			t.Error(err)
		}
		if err := read(ro, "sub/inside"); err != nil {
			t.Errorf("the mount below does not show: %v", err)
		}
		if err := create(ro, "sub/x"); !errors.Is(err, unix.EROFS) {
			t.Errorf("write to the mount below a read-only volume: %v", err)
		}
		if err := create(rw, "sub/x"); err != nil {
			t.Errorf("positive control: %v", err)
		}
		if err := read(rw, "later/new"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("a later mount on the host shows: %v", err)
		}
		mapped := open(t, dir, Options{Writable: true, Map: &Mapping{ToUID: 500_000, ToGID: 500_000}})
		var st unix.Stat_t
		if err := unix.Fstatat(int(mapped.Fd()), "sub/inside", &st, 0); err != nil || st.Uid != 500_000 {
			t.Errorf("the mount below is not mapped: uid %d, %v", st.Uid, err)
		}
	})
	wg.Wait()
}

func TestRefused(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	socket, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, err := range []error{
		os.Mkdir(dir+"/real", 0o755), os.WriteFile(dir+"/real/file", nil, 0o644),
		os.Symlink("real", dir+"/link"), os.Symlink("file", dir+"/real/last"), unix.Mkfifo(dir+"/fifo", 0o644),
		unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for source, want := range map[string]string{
		dir + "/link":          dir + "/link is a symlink",
		dir + "/link/file":     dir + "/link is a symlink",
		dir + "/real/last":     dir + "/real/last is a symlink",
		"/proc/self/root/etc":  "/proc/self is a symlink",
		dir + "/real/../real":  "shortest form",
		dir + "/real/":         "shortest form",
		"relative":             "absolute",
		"":                     "absolute",
		dir + "/nul\x00":       "shortest form",
		dir + "/missing":       "no such file",
		dir + "/fifo":          "a FIFO",
		dir + "/socket":        "a socket",
		dir + "/null":          "a device",
		dir + "/real/file/sub": "not a directory",
	} {
		start := time.Now()
		f, _, err := Open(source, Options{Writable: true})
		if err == nil {
			_ = f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
		if time.Since(start) > 30*time.Second {
			t.Errorf("%q blocked", source)
		}
	}
	for _, source := range []string{dir + "/real", dir + "/real/file"} {
		open(t, source, Options{}) // positive control
	}
}

func TestUnsupported(t *testing.T) {
	needRoot(t)
	m := &Mapping{ToUID: 500_000, ToGID: 500_000}
	if _, _, err := Open("/proc/sys", Options{Map: m}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("procfs: %v", err)
	}
	open(t, "/proc/sys", Options{})                             // without a mapping it goes
	open(t, "/proc/sys", Options{Map: &Mapping{7, 7, 8, 8, 0}}) // nothing to map
	open(t, t.TempDir(), Options{Map: m})                       // and a file system that can, can
	if _, _, err := Open(t.TempDir(), Options{Map: &Mapping{ToUID: ^uint32(0)}}); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("id -1: %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 2 * maxNamespaces {
		wg.Go(func() {
			for range 3 {
				f, _, err := Open(dir, Options{Map: &Mapping{FromUID: 0, ToUID: uint32(600_000 + i), ToGID: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				var st unix.Stat_t
				if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != uint32(600_000+i) {
					t.Errorf("mapping %d shows uid %d, %v", i, st.Uid, err)
				}
				_ = f.Close()
			}
		})
	}
	wg.Wait()
	namespaces.mu.Lock()
	defer namespaces.mu.Unlock()
	if n := len(namespaces.entries); n > maxNamespaces {
		t.Errorf("%d namespaces are kept", n)
	}
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, l := range links {
		if target, _ := os.Readlink(l); strings.HasPrefix(target, "user:") {
			open++
		}
	}
	if open > maxNamespaces {
		t.Errorf("%d descriptors of namespaces are open", open)
	}
}

func BenchmarkOpen(b *testing.B) {
	needRoot(b)
	dir := b.TempDir()
	run := func(b *testing.B, m func(i int) *Mapping) {
		i := 0
		for b.Loop() {
			f, _, err := Open(dir, Options{Map: m(i)})
			if err != nil {
				b.Fatal(err)
			}
			_ = f.Close()
			i++
		}
	}
	b.Run("plain", func(b *testing.B) { run(b, func(int) *Mapping { return nil }) })
	b.Run("mapped", func(b *testing.B) { run(b, func(int) *Mapping { return &Mapping{ToUID: 1, ToGID: 1} }) })
	b.Run("new namespace", func(b *testing.B) { run(b, func(i int) *Mapping { return &Mapping{ToUID: uint32(i + 2), ToGID: 1} }) })
}
