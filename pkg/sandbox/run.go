package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// drainTimeout is how long output may be outstanding after the end of its process: for a live reader that blocks after
// the run was cut short, and for pipes that another process of the phase holds open.
const drainTimeout = time.Second

// run is one Manager.Run under way.
type run struct {
	c    *container
	p    Process
	io   IO
	rec  *recorder
	full chan struct{} // closed when output was first dropped

	ordered            atomic.Bool // to end, by a stop, a kill or another run of the phase; set before any run gets the order
	stopOnce, killOnce sync.Once
	stopped, killed    chan struct{}
	starting           context.Context // of the start alone: ends with the caller's, or when the run is killed
	abandonStart       context.CancelFunc
	over               chan struct{} // closed when do returns: the goroutines that serve the run end with it
	start              func(context.Context) (Task, error)

	mu  sync.Mutex
	mon *monitor.Monitor
}

func newRun(ctx context.Context, c *container, p Process, io IO) *run {
	r := &run{c: c, p: p, io: io, full: make(chan struct{}), stopped: make(chan struct{}), killed: make(chan struct{}),
		over: make(chan struct{})}
	r.starting, r.abandonStart = context.WithCancel(ctx)
	r.start = func(ctx context.Context) (Task, error) { return c.instance.Start(ctx, &r.p) }
	r.rec = newRecorder(p.Limits.Output, io.OnEvent, io.Spill, io.OutputSpace, func() { close(r.full) })
	return r
}

func (r *run) stop() { r.stopOnce.Do(func() { close(r.stopped) }) }
func (r *run) kill() { r.killOnce.Do(func() { close(r.killed); r.abandonStart() }) }

func (r *run) metrics() (monitor.Metrics, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mon == nil {
		return monitor.Metrics{}, false
	}
	_, _ = r.mon.Peek() // the last known values are returned if the sample fails
	return r.mon.Metrics(), true
}

