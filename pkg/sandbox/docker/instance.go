package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// instance is a container that serves a sandbox.
type instance struct {
	*readyContainer
	b     *Backend
	spec  *sandbox.Spec
	files files.Scratch

	mu        sync.Mutex
	limits    sandbox.Limits // of the container at this time
	tasks     map[string]int // by phase: how many were started and not finished
	destroyed bool
}

func newInstance(b *Backend, c *readyContainer, spec *sandbox.Spec) *instance {
	i := &instance{readyContainer: c, b: b, spec: spec, limits: perContainer(spec.Limits), tasks: map[string]int{}}
	i.files = files.Scratch{Place: &place{i.connection}, Backend: Name, Full: "a larger --disk or --memory", Failure: failure}
	return i
}

// Isolation is the measured isolation of this sandbox.
func (i *instance) Isolation() sandbox.Isolation { return i.iso }

// Linux's numbers of resource limits: the client may run on another system.
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

// startTimeout bounds the start of a program: after this time its helper hangs.
const startTimeout = 30 * time.Second

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if p.Network.HasRules() {
		return nil, withoutRules("start")
	}
	if err := i.enterPhase(ctx, p); err != nil {
		return nil, err
	}
	t, err := i.start(ctx, p)
	if err != nil {
		i.leavePhase(p.Phase)
		return nil, err
	}
	return t, nil
}

// enterPhase counts a process in its phase, and changes the container's limits to those of the phase.
func (i *instance) enterPhase(ctx context.Context, p *sandbox.Process) error {
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
					Err:  fmt.Errorf("its limits differ from those of phase %s, which is running; a container has one set of limits", other),
					Hint: "the same limits, one after the other, or --backend native",
				}
			}
		}
		if want.Memory < minMemory {
			return sandbox.Invalid("memory", "%s is less than the %s that a container's helper and a program need", want.Memory, minMemory)
		}
		if err := i.setLimits(ctx, want); err != nil {
			return err
		}
	}
	i.tasks[p.Phase]++
	return nil
}

// setLimits changes the container's limits, and checks that they changed. The caller holds mu.
func (i *instance) setLimits(ctx context.Context, want sandbox.Limits) error {
	if err := i.d.update(ctx, i.id, want); err != nil {
		return failure("set limits", "daemon", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errSilent)
	defer cancel()
	answer, err := i.connection.request(ctx, containerproto.KindMeasure, nil)
	var now containerproto.Ready
	if err == nil {
		err = containerproto.Parse(answer.body, &now)
	}
	if err != nil {
		return failure("read limits", "protocol", err)
	}
	was := i.iso
	settings := *i.settings
	settings.Limits = want
	iso := verify(i.d, &settings, &now)
	if err := iso.Check(was.Tier, false); err != nil {
		return err
	}
	i.limits = want
	return nil
}

var errSilent = errors.New("the container's helper does not answer")

func (i *instance) leavePhase(phase string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.tasks[phase]--; i.tasks[phase] == 0 {
		delete(i.tasks, phase)
	}
}

// start lets the helper run a program.
func (i *instance) start(ctx context.Context, p *sandbox.Process) (*task, error) {
	nofile := uint64(p.Limits.OpenFiles)
	m := &containerproto.Exec{
		Phase: p.Phase,
		Policy: seccomp.Policy{
			DenySetID:    slices.ContainsFunc(i.spec.Volumes, func(v sandbox.Volume) bool { return v.Writable }),
			DenyAllocate: i.spec.VolumeCap() > 0, Notify: true, Interfaces: p.Network.HasLoopback(),
		},
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
			Loopback: p.Network.HasLoopback(), NewCgroupNS: true, IntoCgroup: -1, Stdio: [3]int{-1, -1, -1},
		},
	}
	if most := uint64(i.spec.VolumeCap()); most > 0 {
		m.Rlimits = append(m.Rlimits, initproto.Rlimit{Resource: rlimitFileSize, Soft: most, Max: most})
	}
	m.Merged = p.MergeOutput
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	t := newTask(i, p)
	asked := time.Now()
	if err := i.connection.conn.Send(containerproto.KindExec, t.id, m.Encode()); err != nil {
		t.discardStart()
		return nil, failure("talk to helper", "protocol", i.connection.explain(err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the container's helper has not answered within %v", startTimeout))
	defer cancel()
	started := func(f *initproto.Failed) (*task, error) {
		if f != nil {
			t.discardStart()
			return nil, startFailure(f)
		}
		return t, nil
	}
	select {
	case f := <-t.started:
		return started(f)
	case <-i.connection.done:
		select {
		case f := <-t.started: // the answer arrived before the end of the stream
			return started(f)
		default:
		}
		// An OOM kill of the helper may come before its answer: then the program has run.
		if i.d.ranOutOfMemory(context.WithoutCancel(ctx), i.id, asked) {
			return t, nil
		}
		t.discardStart()
		return nil, failure("talk to helper", "protocol", i.connection.explain(nil))
	case <-ctx.Done():
		// The helper may still start the program, which must not run unsupervised.
		t.cancelStart()
		return nil, failure("start", "protocol", context.Cause(ctx))
	}
}

// startFailure separates errors of the request from our own.
func startFailure(f *initproto.Failed) error {
	errno := errnoOf(f.Errno)
	out := &sandbox.Error{Backend: Name, Op: f.Detail, Stage: f.Stage.String(), Err: errno, Hint: "sandbox-run doctor --backend docker"}
	switch f.Stage {
	case initproto.StageExec:
		out.Kind, out.Hint = sandbox.ErrNotStarted, ""
		if errno == syscall.ENOENT {
			out.Hint = "give a program that the image has"
		}
	case initproto.StageWorkdir:
		out.Kind, out.Hint = sandbox.ErrInvalid, "a directory that exists inside the sandbox"
	}
	return out
}

// killTimeout bounds a kill by the daemon.
const killTimeout = 10 * time.Second

// killContainer kills the whole container: its helper does not answer.
func (i *instance) killContainer() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	_, err := i.d.ContainerKill(ctx, i.id, client.ContainerKillOptions{Signal: "SIGKILL"})
	if err != nil && !isGone(err) {
		select {
		case <-i.connection.done: // it had ended before
			return nil
		default:
			return failure("kill container", "daemon", i.d.forceRemove(ctx, i.id))
		}
	}
	return nil
}

// Destroy ends the container and blocks until none of its processes runs. The daemon removes the container in the background;
// Close waits for it. It may be called in any state, twice.
func (i *instance) Destroy(context.Context) error {
	i.mu.Lock()
	first := !i.destroyed
	i.destroyed = true
	i.mu.Unlock()
	if first && !i.d.podman && i.connection.closeInput(removeByItself) {
		i.b.removeInBackground(i.readyContainer.remove)
		return nil
	}
	return i.remove()
}
