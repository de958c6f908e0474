package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Live is a process that stays between pieces of work, such as the driver of a session. Each piece (Do) is a run with limits, output,
// metrics and violations of its own. The pieces of one process do not overlap. Stop, Kill and Delete of its sandbox end it.
type Live struct {
	m      *Manager
	c      *container
	p      Process
	task   Task
	driven Driven
	ended  chan struct{} // closed when the process has ended; exit and err are then set
	exit   Exit
	err    error

	doing sync.Mutex // held during a piece of work, and by Close
	idle  *idleOutput

	mu  sync.Mutex
	run *run // the current piece; or nil

	network   *network.Report // up to the last piece of work; guarded by doing
	networkOf any             // its identity
}

// Work is one piece of work of a Live process.
type Work interface {
	// Begin hands the work to the process.
	Begin() error
	// Wait blocks until the process reports the end of the work, with its exit code. It returns false if the process ended first. It is
	// called once.
	Wait() (code int, ok bool)
	// Interrupt asks the process to end the work early.
	Interrupt() error
	// Waited returns how long the work has waited for its user so far. That is not part of its wall time.
	Waited() time.Duration
}

// Start starts a process that lives on. Its standard input is a socket; the other end is Live.Driver. Limits of the process are those of
// its phase, and the defaults of its work. The caller closes the Live.
func (m *Manager) Start(ctx context.Context, id string, p Process) (*Live, error) {
	c, err := m.find(id)
	if err != nil {
		return nil, err
	}
	if p, err = p.complete(c.spec, m.machine); err != nil {
		return nil, err
	}
	p.DriverSocket = true
	task, err := c.instance.Start(ctx, &p)
	if err != nil {
		return nil, err
	}
	l := &Live{m: m, c: c, p: p, task: task, ended: make(chan struct{})}
	driven, ok := task.(Driven)
	if ok && driven.Driver() != nil {
		l.driven = driven
		err = c.checkProgram(ctx, task)
	} else {
		err = l.abandon(ctx, &Error{
			Backend: m.backend.Name(), Op: "start a session", Kind: ErrUnsupported, Err: errors.New("this backend has no socket to a process in its sandboxes"),
			Hint: "--backend native",
		})
	}
	if err != nil {
		return nil, err
	}
	if err := l.begun(ctx); err != nil {
		return nil, err
	}
	if n, ok := task.(Networked); ok && p.Network.HasRules() {
		go l.collectRefusals(n)
	}
	return l, nil
}

// begun takes the process into the list of its sandbox, and waits for its end and its output in the background.
func (l *Live) begun(ctx context.Context) error {
	if err := l.c.keep(l); err != nil {
		return l.abandon(ctx, err)
	}
	go func() {
		l.exit, l.err = l.task.Wait()
		close(l.ended)
	}()
	l.idle = collectIdle(l.task)
	return nil
}

// CanFork reports whether Fork is possible in this sandbox.
func (l *Live) CanFork() bool {
	f, ok := l.task.(Forkable)
	return ok && f.CanFork()
}

// Fork has the process make another one with its state, in the same sandbox: see Forkable. It is called while there is no work. The caller
// closes the new Live.
func (l *Live) Fork(ctx context.Context, ask func(dir string) (pid int, err error)) (*Live, error) {
	f, ok := l.task.(Forkable)
	if !ok {
		return nil, &Error{Backend: l.m.backend.Name(), Op: "fork", Kind: ErrUnsupported, Err: errors.New("this backend has no forks")}
	}
	task, err := f.Fork(ctx, ask)
	if err != nil {
		return nil, err
	}
	fork := &Live{m: l.m, c: l.c, p: l.p, task: task, driven: task.(Driven), ended: make(chan struct{})}
	if err := fork.begun(ctx); err != nil {
		return nil, err
	}
	return fork, nil
}

// SetNetwork changes the network of the process, and of its forks, between two pieces of work: see Rewired.
func (l *Live) SetNetwork(ctx context.Context, n network.Policy) error {
	l.doing.Lock()
	defer l.doing.Unlock()
	r, ok := l.task.(Rewired)
	if !ok {
		return &Error{Backend: l.m.backend.Name(), Op: "change the network", Kind: ErrUnsupported, Err: errors.New("this backend's networks are fixed")}
	}
	p := l.p
	p.Network = n.Complete()
	if err := r.SetNetwork(ctx, &p); err != nil {
		return err
	}
	l.p = p
	if networked, ok := l.task.(Networked); ok && p.Network.HasRules() {
		go l.collectRefusals(networked)
	}
	return nil
}

