package pool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// rest is how long a ready process is left alone before its use is recorded: its interpreter still cleans up.
const rest = 20 * time.Millisecond

// pooled is a sandbox in which processes wait. Only one goroutine uses it at a time.
type pooled struct {
	inner sandbox.Instance
	t     *shapeSpec
	waits []*waiting
	forks []sandbox.Fork // of shapeSpec.fork, where there is one; nil where not
	made  time.Time
}

// waiting is a process that waits in its driver for its message.
type waiting struct {
	process sandbox.Process // as it was started
	task    sandbox.Task
	early   *earlyOutput // from the handshake on
	started time.Time
	dead    chan struct{} // closed when the process has ended

	used    monitor.Sample      // by the driver until it was ready: not by the program
	refused []sandbox.Violation // to the driver, likewise

	ending sync.Once
	ended  error
}

// cost is what making a pooled sandbox took.
type cost struct {
	time   time.Duration
	cpu    time.Duration
	memory sandbox.Size
}

// makeSandbox makes a pooled sandbox. A failure removes what was made.
func (t *shapeSpec) makeSandbox(ctx context.Context, b sandbox.Backend, timeout time.Duration) (_ *pooled, c cost, err error) {
	began := time.Now()
	spec := t.spec
	in, err := b.Create(ctx, &spec)
	if err != nil {
		return nil, c, err
	}
	m := &pooled{inner: in, t: t}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.destroy(context.WithoutCancel(ctx)))
		}
	}()
	if err := m.putDrivers(ctx); err != nil {
		return nil, c, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i := range t.ahead {
		w, err := start(ctx, in, t.ahead[i])
		if err != nil {
			return nil, c, err
		}
		m.waits = append(m.waits, w)
	}
	for _, w := range m.waits {
		if err := w.handshake(ctx); err != nil {
			return nil, c, fmt.Errorf("%s: %w", w.process.Warm.Name, err)
		}
	}
	if err := m.checkDriversRemoved(ctx); err != nil {
		return nil, c, err
	}
	c.time = time.Since(began)
	if len(m.waits) > 0 {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return nil, c, ctx.Err()
		}
	}
	c.memory = 1 * sandbox.MiB // an init and its cgroups
	for _, w := range m.waits {
		if err := w.recordUsage(); err != nil {
			return nil, c, err
		}
		c.cpu += w.used.CPUUser + w.used.CPUSystem
		c.memory += sandbox.Size(w.used.Memory)
	}
	m.made = time.Now()
	return m, c, nil
}

// putDrivers copies the drivers' files into the sandbox.
func (m *pooled) putDrivers(ctx context.Context) error {
	var files []sandbox.File
	for _, p := range m.t.ahead {
		files = append(files, p.Warm.Files...)
	}
	if len(files) == 0 {
		return nil
	}
	f, ok := m.inner.(sandbox.Filer)
	if !ok {
		return &sandbox.Error{Op: "put drivers", Kind: sandbox.ErrUnsupported}
	}
	return f.Put(ctx, files)
}

// checkDriversRemoved fails if a driver has not removed its files before it was ready.
func (m *pooled) checkDriversRemoved(ctx context.Context) error {
	var s sandbox.Selection
	for _, p := range m.t.ahead {
		for _, f := range p.Warm.Files {
			s.Patterns = append(s.Patterns, f.Path)
		}
	}
	if len(s.Patterns) == 0 {
		return nil
	}
	s.MaxFiles, s.MaxBytes = sandbox.DefaultMaxFiles, sandbox.DefaultMaxBytes
	left := ""
	untaken, err := m.inner.(sandbox.Filer).Take(ctx, s, func(f sandbox.File, _ sandbox.Size, _ io.Reader) error {
		left = f.Path
		return nil
	})
	if len(untaken) > 0 {
		left = untaken[0].Path
	}
	if err == nil && left != "" {
		err = fmt.Errorf("the driver has not removed %s", left)
	}
	return err
}

