package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// newTree is a scratch in a directory of the test's own.
func newTree(t testing.TB) (*Scratch, string) {
	t.Helper()
	dir := t.TempDir()
	for _, p := range Parts {
		if err := os.Mkdir(filepath.Join(dir, p.Name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &Scratch{Place: Tree{Opener: Dir{FD: fd, Owner: -1}}, Backend: "test", Full: "more"}, dir
}

func take(t testing.TB, s *Scratch, sel sandbox.Selection) (files, untaken map[string]string) {
	t.Helper()
	if sel.MaxFiles == 0 {
		sel.MaxFiles, sel.MaxBytes = sandbox.DefaultMaxFiles, sandbox.DefaultMaxBytes
	}
	files, untaken = map[string]string{}, map[string]string{}
	left, err := s.Take(context.Background(), sel, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		text, err := io.ReadAll(r)
		files[f.Path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range left {
		untaken[u.Path] = u.Reason
	}
	return files, untaken
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Entries that only root can plant.
func TestTakeDevices(t *testing.T) {
	s, dir := newTree(t)
	at := func(name string) string { return filepath.Join(dir, "workspace", name) }
	must(t, os.WriteFile(at("file"), []byte("plain"), 0o600))
	for name, node := range map[string]struct {
		kind uint32
		dev  uint64
	}{"zero": {unix.S_IFCHR, unix.Mkdev(1, 5)}, "disk": {unix.S_IFBLK, unix.Mkdev(7, 0)}} {
		if err := unix.Mknod(at(name), node.kind|0o666, int(node.dev)); err != nil {
			t.Skip("needs root: ", err)
		}
	}
	for _, patterns := range [][]string{{"/workspace"}, {"/workspace/zero"}, {"/workspace/disk"}, {"/workspace/file"}} {
		files, untaken := take(t, s, sandbox.Selection{Patterns: patterns})
		for _, name := range []string{"zero", "disk"} {
			if patterns[0] == "/workspace" || patterns[0] == "/workspace/"+name {
				if !strings.Contains(untaken["/workspace/"+name], "device") {
					t.Errorf("%q: %v", patterns, untaken)
				}
			}
		}
		if delete(files, "/workspace/file"); len(files) > 0 {
			t.Errorf("%q: %q", patterns, files)
		}
	}
}

// A file with a lease is left out, because opening it would block (F7).
func TestTakeLeased(t *testing.T) {
	s, dir := newTree(t)
	must(t, os.WriteFile(filepath.Join(dir, "workspace", "leased"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(dir, "workspace", "plain"), []byte("x"), 0o600))
	f, err := os.OpenFile(filepath.Join(dir, "workspace", "leased"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("no leases here: ", err)
	}
	files, untaken := take(t, s, sandbox.Selection{Patterns: []string{"/workspace"}})
	if len(files) != 1 || !strings.Contains(untaken["/workspace/leased"], "lease") {
		t.Errorf("%q, %q", files, untaken)
	}
}

// Directories in each other, far deeper than a path can name: neither the stack nor the descriptors grow with them (F14).
func TestTakeVeryDeep(t *testing.T) {
	s, dir := newTree(t)
	at, err := unix.Open(filepath.Join(dir, "workspace"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range 3100 {
		must(t, unix.Mkdirat(at, "d", 0o755))
		if i%1000 == 10 {
			fd, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
			must(t, err, unix.Close(fd))
		}
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	files, untaken := take(t, s, sandbox.Selection{Patterns: []string{"/workspace/**/f"}})
	if len(files) != 3 || len(untaken) != 1 { // 10, 1010 and 2010 levels down; 3010 exceeds the length of a path
		t.Errorf("%d files, %d untaken", len(files), len(untaken))
	}
	for p, reason := range untaken {
		if !strings.Contains(reason, "name too long") {
			t.Errorf("%.40s…: %s", p, reason)
		}
	}
	err = s.Put(context.Background(), []sandbox.File{{Path: "/workspace/" + strings.Repeat("x/", 2030) + "f"}})
	must(t, err)
}

// More entries than MaxEntries.
func TestTakeVeryMany(t *testing.T) {
	s := &Scratch{Place: endless{}}
	files, untaken := take(t, s, sandbox.Selection{Patterns: []string{"/workspace/*"}})
	if len(files) != 0 || len(untaken) != 1 || !strings.Contains(untaken["/workspace"], fmt.Sprint(MaxEntries)) {
		t.Errorf("%d, %v", len(files), untaken)
	}
	s, dir := newTree(t)
	for i := range 2 * MaxUntaken {
		must(t, os.Symlink("x", filepath.Join(dir, "workspace", fmt.Sprint(i))))
	}
	must(t, os.WriteFile(filepath.Join(dir, "workspace", "z"), nil, 0o600))
	files, untaken = take(t, s, sandbox.Selection{Patterns: []string{"/workspace"}})
	if len(files) != 1 || len(untaken) != MaxUntaken+1 {
		t.Errorf("%d files, %d untaken", len(files), len(untaken))
	}
}

// endless is a directory with no end.
type endless struct{}

func (endless) Create(string, fs.FileMode) (io.WriteCloser, error) { return nil, unix.EROFS }
func (endless) Link(string, string) error                          { return unix.EROFS }
func (endless) Remove(string) error                                { return unix.EROFS }
func (endless) Open(string) (*Content, error)                      { return nil, unix.EIO }
func (endless) List(_ string, want func(Entry) bool) error {
	for n := 0; want(Entry{Name: fmt.Sprint(n)}); n++ {
	}
	return nil
}

// A file that shrinks or grows while it is read is reported.
func TestTakeChanging(t *testing.T) {
	s, dir := newTree(t)
	name := filepath.Join(dir, "workspace", "f")
	for change, want := range map[int64]string{10: "", 4: "shrank", 20: "grew"} {
		must(t, os.WriteFile(name, []byte("0123456789"), 0o600))
		got := ""
		left, err := s.Take(context.Background(), sandbox.Selection{Patterns: []string{"/workspace/f"}, MaxFiles: 1, MaxBytes: 15},
			func(_ sandbox.File, size sandbox.Size, r io.Reader) error {
				must(t, os.Truncate(name, change))
				text, err := io.ReadAll(r)
				got = string(text)
				if size != 10 {
					t.Error(size)
				}
				return err
			})
		must(t, err)
		if got != "0123456789"[:min(change, 10)] || (want == "") != (len(left) == 0) || want != "" && !strings.Contains(left[0].Reason, want) {
			t.Errorf("%d: %q, %v", change, got, left)
		}
	}
	// An error of the host is an error of Take, not a file that is left out.
	if _, err := (&Scratch{Place: endless{}, Backend: "test"}).Take(context.Background(),
		sandbox.Selection{Patterns: []string{"/workspace/f"}, MaxFiles: 1, MaxBytes: 1}, nil); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
}

// Put changes only what it is asked to, whatever the owner of existing entries.
func TestPutOwner(t *testing.T) {
	testenv.NeedRoot(t)
	s, dir := newTree(t)
	fd := s.Place.(Tree).Opener.(Dir).FD
	s.Place = Tree{Opener: Dir{FD: fd, Owner: 4242}}
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	must(t, s.Put(context.Background(), []sandbox.File{{Path: "/workspace/a/b/f", Mode: 0o666}, {Path: "/tmp/g", Data: []byte("x")}}))
	for p, mode := range map[string]uint32{"workspace": 0o755, "workspace/a": 0o755, "workspace/a/b": 0o755, "workspace/a/b/f": 0o666,
		"tmp/g": 0o644} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, p), &st))
		want := uint32(4242)
		if p == "workspace" {
			want = 0
		}
		if st.Uid != want || st.Gid != want || st.Mode&0o7777 != mode {
			t.Errorf("%s: %d:%d %o", p, st.Uid, st.Gid, st.Mode)
		}
	}
}

// A directory of the kernel's making is read to its end, and one that is none does no harm.
func FuzzEntries(f *testing.F) {
	dir := f.TempDir()
	for _, name := range []string{"a", "b c", strings.Repeat("x", 200)} {
		must(f, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(f, err)
	buf := make([]byte, 4096)
	n, err := unix.ReadDirent(fd, buf)
	must(f, err, unix.Close(fd))
	var names []string
	eachEntry(buf[:n], func(e Entry) bool { names = append(names, e.Name); return true })
	if slices.Sort(names); !slices.Equal(names, []string{"a", "b c", strings.Repeat("x", 200)}) {
		f.Fatalf("%q", names)
	}
	f.Add(buf[:n])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		eachEntry(b, func(e Entry) bool {
			if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsRune(e.Name, 0) {
				t.Errorf("%q", e.Name)
			}
			return true
		})
	})
}