// abandon ends a process that must not be used, and adds errors of that to the reason.
func (l *Live) abandon(ctx context.Context, why error) error {
	_ = l.task.Kill()
	l.task.CloseOutput()
	_, waitErr := l.task.Wait()
	_, finishErr := l.task.Finish(context.WithoutCancel(ctx))
	return errors.Join(why, waitErr, finishErr)
}

// keep registers the process with its sandbox, which ends it.
func (c *container) keep(l *Live) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != StateReady && c.state != StateRunning {
		return stateError(c)
	}
	if c.lives == nil {
		c.lives = map[*Live]struct{}{}
	}
	c.lives[l] = struct{}{}
	return nil
}

// closeLives ends the live processes of a sandbox that takes no more runs.
func (c *container) closeLives() {
	c.mu.Lock()
	lives := make([]*Live, 0, len(c.lives))
	for l := range c.lives {
		lives = append(lives, l)
	}
	c.mu.Unlock()
	for _, l := range lives {
		_ = l.Close() // Destroy reports what could not be removed
	}
}

// Driver is the other end of the process's standard input. Its reader must not trust what the process writes.
func (l *Live) Driver() io.ReadWriter { return l.driven.Driver() }

// Ended is closed when the process has ended.
func (l *Live) Ended() <-chan struct{} { return l.ended }

// Exit returns how the process ended. It is called after Ended.
func (l *Live) Exit() (Exit, error) { return l.exit, l.err }

// Signal sends a signal to every process of the phase.
func (l *Live) Signal(sig syscall.Signal) error { return l.task.Signal(sig, Tree) }

// Kill ends the process and its phase at once.
func (l *Live) Kill() { _ = l.task.Kill() }

// Isolation returns the measured isolation of the process.
func (l *Live) Isolation() Isolation {
	if iso, known := measured(l.task); known {
		return iso
	}
	return l.c.isolation()
}

// Published are the ports of the process's network on the host's loopback.
func (l *Live) Published() []network.Port {
	if n, ok := l.task.(Networked); ok {
		return n.Published()
	}
	return nil
}

// Sample returns what the process and its phase use now.
func (l *Live) Sample() (monitor.Sample, error) { return l.task.Sample() }

// IdleOutput returns what a process that was closed has printed after its last piece of work, standard error last.
func (l *Live) IdleOutput() []byte { return slices.Concat(l.idle.kept[0], l.idle.kept[1]) }

// Emit adds an event to the piece of work that is under way, after the output that was written before. Content is what the process said
// through its socket.
func (l *Live) Emit(kind EventKind, content json.RawMessage) {
	l.mu.Lock()
	r := l.run
	l.mu.Unlock()
	if r != nil {
		l.driven.AwaitEmpty(settleTime)
		r.rec.Emit(Event{Kind: kind, Content: content}, true)
	}
}

// Print adds output to the piece of work that is under way, after the output that was written before: stdout (stream 0) or stderr (1).
func (l *Live) Print(stream int, text string) {
	l.mu.Lock()
	r := l.run
	l.mu.Unlock()
	if r != nil {
		l.driven.AwaitEmpty(settleTime)
		r.rec.Write(stream, []byte(text))
	}
}

// settleTime bounds the wait for output that a process without pause writes.
const settleTime = 20 * time.Millisecond

// EndSoon kills the process unless it ends by itself at once, so that its own exit code is known.
func (l *Live) EndSoon() {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-l.ended:
	case <-timer.C:
		l.Kill()
	}
}

// Close ends the process, and a piece of work with it, and waits for the end of both. It may be called twice.
func (l *Live) Close() error {
	_ = l.task.Kill()
	<-l.ended
	l.doing.Lock()
	defer l.doing.Unlock()
	l.idle.stop()
	l.task.CloseOutput()
	_, err := l.task.Finish(context.Background())
	_ = l.driven.Driver().Close()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	delete(l.c.lives, l)
	return err
}

// Do runs one piece of work to its end and returns its result. limits replace wall time, CPU time and output of the process's own where
// they are set. The error is for failures of the sandbox. At the end of ctx, and at a limit, the work is interrupted; if it does not end in
// the grace period, the process ends with it.
func (l *Live) Do(ctx context.Context, limits Limits, io IO, w Work) (*Result, error) {
	l.doing.Lock()
	defer l.doing.Unlock()
	p := l.p
	p.Limits.Wall, p.Limits.CPUTime, p.Limits.Output = 0, 0, 0
	p.Limits = Limits{Wall: limits.Wall, CPUTime: limits.CPUTime, Output: limits.Output}.Or(p.Limits).Or(l.p.Limits)
	if err := p.Limits.Validate(l.m.machine); err != nil {
		return nil, err
	}
	r := newRun(ctx, l.c, p, io)
	r.start = func(context.Context) (Task, error) { return l.begin(w) }
	if err := l.c.begin(r, Process{}); err != nil {
		r.abandonStart()
		_ = r.rec.Close() // nothing was recorded
		return nil, err
	}
	defer l.c.end(r)
	l.setRun(r)
	defer func() {
		l.setRun(nil)
		l.idle.stop() // it may not have been stopped yet
		l.idle = collectIdle(l.task)
	}()
	return r.do(ctx, l.m.opts.SampleInterval)
}

