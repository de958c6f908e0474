package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// instance is a container that serves a sandbox.
type instance struct {
	*box
	b     *Backend
	spec  *sandbox.Spec
	files files.Scratch

	mu        sync.Mutex
	limits    sandbox.Limits // that the container has now
	tasks     map[string]int // by phase: how many were started and not finished
	destroyed bool
}

func newInstance(b *Backend, d *daemon, c *box, spec *sandbox.Spec) *instance {
	i := &instance{box: c, b: b, spec: spec, limits: perContainer(spec.Limits), tasks: map[string]int{}}
	i.files = files.Scratch{Place: &place{i.session}, Backend: Name, Full: "a larger --disk or --memory", Failure: failure}
	return i
}

// Isolation is what this sandbox really has.
func (i *instance) Isolation() sandbox.Isolation { return i.iso }

// Linux's numbers of what a process is limited in: the client may run elsewhere.
const (
	rlimitFileSize   = 1
	rlimitCore       = 4
	rlimitFiles      = 7
	rlimitLocked     = 8
	rlimitSigpending = 11
	rlimitMsgqueue   = 12
	rlimitNice       = 13
	rlimitRTPriority = 14

	mib = 1 << 20
)

// startPatience bounds the start of a program: longer, and its helper is stuck.
const startPatience = 30 * time.Second

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if err := i.enter(ctx, p); err != nil {
		return nil, err
	}
	t, err := i.start(ctx, p)
	if err != nil {
		i.leave(p.Phase)
		return nil, err
	}
	return t, nil
}

// enter gives a process its place, and the container the limits of its phase if they are others.
func (i *instance) enter(ctx context.Context, p *sandbox.Process) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		return &sandbox.Error{Backend: Name, Op: "start", Kind: sandbox.ErrState, Err: errors.New("the sandbox is destroyed")}
	}
	want := i.limits
	want.Memory, want.CPUs, want.Processes = p.Limits.Memory, p.Limits.CPUs, p.Limits.Processes
	if want != i.limits && i.tasks[p.Phase] == 0 {
		for other, n := range i.tasks {
			if n > 0 {
				return &sandbox.Error{
					Backend: Name, Op: "start in phase " + p.Phase, Kind: sandbox.ErrUnsupported,
					Err:  fmt.Errorf("it has other limits than phase %s, which is running; a container has one set of them", other),
					Hint: "the same limits, one after the other, or --backend native",
				}
			}
		}
		if want.Memory < minMemory {
			return sandbox.Invalid("memory", "%s is less than the %s that a container's helper and a program need", want.Memory, minMemory)
		}
		if err := i.limit(ctx, want); err != nil {
			return err
		}
	}
	i.tasks[p.Phase]++
	return nil
}

