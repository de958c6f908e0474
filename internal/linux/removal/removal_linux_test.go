package removal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

func TestTreeRemovesWhatAProgramCanMake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o644))

	must(t, os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(dir, "a/link")))
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, unix.Mkfifo(filepath.Join(dir, "a/fifo"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "a/.removing-1"), nil, 0o644))
	must(t, os.Mkdir(filepath.Join(dir, ".removing-2"), 0o000))
	for i := range 1000 {
		must(t, os.WriteFile(filepath.Join(dir, "a/b/c", strconv.Itoa(i)), nil, 0o600))
	}
	must(t, os.Chmod(filepath.Join(dir, "a/b"), 0))

	must(t, Tree(t.Context(), dir))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree still exists: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(outside, "precious")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	must(t, Tree(t.Context(), dir)) // twice is fine
}

// F14: a directory chain far deeper than a path can name, or a process has descriptors.
func TestTreeF14VeryDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep")
	must(t, os.Mkdir(dir, 0o755))
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 20_000 {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	must(t, Tree(t.Context(), dir))
}

func TestTreeIsBoundedAndCanBeResumed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	for i := range 50 {
		must(t, os.MkdirAll(filepath.Join(dir, strconv.Itoa(i), "x", "y"), 0o755))
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := Tree(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a deadline error", err)
	}
	must(t, Tree(t.Context(), dir))
}

func TestTreeRefusesALinkInPlaceOfTheTree(t *testing.T) {
	target := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(target, link))
	if err := Tree(t.Context(), link); err == nil {
		t.Fatal("removed through a link")
	}
	if _, err := os.Stat(target); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A mount in a tree is not part of it: a directory of a killed builder may still have the machine's own /proc and /dev.
func TestTreeKeepsWhatIsMountedInIt(t *testing.T) {
	testenv.NeedRoot(t)
	dir, precious := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "precious")
	must(t, os.MkdirAll(filepath.Join(dir, "root/proc"), 0o755))
	must(t, os.MkdirAll(filepath.Join(precious, "below"), 0o555))
	must(t, os.WriteFile(filepath.Join(precious, "file"), nil, 0o644))
	for _, depth := range []string{"root/proc", "root"} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlock: the thread ends with its mount namespace
			err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
			if err == nil {
				err = unix.Mount(precious, filepath.Join(dir, depth), "", unix.MS_BIND, "")
			}
			if err != nil {
				t.Error(err)
			}
			done <- Tree(t.Context(), dir)
		}()
		if err := <-done; !errors.Is(err, unix.EBUSY) {
			t.Errorf("%s: %v", depth, err)
		}
		if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
			t.Errorf("%s: %v", depth, err)
		}
		if st, err := os.Stat(filepath.Join(precious, "below")); err != nil || st.Mode().Perm() != 0o555 {
			t.Errorf("%s: %v, %v", depth, st, err)
		}
		if st, err := os.Stat(precious); err != nil || st.Mode().Perm() != 0o555 {
			t.Errorf("%s: %v, %v", depth, st, err)
		}
	}
	must(t, Tree(t.Context(), dir)) // here nothing is mounted
}