// start starts a process in its driver.
func start(ctx context.Context, in sandbox.Instance, p sandbox.Process) (*waiting, error) {
	w := &waiting{process: p, dead: make(chan struct{})}
	p.Env = maps.Collect(maps.All(p.Env)) // with the variables that make the interpreter run its driver
	maps.Copy(p.Env, p.Warm.Env)
	task, err := in.Start(ctx, &p)
	if err != nil {
		return nil, err
	}
	w.task, w.started = task, time.Now()
	go func() {
		_, _ = task.Wait() // later callers of Wait get the same result
		close(w.dead)
	}()
	return w, nil
}

// handshake waits until the driver reports that it is ready, and reads not one byte more.
func (w *waiting) handshake(ctx context.Context) error {
	want := w.process.Warm.Handshake
	got := make([]byte, 0, len(want))
	from := 1 // standard error
	if w.process.MergeOutput {
		from = 0
	}
	read := make(chan error, 1)
	go func() {
		for {
			stream, n, err := w.task.ReadOutput(got[len(got):cap(got)])
			got = got[:len(got)+n]
			if err == nil && stream != from {
				err = errEarly
			}
			if err != nil || len(got) == cap(got) {
				read <- err
				return
			}
		}
	}()
	select {
	case err := <-read:
		if err != nil || string(got) != want {
			return fmt.Errorf("handshake: the driver wrote %q (%w)", got, cmp.Or(err, errEarly))
		}
	case <-ctx.Done():
		_ = w.task.Kill() // ends the read; the caller destroys the rest
		<-read
		return fmt.Errorf("handshake: not ready in time: %w", ctx.Err())
	}
	w.early = readEarly(w.task)
	return nil
}

// errEarly says that a driver wrote something else than its handshake.
var errEarly = errors.New("output before the message")

// recordUsage records what the process has used until now.
func (w *waiting) recordUsage() (err error) {
	if why := w.unhealthy(); why != "" {
		return errors.New(why)
	}
	if r, ok := w.task.(sandbox.Resettable); ok {
		_ = r.ResetPeaks() // without kernel support, the peak includes the driver's, which is much the same
	}
	if w.used, err = w.task.Sample(); err != nil {
		return err
	}
	if r, ok := w.task.(sandbox.Witness); ok {
		w.refused, _ = r.Refused()
	}
	return nil
}

// unhealthy returns why a process can not be used, or "".
func (w *waiting) unhealthy() string {
	select {
	case <-w.dead:
		return w.process.Warm.Name + ": the process has ended"
	default:
	}
	if w.early.arrived() {
		return w.process.Warm.Name + ": the process has written output before its message"
	}
	return ""
}

// unhealthy returns why a pooled sandbox can not be used, or "".
func (m *pooled) unhealthy(now time.Time, most time.Duration) string {
	if now.Sub(m.made) > most {
		return "older than the maximum age"
	}
	for _, w := range m.waits {
		if why := w.unhealthy(); why != "" {
			return why
		}
	}
	for _, f := range m.forks {
		if f != nil && !f.Alive() {
			return "a waiting fork has ended"
		}
	}
	return ""
}

// message is the message to a driver.
type message struct {
	Args []string          `json:"args"`
	Env  map[string]string `json:"env"`
	Dir  string            `json:"dir"`
}

// messageFor encodes the message that turns a waiting process into p.
func messageFor(p *sandbox.Process) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(message{p.Args, p.Env, p.Workdir}); err != nil {
		return nil, err
	}
	text := b.Bytes()
	binary.BigEndian.PutUint32(text, uint32(len(text)-4))
	return text, nil
}

// errUnread says that a process did not read its message.
var errUnread = errors.New("the process does not read its message")