// limit changes the container's limits, and looks whether they changed. With mu held.
func (i *instance) limit(ctx context.Context, want sandbox.Limits) error {
	if err := i.d.update(ctx, i.id, want); err != nil {
		return failure("set limits", "daemon", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, errSilent)
	defer cancel()
	answer, err := i.session.ask(ctx, wire.KindLook, nil)
	var now wire.Ready
	if err == nil {
		err = wire.Parse(answer.body, &now)
	}
	if err != nil {
		return failure("look at limits", "protocol", err)
	}
	was := i.iso
	shape := *i.shape
	shape.Limits = want
	iso := verify(i.d, &shape, &now)
	if err := iso.Check(was.Tier, false); err != nil {
		return err
	}
	i.limits = want
	return nil
}

var errSilent = errors.New("the container's helper does not answer")

func (i *instance) leave(phase string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.tasks[phase]--; i.tasks[phase] == 0 {
		delete(i.tasks, phase)
	}
}

// start has the helper run a program.
func (i *instance) start(ctx context.Context, p *sandbox.Process) (*task, error) {
	nofile := uint64(p.Limits.OpenFiles)
	m := &wire.Exec{
		Phase:  p.Phase,
		Policy: seccomp.Policy{DenySetID: i.hasWritable(), DenyAllocate: i.spec.VolumeCap() > 0, Notify: true},
		Exec: initproto.Exec{
			Args: p.Args, Env: p.Environ(), Dir: p.Workdir, UID: uint32(i.spec.User.UID), GID: uint32(i.spec.User.GID),
			Rlimits: []initproto.Rlimit{
				{Resource: rlimitCore, Soft: 1, Max: 1},
				{Resource: rlimitFiles, Soft: nofile, Max: nofile},
				{Resource: rlimitLocked, Soft: 8 * mib, Max: 8 * mib},
				{Resource: rlimitMsgqueue, Soft: 819200, Max: 819200},
				{Resource: rlimitSigpending, Soft: 4096, Max: 4096},
				{Resource: rlimitNice}, {Resource: rlimitRTPriority},
			},
			Loopback: p.Network == sandbox.NetworkLocalhost, NewCgroupNS: true, IntoCgroup: -1, Stdio: [3]int{-1, -1, -1},
		},
	}
	if most := uint64(i.spec.VolumeCap()); most > 0 {
		m.Rlimits = append(m.Rlimits, initproto.Rlimit{Resource: rlimitFileSize, Soft: most, Max: most})
	}
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	t := newTask(i, p)
	asked := time.Now()
	if err := i.session.conn.Send(wire.KindExec, t.id, m.Encode()); err != nil {
		t.abandon()
		return nil, failure("talk to helper", "protocol", i.session.explain(err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("the container's helper has not answered within %v", startPatience))
	defer cancel()
	started := func(f *initproto.Failed) (*task, error) {
		if f != nil {
			t.abandon()
			return nil, startFailure(f)
		}
		return t, nil
	}
	select {
	case f := <-t.started:
		return started(f)
	case <-i.session.done:
		select {
		case f := <-t.started: // the answer came before the end of the stream
			return started(f)
		default:
		}
		// A program that takes all memory at once can end the helper before the helper has said that it started: then it has run.
		if i.d.ranOutOfMemory(context.WithoutCancel(ctx), i.id, asked) {
			return t, nil
		}
		t.abandon()
		return nil, failure("talk to helper", "protocol", i.session.explain(nil))
	case <-ctx.Done():
		// What it was about to start must not run unwatched.
		t.cancelStart()
		return nil, failure("start", "protocol", context.Cause(ctx))
	}
}

func (i *instance) hasWritable() bool {
	for _, v := range i.spec.Volumes {
		if v.Writable {
			return true
		}
	}
	return false
}

// startFailure tells the program's own fault from ours.
func startFailure(f *initproto.Failed) error {
	errno := errnoOf(f.Errno)
	out := &sandbox.Error{Backend: Name, Op: f.Detail, Stage: f.Stage.String(), Err: errno, Hint: "sandbox-run doctor --backend docker"}
	switch f.Stage {
	case initproto.StageExec:
		out.Kind, out.Hint = sandbox.ErrNotStarted, ""
		if isNotExist(errno) {
			out.Hint = "name a program that the image has"
		}
	case initproto.StageWorkdir:
		out.Kind, out.Hint = sandbox.ErrInvalid, "a directory that exists inside the sandbox"
	}
	return out
}

// killPatience is how long the daemon may take to kill.
const killPatience = 10 * time.Second

// end kills the whole container: its helper does not answer.
func (i *instance) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	_, err := i.d.ContainerKill(ctx, i.id, client.ContainerKillOptions{Signal: "SIGKILL"})
	if err != nil && !isGone(err) {
		select {
		case <-i.session.done: // it was gone before
			return nil
		default:
			return failure("kill container", "daemon", i.d.force(ctx, i.id))
		}
	}
	return nil
}

// Destroy ends the container and waits until nothing of it lives. What the daemon keeps about it goes beside: it removes that by
// itself, and Close waits for it. It may be called in any state, twice.
func (i *instance) Destroy(context.Context) error {
	i.mu.Lock()
	first := !i.destroyed
	i.destroyed = true
	i.mu.Unlock()
	if first && !i.d.podman && i.session.hangUp(removeByItself) {
		i.b.removeBeside(i.box.remove)
		return nil
	}
	return i.remove()
}
