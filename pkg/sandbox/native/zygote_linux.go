package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	zygotes "github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/zygote"
)

var (
	_ sandbox.Forker = (*Backend)(nil)
	_ sandbox.Zygote = (*zygote)(nil)
	_ sandbox.Fork   = (*fork)(nil)
)

// zygote is an interpreter for sandboxes of a spec like its own. It keeps the state of its start: the variables that an
// interpreter reads when it starts, the secret of its hashes, its memory layout. A caller that wants others closes it
// and prepares another.
type zygote struct {
	b     *Backend
	spec  *sandbox.Spec
	args  []string          // interpreter and program
	env   map[string]string // of a program like its own
	exact bool              // its modules may have read any variable
	z     *zygotes.Zygote
	group *cgroup.Group // or nil
	id    int
	once  sync.Once
}

// unsuited is the error of a process that a zygote can not serve; the caller starts it cold.
func unsuited(format string, args ...any) error {
	return &sandbox.Error{Backend: Name, Op: "fork", Kind: sandbox.ErrState, Err: fmt.Errorf(format, args...), Hint: "start it cold"}
}

// Forks reports whether there can be a zygote for processes like p.
func (b *Backend) Forks(spec *sandbox.Spec, p *sandbox.Process) error {
	unsupported := func(why string) error {
		return &sandbox.Error{Backend: Name, Op: "prepare", Kind: sandbox.ErrUnsupported, Err: errors.New(why), Hint: "start it cold"}
	}
	switch {
	case p.Warm == nil || !p.Warm.Fork:
		return unsupported("nothing says how such a process is forked")
	case !b.host.Self.Privileged:
		return unsupported("only root can fork a warm interpreter into sandboxes: an ordinary user's namespaces are each their own owner's")
	case spec.Root.Dir != "" || spec.Root.Image != "":
		return unsupported("an image's interpreter is not to be trusted outside of a sandbox")
	case spec.WritableRoot:
		return unsupported("with a writable root, every sandbox has an interpreter of its own")
	case len(p.Args) < 2:
		return unsupported("only an interpreter that is given a file can be forked")
	}
	return suits(spec, p)
}

// Prepare starts an interpreter. The caller closes it before the backend.
func (b *Backend) Prepare(ctx context.Context, spec *sandbox.Spec, p *sandbox.Process) (sandbox.Zygote, error) {
	if err := b.Forks(spec, p); err != nil {
		return nil, err
	}
	s, mounts, err := b.register()
	if err != nil {
		return nil, err
	}
	z := &zygote{b: b, spec: spec, args: slices.Clone(p.Args[:2]), env: maps.Clone(p.Env), exact: len(p.Warm.Preload) > 0}
	var join []*os.File
	if b.host.Counts.Any {
		// The collector of a dead supervisor's leftovers finds it by this record.
		z.group = s.NewGroup()
		if err = z.group.Make(cgroup.Limits{}); err != nil {
			return nil, failure("make cgroup", "cgroup", err)
		}
		join, err = z.group.JoinFiles()
	}
	var user int
	if err == nil {
		z.id, user, err = s.IDs()
	}
	root := -1
	var filter []byte
	if err == nil {
		filter, err = b.host.Filter(seccomp.Policy{Zygote: true})
	}
	if err == nil {
		root, err = mounts.Root(spec)
	}
	if err == nil {
		started := *p
		started.Env = maps.Clone(p.Env)
		maps.Copy(started.Env, p.Warm.Env)
		started.Env[zygotes.ForkVariable] = "1"
		o := zygotes.Options{
			Root: root, Files: p.Warm.Files, Args: z.args, Env: started.Environ(), Dir: sandbox.WorkspaceDir, Hostname: spec.Hostname, UID: user,
			Cgroups: join, Filter: filter,
		}
		for _, m := range spec.Root.Add {
			o.Sources = append(o.Sources, m.Source)
		}
		for _, part := range files.Parts {
			o.Scratch = append(o.Scratch, part.At)
		}
		for _, l := range box.Within(box.Rlimits(p.Limits, 0)) {
			if l.Resource == unix.RLIMIT_STACK { // the only limit that exec reads and in which programs differ from the supervisor
				o.Rlimits = append(o.Rlimits, l)
			}
		}
		z.z, err = box.Answered(ctx, b.host.Timeout, func(ctx context.Context) (*zygotes.Zygote, error) { return zygotes.Start(ctx, o) })
		err = failure("start zygote", "zygote", err)
	}
	for _, f := range join {
		_ = f.Close()
	}
	if root >= 0 {
		_ = unix.Close(root)
	}
	if err != nil {
		return nil, errors.Join(err, z.release())
	}
	return z, nil
}

// Done is closed when the zygote has ended.
func (z *zygote) Done() <-chan struct{} { return z.z.Done() }

// Close ends the zygote. Running forks continue. Close may be called twice.
func (z *zygote) Close() (err error) {
	z.once.Do(func() {
		z.z.Close()
		err = errors.Join(z.release(), z.z.Mounts.Close())
	})
	return err
}