// send sends the message and waits until the process has read it. After an error the message was not read, and nothing of the program
// has run. The process may have ended when send returns: some programs are quick.
func (w *waiting) send(ctx context.Context, p *sandbox.Process, timeout time.Duration) error {
	text, err := messageFor(p)
	if err != nil {
		return err
	}
	in := w.task.Stdin()
	written := make(chan error, 1)
	go func() {
		_, err := in.Write(text) // fails at the latest when the process has ended
		written <- err
	}()
	late := time.NewTimer(timeout)
	defer late.Stop()
	pending, result := true, error(nil)
	select {
	case result = <-written:
		pending = false
	case <-late.C:
	case <-ctx.Done():
	}
	if pending { // it may have been read just now
		select {
		case result = <-written:
			pending = false
		default:
		}
	}
	switch {
	case pending:
		err = cmp.Or(ctx.Err(), errUnread)
	case result != nil:
		err = result
	default:
		err = w.waitForRead(ctx, in, late.C)
	}
	if err == nil {
		return nil
	}
	// The process may read the message until it is dead. A program that has begun must not begin a second time.
	_ = w.task.Kill()
	<-w.dead
	if pending {
		result = <-written
	}
	if left, _ := unread(in); result == nil && left == 0 {
		return errLost
	}
	return err
}

// errLost says that a process ended after it had read its message, before that was noticed.
var errLost = errors.New("the waiting process ended while its program was started")

// waitForRead waits until a message was read. It polls: the writer of a pipe gets no notification. A waiting process needs
// some microseconds to read.
func (w *waiting) waitForRead(ctx context.Context, in io.Writer, late <-chan time.Time) error {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 2*time.Millisecond) {
		if left, seen := unread(in); !seen || left == 0 {
			return nil // the fill level of the pipe is unknown: take the write for the read
		}
		select {
		case <-w.dead:
			if left, _ := unread(in); left == 0 {
				return nil
			}
			return errors.New("the process has ended")
		case <-late:
			if left, _ := unread(in); left == 0 {
				return nil
			}
			return errUnread
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// end ends an unused process and removes what belongs to it. It may be called twice.
func (w *waiting) end(ctx context.Context) error {
	w.ending.Do(func() {
		_ = w.task.Kill()
		<-w.dead
		_, w.ended = w.task.Finish(ctx)
		w.task.CloseOutput()
	})
	return w.ended
}

// destroy ends an unused pooled sandbox.
func (m *pooled) destroy(ctx context.Context) error {
	var errs []error
	for _, w := range m.waits {
		errs = append(errs, w.end(ctx))
	}
	for _, f := range m.forks {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(append(errs, m.inner.Destroy(ctx))...)
}

// earlyOutput reads the output of a task, on which nothing may arrive before the message. It keeps the first data until a caller reads.
type earlyOutput struct {
	sandbox.Task
	begun  chan struct{} // closed when data or the end has arrived
	stream int           // of first; valid from then on
	first  []byte
	err    error
}

// earlyOutputSize is how much is read at first; the caller reads the rest.
const earlyOutputSize = 4096

func readEarly(t sandbox.Task) *earlyOutput {
	s := &earlyOutput{Task: t, begun: make(chan struct{})}
	go func() {
		buf := make([]byte, earlyOutputSize)
		stream, n, err := t.ReadOutput(buf)
		s.stream, s.first, s.err = stream, buf[:n], err
		close(s.begun)
	}()
	return s
}

// arrived reports whether data, or the end, has arrived.
func (s *earlyOutput) arrived() bool {
	select {
	case <-s.begun:
		return true
	default:
		return false
	}
}

// ReadOutput returns the first data, and then the rest. Only one goroutine may read.
func (s *earlyOutput) ReadOutput(p []byte) (stream, n int, err error) {
	<-s.begun
	if len(s.first) > 0 {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return s.stream, n, nil
	}
	if s.err != nil {
		return 0, 0, s.err
	}
	return s.Task.ReadOutput(p)
}