// do starts the process, waits for its end and returns the result.
func (r *run) do(ctx context.Context, interval time.Duration) (*Result, error) {
	defer close(r.over)
	defer r.abandonStart()
	defer r.rec.Close()
	began := time.Now()
	r.tell(ctx, Event{Kind: EventPhase, Phase: r.p.Phase}, 0)
	task, err := r.start(r.starting)
	if err != nil {
		// A failure that the program caused is a result, also after a cancellation.
		if r.isCancelled() && !errors.Is(err, ErrNotStarted) && !errors.Is(err, ErrInvalid) {
			return r.neverStarted(ctx, time.Since(began)), nil
		}
		return nil, err
	}
	if err := r.c.checkProgram(ctx, task); err != nil {
		return nil, err
	}
	started := time.Now()
	var sampled time.Duration // of the time that it ran
	mon := monitor.Start(task, monitor.Options{
		Interval: interval, Begin: started, Startup: started.Sub(began),
		OnSample: func(s monitor.Sample) {
			if t, ok := task.(Paused); ok {
				ran := t.Ran()
				if ran-sampled < cmp.Or(interval, monitor.DefaultInterval)/2 {
					return // it waits for its user
				}
				sampled = ran
			}
			r.rec.Emit(Event{Kind: EventMetric, Metric: &s}, false)
		},
	})
	r.mu.Lock()
	r.mon = mon
	r.mu.Unlock()

	if n, ok := task.(Networked); ok && len(n.Published()) > 0 {
		r.tell(ctx, Event{Kind: EventPublished, Published: n.Published()}, 0)
	}
	drained := r.connect(task)
	f, waitErr := r.watch(ctx, task)
	ended := time.Now()

	// The program has ended or is about to end; the remaining steps do not depend on the caller's ctx.
	final, finishErr := task.Finish(context.WithoutCancel(ctx))
	final.At = ended
	if t, ok := task.(Timed); ok {
		if took, known := t.Took(); known {
			final.At = started.Add(took)
			// This includes a supervisor that was suspended, and learns of the end and the timeout at the same time.
			f.wallHit = f.wallHit || took > r.p.Limits.Wall && !f.cancelled && !f.cpuHit && !f.outputKilled
		}
	}
	// The CPU time may also have been used up by a program that ended before the first sample.
	if most := r.p.Limits.CPUTime; most > 0 && final.CPUUser+final.CPUSystem > most && !f.cancelled && !f.wallHit && !f.outputKilled {
		f.cpuHit = true
	}
	summary := mon.Finish(final)
	cutShort := f.cancelled || f.wallHit || f.cpuHit || f.outputKilled
	listening := r.waitForOutput(ctx, task, drained, cutShort)
	if err := errors.Join(waitErr, finishErr); err != nil {
		return nil, err
	}

	// A file that is larger than the cap of a volume ends its writer by SIGXFSZ.
	overCap := f.exit.Signal == signalFileSize && r.c.spec.VolumeCap() > 0
	fullVolumes := r.c.spec.fullVolumes()
	f.oomKills, f.diskFull = summary.OOMKills, summary.DiskFull || overCap || len(fullVolumes) > 0
	if t, ok := task.(Routed); ok {
		f.noRoutes = t.NoRoutes()
	}
	if r.p.KillOnOutput {
		select {
		case <-r.full: // also if the program ended before the kill
			f.outputKilled = true
		default:
		}
	}
	full := f.nameCause(ctx)
	stdout, stderr := r.rec.handOver()
	res := &Result{
		Verdict: judge(f), Exit: f.exit, Phase: r.p.Phase,
		Stdout: stdout, Stderr: stderr,
		Metrics: summary, Limits: r.p.Limits, Isolation: r.isolation(task), Image: r.c.image(),
		Notes: r.c.notes,
	}
	res.NameSignal(ctx)
	res.Violations = violationsOf(f, summary, r.p.Limits, r.p.Network, res.Stdout, res.Stderr)
	if overCap {
		res.Violations = append(res.Violations, r.c.spec.OverCap())
	}
	res.Violations = append(res.Violations, fullVolumes...)
	touched := len(res.Violations)
	if w, ok := task.(Witness); ok {
		refused, unknown := w.Refused()
		res.Violations = append(res.Violations, refused...) // events reported these when they occurred
		if unknown != "" {
			res.Notes = append(res.Notes[:len(res.Notes):len(res.Notes)], "refused system calls were not counted: "+unknown)
		}
	}
	if n, ok := task.(Networked); ok {
		res.addNetwork(n, r.p.Network)
	}
	for i := range touched {
		if !listening {
			break // a blocked reader gets no more events
		}
		patience := time.Duration(0)
		if cutShort {
			patience = drainTimeout
		}
		listening = r.tell(ctx, Event{Kind: EventViolation, Violation: &res.Violations[i]}, patience)
	}
	if t, ok := task.(Watched); ok && !cutShort && t.Lost() {
		note := lostNote
		if res.Isolation.Tier == TierGVisor {
			note = lostOnGVisor
		}
		res.Notes = append(res.Notes[:len(res.Notes):len(res.Notes)], note)
	}
	if err := r.rec.Close(); err != nil {
		res.Notes = append(res.Notes[:len(res.Notes):len(res.Notes)], "output could not be spilled whole: "+err.Error())
	}
	if r.rec.short() {
		res.Notes = append(res.Notes[:len(res.Notes):len(res.Notes)],
			"less output was kept than output_limit allows: there was no disk space left for it")
	}
	res.Violations = append(res.Violations, full.violation()...)
	r.c.mu.Lock()
	r.c.last = summary
	r.c.mu.Unlock()
	return res, nil
}

// signalFileSize is SIGXFSZ, which not every system has that this compiles for.
const signalFileSize = 25

// measured returns the measured isolation of the program; not every backend measures its programs.
func measured(task Task) (iso Isolation, known bool) {
	if m, ok := task.(Measured); ok {
		return m.Isolation()
	}
	return iso, false
}

