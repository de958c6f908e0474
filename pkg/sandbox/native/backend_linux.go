package native

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// Name is what --backend calls this backend.
const Name = "native"

// Options configure a Backend; the zero value serves.
type Options struct {
	// CacheDir holds the templates of scratch disks; default /var/cache/sandbox-run.
	CacheDir string
	// DiskFloor is the free space that the file system of CacheDir keeps; 0 is the smaller of 1 GiB and 5 % of it. A sandbox
	// that would take from it is refused, and what runs when it is reached is stopped.
	DiskFloor sandbox.Size
	// Eager is for callers who are sure to make one sandbox, and soon. Its init and its disk are begun before they ask for it,
	// and at its end it is Close that waits until they are gone.
	Eager bool
	// Delegate allows New to move this process into a cgroup of its own, or to have systemd do so, where it could not limit
	// anything otherwise: for programs that own themselves, not for libraries.
	Delegate bool
}

// Backend makes native sandboxes. It owns its registration on the machine and its mount helper.
type Backend struct {
	host       *box.Host
	namespaces hostNamespaces
	look       func() sandbox.Isolation // what the machine can do, looked at once
	warming    sync.WaitGroup

	mu     sync.Mutex
	inits  *initStarter
	mounts rootless.MountHelper
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ box.Kind         = (*instance)(nil)
)

// Warm makes ready, in the background, what does not depend on any option: for a program that is about
// to make its only sandbox and has something else to do first.
func Warm() {
	spawn.OneShot()
	go spawn.Ready()
}

// New looks at the machine and registers nothing yet.
func New(o Options) (*Backend, error) {
	go spawn.Ready() // meanwhile
	self := rootless.Look()
	h, err := box.NewHost(Name, box.Options(o), self, self.Groups(o.Delegate))
	if err != nil {
		return nil, err
	}
	h.Grade = (*sandbox.Isolation).Grade
	b := &Backend{host: h}
	if b.namespaces, err = lookAtNamespaces(); err != nil {
		return nil, failure("look at own namespaces", "namespaces", err)
	}
	b.look = sync.OnceValue(b.probe)
	if o.Eager {
		b.warming.Go(func() {
			if _, _, err := b.register(); err == nil { // Create registers too, and reports what is wrong
				h.Masks()
			}
		})
		b.warming.Go(func() { b.look() })
	}
	return b, nil
}

func failure(op, stage string, err error) error { return faults.Wrap(Name, op, stage, err) }

// Name is "native".
func (b *Backend) Name() string { return Name }

// hostNamespaces are the inodes of our own namespaces, which an init must not find itself in.
type hostNamespaces struct{ mount, user uint64 }

func lookAtNamespaces() (h hostNamespaces, err error) {
	for name, ino := range map[string]*uint64{"mnt": &h.mount, "user": &h.user} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+name, &st); err != nil {
			return h, fmt.Errorf("%s: %w", name, err)
		}
		*ino = st.Ino
	}
	return h, nil
}

// register registers this process at first use, and makes what serves all sandboxes.
func (b *Backend) register() (*supervisor.Supervisor, rootless.MountHelper, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.host.Register()
	if err != nil {
		return nil, nil, err
	}
	if b.inits == nil {
		b.inits = &initStarter{supervisor: s, self: b.host.Self}
		if b.host.Options.Eager {
			b.inits.expect()
		}
	}
	mounts, err := b.mountHelperLocked()
	if err == nil && b.host.Options.Eager {
		if owner, ok := b.inits.spareOwner(); ok {
			b.host.MakeEarlyScratch(mounts, owner)
		}
	}
	return s, mounts, err
}

// mountHelperLocked starts the mount helper at first use. With mu held.
func (b *Backend) mountHelperLocked() (_ rootless.MountHelper, err error) {
	if b.mounts == nil {
		b.mounts, err = rootless.NewMountHelper(b.host.Self, rootfs.Options{Backend: Name})
	}
	return b.mounts, err
}

// policy is what sandboxes may call here. setID: what they write is the host's; capped: there is a cap on it that is polled.
func (b *Backend) policy(setID, capped bool) seccomp.Policy {
	return seccomp.Policy{
		DenySetID: setID, DenyAllocate: capped, DenyUncounted: !b.host.Counts.Memory, DenyAffinity: !b.host.Counts.CPU,
		Notify: seccomp.Notifiable() == nil,
	}
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	b.warming.Wait()
	return b.host.Collect(ctx, dryRun)
}

// Close ends the registration and the mount helper. Every instance must be destroyed. Twice is fine.
func (b *Backend) Close() error {
	b.warming.Wait()
	b.host.DropEarlyScratch()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inits != nil {
		b.inits.close()
	}
	if b.mounts != nil {
		b.mounts.Close()
		b.mounts = nil
	}
	return b.host.Close()
}
