package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Cell is a piece of code to execute.
type Cell struct {
	Code string
	// Limits replace wall time, CPU time and output of the session's limits where they are set.
	Limits sandbox.Limits
	// Begin is called with the number of the cell when its turn has come, before its code runs. It may wait; its error is that of Execute.
	// May be nil.
	Begin func(ctx context.Context, cell uint64) error
	// OnEvent gets every event live, in order, as for sandbox.IO.
	OnEvent func(sandbox.Event)
	// Input answers a question of the cell for a line; false ends the input. It may wait: that is not part of the cell's wall time. Nil:
	// there is no input.
	Input func(ctx context.Context, question protocol.Input) (line string, ok bool)
	// OutputSpace stores kept output beyond sandbox.OutputMemory; nil: in memory. A caller that sets it closes the result.
	OutputSpace *sandbox.OutputSpace
}

// Result is the outcome of a cell. Its verdict, metrics, isolation and violations are the supervisor's; the other fields are what the
// interpreter said.
type Result struct {
	executor.Result
	Cell        uint64
	Displays    []protocol.Display
	Error       *protocol.Error // that the cell did not catch
	Interrupted bool            // by Interrupt
	State       State           // of the session after the cell
	Cause       string          // of StateEnded
}

// Value is the text of the value of the cell's last expression; "" without one.
func (r *Result) Value() (text string) {
	for i := range r.Displays {
		if r.Displays[i].Result {
			text = r.Displays[i].Text()
		}
	}
	return text
}

// Document is the result of a cell as JSON: that of a run, and what the session adds.
type Document struct {
	executor.Document
	Cell        uint64             `json:"cell"`
	Value       string             `json:"value,omitempty"`
	Displays    []protocol.Display `json:"displays,omitempty"`
	Exception   *protocol.Error    `json:"exception,omitempty"`
	Interrupted bool               `json:"interrupted,omitempty"`
	State       State              `json:"session_state"`
	Cause       string             `json:"session_cause,omitempty"`
}

// MarshalJSON writes the Document.
func (r *Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.document(r.ToDocument())) }

// Encode is MarshalJSON for large output, which it encodes while it is written.
func (r *Result) Encode() (*sandbox.JSON, error) {
	return r.EncodeAs(func(d executor.Document) any { return r.document(d) })
}

func (r *Result) document(d executor.Document) Document {
	return Document{
		Document: d, Cell: r.Cell, Value: r.Value(), Displays: r.Displays, Exception: r.Error, Interrupted: r.Interrupted, State: r.State,
		Cause: r.Cause,
	}
}

// maxCode bounds the code of a cell.
const maxCode = 4 << 20