// isolation returns the measured isolation of the program or, from a backend that measures none, that of its sandbox.
// The disk is the sandbox's, and is judged by the present state of the host's disk.
func (r *run) isolation(task Task) Isolation {
	whole := r.c.isolation()
	iso, known := measured(task)
	if !known {
		return whole
	}
	iso.Chosen = whole.Chosen
	iso.Controls[ControlDisk] = whole.Controls[ControlDisk]
	ofDisk := func(g Gap) bool { return g.Control == ControlDisk }
	iso.Missing = slices.DeleteFunc(iso.Missing, ofDisk)
	for _, g := range whole.Missing {
		if ofDisk(g) {
			iso.Missing = append(iso.Missing, g)
		}
	}
	return iso
}

// checkProgram ends a program whose measured isolation is weaker than its sandbox must have.
func (c *container) checkProgram(ctx context.Context, task Task) error {
	iso, known := measured(task)
	if !known {
		return nil // Create has checked the sandbox
	}
	err := iso.Check(c.spec.Require, c.spec.Strict)
	if err == nil {
		return nil
	}
	if iso.Check(c.spec.Require, false) != nil { // no flag of the caller accepts this
		err = &Error{Op: "measure the started program", Stage: "isolation", Err: errors.New(err.Error())}
	}
	_ = task.Kill()
	task.CloseOutput()
	_, waitErr := task.Wait()
	_, finishErr := task.Finish(context.WithoutCancel(ctx))
	return errors.Join(err, waitErr, finishErr)
}

// lostNote distinguishes a program that a process of the host killed from one that ended by a signal of its own.
const lostNote = "the sandbox's init was killed from outside, and the program with it: by a process of the host," +
	" or by the kernel when the host's memory ran out; look at the host's log"

// lostOnGVisor is the note for gVisor, where a program can do the same: its kernel lets the program signal the first
// process, and ends with its limits.
const lostOnGVisor = "the sandbox's init or its kernel was ended, and the program with it: by the program itself," +
	" by a limit on the parts of the sandbox, or by a process of the host"

// isCancelled reports whether the run was ordered to end while it was being started.
func (r *run) isCancelled() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return r.starting.Err() != nil
	}
}

// neverStarted is the result of a run that was cancelled while its process was being started.
func (r *run) neverStarted(ctx context.Context, startup time.Duration) *Result {
	f := facts{cancelled: true, exit: Exit{Signal: int(syscall.SIGKILL)}}
	full := f.nameCause(ctx)
	res := &Result{
		Verdict: judge(f), Exit: f.exit, Phase: r.p.Phase, Violations: full.violation(),
		Metrics: monitor.Summarize(monitor.Sample{}, 0, startup), Limits: r.p.Limits,
		Isolation: r.c.isolation(), Image: r.c.image(), Notes: r.c.notes,
	}
	res.NameSignal(ctx)
	return res
}

// tell hands an event to the live reader and waits until the reader has taken it, until the run is ordered to end, or
// until patience (0 is unlimited) is over: a blocked reader does not delay the end.
func (r *run) tell(ctx context.Context, ev Event, patience time.Duration) (taken bool) {
	if r.io.OnEvent == nil {
		return true
	}
	done := make(chan struct{})
	go func() {
		r.rec.Emit(ev, true)
		close(done)
	}()
	var late <-chan time.Time
	if patience > 0 {
		late = time.After(patience)
	}
	select {
	case <-done:
		return true
	case <-late:
	case <-ctx.Done():
	case <-r.stopped:
	case <-r.killed:
	}
	select { // the order to end may be older than this call
	case <-done:
		return true
	case <-time.After(drainTimeout / 20):
		return false
	}
}

