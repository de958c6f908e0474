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

// Name is the value of --backend for this backend.
const Name = "native"

// Options configure a Backend; the zero value is usable.
type Options struct {
	// CacheDir holds the formatted image files of scratch disks; default /var/cache/sandbox-run.
	CacheDir string
	// DiskFloor is the free space that the file system of CacheDir keeps; 0 is the smaller of 1 GiB and 5 % of it. A
	// sandbox that would take from it is refused, and running sandboxes are stopped when it is reached.
	DiskFloor sandbox.Size
	// Eager is for callers that are sure to create one sandbox soon. New starts its init and its disk before Create is
	// called, and Close, not Destroy, waits for their removal.
	Eager bool
	// Delegate allows New to move this process into a cgroup of its own, directly or by systemd, where it could not set
	// limits otherwise: for executables, not for libraries.
	Delegate bool
}

// Backend makes native sandboxes. It owns its registration on the machine and its mount helper.
type Backend struct {
	host       *box.Host
	namespaces hostNamespaces
	look       func() sandbox.Isolation // the capability check of the machine, done once
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

// Warm prepares, in the background, the parts that do not depend on any option: for a program that is about to make its
// only sandbox and has other work to do first.
func Warm() {
	spawn.OneShot()
	go spawn.Ready()
}

// New checks the machine. It does not register the supervisor yet.
func New(o Options) (*Backend, error) {
	go spawn.Ready() // in parallel with the checks
	self := rootless.Look()
	h, err := box.NewHost(Name, box.Options(o), self, self.Groups(o.Delegate))
	if err != nil {
		return nil, err
	}
	h.Grade = (*sandbox.Isolation).Grade
	b := &Backend{host: h}
	if b.namespaces, err = readHostNamespaces(); err != nil {
		return nil, failure("look at own namespaces", "namespaces", err)
	}
	b.look = sync.OnceValue(b.probe)
	if o.Eager {
		b.warming.Go(func() {
			if _, _, err := b.register(); err == nil { // Create registers too, and reports the error
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

// hostNamespaces are the inodes of the supervisor's namespaces; an init must have others.
type hostNamespaces struct{ mount, user uint64 }

func readHostNamespaces() (h hostNamespaces, err error) {
	for name, ino := range map[string]*uint64{"mnt": &h.mount, "user": &h.user} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+name, &st); err != nil {
			return h, fmt.Errorf("%s: %w", name, err)
		}
		*ino = st.Ino
	}
	return h, nil
}

// register registers this process at first use, and makes the parts that all sandboxes share.
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

// policy is the seccomp policy of sandboxes. setID: their files are the host's; capped: a polled cap bounds them.
func (b *Backend) policy(setID, capped bool) seccomp.Policy {
	return seccomp.Policy{
		DenySetID: setID, DenyAllocate: capped, DenyUncounted: !b.host.Counts.Memory, DenyAffinity: !b.host.Counts.CPU,
		Notify: seccomp.Notifiable() == nil,
	}
}

// Collect finds the leftovers of dead supervisors and, unless dryRun, removes them.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	b.warming.Wait()
	return b.host.Collect(ctx, dryRun)
}

// Close ends the registration and the mount helper. Every instance must be destroyed. Close may be called twice.
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