func (l *Live) setRun(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run = r
}

// begin hands a piece of work to the process.
func (l *Live) begin(w Work) (Task, error) {
	select {
	case <-l.ended:
		return nil, &Error{Op: "session", Kind: ErrState, Err: errors.New("its process has ended")}
	default:
	}
	l.idle.stop()
	l.driven.StopAtEmpty(false)
	t := &work{Live: l, w: w, early: l.idle.kept}
	if p, ok := l.task.(Resettable); ok {
		_ = p.ResetPeaks() // an older kernel has one peak for all
	}
	t.base, _ = l.task.Sample() // a failed sample is repeated, and the totals then count from the start of the process
	t.refusedBefore, _ = t.refusedSoFar()
	t.noRoutes = l.driven.NoRoutesSoFar()
	t.began = time.Now()
	if err := w.Begin(); err != nil {
		l.Kill() // its end is the end of the work
	}
	return t, nil
}

// collectRefusals reports each kind of refused name and connection in the piece of work in which it first occurs.
func (l *Live) collectRefusals(n Networked) {
	for refused := range n.NetworkRefusals() {
		l.mu.Lock()
		r := l.run
		l.mu.Unlock()
		if r != nil {
			v := networkViolation(&refused)
			r.rec.Emit(Event{Kind: EventViolation, Violation: &v}, true)
		}
	}
}

// maxIdleOutput is how much output of each stream is kept between two pieces of work.
const maxIdleOutput = 64 << 10

// idleOutput is the output of a process that has no work, such as of its threads. It belongs to the next piece of work.
type idleOutput struct {
	task  Task
	ends  atomic.Bool
	over  chan struct{} // closed when nothing reads any more
	kept  [2][]byte     // by stream; read it after over
	ended error         // of both streams
}

// collectIdle reads output until stop.
func collectIdle(task Task) *idleOutput {
	o := &idleOutput{task: task, over: make(chan struct{})}
	task.(Driven).StopAtEmpty(false)
	go func() {
		defer close(o.over)
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		for o.ended == nil && !o.ends.Load() {
			stream, n, err := task.ReadOutput(*buf)
			room := maxIdleOutput - len(o.kept[stream])
			o.kept[stream] = append(o.kept[stream], (*buf)[:min(n, room)]...)
			o.ended = err
			if room < n { // what is dropped takes little of this process's time
				time.Sleep(time.Millisecond)
			}
		}
	}()
	return o
}

// stop ends the reading. It may be called twice.
func (o *idleOutput) stop() {
	o.ends.Store(true)
	o.task.(Driven).StopAtEmpty(true)
	<-o.over
}

// work is a piece of work as a Task.
type work struct {
	*Live
	w             Work
	base          monitor.Sample
	began         time.Time
	early         [2][]byte // output since the last piece, by stream
	refusedBefore []Violation
	noRoutes      uint64 // before the work, and after its end those of the work

	waiting sync.Once
	exit    Exit
	err     error
	died    bool // the process ended with the work
	ran     time.Duration

	closed atomic.Bool
}

var (
	_ Task      = (*work)(nil)
	_ Timed     = (*work)(nil)
	_ Paused    = (*work)(nil)
	_ Watched   = (*work)(nil)
	_ Witness   = (*work)(nil)
	_ Routed    = (*work)(nil)
	_ Networked = (*work)(nil)
	_ Measured  = (*work)(nil)
)

// Stdin is nil: what the work reads is its protocol's.
func (t *work) Stdin() io.WriteCloser { return nil }

// ReadOutput reads the output since the last piece of work, and then that of the process until the end of this one.
func (t *work) ReadOutput(p []byte) (stream, n int, err error) {
	for stream, data := range t.early {
		if len(data) > 0 {
			n = copy(p, data)
			t.early[stream] = data[n:]
			return stream, n, nil
		}
	}
	if t.closed.Load() {
		return 0, 0, io.EOF
	}
	return t.task.ReadOutput(p)
}