// connect starts the copying of the caller's stdin to the process, of its output to the recorder, and of refused calls
// to the live reader. The channel closes when both outputs have ended, and no more call can be refused.
func (r *run) connect(task Task) <-chan struct{} {
	if in := task.Stdin(); in != nil {
		if r.io.Stdin == nil {
			_ = in.Close() // an empty input; the process may have ended already
		} else {
			// The run does not wait for this goroutine: a caller's reader may block for ever (a terminal, an open pipe).
			// Finish closes the other end, so a write never blocks beyond the end of the process.
			go func() {
				defer in.Close()
				_, _ = io.Copy(in, r.io.Stdin) // ends with EPIPE when the program stops reading
			}()
		}
	}
	if t, ok := task.(Terminal); ok && r.io.Resize != nil {
		go func() {
			for {
				select {
				case size, ok := <-r.io.Resize:
					if !ok || t.Resize(size) != nil {
						return
					}
				case <-r.over:
					return
				}
			}
		}()
	}
	if r.io.Signals != nil {
		go func() {
			for {
				select {
				case sig, ok := <-r.io.Signals:
					if !ok {
						return
					}
					_ = task.Signal(sig, Main) // the process may have ended already
				case <-r.over:
					return
				}
			}
		}()
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { r.pump(task) })
	if w, ok := task.(Witness); ok && r.io.OnEvent != nil {
		pumps.Go(func() {
			for v := range w.Refusals() {
				r.rec.Emit(Event{Kind: EventViolation, Violation: &v}, true)
			}
		})
	}
	if n, ok := task.(Networked); ok && r.io.OnEvent != nil && r.p.Network.HasRules() {
		pumps.Go(func() {
			for refused := range n.NetworkRefusals() {
				v := networkViolation(&refused)
				r.rec.Emit(Event{Kind: EventViolation, Violation: &v}, true)
			}
		})
	}
	drained := make(chan struct{})
	go func() {
		pumps.Wait()
		close(drained)
	}()
	return drained
}

// pumps share buffers: a run of a few milliseconds should not pay for a fresh 32 KiB each.
var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// pump records the output. It is one goroutine for both streams: two would lose the order in which the task reads them.
func (r *run) pump(task Task) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		stream, n, err := task.ReadOutput(*buf)
		if n > 0 {
			r.rec.Write(stream, (*buf)[:n])
		}
		if err != nil { // EOF; or EIO, the end of a terminal
			return
		}
	}
}

// leftover is the most a pipe can still hold after the program's end; bytes beyond that come from another writer.
const leftover = 1<<20 + 64<<10

// waitForOutput waits until all output is read and handed on, and closes the outputs. A live reader may take its time with
// the output of a program that ended by itself. Neither the reader nor another process of the phase that inherited the
// pipe may delay the end of a program that was cut short.
func (r *run) waitForOutput(ctx context.Context, task Task, drained <-chan struct{}, cutShort bool) (whole bool) {
	defer func() {
		task.CloseOutput() // ends a reader that still waits; no more output is expected
		if r.io.OnEvent == nil {
			<-drained
		}
	}()
	select {
	case <-drained: // the usual case
		return true
	default:
	}
	const tick = drainTimeout / 50
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	cancelled, stopped, killed := ctx.Done(), r.stopped, r.killed
	ended := r.rec.written()
	for patience := drainTimeout; patience > 0; {
		select {
		case <-drained:
			return true
		case <-cancelled:
			cutShort, cancelled = true, nil
		case <-stopped:
			cutShort, stopped = true, nil
		case <-killed:
			cutShort, killed = true, nil
		case <-ticker.C:
			if cutShort || !r.rec.busy() || r.rec.written()-ended > leftover {
				patience -= tick
			}
		}
	}
	return false
}

