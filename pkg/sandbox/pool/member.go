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
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// rest is how long a process that is ready is left alone before what it has used is taken down: its interpreter tidies up behind itself.
const rest = 20 * time.Millisecond

// member is a sandbox in which processes wait. Whoever has it is alone with it.
type member struct {
	inner sandbox.Instance
	t     *template
	waits []*waiting
	forks []sandbox.Fork // of template.fork, where there is one; nil where not
	made  time.Time
}

// waiting is a process that sits in its driver and waits for its message.
type waiting struct {
	process sandbox.Process // as it was started
	task    sandbox.Task
	out     *sentry
	err     *sentry
	started time.Time
	dead    chan struct{} // closed when it has ended

	used    monitor.Sample      // until it was ready: not the program's
	refused []sandbox.Violation // likewise

	ending sync.Once
	ended  error
}

// cost is what making a member took.
type cost struct {
	time   time.Duration
	cpu    time.Duration
	memory sandbox.Size
}

// make makes a member. Everything that fails undoes what was done.
func (t *template) make(ctx context.Context, b sandbox.Backend, patience time.Duration) (_ *member, c cost, err error) {
	began := time.Now()
	spec := t.spec
	in, err := b.Create(ctx, &spec)
	if err != nil {
		return nil, c, err
	}
	m := &member{inner: in, t: t}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.destroy(context.WithoutCancel(ctx)))
		}
	}()
	if err := m.putDrivers(ctx); err != nil {
		return nil, c, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
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
	if err := m.driversGone(ctx); err != nil {
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
		if err := w.settle(); err != nil {
			return nil, c, err
		}
		c.cpu += w.used.CPUUser + w.used.CPUSystem
		c.memory += sandbox.Size(w.used.Memory)
	}
	m.made = time.Now()
	return m, c, nil
}

// putDrivers puts what the interpreters are to find.
func (m *member) putDrivers(ctx context.Context) error {
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

// driversGone holds the drivers to their promise: they remove their files before they are ready.
func (m *member) driversGone(ctx context.Context) error {
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
		err = fmt.Errorf("a driver has left %s behind", left)
	}
	return err
}

// start starts a process in its driver.
func start(ctx context.Context, in sandbox.Instance, p sandbox.Process) (*waiting, error) {
	w := &waiting{process: p, dead: make(chan struct{})}
	p.Env = withDriver(p.Env, p.Warm.Env)
	task, err := in.Start(ctx, &p)
	if err != nil {
		return nil, err
	}
	w.task, w.started = task, time.Now()
	go func() {
		_, _ = task.Wait() // whoever cares asks again
		close(w.dead)
	}()
	w.out = watch(task.Stdout())
	return w, nil
}

// withDriver is an environment with what makes the interpreter run its driver.
func withDriver(env, driver map[string]string) map[string]string {
	all := make(map[string]string, len(env)+len(driver))
	for k, v := range env {
		all[k] = v
	}
	for k, v := range driver {
		all[k] = v
	}
	return all
}

// handshake waits for the driver to say that it is ready, and reads not one byte more.
func (w *waiting) handshake(ctx context.Context) error {
	stderr := w.task.Stderr()
	if stderr == nil {
		return errors.New("it has no standard error to say that it is ready on")
	}
	want := []byte(w.process.Warm.Handshake)
	got := make([]byte, len(want))
	read := make(chan error, 1)
	go func() {
		n, err := io.ReadFull(stderr, got)
		got = got[:n]
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("it did not say that it is ready, but %q", got)
		}
	case <-ctx.Done():
		_ = w.task.Kill() // which ends the reading; whoever discards it sees to the rest
		<-read
		return fmt.Errorf("it was not ready in time: %w", ctx.Err())
	}
	w.err = watch(stderr)
	return nil
}

// settle takes down what the process has used until now.
func (w *waiting) settle() (err error) {
	if why := w.unwell(); why != "" {
		return errors.New(why)
	}
	if r, ok := w.task.(sandbox.Resettable); ok {
		_ = r.ResetPeaks() // where the kernel can not, the peak is that of both, which are much the same
	}
	if w.used, err = w.task.Sample(); err != nil {
		return err
	}
	if r, ok := w.task.(sandbox.Witness); ok {
		w.refused, _ = r.Refused()
	}
	return nil
}

