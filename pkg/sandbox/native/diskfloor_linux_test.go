package native

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// smallDisk mounts an ext4 of that many bytes at a directory of the test's own and returns a cache directory on it.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	needRoot(t)
	if err := scratch.DiskAvailable(cacheDir(t)); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	for _, err := range []error{os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(at, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, at}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(at, "cache")
}

// Two disks of 256 MiB on a file system of 400 MB: a run that ends ok has lost no data.
func TestOvercommittedDiskLosesNoData(t *testing.T) {
	if !testenv.OwnMounts(t) {
		return
	}
	_, m := managed(t, Options{CacheDir: smallDisk(t, 400_000_000)})
	spec := sandbox.Spec{Limits: sandbox.Limits{Disk: 256 * sandbox.MiB, Memory: 64 * sandbox.MiB, Wall: 5 * time.Minute}}
	run := func(id, script string) (string, error) {
		r, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{})
		if err != nil {
			return "", err
		}
		return string(r.Verdict) + " " + string(r.Stdout.Bytes()) + string(r.Stderr.Bytes()), nil
	}
	const data = "head -c 240m /dev/zero | tr '\\0' x"
	var wg sync.WaitGroup
	failed := make(chan error, 2)
	for range 2 {
		id, err := m.Create(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			said, err := run(id, data+" >big")
			if err == nil && strings.HasPrefix(said, "ok") {
				said, err = run(id, data+" | cmp - big >/dev/null && echo same || echo corrupt")
			}
			t.Logf("%s%v", said, err)
			if strings.Contains(said, "ok corrupt") {
				t.Error("a run that ended ok has lost what it wrote")
			}
			if err != nil {
				failed <- err
			}
		})
	}
	wg.Wait()
	close(failed)
	n := 0
	for err := range failed {
		n++
		if !errors.Is(err, scratch.ErrFloor) && !errors.Is(err, scratch.ErrLost) {
			t.Errorf("another failure: %v", err)
		}
	}
	if n == 0 {
		t.Error("no run was stopped, and there was not room for both")
	}
}

// Another user fills the file system: running sandboxes are stopped with an internal error, new sandboxes are refused
// until there is space again, and disks that may take more than there is are reported.
func TestDiskFloor(t *testing.T) {
	if !testenv.OwnMounts(t) {
		return
	}
	dir := smallDisk(t, 400_000_000)
	_, m := managed(t, Options{CacheDir: dir, DiskFloor: 200 * sandbox.MiB})
	create := func(disk sandbox.Size, strict bool) (string, error) {
		return m.Create(context.Background(), sandbox.Spec{Strict: strict, Limits: sandbox.Limits{Disk: disk}})
	}
	id, err := create(16*sandbox.MiB, true)
	if err != nil {
		t.Fatal(err)
	}
	idle, err := create(16*sandbox.MiB, true)
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.Create(filepath.Join(filepath.Dir(dir), "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	run := func(id, script string, onEvent func(sandbox.Event)) (*sandbox.Result, error) {
		return m.Run(context.Background(), id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{OnEvent: onEvent})
	}
	r, err := run(id, "echo begun; exec sleep 1000", func(ev sandbox.Event) {
		if ev.Kind == sandbox.EventStdout {
			if err := unix.Fallocate(int(full.Fd()), 0, 0, 250<<20); err != nil {
				t.Error(err)
			}
		}
	})
	if !errors.Is(err, scratch.ErrFloor) || !strings.Contains(err.Error(), "disk floor") || !strings.Contains(err.Error(), "--disk-floor") {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := create(16*sandbox.MiB, false); !errors.Is(err, scratch.ErrFloor) || !strings.Contains(err.Error(), "--scratch memory") {
		t.Errorf("below the floor: %v", err)
	}
	memory, err := m.Create(context.Background(), sandbox.Spec{Scratch: sandbox.ScratchMemory})
	if err != nil {
		t.Errorf("what the error proposes: %v", err)
	} else if r, err := run(memory, "echo >file", nil); err != nil || !r.Success() {
		t.Errorf("what the error proposes: %+v, %v", r, err)
	}
	if err := full.Truncate(0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{idle, id} { // the sandboxes have lost no data
		if r, err := run(id, "echo again >file && cat file", nil); err != nil || !r.Success() || len(r.Isolation.Missing) != 0 {
			t.Errorf("with room again: %+v, %v", r, err)
		}
	}
	large, err := create(256*sandbox.MiB, false)
	if err != nil {
		t.Fatal(err)
	}
	r, err = run(large, "true", nil)
	if err != nil || !r.Success() || len(r.Isolation.Missing) != 1 || r.Isolation.Missing[0].Control != sandbox.ControlDisk ||
		!strings.Contains(r.Isolation.Missing[0].Reason, "overcommitted") {
		t.Errorf("overcommitted: %+v, %v", r, err)
	}
	if _, err := create(256*sandbox.MiB, true); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("strict: %v", err)
	}
}