// CloseOutput ends ReadOutput; the output of the process stays open.
func (t *work) CloseOutput() {
	t.closed.Store(true)
	t.driven.StopAtEmpty(true)
}

// Signal interrupts the work, whatever the signal.
func (t *work) Signal(syscall.Signal, Scope) error { return t.w.Interrupt() }

// Kill ends the process, and with it the work.
func (t *work) Kill() error { return t.task.Kill() }

// Wait blocks until the work has ended.
func (t *work) Wait() (Exit, error) {
	t.waiting.Do(func() {
		code, ok := t.w.Wait()
		t.exit = Exit{Code: code}
		if !ok { // its socket has ended, and perhaps it has not yet
			t.EndSoon()
			<-t.ended
			t.died, t.exit, t.err = true, t.Live.exit, t.Live.err
		}
		t.ran = t.Ran()
		now := uint64(0)
		if r, ok := t.task.(Routed); t.died && ok {
			now = r.NoRoutes()
		} else {
			now = t.driven.NoRoutesSoFar()
		}
		t.noRoutes = now - min(now, t.noRoutes)
		t.driven.StopAtEmpty(true)
	})
	return t.exit, t.err
}

// Ran is how long the work has run so far, without the time in which it waited for its user.
func (t *work) Ran() time.Duration { return time.Since(t.began) - t.w.Waited() }

// Took is the time of the whole work.
func (t *work) Took() (time.Duration, bool) { return t.ran, true }

// Lost reports that the process was ended by its host.
func (t *work) Lost() bool {
	w, ok := t.task.(Watched)
	return ok && t.died && w.Lost()
}

// NoRoutes is how many connections and packets of the work had no route.
func (t *work) NoRoutes() uint64 { return t.noRoutes }

// Sample is what the work has used so far.
func (t *work) Sample() (monitor.Sample, error) {
	s, err := t.task.Sample()
	return since(s, t.base), err
}

// Finish returns what the work has used. A process that has ended is finished, too.
func (t *work) Finish(ctx context.Context) (s monitor.Sample, err error) {
	if t.died {
		s, err = t.task.Finish(ctx)
	} else {
		s, _ = t.task.Sample() // the monitor keeps the last good one
	}
	return since(s, t.base), err
}

// since subtracts the totals of an earlier sample.
func since(s, base monitor.Sample) monitor.Sample {
	s.CPUUser, s.CPUSystem = max(0, s.CPUUser-base.CPUUser), max(0, s.CPUSystem-base.CPUSystem)
	s.Throttled = max(0, s.Throttled-base.Throttled)
	s.IORead, s.IOWrite = s.IORead-min(s.IORead, base.IORead), s.IOWrite-min(s.IOWrite, base.IOWrite)
	s.OOMKills -= min(s.OOMKills, base.OOMKills)
	s.ProcessLimitHits -= min(s.ProcessLimitHits, base.ProcessLimitHits)
	return s
}

// Isolation is that of the process.
func (t *work) Isolation() (Isolation, bool) { return measured(t.task) }

// Refusals yields nothing: the result lists the refused calls.
func (t *work) Refusals() iter.Seq[Violation] { return func(func(Violation) bool) {} }

func (t *work) refusedSoFar() (list []Violation, unknown string) {
	if w, ok := t.task.(Witness); ok {
		return w.Refused()
	}
	return nil, ""
}

// Refused are the calls that were refused during the work.
func (t *work) Refused() (list []Violation, unknown string) {
	all, unknown := t.refusedSoFar()
	for _, v := range all {
		i := slices.IndexFunc(t.refusedBefore, func(b Violation) bool { return b.Name == v.Name && b.Detail == v.Detail })
		if i >= 0 {
			v.Count -= min(v.Count, t.refusedBefore[i].Count)
		}
		if v.Count > 0 {
			list = append(list, v)
		}
	}
	return list, unknown
}

// NetworkRefusals yields nothing: collectRefusals has them.
func (t *work) NetworkRefusals() iter.Seq[network.Refused] {
	return func(func(network.Refused) bool) {}
}

// Network reports what the network did since the piece of work before: a fork has the same network.
func (t *work) Network() (r *network.Report, unknown string) {
	r, of := t.driven.NetworkSoFar()
	if n, ok := t.task.(Networked); ok && r == nil && t.died {
		of = t.networkOf
		r, unknown = n.Network()
	}
	if r == nil {
		return nil, unknown
	}
	before := t.network
	if of != t.networkOf {
		before = nil
	}
	t.network, t.networkOf = r, of
	return r.Since(before), unknown
}