// unwell says why a process can not be used, if so.
func (w *waiting) unwell() string {
	select {
	case <-w.dead:
		return w.process.Warm.Name + ": it has ended"
	default:
	}
	if w.out.stirred() || w.err != nil && w.err.stirred() {
		return w.process.Warm.Name + ": it has said something before it was asked"
	}
	return ""
}

// unwell says why a member can not be used, if so.
func (m *member) unwell(now time.Time, most time.Duration) string {
	if now.Sub(m.made) > most {
		return "it is old"
	}
	for _, w := range m.waits {
		if why := w.unwell(); why != "" {
			return why
		}
	}
	for _, f := range m.forks {
		if f != nil && !f.Alive() {
			return "a fork has ended"
		}
	}
	return ""
}

// message is what a driver waits for.
type message struct {
	Args []string          `json:"args"`
	Env  map[string]string `json:"env"`
	Dir  string            `json:"dir"`
}

// messageFor frames what a process is to become.
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

// errUnread: it was sent a message, and does not read it.
var errUnread = errors.New("it does not read its message")

// send sends the message and waits until it was read. An error says that it was not, and that nothing of the program has run. The process may
// be gone again when it returns: some programs are quick.
func (w *waiting) send(ctx context.Context, p *sandbox.Process, patience time.Duration) error {
	text, err := messageFor(p)
	if err != nil {
		return err
	}
	in := w.task.Stdin()
	written := make(chan error, 1)
	go func() {
		_, err := in.Write(text) // fails when the process has ended, at the latest
		written <- err
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	pending, result := true, error(nil)
	select {
	case result = <-written:
		pending = false
	case <-late.C:
	case <-ctx.Done():
	}
	if pending { // it may have been this very moment
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
		err = w.awaitRead(ctx, in, late.C)
	}
	if err == nil {
		return nil
	}
	// It may read it yet, until it is dead. Whatever has begun must not begin again.
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

// errLost: it has read its message and was ended before it could be seen to.
var errLost = errors.New("a process that had waited was lost while it was started")

// awaitRead waits until a message was read. It looks again and again: nobody tells the writer of a pipe. A process that waits needs
// some microseconds for it.
func (w *waiting) awaitRead(ctx context.Context, in io.Writer, late <-chan time.Time) error {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 2*time.Millisecond) {
		if left, seen := unread(in); !seen || left == 0 {
			return nil // a pipe of which nothing can be seen is one that is read as it is written
		}
		select {
		case <-w.dead:
			if left, _ := unread(in); left == 0 {
				return nil
			}
			return errors.New("it has ended")
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

// end ends a process that was not used, and removes what belongs to it. Twice is fine.
func (w *waiting) end(ctx context.Context) error {
	w.ending.Do(func() {
		_ = w.task.Kill()
		<-w.dead
		_, w.ended = w.task.Finish(ctx)
		_ = w.out.Close()
		if w.err != nil {
			_ = w.err.Close()
		} else if r := w.task.Stderr(); r != nil {
			_ = r.Close()
		}
	})
	return w.ended
}

// destroy ends a member that nobody uses.
func (m *member) destroy(ctx context.Context) error {
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

// sentry sits at an output on which nothing is to be heard yet. It holds the first thing that comes until somebody reads.
type sentry struct {
	io.ReadCloser
	came  chan struct{} // closed when something has come
	first []byte        // valid from then on
	err   error
}

// sentryHolds is how much is taken at first; the rest is read by whoever reads.
const sentryHolds = 4096

func watch(r io.ReadCloser) *sentry {
	s := &sentry{ReadCloser: r, came: make(chan struct{})}
	go func() {
		buf := make([]byte, sentryHolds)
		n, err := r.Read(buf)
		s.first, s.err = buf[:n], err
		close(s.came)
	}()
	return s
}

// stirred reports whether anything has come, be it the end.
func (s *sentry) stirred() bool {
	select {
	case <-s.came:
		return true
	default:
		return false
	}
}

// Read gives what came first, and then the rest. For one reader.
func (s *sentry) Read(p []byte) (int, error) {
	<-s.came
	if len(s.first) > 0 {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.ReadCloser.Read(p)
}