// Execute executes a cell after those that wait already, and returns its result. The error is for requests that can not be served; a cell
// that fails has a Result. At the end of ctx the cell is interrupted, and the session continues.
func (s *Session) Execute(ctx context.Context, c Cell) (*Result, error) {
	if len(c.Code) > maxCode {
		return nil, sandbox.Invalid("code", "%d bytes; the most is %d", len(c.Code), maxCode)
	}
	run := &cell{s: s, in: c, done: make(chan struct{})}
	run.ctx, run.cancel = context.WithCancel(ctx)
	defer run.cancel()
	b, err := s.takeFor(ctx, run)
	if err != nil {
		return nil, err
	}
	defer s.give()
	if b.driver != nil && b.driver.isGone() {
		s.setCause(b.driver.cause())
		return nil, s.endedError()
	}
	if c.Begin != nil {
		if err := c.Begin(ctx, run.id); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.cells = run.id
	s.mu.Unlock()
	var r *Result
	if b.driver != nil {
		r, err = run.drive(ctx)
	} else {
		r, err = run.compile()
	}
	var result *sandbox.Result
	if r != nil {
		r.Cell = run.id
		s.remember(Past{run.id, c.Code, r.Verdict})
		result = &r.Result.Result
	}
	name := s.id + "/" + strconv.FormatUint(run.id, 10)
	if logged := b.session.Record(name, c.Code, result, err); logged != nil {
		if r == nil {
			return nil, errors.Join(err, logged)
		}
		r.Notes = append(r.Notes, executor.AuditNote+logged.Error())
	}
	return r, err
}

// cell is a cell that runs.
type cell struct {
	s      *Session
	b      *box
	in     Cell
	id     uint64
	ctx    context.Context // until the end of the cell
	cancel context.CancelFunc

	done chan struct{} // closed after the frame done

	mu           sync.Mutex
	end          protocol.Done
	ended        bool // the driver says so
	over         bool // it has ended, or its driver
	displays     []protocol.Display
	shown        int           // bytes of displays
	dropped      int           // displays
	waits        time.Time     // since when it waits for an answer; zero: it does not
	used         time.Duration // processor time at that moment
	waited       time.Duration // before
	answered     chan struct{} // closed when the last answer was written
	installs     int
	interrupting bool // by the user
	stopping     bool // interrupted, by the user or at a limit
	sent         bool // the driver has the code
	interrupts   int  // that were sent
	repeat       *time.Timer
}

// Bounds of the displays that a result has, and of what takes much more memory than its frame has bytes.
const (
	maxDisplays     = 1000
	maxDisplayBytes = 16 << 20
	maxForms        = 64 // of a display, with metadata
	maxInstall      = 64 << 10
)

// drive executes the cell in the driver.
func (c *cell) drive(ctx context.Context) (*Result, error) {
	d := c.b.driver
	d.mu.Lock()
	d.cell = c
	d.mu.Unlock()
	r, err := d.live.Do(ctx, c.in.Limits, sandbox.IO{OnEvent: c.in.OnEvent, OutputSpace: c.in.OutputSpace}, c)
	d.mu.Lock()
	d.cell = nil
	d.mu.Unlock()
	c.settle()
	if err != nil {
		if d.isGone() {
			c.s.setCause(d.cause())
			return nil, c.s.endedError()
		}
		return nil, err
	}
	r.Phase = "" // it is the cell
	c.b.session.Judge(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	result := &Result{Displays: c.displays, Error: c.end.Error, State: StateIdle}
	result.Result.Result = *r
	result.Language, result.Version = c.b.session.Language().Name, c.b.session.Version()
	if c.dropped > 0 {
		result.Notes = append(result.Notes, fmt.Sprintf("%d displays were dropped: a result has at most %d, of %d MiB", c.dropped, maxDisplays,
			maxDisplayBytes>>20))
	}
	if c.interrupting && r.Verdict == sandbox.VerdictNonzeroExit && c.end.Interrupted {
		result.Verdict, result.Interrupted = sandbox.VerdictCancelled, true
	}
	if d.isGone() {
		result.State, result.Cause = StateEnded, causeOf(r, c.id)
		c.s.setCause(result.Cause)
	}
	if result.Verdict != sandbox.VerdictOK {
		c.diagnose(&result.Result)
	}
	return result, nil
}

// causeOf tells how a cell has ended its interpreter.
func causeOf(r *sandbox.Result, id uint64) string {
	switch {
	case r.Verdict == sandbox.VerdictOK || r.Verdict == sandbox.VerdictNonzeroExit:
		return fmt.Sprintf("cell %d ended it, with exit code %d", id, r.Exit.Code)
	case r.Exit.Signal != 0:
		return fmt.Sprintf("cell %d ended it: %s (%s)", id, r.Verdict, sandbox.SignalName(r.Exit.Signal))
	}
	return fmt.Sprintf("cell %d ended it: %s", id, r.Verdict)
}

// cause tells why the driver is gone.
func (d *driver) cause() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(d.why, "its process has ended")
}

// handle handles a frame of the cell. An error ends the driver.
func (c *cell) handle(f *protocol.Frame) error {
	switch f.Kind {
	case protocol.KindDisplay:
		var shown protocol.Display
		if err := f.Decode(&shown); err != nil {
			return err
		}
		if len(shown.Data)+len(shown.Meta) > maxForms {
			return fmt.Errorf("%w: a display with %d forms", protocol.ErrMalformed, len(shown.Data)+len(shown.Meta))
		}
		c.display(shown, len(f.Body))
	case protocol.KindInput:
		var question protocol.Input
		if err := f.Decode(&question); err != nil {
			return err
		}
		c.ask(question)
	case protocol.KindInstall:
		var install protocol.Install
		if len(f.Body) > maxInstall {
			return fmt.Errorf("%w: install with %d bytes", protocol.ErrMalformed, len(f.Body))
		}
		if err := f.Decode(&install); err != nil {
			return err
		}
		c.install(install)
	case protocol.KindDone:
		var end protocol.Done
		if err := f.Decode(&end); err != nil {
			return err
		}
		c.finish(end)
	default:
		return fmt.Errorf("%w: %.20q", protocol.ErrMalformed, f.Kind)
	}
	return nil
}

func (c *cell) display(shown protocol.Display, size int) {
	c.mu.Lock()
	keep := !c.ended && len(c.displays) < maxDisplays && c.shown+size <= maxDisplayBytes
	if keep {
		c.displays, c.shown = append(c.displays, shown), c.shown+size
	} else {
		c.dropped++
	}
	c.mu.Unlock()
	if keep {
		c.b.driver.live.Emit(sandbox.EventDisplay, encode(shown))
	}
}

func (c *cell) finish(end protocol.Done) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended, c.end = true, end
		close(c.done)
	}
}

// ask lets the user answer a question. Frames of the driver are read meanwhile.
func (c *cell) ask(question protocol.Input) {
	c.pause(func() (answer protocol.Kind, body string) {
		line, ok := "", false
		if c.in.Input != nil {
			c.b.driver.live.Emit(sandbox.EventInput, encode(question))
			line, ok = c.in.Input(c.ctx, question)
		}
		if !ok {
			return protocol.KindEndInput, ""
		}
		return protocol.KindInput, line
	})
}