// release returns the zygote's ids and cgroup.
func (z *zygote) release() (err error) {
	if z.group != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		err = failure("remove cgroup", "cgroup", z.group.Remove(ctx))
	}
	if z.id != 0 && err == nil {
		if s, e := z.b.host.Register(); e == nil {
			s.Release(z.id)
		}
	}
	return err
}

// startVariables are those that an interpreter, its C library or its loader reads when it starts: a fork has the
// zygote's values. Names that end in * are prefixes.
var startVariables = []string{
	"PYTHON*", "LD_*", "LC_*", "LANG", "LANGUAGE", "LOCPATH", "NLSPATH", "GCONV_PATH", "MALLOC_*", "GLIBC_TUNABLES", "TZ", "TZDIR", "HOME",
	"VIRTUAL_ENV",
	"__PYVENV_LAUNCHER__",
}

func isReadAtStart(name string) bool {
	return slices.ContainsFunc(startVariables, func(v string) bool {
		prefix, begins := strings.CutSuffix(v, "*")
		return begins && strings.HasPrefix(name, prefix) || v == name
	})
}

// suits returns an error if processes like this one can not be forked at all.
func suits(spec *sandbox.Spec, p *sandbox.Process) error {
	if p.TTY != nil {
		return unsuited("an interpreter finds out about its terminal when it starts")
	}
	for name, value := range p.Env {
		driver := p.Warm != nil && p.Warm.Env[name] == value // the driver removes its own
		if strings.HasPrefix(name, "PYTHON") && name != "PYTHONDONTWRITEBYTECODE" && !driver {
			return unsuited("%s changes how an interpreter starts", name)
		}
	}
	within := func(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
	parts := []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"}
	for _, m := range spec.Root.Add {
		parts = append(parts, m.Target)
	}
	for _, v := range spec.Volumes {
		if slices.ContainsFunc(parts, func(dir string) bool { return within(v.Target, dir) || within(dir, v.Target) }) {
			return unsuited("the volume at %s may hide what the interpreter is made of", v.Target)
		}
	}
	return nil
}

// serves returns an error if this zygote can not serve a process of a sandbox.
func (z *zygote) serves(i *instance, p *sandbox.Process) error {
	if i.b != z.b || i.Spec.WritableRoot || !reflect.DeepEqual(i.Spec.Root, z.spec.Root) || i.Spec.User != z.spec.User ||
		i.Spec.Hostname != z.spec.Hostname {
		return unsuited("the zygote was made for sandboxes of another kind")
	}
	if err := suits(i.Spec, p); err != nil {
		return err
	}
	if len(p.Args) < 2 || !slices.Equal(p.Args[:2], z.args) {
		return unsuited("the zygote runs %q", z.args)
	}
	for _, env := range []map[string]string{p.Env, z.env} {
		for name := range env {
			mine, had := z.env[name]
			theirs, have := p.Env[name]
			if (had != have || mine != theirs) && (z.exact || isReadAtStart(name)) {
				return unsuited("%s is not what the zygote was started with", name)
			}
		}
	}
	return nil
}

// Start turns a fork of the interpreter into the process.
func (z *zygote) Start(ctx context.Context, in sandbox.Instance, p *sandbox.Process) (sandbox.Task, error) {
	f, err := z.Fork(ctx, in, p)
	if err != nil {
		return nil, err
	}
	return f.Start(ctx, p)
}

// fork is a fork of an interpreter in a phase of its own; no other process enters the phase before the fork has started.
type fork struct {
	z       *zygote
	i       *instance
	ph      *box.Phase
	network network.Policy // of the Landlock rules, and of the device
	foreign *spawn.Foreign
	process *zygotes.Fork
	started atomic.Bool
	once    sync.Once
}

// Fork makes a fork of the interpreter for a process like p.
func (z *zygote) Fork(ctx context.Context, in sandbox.Instance, p *sandbox.Process) (sandbox.Fork, error) {
	i, ok := in.(*instance)
	if !ok {
		return nil, unsuited("the sandbox is another backend's")
	}
	if err := z.serves(i, p); err != nil {
		return nil, err
	}
	select {
	case <-z.z.Done():
		return nil, unsuited("%w", zygotes.ErrGone)
	default:
	}
	ph, err := i.SetAside(ctx, p.Network)
	if err != nil {
		return nil, err
	}
	ph.BeginNetwork(p.Network)
	f := &fork{z: z, i: i, ph: ph, network: p.Network}
	if err := f.make(ctx, p); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// forkTimeout bounds the time of a fork, which needs milliseconds.
const forkTimeout = 5 * time.Second

// make forks the process. A zygote that does not answer would delay every later caller by the timeout: make ends it, so
// that its owner makes another (W5).
func (f *fork) make(ctx context.Context, p *sandbox.Process) (err error) {
	i, ph := f.i, f.ph
	device, err := i.Device(p.Network)
	if err != nil {
		return err
	}
	f.foreign, err = box.Answered(ctx, i.Host.Timeout, func(ctx context.Context) (*spawn.Foreign, error) {
		return ph.Init.Expect(ctx, &initproto.Expect{
			ID: i.NextExec(), Landlock: rootfs.Landlock(i.Spec, p.Network, i.Policy.DenyUncounted),
			Loopback: p.Network.HasLoopback(), Device: device,
		})
	})
	if err != nil {
		return errors.Join(unsuited("the sandbox can not take a fork"), faults.Start(Name, err))
	}
	mounts, err := unix.FcntlInt(f.z.z.Mounts.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return unsuited("hold the interpreter's files: %w", err)
	}
	ph.Held = append(ph.Held, os.NewFile(uintptr(mounts), "mounts"))
	place := &zygotes.Place{PIDNS: int(f.foreign.PIDNS.Fd()), UserNS: int(f.foreign.UserNS.Fd()), Init: f.foreign.PIDFD}
	for _, file := range ph.Join {
		place.Cgroups = append(place.Cgroups, int(file.Fd()))
	}
	bounded, cancel := context.WithTimeout(ctx, forkTimeout)
	defer cancel()
	if f.process, err = f.z.z.Fork(bounded, place); err != nil {
		if bounded.Err() != nil && ctx.Err() == nil {
			f.z.z.Kill()
			err = fmt.Errorf("no answer within %v: %w", forkTimeout, err)
		}
		return unsuited("%w", err)
	}
	f.foreign.Joined()
	return nil
}

// Alive reports whether the fork waits.
func (f *fork) Alive() bool { return f.process.Alive() }

// Start turns the fork into the process.
func (f *fork) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if f.started.Swap(true) {
		return nil, unsuited("the fork was started before")
	}
	err := f.z.serves(f.i, p)
	if err == nil && !p.Network.Equal(f.network) {
		err = unsuited("the fork was made for a network of another kind")
	}
	if err == nil {
		// A process that enters the phase from here on waits until the fork is an ordinary program.
		f.ph.Entry.Lock()
		defer f.ph.Entry.Unlock()
		err = f.i.NamePhase(f.ph, p)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	rlimits := f.ph.Rlimits(p.Limits)
	expected := f.i.Expected(f.ph, rlimits)
	f.ph.AwaitNetwork(ctx, p, expected)
	var prepared sync.WaitGroup
	prepared.Go(func() { expected.PrepareFork(f.process.PID) }) // while the fork prepares itself
	child, err := f.begin(ctx, p, rlimits)
	if prepared.Wait(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = f.ph.Kill() })
	program, err := f.foreign.Adopt(child.PID, child.At, child.Listener, expected)
	if stop(); err != nil {
		if ctx.Err() != nil { // the cancellation has ended the init
			err = ctx.Err()
		}
		return nil, errors.Join(f.ph.StartFailure(expected, err), f.Close())
	}
	f.once.Do(f.closeWaiting)
	return f.i.Connected(ctx, f.i.NewTask(f.ph, p, program, expected), p)
}

// begin sends the request.
func (f *fork) begin(ctx context.Context, p *sandbox.Process, rlimits []initproto.Rlimit) (zygotes.Child, error) {
	i := f.i
	r := &zygotes.Request{
		Stdio: f.foreign.Stdio, Ruleset: -1, Rlimits: rlimits,
		UID: i.Spec.User.UID, GID: i.Spec.User.GID, Filter: i.Filter, Probe: f.foreign.Probe, Held: i.Spec.Strict, Forbidden: i.Forbidden(),
		Args: p.Args, Env: p.Environ(), Dir: p.Workdir,
	}
	if p.MergeOutput {
		r.Stdio[2] = r.Stdio[1] // the pipe of stderr ends as soon as theirs is closed
	}
	if f.foreign.Ruleset != nil {
		r.Ruleset = int(f.foreign.Ruleset.Fd())
	}
	bounded, cancel := context.WithTimeout(ctx, forkTimeout)
	defer cancel()
	child, err := f.process.Start(bounded, r)
	if failed := new(zygotes.Failure); errors.As(err, &failed) && failed.Stage == initproto.StageProbe.String() {
		return child, failure("measure the started program", "isolation", err) // a cold start would hide it
	}
	if err != nil {
		err = unsuited("%w", err)
	}
	return child, err
}

// closeWaiting closes the descriptors that only a waiting fork needs.
func (f *fork) closeWaiting() {
	if f.process != nil {
		f.process.Close()
	}
	if f.foreign != nil {
		f.foreign.Close()
	}
}

// Close ends a fork that has not started, and its phase with it. Close may be called twice.
func (f *fork) Close() (err error) {
	f.once.Do(func() {
		f.closeWaiting()
		err = f.i.Abandon(context.Background(), f.ph)
	})
	return err
}
