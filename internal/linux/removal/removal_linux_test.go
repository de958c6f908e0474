package removal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		t.Errorf("tree is still there: %v", err)
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
