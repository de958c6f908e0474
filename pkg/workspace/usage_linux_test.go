package workspace

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func usage(t *testing.T, w *Workspace) Usage {
	t.Helper()
	u, err := w.Usage(t.Context())
	must(t, err)
	return u
}

func TestUsageCountsWhatIsThere(t *testing.T) {
	w := opened(t, newStore(t), "w", Options{})
	dir := w.Volume().Source
	empty := usage(t, w)
	if empty.Inodes != 0 || empty.Bytes > 64<<10 {
		t.Errorf("empty: %+v", empty)
	}
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "precious"), make([]byte, 10<<20), 0o600))
	plant(t, dir, outside) // four links, a FIFO, two directories
	must(t, os.WriteFile(filepath.Join(dir, "file-1m"), make([]byte, 1<<20), 0o600))
	must(t, os.Link(filepath.Join(dir, "file-1m"), filepath.Join(dir, "same-1m")))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	must(t, sparse.Truncate(1<<40))
	must(t, sparse.Close())
	u := usage(t, w)
	grown := u.Bytes - empty.Bytes
	if u.Inodes != 10 || grown < 1<<20 || grown > 1<<20+256<<10 || u.Partial || u.Hidden != 0 {
		t.Errorf("%+v, %s more", u, grown)
	}
}

// memoryStore is one for very many files: a busy disk takes minutes to make them.
func memoryStore(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "workspace-test-")
	if err != nil {
		return newStore(t)
	}
	t.Cleanup(func() { must(t, removal.Tree(context.Background(), dir)) })
	return filepath.Join(dir, "workspaces")
}

// deep makes a chain of directories, each with so many brothers, and a file at the end.
func deep(t *testing.T, dir string, levels, brothers int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(at, "d", 0o755))
		for i := range brothers {
			must(t, unix.Mkdirat(at, "b"+strconv.Itoa(i), 0o755))
		}
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	fd, err := unix.Openat(at, "file", unix.O_WRONLY|unix.O_CREAT, 0o600)
	must(t, err)
	must(t, unix.Close(fd))
	must(t, unix.Close(at))
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// F14: deeper than paths can name and descriptors reach, and with something left to do on every level.
func TestUsageF14(t *testing.T) {
	for name, c := range map[string]struct{ levels, brothers, want int }{
		"deep":            {20_000, 0, 20_001},
		"deep and broad":  {3000, 2, 9001},
		"just kept":       {keptLevels, 1, 2*keptLevels + 1},
		"one beyond kept": {keptLevels + 1, 1, 2*keptLevels + 3},
	} {
		t.Run(name, func(t *testing.T) {
			store := memoryStore(t)
			w := opened(t, store, "w", Options{})
			deep(t, w.Volume().Source, c.levels, c.brothers)
			before := openDescriptors(t)
			if u := usage(t, w); u.Inodes != c.want || u.Partial || u.Hidden != 0 {
				t.Errorf("%+v, want %d", u, c.want)
			}
			if after := openDescriptors(t); after > before { // earlier tests' may be closed meanwhile
				t.Errorf("%d descriptors, then %d", before, after)
			}
			must(t, w.Close())
			must(t, Remove(t.Context(), store, "w"))
		})
	}
}

func TestUsageStopsAtTheCap(t *testing.T) {
	w := opened(t, memoryStore(t), "w", Options{Inodes: 1000})
	dir := w.Volume().Source
	for i := range 3000 { // files and directories
		if i%2 == 0 {
			must(t, os.Mkdir(filepath.Join(dir, strconv.Itoa(i)), 0o700))
			continue
		}
		must(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600))
	}
	if u := usage(t, w); !u.Partial || u.Inodes != 1001 {
		t.Errorf("%+v", u)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Usage(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A tree that is moved about while it is looked at: no panic, no hang, no way out of it, no descriptor lost.
func TestUsageOfAMovingTree(t *testing.T) {
	w := opened(t, newStore(t), "w", Options{})
	dir := w.Volume().Source
	deep(t, dir, 100, 1)
	must(t, os.Mkdir(filepath.Join(dir, "other"), 0o700))
	low := filepath.Join("d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d", "d")
	stop, moves := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				moves <- n
				return
			default:
			}
			if os.Rename(filepath.Join(dir, low), filepath.Join(dir, "other/moved")) == nil {
				n++
			}
			_ = os.Rename(filepath.Join(dir, "other/moved"), filepath.Join(dir, low))
		}
	}()
	before := openDescriptors(t)
	hidden := 0
	for range 300 {
		u := usage(t, w)
		if u.Inodes > 2*300 {
			t.Fatalf("%+v", u)
		}
		hidden += u.Hidden
	}
	close(stop)
	if n := <-moves; n == 0 {
		t.Error("nothing was moved: nothing was tested")
	}
	t.Logf("hidden %d times", hidden)
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

// An ordinary user sees into directories that a program has closed.
func TestUsageOfClosedDirectories(t *testing.T) {
	if os.Geteuid() == 0 {
		home, err := os.MkdirTemp("", "workspace-plain-")
		must(t, err)
		t.Cleanup(func() { os.RemoveAll(home) })
		must(t, os.Chown(home, 65534, 65534))
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.count=1")
		cmd.Env = append(os.Environ(), "TMPDIR="+home)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("as an ordinary user: %v\n%s", err, out)
		}
		return
	}
	store := newStore(t)
	w := opened(t, store, "w", Options{})
	dir := w.Volume().Source
	must(t, os.MkdirAll(filepath.Join(dir, "closed/below"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "closed/below/big"), make([]byte, 1<<20), 0))
	must(t, os.Chmod(filepath.Join(dir, "closed/below"), 0))
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0))
	if _, err := os.ReadDir(filepath.Join(dir, "closed")); err == nil {
		t.Fatal("it is not closed")
	}
	if u := usage(t, w); u.Inodes != 3 || u.Bytes < 1<<20 || u.Hidden != 0 {
		t.Errorf("%+v", u)
	}
	must(t, w.Close())
	must(t, os.Chmod(dir, 0)) // the workspace itself
	must(t, opened(t, store, "w", Options{}).Close())
	must(t, Remove(t.Context(), store, "w"))
}

func TestWatch(t *testing.T) {
	w := opened(t, newStore(t), "w", Options{Cap: sandbox.MiB})
	dir := w.Volume().Source
	var calls atomic.Int32
	watched := make(chan error, 1)
	begin := time.Now()
	go func() {
		watched <- w.Watch(t.Context(), func(u Usage) {
			calls.Add(1)
			if u.Bytes <= sandbox.MiB {
				t.Errorf("%+v", u)
			}
		})
	}()
	time.Sleep(2 * leastPause)
	if calls.Load() != 0 {
		t.Error("over before anything was written")
	}
	must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 2<<20), 0o600))
	select {
	case err := <-watched:
		must(t, err)
	case <-time.After(soon):
		t.Fatal("Watch did not report the cap")
	}
	if calls.Load() != 1 {
		t.Errorf("called %d times", calls.Load())
	}
	t.Logf("noticed after %v", time.Since(begin))

	// Other programs that fill the disk hurry the next measurement, so that only the end of the context is certain.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, w.Watch(ctx, func(Usage) { t.Error("Watch reported a cap after the end of its context") }))
}

// Watch returns an error when the file system is nearly full, also when other programs filled it.
func TestWatchKeepsTheFloor(t *testing.T) {
	w := opened(t, newStore(t), "w", Options{Floor: 1 << 60})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := w.Watch(ctx, func(Usage) { t.Error("over its cap") }); !errors.Is(err, scratch.ErrFloor) {
		t.Error(err)
	}
}