// watch waits for the end of the process, and ends it at a limit or by order of the caller.
func (r *run) watch(ctx context.Context, task Task) (facts, error) {
	type ending struct {
		exit Exit
		err  error
	}
	ended := make(chan ending, 1)
	go func() {
		exit, err := task.Wait()
		ended <- ending{exit, err}
	}()

	var f facts
	var grace, polite <-chan time.Time
	wall := time.NewTimer(r.p.Limits.Wall)
	defer wall.Stop()
	cpu := newCPUWatch(r.p.Limits)
	defer cpu.stop()
	full := r.full
	if !r.p.KillOnOutput {
		full = nil
	}
	done, stopped, killed := ctx.Done(), r.stopped, r.killed

	// The first reason to end is reported; later ones are ignored.
	end := func(reason *bool) {
		*reason = true
		r.c.endNeighbours(r)
		done, stopped, full = nil, nil, nil
		wall.Stop()
		cpu.stop()
		if r.p.Limits.Grace > 0 {
			grace = time.After(r.p.Limits.Grace)
			if atLimit := f.wallHit || f.cpuHit; atLimit && r.p.StackSignal != 0 && task.Signal(syscall.Signal(r.p.StackSignal), Handler) == nil {
				polite = time.After(min(stackTime, r.p.Limits.Grace/2))
				return
			}
			if task.Signal(politeSignal(ctx), Tree) == nil {
				return
			}
		}
		_ = task.Kill() // Wait reports if even that failed
	}
	for {
		select {
		case e := <-ended:
			f.exit = e.exit
			// Another run of the phase may have had the order first, and have ended this one.
			f.cancelled = f.cancelled || r.ordered.Load() && !(f.wallHit || f.cpuHit || f.outputKilled)
			return f, e.err
		case <-wall.C:
			if t, ok := task.(Paused); ok && t.Ran() < r.p.Limits.Wall {
				wall.Reset(max(r.p.Limits.Wall-t.Ran(), 10*time.Millisecond))
				continue
			}
			end(&f.wallHit)
		case <-cpu.due():
			// A failed sample is repeated: the cgroup may be busy, and the limit still holds.
			s, err := task.Sample()
			if err != nil {
				cpu.again()
			} else if cpu.over(s) {
				end(&f.cpuHit)
			}
		case <-full:
			end(&f.outputKilled)
		case <-done:
			end(&f.cancelled)
		case <-stopped:
			end(&f.cancelled)
		case <-killed:
			killed = nil
			f.cancelled = f.cancelled || !(f.wallHit || f.cpuHit || f.outputKilled)
			done, stopped, full = nil, nil, nil
			_ = task.Kill() // Wait reports if even that failed
		case <-polite:
			if task.Signal(politeSignal(ctx), Tree) != nil {
				_ = task.Kill()
			}
		case <-grace:
			_ = task.Kill()
		}
	}
}

// stackTime is how long a program may print its stack at a limit before it gets SIGTERM. It is a part of the grace period.
const stackTime = 200 * time.Millisecond

// politeSignal is the signal that asks a program to end: SIGINT after a Ctrl-C of the user, as without a sandbox, otherwise SIGTERM.
func politeSignal(ctx context.Context) syscall.Signal {
	var signal SignalCause
	if errors.As(context.Cause(ctx), &signal) && syscall.Signal(signal) == syscall.SIGINT {
		return syscall.SIGINT
	}
	return syscall.SIGTERM
}

// cpuWatch samples the CPU time no more often than needed: never before the budget could have been spent on all allowed
// cores.
type cpuWatch struct {
	limits Limits
	timer  *time.Timer
}

func newCPUWatch(l Limits) *cpuWatch {
	w := &cpuWatch{limits: l}
	if l.CPUTime > 0 {
		w.timer = time.NewTimer(w.soonest(l.CPUTime))
	}
	return w
}

func (w *cpuWatch) soonest(left time.Duration) time.Duration {
	return max(time.Millisecond, time.Duration(float64(left)/max(w.limits.CPUs, minCPUs)))
}

func (w *cpuWatch) due() <-chan time.Time {
	if w.timer == nil {
		return nil
	}
	return w.timer.C
}

func (w *cpuWatch) over(s monitor.Sample) bool {
	left := w.limits.CPUTime - s.CPUUser - s.CPUSystem
	if left <= 0 {
		return true
	}
	w.timer.Reset(w.soonest(left))
	return false
}

// again schedules the next sample.
func (w *cpuWatch) again() { w.timer.Reset(10 * time.Millisecond) }

func (w *cpuWatch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