// install installs packages for the cell, in the time and limits of an installation.
func (c *cell) install(asked protocol.Install) {
	c.pause(func() (answer protocol.Kind, body string) {
		if c.installs++; c.installs > maxInstalls {
			c.b.driver.live.Print(1, fmt.Sprintf("a cell installs packages at most %d times\n", maxInstalls))
			return protocol.KindInstalled, ""
		}
		added, err := c.s.install(c.ctx, c.b, asked.Packages)
		if err != nil {
			c.b.driver.live.Print(1, err.Error()+"\n")
			return protocol.KindInstalled, ""
		}
		return protocol.KindInstalled, added.Dir
	})
}

// maxInstalls bounds the installations of a cell: they take none of its wall time.
const maxInstalls = 16

// pause finds an answer while the cell waits for it, which is no part of the cell's wall time. A driver waits for one answer at a time:
// other questions are dropped, and the next one is handled after the driver has read the answer. Only the reader of frames calls it.
func (c *cell) pause(find func() (answer protocol.Kind, body string)) {
	c.mu.Lock()
	asks, answered := c.waits.IsZero() && !c.ended && !c.over, c.answered
	c.mu.Unlock()
	if !asks {
		return
	}
	if answered != nil {
		<-answered // at the latest at the end of the driver
	}
	c.s.touch()
	answered = make(chan struct{})
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.waits, c.used, c.answered = time.Now(), c.processorTime(), answered
	c.mu.Unlock()
	go func() {
		defer close(answered)
		answer, body := find()
		c.mu.Lock()
		c.waitedSoFar()
		c.waits = time.Time{}
		over := c.ended || c.over
		c.mu.Unlock()
		c.s.touch()
		if !over {
			c.b.driver.write(answer, c.id, body)
		}
	}()
}

// processorTime is what the driver and its processes have used so far; what it was before if that can not be measured. The caller holds mu.
func (c *cell) processorTime() time.Duration {
	now, err := c.b.driver.live.Sample()
	if err != nil {
		return c.used
	}
	return now.CPUUser + now.CPUSystem
}

// waitedSoFar brings waited up to date, and returns it. What the cell's processes compute meanwhile is no waiting. After the end of the cell
// nothing is measured: its driver may be gone. The caller holds mu.
func (c *cell) waitedSoFar() time.Duration {
	if !c.waits.IsZero() && !c.over {
		now, used := time.Now(), c.processorTime()
		c.waited += max(0, now.Sub(c.waits)-max(0, used-c.used))
		c.waits, c.used = now, used
	}
	return c.waited
}

// isWaiting reports whether the cell waits for its user.
func (c *cell) isWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.waits.IsZero()
}

// interrupt interrupts the cell for its user.
func (c *cell) interrupt() error {
	c.mu.Lock()
	c.interrupting = true
	c.mu.Unlock()
	if c.b.driver == nil {
		c.cancel()
		return nil
	}
	return c.Interrupt()
}

// Begin sends the code to the driver. An interrupt that comes earlier follows the code.
func (c *cell) Begin() error {
	go func() {
		c.b.driver.write(protocol.KindExecute, c.id, c.in.Code)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.sent = true; c.stopping {
			c.sendInterrupt()
		}
	}()
	return nil
}

// Wait waits for the driver's word that the cell has ended, or for the end of the driver.
func (c *cell) Wait() (code int, ok bool) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waitedSoFar()
		c.over = true
	}()
	select {
	case <-c.done:
	case <-c.b.driver.gone:
		select {
		case <-c.done: // just before
		default:
			return 0, false
		}
	case <-c.b.driver.live.Ended():
		return 0, false
	}
	c.cancel()
	if c.end.OK { // it does not change after done
		return 0, true
	}
	return cmp.Or(c.end.Status&0xff, 1), true
}

// Interrupt asks the driver to end the cell.
func (c *cell) Interrupt() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping = true; c.sent {
		c.sendInterrupt()
	}
	return nil
}

// repeatInterrupt is when an interrupt is sent once more: an interpreter may miss a signal that arrives between two of its steps.
const repeatInterrupt = time.Second

// sendInterrupt interrupts the cell unless it has ended, which it does not while mu is held. The caller holds mu.
func (c *cell) sendInterrupt() {
	if c.ended {
		return
	}
	if c.interrupts++; c.interrupts == 1 {
		c.repeat = time.AfterFunc(repeatInterrupt, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.sendInterrupt()
		})
	}
	c.b.driver.interrupt(c.id)
}

// settle waits until a driver has taken notice of an interrupt that came too late to end the cell, so that it is none of the next cell.
func (c *cell) settle() {
	c.mu.Lock()
	c.ended = true
	if c.repeat != nil {
		c.repeat.Stop()
	}
	late := c.interrupts > 1 || c.interrupts == 1 && !c.end.Interrupted
	c.mu.Unlock()
	if d := c.b.driver; late && d.has(protocol.KindCheck) && !d.isGone() {
		var nothing protocol.Checked
		_ = d.ask(context.Background(), protocol.KindCheck, "", &nothing) // a driver that does not answer is gone
	}
}

// Waited is how long the cell has waited for its user.
func (c *cell) Waited() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waitedSoFar()
}
