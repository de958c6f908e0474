package native

import (
	"context"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
)

// Name is what --backend calls this backend.
const Name = "native"

// Options configure a Backend; the zero value serves.
type Options struct {
	// CacheDir holds the templates of scratch disks; default /var/cache/sandbox-run.
	CacheDir string
	// Eager starts the first sandbox's init before anybody asks for a sandbox: for callers who are
	// sure to.
	Eager bool
}

// Backend makes native sandboxes. It owns its claim on the machine and its keeper.
type Backend struct {
	opts    Options
	cgroups *cgroup.Tree
	host    hostNamespaces
	covers  func() procCovers        // looked up once
	look    func() sandbox.Isolation // what the machine can do, looked at once

	place   *launch.Claim
	warming sync.WaitGroup

	mu        sync.Mutex
	nursery   *nursery
	keeper    *keeper
	templates map[string]string // root by key → where it stands in the keeper's namespace
	filters   map[seccomp.Policy][]byte
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Freezer  = (*instance)(nil)
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
	tree, err := cgroup.Open()
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
		opts: o, cgroups: tree, place: launch.NewClaim(Name, tree), host: host, covers: sync.OnceValue(newCovers),
		templates: map[string]string{}, filters: map[seccomp.Policy][]byte{},
	}
	b.look = sync.OnceValue(b.probe)
	if o.Eager && os.Geteuid() == 0 {
		b.warming.Go(func() { b.covers() })
		b.warming.Go(func() { _, _, _ = b.claim() }) // Create claims too, and reports what is wrong
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

// procCovers are the parts of /proc that tell about the host, by how they are covered.
type procCovers struct{ masked, hidden, readOnly []string }

// newCovers leaves out what only root may read: that is out of reach for a program that is nobody outside, and
// every cover costs each sandbox a mount. It looks at a procfs like the one a sandbox will have, not at the one that
// we were given, which may show less. What is not there may come, with a module; the init does without it.
func newCovers() procCovers {
	proc, err := newMount("proc", 0)
	if err == nil {
		defer unix.Close(proc)
	}
	readable := func(names ...string) (list []string) {
		for _, n := range names {
			var st unix.Stat_t
			if err != nil || unix.Fstatat(proc, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&0o007 != 0 {
				list = append(list, "/proc/"+n)
			}
		}
		return list
	}
	return procCovers{
		masked: readable("kcore", "keys", "key-users", "kallsyms", "kmsg", "sched_debug", "timer_list", "timer_stats", "latency_stats",
			"sysrq-trigger", "config.gz", "cmdline", "vmallocinfo", "kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports"),
		hidden:   readable("acpi", "asound", "scsi", "bus", "fs", "irq"),
		readOnly: []string{"/proc/sys"},
	}
}

// claim takes our place on the machine at first use, with what serves all sandboxes.
func (b *Backend) claim() (*supervisor.Supervisor, *keeper, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.place.Take()
	if err != nil {
		return nil, nil, err
	}
	if b.nursery == nil {
		b.nursery = &nursery{supervisor: s}
		if b.opts.Eager {
			b.nursery.expect()
		}
	}
	if b.keeper == nil {
		k, err := newKeeper()
		if err != nil {
			return nil, nil, failure("start keeper", "rootfs", err)
		}
		b.keeper = k
	}
	return s, b.keeper, nil
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

// maxTemplates bounds what unusual specs make the keeper keep.
const maxTemplates = 64

// root returns a detached copy of the read-only root for a spec, which the caller closes.
func (b *Backend) root(k *keeper, spec *sandbox.Spec) (fd int, err error) {
	key := templateKey(spec)
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.templates[key]
	if !ok {
		l, err := lay(spec, -1)
		if err != nil {
			return -1, err
		}
		defer l.close()
		err = k.do(func() (err error) {
			if len(b.templates) >= maxTemplates {
				for key, at := range b.templates {
					k.drop(at)
					delete(b.templates, key)
					break
				}
			}
			at, err = k.assemble(l)
			return err
		})
		if err != nil {
			return -1, failure("assemble root", "rootfs", err)
		}
		b.templates[key] = at
	}
	err = k.do(func() (err error) { fd, err = copyTree(at); return err })
	return fd, failure("copy root", "rootfs", err)
}

// newScratch makes the writable disk, of the kind the spec asks for. The reason is why auto did not
// get a disk of its own.
func (b *Backend) newScratch(spec *sandbox.Spec) (s *scratch.Scratch, shared string, err error) {
	o := scratch.Options{Bytes: uint64(spec.Limits.Disk), Inodes: uint64(spec.Limits.Inodes), CacheDir: b.opts.CacheDir}
	mode := spec.Scratch
	if mode == sandbox.ScratchAuto {
		mode = sandbox.ScratchDisk
		if err := scratch.DiskAvailable(b.opts.CacheDir); err != nil {
			mode, shared = sandbox.ScratchMemory, err.Error()
		}
	}
	if mode == sandbox.ScratchMemory {
		s, err = scratch.Memory(o)
	} else {
		s, err = scratch.Disk(o)
	}
	return s, shared, failure("make scratch", "scratch", err)
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	b.warming.Wait()
	return b.place.Collect(ctx, dryRun)
}

// Close gives up the claim and the keeper. Every instance must be destroyed. Twice is fine.
func (b *Backend) Close() error {
	b.warming.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nursery != nil {
		b.nursery.close()
	}
	if b.keeper != nil {
		b.keeper.close()
		b.keeper = nil
	}
	return b.place.Close()
}
