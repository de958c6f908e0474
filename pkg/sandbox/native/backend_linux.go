package native

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
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

// Backend makes native sandboxes. It owns its claim on the machine and its workshop.
type Backend struct {
	opts    Options
	cgroups *cgroup.Tree
	host    hostNamespaces
	covers  func() rootfs.Covers     // looked up once
	look    func() sandbox.Isolation // what the machine can do, looked at once

	place   *launch.Claim
	warming sync.WaitGroup

	burying  sync.WaitGroup // inits whose sandboxes are done with them
	dropping sync.WaitGroup // disks of an eager backend's sandboxes

	self    rootless.Self
	counts  watch.Counts
	mu      sync.Mutex
	nursery *nursery
	shop    rootless.Workshop
	ahead   *disk // begun for the first sandbox of an eager backend, or nil
	begun   bool
	filters map[seccomp.Policy][]byte

	leftMu sync.Mutex
	left   []error // what could not be dropped
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ launch.Phase     = (*phase)(nil)
)

// Warm makes ready, in the background, what does not depend on any option: for a program that is about
// to make its only sandbox and has something else to do first.
func Warm() {
	spawn.OneShot()
	go spawn.Ready()
}

// New looks at the machine and claims nothing yet.
func New(o Options) (*Backend, error) {
	go spawn.Ready() // while we look
	self := rootless.Look()
	tree, err := cgroup.Open(self.Groups(o.Delegate))
	if err != nil {
		return nil, failure("look at cgroups", "cgroup", err)
	}
	if o.CacheDir == "" {
		o.CacheDir = "/var/cache/sandbox-run"
	}
	host, err := lookAtNamespaces()
	if err != nil {
		return nil, failure("look at own namespaces", "namespaces", err)
	}
	b := &Backend{
		opts: o, cgroups: tree, place: launch.NewClaim(Name, tree), host: host, covers: sync.OnceValue(rootfs.LookAtProc),
		self: self, counts: watch.Look(tree), filters: map[seccomp.Policy][]byte{},
	}
	b.look = sync.OnceValue(b.probe)
	if o.Eager {
		b.warming.Go(func() {
			if _, _, err := b.claim(); err == nil { // Create claims too, and reports what is wrong
				b.covers()
			}
		})
		b.warming.Go(func() { b.look() })
	}
	return b, nil
}

func failure(op, stage string, err error) error { return launch.Failure(Name, op, stage, err) }

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

// claim takes our place on the machine at first use, with what serves all sandboxes.
func (b *Backend) claim() (*supervisor.Supervisor, rootless.Workshop, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.place.Take()
	if err != nil {
		return nil, nil, err
	}
	if b.nursery == nil {
		b.nursery = &nursery{supervisor: s, self: b.self}
		if b.opts.Eager {
			b.nursery.expect()
		}
	}
	shop, err := b.workshopLocked()
	if err == nil && b.opts.Eager {
		b.beginDisk(shop)
	}
	return s, shop, err
}

// workshopLocked opens the workshop at first use. With mu held.
func (b *Backend) workshopLocked() (_ rootless.Workshop, err error) {
	if b.shop != nil {
		return b.shop, nil
	}
	// An untyped nil beside an error: a nil *rootfs.Bench in an interface is not nil.
	if b.self.Privileged {
		if shop, e := rootfs.NewBench(rootfs.Options{Backend: Name}); e == nil {
			b.shop = shop
		} else {
			err = e
		}
	} else if shop, e := rootless.NewSteward(Name, b.self); e == nil {
		b.shop = shop
	} else {
		err = e
	}
	return b.shop, err
}

// policy is what sandboxes may call here. setID: what they write is the host's; capped: there is a cap on it that is polled.
func (b *Backend) policy(setID, capped bool) seccomp.Policy {
	return seccomp.Policy{
		DenySetID: setID, DenyAllocate: capped, DenyUncounted: !b.counts.Memory, DenyAffinity: !b.counts.CPU, Notify: seccomp.Notifiable() == nil,
	}
}

// filter compiles a system-call policy once.
func (b *Backend) filter(p seccomp.Policy) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.filters[p]; ok {
		return f, nil
	}
	f, err := seccomp.Compile(p, "")
	if err != nil {
		return nil, failure("compile filter", "seccomp", err)
	}
	b.filters[p] = f
	return f, nil
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	b.warming.Wait()
	return b.place.Collect(ctx, dryRun)
}

// Close gives up the claim and the workshop. Every instance must be destroyed. Twice is fine.
func (b *Backend) Close() error {
	b.warming.Wait()
	b.takeDisk("", scratch.Options{}, 0) // nobody will need it any more
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nursery != nil {
		b.nursery.close()
	}
	if b.shop != nil {
		b.shop.Close()
		b.shop = nil
	}
	b.burying.Wait() // or their cgroups would go with the place
	err := b.place.Close()
	b.dropping.Wait()
	err = errors.Join(append(b.left, err)...)
	b.left = nil
	return err
}
