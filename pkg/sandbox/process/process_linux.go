package process

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// Name is the value of --backend for this backend.
const Name = "process"

// Options configure a Backend; the zero value is usable.
type Options struct{}

// Backend runs processes on the host.
type Backend struct{ host *box.Host }

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ box.Kind         = (*instance)(nil)
)

// New checks the machine. It does not register the supervisor yet.
func New(Options) (*Backend, error) {
	h, err := box.NewHost(Name, box.Options{}, rootless.Self{}, cgroup.Options{})
	if err != nil {
		return nil, err
	}
	return &Backend{h}, nil
}

func failure(op, stage string, err error) error { return faults.Wrap(Name, op, stage, err) }

// Name is "process".
func (b *Backend) Name() string { return Name }

// Probe reports the few controls of this backend.
func (b *Backend) Probe(context.Context) sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	iso.Tier = sandbox.TierProcess
	for _, c := range sandbox.AllControls() {
		iso.Controls[c] = sandbox.Absent
	}
	iso.Enforce(sandbox.ControlOutput)
	iso.Controls[sandbox.ControlNoNewPrivs], iso.Controls[sandbox.ControlOpenFiles] = sandbox.Declared, sandbox.Declared
	// These hold for a program that does not resist. A program that resists has the ids of the user who started it: it
	// can kill the process that polls it and, as root, leave its cgroup.
	polled := []sandbox.Control{sandbox.ControlWall}
	if !b.host.Counts.Short() {
		polled = append(polled, sandbox.ControlCPUTime, sandbox.ControlMemory, sandbox.ControlProcesses, sandbox.ControlCPU)
		if b.host.Cgroups.Has(cgroup.Swap) {
			polled = append(polled, sandbox.ControlSwap)
		}
	}
	for _, c := range polled {
		iso.Controls[c] = sandbox.Polled
	}
	for _, c := range sandbox.AllControls() {
		gap := sandbox.Gap{Control: c, State: iso.Controls[c], Remedy: "--backend native"}
		switch gap.State {
		case sandbox.Absent:
			gap.Reason = "the process backend runs on the host itself"
		case sandbox.Declared:
			gap.Reason = "the process backend does not measure the started program"
		case sandbox.Polled:
			gap.Reason = "the program has the ids of the user who started it, and could evade the limit"
		default:
			continue
		}
		iso.Missing = append(iso.Missing, gap)
	}
	return iso
}

// refuse returns an error for a feature that this backend can not provide.
func refuse(spec *sandbox.Spec) error {
	for _, f := range []struct {
		asked bool
		what  string
	}{
		{len(spec.Volumes) > 0, "volumes"},
		{spec.Root.Dir != "" || spec.Root.Image != "" || len(spec.Root.HostPaths) > 0, "another root"},
		{slices.ContainsFunc(spec.Root.Add, func(m sandbox.Mount) bool { return m.Source != m.Target }),
			"showing something in another place than the host has it"},
		{spec.WritableRoot, "a writable root"},
		{spec.Network.HasLoopback(), "a network of its own"},
		{spec.Scratch == sandbox.ScratchDisk, "a scratch disk"},
	} {
		if f.asked {
			return &sandbox.Error{
				Backend: Name, Op: "create", Kind: sandbox.ErrUnsupported,
				Err: errors.New(f.what + " needs isolation that this backend does not have"), Hint: "--backend native",
			}
		}
	}
	return nil
}

// Create makes the private directory.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if err := refuse(spec); err != nil {
		return nil, err
	}
	sup, err := b.host.Register()
	if err != nil {
		return nil, err
	}
	dir, err := sup.NewDir()
	if err != nil {
		return nil, failure("make directory", "scratch", err)
	}
	i := &instance{Instance: box.NewInstance(b.host, sup, nil, spec, b.Probe(ctx)), b: b, dir: dir, files: privateDir{top: -1}}
	i.Kind, i.Cleanup = i, i.removeDir
	for _, d := range files.Parts {
		if err == nil {
			err = os.Mkdir(filepath.Join(dir, d.Name), 0o700)
		}
	}
	if err == nil {
		i.files.top, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, errors.Join(failure("make directory", "scratch", err), i.Destroy(context.WithoutCancel(ctx)))
	}
	return i, nil
}

// Collect finds the leftovers of dead supervisors and, unless dryRun, removes them.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	return b.host.Collect(ctx, dryRun)
}

// Close ends the registration. Every instance must be destroyed. Close may be called twice.
func (b *Backend) Close() error { return b.host.Close() }

// instance is a private directory and the inits that run in it. It is its own box.Kind.
type instance struct {
	*box.Instance
	b     *Backend
	dir   string
	files privateDir
}

// NewPhase starts an init and, where the kernel can enforce all three limits, makes a cgroup for its programs.
func (i *instance) NewPhase() (p *box.Phase, err error) {
	p = box.NewPhase(i.Instance)
	p.NoPIDNS = true
	if !i.Host.Counts.Short() {
		group := i.Supervisor.NewGroup()
		if err := p.MakeGroup(group); err != nil {
			return p, err
		}
		p.Born = group.OpenForClone()
		if err := p.OpenJoinFiles(); err != nil {
			return p, err
		}
	}
	p.Init, err = spawn.Start(spawn.Options{})
	return p, failure("start init", "process", err)
}

// SetUp tells the init that there is nothing to build.
func (i *instance) SetUp(ctx context.Context, p *box.Phase, _ network.Policy) error {
	p.Asked, p.InitPID = true, p.Init.PID()
	_, err := p.Init.Setup(ctx, &initproto.Setup{Root: -1, Scratch: -1}, nil)
	p.Failed = err != nil
	return failure("start init", "process", err)
}

// Admit: a phase takes any process.
func (i *instance) Admit(*box.Phase, *sandbox.Process) error { return nil }

// Started: nothing is prepared for the next process.
func (i *instance) Started(*box.Phase, *sandbox.Process) {}

// inside returns the host path of a path in the sandbox.
func (i *instance) inside(p string) string {
	if rest, ok := files.Beneath(p); ok {
		return filepath.Join(i.dir, rest)
	}
	return p
}

// Describe replaces the scratch with the private directory.
func (i *instance) Describe(_ *box.Phase, p *sandbox.Process, m *initproto.Exec) {
	here := *p
	here.Env = maps.Clone(p.Env)
	here.Env["HOME"] = i.inside(p.Env["HOME"])
	here.Env["TMPDIR"] = i.inside(sandbox.TmpDir)
	m.Env, m.Dir = here.Environ(), i.inside(p.Workdir)
	open, disk := uint64(p.Limits.OpenFiles), uint64(i.Spec.Limits.Disk)
	m.Rlimits = box.Within([]initproto.Rlimit{
		{Resource: unix.RLIMIT_CORE, Soft: 1, Max: 1}, // 1, not 0: a core handler behind a pipe ignores 0
		{Resource: unix.RLIMIT_NOFILE, Soft: open, Max: open},
		{Resource: unix.RLIMIT_FSIZE, Soft: disk, Max: disk},
	})
}

// removeDir removes the private directory.
func (i *instance) removeDir(ctx context.Context) error {
	i.files.close()
	return failure("remove directory", "scratch", removal.Tree(ctx, i.dir))
}
