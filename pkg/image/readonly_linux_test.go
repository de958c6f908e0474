package image_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/image"
)

// Who only looks needs a store that can be read, and changes nothing in it: not even a lock is made.
func TestReadOnlyStore(t *testing.T) {
	testenv.NeedRoot(t)
	s := newStore(t)
	named := added(t, s, "named", archive(t, file("f", "1")))
	loose := filepath.Join(s.Dir(), "blobs", digest([]byte("loose"))[len("sha256:"):])
	must(t, os.WriteFile(loose, []byte("loose"), 0o600))
	locks := func() (list []string) {
		list, err := filepath.Glob(filepath.Join(s.Dir(), "*.lock"))
		must(t, err)
		return list
	}
	if len(locks()) == 0 {
		t.Fatal("control: there are no locks to be missed")
	}
	look := func(t *testing.T) {
		o, err := image.Open(s.Dir())
		if err != nil {
			t.Error(err)
			return
		}
		if r, err := o.Prune(t.Context(), image.PruneOptions{All: true, DryRun: true}); err != nil || len(r.Images) != 1 ||
			r.Images[0].ID != named.ID {
			t.Errorf("prune: %+v, %v", r, err)
		}
		if l, err := o.Leftovers(); err != nil || len(l) != 1 || l[0].Path != loose {
			t.Errorf("leftovers: %+v, %v", l, err)
		}
	}
	for _, name := range []string{"with locks", "without"} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			wg.Go(func() {
				runtime.LockOSThread() // never unlocked: the thread ends with its namespace
				err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
				if err == nil {
					err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
				}
				if err == nil {
					err = unix.Mount(s.Dir(), s.Dir(), "", unix.MS_BIND, "")
				}
				if err == nil {
					err = unix.Mount("", s.Dir(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
				}
				if err != nil {
					t.Error(err)
					return
				}
				look(t)
				o, err := image.Open(s.Dir())
				if err == nil {
					_, err = o.Prune(t.Context(), image.PruneOptions{All: true})
				}
				if !errors.Is(err, unix.EROFS) { // control
					t.Errorf("to remove something: %v", err)
				}
			})
			wg.Wait()
		})
		for _, l := range locks() {
			must(t, os.Remove(l))
		}
	}
	look(t)
	if made := locks(); len(made) > 0 {
		t.Errorf("looking has made %q", made)
	}
}
