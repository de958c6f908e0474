package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Script is a program of the fake backend. It must end soon after Killed is closed.
type Script func(p *FakeProcess) sandbox.Exit

// FakeProcess is a script's view of its process.
type FakeProcess struct {
	sandbox.Process
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer // nil with a terminal
	Killed <-chan struct{}
	Size   <-chan sandbox.TTY // new sizes of the terminal
	Files  *sync.Map          // shared by all processes of the sandbox, as a scratch is: contents (string) by path

	t *fakeTask
}

// Trap delivers signals to the script; they no longer end it.
func (p *FakeProcess) Trap() <-chan syscall.Signal {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	p.t.trap = make(chan syscall.Signal, 16)
	return p.t.trap
}

// Use sets the values of the process's samples.
func (p *FakeProcess) Use(s monitor.Sample) {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	p.t.used = s
}

// Fake is a backend without a kernel: programs are scripts. Its zero value is not usable; see NewFake.
type Fake struct {
	mu        sync.Mutex
	scripts   map[string]Script
	iso       sandbox.Isolation
	createErr error
	instances map[*fakeInstance]struct{}
	residue   []sandbox.Residue
	closed    bool
}

var (
	_ sandbox.Backend  = (*Fake)(nil)
	_ sandbox.Instance = (*fakeInstance)(nil)
	_ sandbox.Filer    = (*fakeInstance)(nil)
	_ sandbox.Task     = (*fakeTask)(nil)
	_ sandbox.Terminal = (*fakeTask)(nil)
)

// NewFake makes a backend whose programs are the scripts, by the name in Args[0], and the "probe" of
// the conformance suite as far as it needs no kernel. It reports the tier container with every
// control; Pretend changes that.
func NewFake(scripts map[string]Script) *Fake {
	f := &Fake{scripts: map[string]Script{"probe": fakeProbe}, instances: map[*fakeInstance]struct{}{}}
	for name, s := range scripts {
		f.scripts[name] = s
	}
	f.iso = sandbox.NewIsolation("fake")
	f.iso.Enforce(sandbox.AllControls()...)
	f.iso.Grade()
	return f
}

// Pretend makes the backend report another isolation.
func (f *Fake) Pretend(iso sandbox.Isolation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.iso = iso
}

// FailCreate makes every further Create fail with err; nil ends that.
func (f *Fake) FailCreate(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.createErr = err
}

// Leave adds leftovers for Collect.
func (f *Fake) Leave(r ...sandbox.Residue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.residue = append(f.residue, r...)
}

// Alive is how many instances were created and not destroyed.
func (f *Fake) Alive() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.instances)
}

// Name is "fake".
func (f *Fake) Name() string { return "fake" }

// Probe returns the isolation of Pretend.
func (f *Fake) Probe(context.Context) sandbox.Isolation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.iso
}

// Create makes an instance.
func (f *Fake) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, &sandbox.Error{Backend: "fake", Op: "create", Kind: sandbox.ErrState, Err: errors.New("the backend is closed")}
	}
	if f.createErr != nil {
		return nil, f.createErr
	}
	i := &fakeInstance{f: f, iso: f.iso, spec: spec, phases: map[string]*fakePhase{}}
	f.instances[i] = struct{}{}
	return i, nil
}

// Collect returns the leftovers of Leave.
func (f *Fake) Collect(_ context.Context, dryRun bool) ([]sandbox.Residue, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := append([]sandbox.Residue(nil), f.residue...)
	if !dryRun {
		f.residue = nil
		for i := range found {
			found[i].Removed = true
		}
	}
	return found, nil
}

// Close fails if an instance was not destroyed.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if len(f.instances) > 0 {
		return errors.New("fake: close: instances are not destroyed")
	}
	return nil
}

type fakeInstance struct {
	f     *Fake
	iso   sandbox.Isolation
	spec  *sandbox.Spec
	files sync.Map
	modes sync.Map // of files that were put, by path

	mu        sync.Mutex
	phases    map[string]*fakePhase
	destroyed bool
}

// fakePhase is the tasks that end together.
type fakePhase struct {
	name   string
	tasks  map[*fakeTask]struct{} // started and not finished; guarded by fakeInstance.mu
	killed chan struct{}
	once   sync.Once
}

func (p *fakePhase) kill() { p.once.Do(func() { close(p.killed) }) }

func (i *fakeInstance) Isolation() sandbox.Isolation { return i.iso }

func (i *fakeInstance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.f.mu.Lock()
	script := i.f.scripts[p.Args[0]]
	i.f.mu.Unlock()
	if script == nil {
		return nil, &sandbox.Error{Backend: "fake", Op: p.Args[0], Stage: "exec", Kind: sandbox.ErrNotStarted, Err: syscall.ENOENT}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		return nil, &sandbox.Error{Backend: "fake", Op: "start", Kind: sandbox.ErrState, Err: errors.New("the sandbox is destroyed")}
	}
	ph := i.phases[p.Phase]
	if ph != nil {
		select {
		case <-ph.killed:
			ph = nil // dead, and about to report it
		default:
		}
	}
	if ph == nil {
		ph = &fakePhase{name: p.Phase, tasks: map[*fakeTask]struct{}{}, killed: make(chan struct{})}
		i.phases[p.Phase] = ph
	}
	t := &fakeTask{i: i, ph: ph, ended: make(chan struct{}), size: make(chan sandbox.TTY, 16)}
	ph.tasks[t] = struct{}{}
	t.stdinR, t.stdinW = io.Pipe()
	t.output, t.closed, t.tty = make(chan fakePiece), make(chan struct{}), p.TTY != nil
	proc := &FakeProcess{Process: *p, Stdin: t.stdinR, Stdout: fakeWriter{t, 0}, Killed: ph.killed, Size: t.size, Files: &i.files, t: t}
	switch {
	case p.MergeOutput && !t.tty:
		proc.Stderr = proc.Stdout
	case !t.tty:
		proc.Stderr = fakeWriter{t, 1}
	}
	scripted := make(chan sandbox.Exit, 1)
	go func() { scripted <- script(proc) }()
	go t.live(scripted)
	return t, nil
}

