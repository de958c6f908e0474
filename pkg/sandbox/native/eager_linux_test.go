package native

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// boundTo counts the loop devices over files of a directory.
func boundTo(t *testing.T, dir string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir) {
			n++
		}
	}
	return n
}

// An eager backend has an init and a disk before the first Create. A sandbox that asks for a different disk gets one of
// its own; the prepared init and disk, used or not, are gone when the backend is closed.
func TestEager(t *testing.T) {
	for name, c := range map[string]struct {
		limits sandbox.Limits
		mode   sandbox.ScratchMode
		user   sandbox.User
		used   bool // the prepared disk
	}{
		"default":      {used: true},
		"disk by name": {mode: sandbox.ScratchDisk, used: true},
		"another size": {limits: sandbox.Limits{Disk: 64 * sandbox.MiB}},
		"memory":       {mode: sandbox.ScratchMemory},
		"another user": {user: sandbox.User{UID: 1234, GID: 1234}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := cacheDir(t)
			b := newBackend(t, Options{CacheDir: dir, Eager: true})
			m := sandbox.NewManager(b, sandbox.Options{})
			if err := scratch.DiskAvailable(dir); err != nil {
				t.Skip(err)
			}
			b.warming.Wait()
			early := b.host.EarlyScratch()
			if early == nil || boundTo(t, dir) != 1 {
				t.Fatalf("%v, %d devices", early, boundTo(t, dir))
			}
			id, err := m.Create(t.Context(), sandbox.Spec{Limits: c.limits, Scratch: c.mode, User: c.user})
			if err != nil {
				t.Fatal(err)
			}
			r, err := m.Run(t.Context(), id, sandbox.Process{Args: []string{"sh", "-c",
				"echo x > /workspace/a && id -u && df -k /workspace | tail -1"}}, sandbox.IO{})
			if err != nil || r.Verdict != sandbox.VerdictOK {
				t.Fatalf("%+v, %v", r, err)
			}
			_, err = early.Usage()
			if used := err == nil; used != c.used {
				t.Errorf("the disk that was begun is in use: %v; %s", used, r.Stdout.Bytes())
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if n := boundTo(t, dir); n != 0 {
				t.Errorf("%d loop devices are left", n)
			}
		})
	}
	t.Run("unused", func(t *testing.T) {
		dir := cacheDir(t)
		b := newBackend(t, Options{CacheDir: dir, Eager: true})
		for range 2 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := boundTo(t, dir); n != 0 {
			t.Errorf("%d loop devices are left", n)
		}
	})
}