func (i *fakeInstance) Destroy(context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	var tasks []*fakeTask
	for _, ph := range i.phases {
		ph.kill()
		for t := range ph.tasks {
			tasks = append(tasks, t)
		}
	}
	i.mu.Unlock()
	for _, t := range tasks {
		<-t.ended
	}
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	delete(i.f.instances, i)
	return nil
}

type fakeTask struct {
	i         *fakeInstance
	ph        *fakePhase
	stdinR    *io.PipeReader
	stdinW    *io.PipeWriter
	output    chan fakePiece
	rest      fakePiece     // that ReadOutput has not returned yet
	closed    chan struct{} // by CloseOutput
	closing   sync.Once
	tty       bool
	size      chan sandbox.TTY
	ended     chan struct{}
	exit      sandbox.Exit // valid once ended
	mu        sync.Mutex
	signalled syscall.Signal
	signals   chan struct{} // closed by a signal that ends the process
	trap      chan syscall.Signal
	used      monitor.Sample
}

// fakePiece is what one write has written.
type fakePiece struct {
	stream int
	data   []byte
}

// fakeWriter is one of a task's streams.
type fakeWriter struct {
	t      *fakeTask
	stream int
}

func (w fakeWriter) Write(b []byte) (int, error) {
	select {
	case w.t.output <- fakePiece{w.stream, bytes.Clone(b)}:
		return len(b), nil
	case <-w.t.closed:
		return 0, syscall.EPIPE
	case <-w.t.ended:
		return 0, io.ErrClosedPipe
	}
}

// live ends the task with its script, a signal, or its phase.
func (t *fakeTask) live(scripted <-chan sandbox.Exit) {
	t.mu.Lock()
	if t.signals == nil {
		t.signals = make(chan struct{})
	}
	signals := t.signals
	t.mu.Unlock()
	var exit sandbox.Exit
	select {
	case exit = <-scripted:
	case <-t.ph.killed:
		exit = sandbox.Exit{Signal: int(syscall.SIGKILL)}
	case <-signals:
		t.mu.Lock()
		exit = sandbox.Exit{Signal: int(t.signalled)}
		t.mu.Unlock()
	}
	t.exit = exit
	_ = t.stdinR.CloseWithError(syscall.EPIPE)
	close(t.ended)
}

func (t *fakeTask) Stdin() io.WriteCloser { return t.stdinW }

func (t *fakeTask) ReadOutput(p []byte) (stream, n int, err error) {
	for len(t.rest.data) == 0 {
		select {
		case t.rest = <-t.output:
		case <-t.closed:
			return 0, 0, io.ErrClosedPipe
		case <-t.ended:
			return 0, 0, io.EOF
		}
	}
	n = copy(p, t.rest.data)
	t.rest.data = t.rest.data[n:]
	return t.rest.stream, n, nil
}

func (t *fakeTask) CloseOutput() { t.closing.Do(func() { close(t.closed) }) }

func (t *fakeTask) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	switch scope {
	case sandbox.Main:
		t.signal(sig)
		return nil
	case sandbox.Handler:
		t.mu.Lock()
		handled := t.trap != nil
		t.mu.Unlock()
		if !handled {
			return errors.New("fake: no handler")
		}
		t.signal(sig)
		return nil
	}
	t.i.mu.Lock()
	defer t.i.mu.Unlock()
	for each := range t.ph.tasks {
		each.signal(sig)
	}
	return nil
}

func (t *fakeTask) signal(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.trap != nil {
		select {
		case t.trap <- sig:
		default: // as in the kernel, pending signals of one kind become one
		}
		return
	}
	if t.signalled != 0 {
		return
	}
	t.signalled = sig
	if t.signals == nil {
		t.signals = make(chan struct{})
	}
	close(t.signals)
}

func (t *fakeTask) Kill() error {
	t.ph.kill()
	return nil
}

func (t *fakeTask) Wait() (sandbox.Exit, error) {
	<-t.ended
	return t.exit, nil
}

func (t *fakeTask) Finish(context.Context) (monitor.Sample, error) {
	<-t.ended
	t.i.mu.Lock()
	delete(t.ph.tasks, t)
	if len(t.ph.tasks) == 0 {
		t.ph.kill()
		if t.i.phases[t.ph.name] == t.ph {
			delete(t.i.phases, t.ph.name)
		}
	}
	t.i.mu.Unlock()
	return t.Sample()
}

func (t *fakeTask) Resize(size sandbox.TTY) error {
	if !t.tty {
		return errors.New("fake: no terminal")
	}
	select {
	case t.size <- size:
	case <-t.ended:
	}
	return nil
}

func (t *fakeTask) Sample() (monitor.Sample, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.used
	s.At = time.Time{}
	return s, nil
}
