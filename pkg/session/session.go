package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// startTimeout is how long a driver may take until it is ready, on any machine.
const startTimeout = time.Minute

// State is a step in the life of a session.
type State string

// The states of a session.
const (
	StateIdle   State = "idle"
	StateBusy   State = "busy"
	StateEnded  State = "ended"  // the interpreter has ended: restart or close
	StateClosed State = "closed" // nothing is left
)

// Session is one session. Its methods may be called concurrently: cells and questions wait for each other.
type Session struct {
	m           *Manager
	id          string
	req         executor.Request
	owner, name string
	created     time.Time
	idle        time.Duration
	ends        time.Time
	parent      string // that it was forked from
	turn        chan struct{}
	over        chan struct{} // closed when the session is closed
	timer       *time.Timer   // of expire
	closing     sync.Once

	mu      sync.Mutex
	box     *box
	cells   uint64 // that were begun
	waiting int    // for the turn
	busy    bool
	used    time.Time
	current *cell // that runs; nil: none
	cause   string
	closed  bool
	history []Past
	kept    int // bytes of code in history
	added   []addition
	notes   []string
}

// box is the sandbox of a session and its interpreter.
type box struct {
	session *executor.Session
	driver  *driver // nil: cells are compiled
	shared  *shares
	closing sync.Once
}

// shares counts the sessions that have one sandbox: a session and its forks.
type shares struct {
	mu sync.Mutex
	n  int
}

// join counts another session; false: the sandbox was removed.
func (s *shares) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n > 0 {
		s.n++
		return true
	}
	return false
}

// close ends the interpreter, and removes the sandbox unless another session has it, too. It may be called twice. The end of ctx does not
// leave a half of it.
func (b *box) close(ctx context.Context) (err error) {
	b.closing.Do(func() {
		if b.driver != nil {
			b.driver.close()
		}
		b.shared.mu.Lock()
		defer b.shared.mu.Unlock()
		if b.shared.n--; b.shared.n == 0 {
			err = b.session.Close(context.WithoutCancel(ctx))
		}
	})
	return err
}

// Past is a cell that was executed.
type Past struct {
	Cell    uint64          `json:"cell"`
	Code    string          `json:"code"`
	Verdict sandbox.Verdict `json:"verdict"`
}

// maxHistory bounds the kept code of a session, with pastSize for each cell.
const (
	maxHistory = 1 << 20
	pastSize   = 64
)

// Info describes a session.
type Info struct {
	ID        string            `json:"id"`
	Name      string            `json:"name,omitempty"`
	Language  string            `json:"language"`
	Version   string            `json:"language_version"`
	State     State             `json:"state"`
	Cause     string            `json:"cause,omitempty"` // why the interpreter has ended
	Created   time.Time         `json:"created"`
	Expires   time.Time         `json:"expires"` // the earlier of idle time and lifetime
	Cells     uint64            `json:"cells"`
	Waiting   int               `json:"waiting"`
	Forked    string            `json:"forked_from,omitempty"`
	Features  []protocol.Kind   `json:"features"`
	Banner    string            `json:"banner,omitempty"`
	Limits    sandbox.Limits    `json:"limits"`
	Isolation sandbox.Isolation `json:"isolation"`
	Usage     *monitor.Sample   `json:"usage,omitempty"`
	Published []network.Port    `json:"published,omitempty"`
	Deps      *executor.Deps    `json:"deps,omitempty"`
	Notes     []string          `json:"notes,omitempty"`
}

// ID is the session's id.
func (s *Session) ID() string { return s.id }

// Language is the language of the session.
func (s *Session) Language() *language.Language { return s.present().session.Language() }

// present returns the present sandbox.
func (s *Session) present() *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box
}

// start makes the sandbox and starts the interpreter.
func (s *Session) start(ctx context.Context) error {
	opened, err := s.m.executor.OpenSession(ctx, s.req)
	if err != nil {
		return err
	}
	b := &box{session: opened, shared: &shares{n: 1}}
	if opened.Composer() == nil {
		if b.driver, err = startDriver(ctx, opened); err != nil {
			return errors.Join(err, opened.Close(context.WithoutCancel(ctx)))
		}
	}
	if !s.adopt(b) {
		return errors.Join(s.gone(), b.close(ctx))
	}
	return nil
}

// adopt makes a sandbox the session's; false: the session was closed meanwhile, and does not close it.
func (s *Session) adopt(b *box) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.box, s.cause = b, ""
	return true
}

// Info describes the session as it is now.
func (s *Session) Info() Info {
	s.mu.Lock()
	b := s.box
	i := Info{
		ID: s.id, Name: s.name, State: s.stateLocked(), Cause: s.cause, Created: s.created, Cells: s.cells, Waiting: s.waiting, Forked: s.parent,
		Expires: s.expiresLocked(), Notes: slices.Clone(s.notes),
	}
	s.mu.Unlock()
	i.Language, i.Version, i.Limits = b.session.Language().Name, b.session.Version(), b.session.Limits()
	i.Deps, i.Notes = b.session.Deps(), append(b.session.Notes(), i.Notes...)
	m, id := b.session.Sandbox()
	if info, err := m.Get(id); err == nil {
		i.Isolation = info.Isolation
	}
	i.Features = []protocol.Kind{protocol.KindCheck, protocol.KindVariables}
	if b.driver != nil {
		i.Features, i.Banner, i.Published = b.driver.ready.Features, b.driver.ready.Banner, b.driver.live.Published()
		i.Isolation = b.driver.live.Isolation()
		if i.State == StateEnded {
			i.Cause = cmp.Or(i.Cause, b.driver.cause())
		}
		if usage, err := b.driver.live.Sample(); err == nil && i.State != StateEnded {
			i.Usage = &usage
		}
	}
	return i
}

func (s *Session) stateLocked() State {
	switch {
	case s.closed:
		return StateClosed
	case s.box.driver != nil && s.box.driver.isGone():
		return StateEnded
	case s.busy:
		return StateBusy
	}
	return StateIdle
}

func (s *Session) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stateLocked() == StateIdle
}

func (s *Session) expiresLocked() time.Time {
	last := s.used
	if last.IsZero() {
		last = s.created
	}
	if until := last.Add(s.idle); until.Before(s.ends) && !s.working() {
		return until
	}
	return s.ends
}

// working reports whether a cell runs that does not wait for its user. The caller holds mu.
func (s *Session) working() bool { return s.busy && (s.current == nil || !s.current.isWaiting()) }

// touch counts a call as use of the session.
func (s *Session) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = time.Now()
}

// expire ends the session if its time is over, and otherwise looks again when it may be.
func (s *Session) expire() {
	s.mu.Lock()
	left := time.Until(s.expiresLocked())
	again := left > 0 && !s.closed
	if again {
		s.timer.Reset(min(left, s.idle)) // a cell that runs may end, and the idle time then begins
	}
	atEnd := !time.Now().Before(s.ends)
	s.mu.Unlock()
	switch {
	case again:
	case atEnd:
		s.end("its lifetime is over")
	default:
		s.end(fmt.Sprintf("it was idle for %v", s.idle))
	}
}

// take waits for the session's turn. The caller calls give.
func (s *Session) take(ctx context.Context) (*box, error) { return s.takeFor(ctx, nil) }

// takeFor does the same for a cell, which can be interrupted from then on.
func (s *Session) takeFor(ctx context.Context, run *cell) (*box, error) {
	if err := s.queue(s.m.opts.Waiting); err != nil {
		return nil, err
	}
	return s.await(ctx, run)
}

// queue counts a call among those that wait, if there are fewer than most. The caller calls await.
func (s *Session) queue(most int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting >= most {
		return sandbox.Errorf(ErrBusy, "session "+s.id, "try again later", "%d cells wait already", s.waiting)
	}
	s.waiting++
	return nil
}

func (s *Session) await(ctx context.Context, run *cell) (*box, error) {
	var err error
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.over:
		err = s.gone()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if err != nil {
		return nil, err
	}
	if s.closed {
		<-s.turn
		return nil, s.gone()
	}
	s.busy, s.used = true, time.Now()
	if s.current = run; run != nil {
		run.b, run.id = s.box, s.cells+1
	}
	return s.box, nil
}

func (s *Session) give() {
	s.mu.Lock()
	s.busy, s.used, s.current = false, time.Now(), nil
	s.mu.Unlock()
	<-s.turn
}

func (s *Session) gone() error {
	return sandbox.Errorf(ErrNotFound, "session "+s.id, "create another", "it has ended")
}

// endedError is the error of a call that needs the interpreter.
func (s *Session) endedError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sandbox.Errorf(ErrEnded, "session "+s.id, "restart the session", "%s", s.cause)
}

// setCause records why the interpreter has ended; the first reason counts.
func (s *Session) setCause(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == "" {
		s.cause = why
	}
}

// Restart ends the interpreter, with a cell that may run, and starts another one in the same sandbox: files stay, state does not.
func (s *Session) Restart(ctx context.Context) error {
	return s.renew(ctx, func(b *box) error {
		if b.driver == nil {
			b.session.Composer().Reset()
			return nil
		}
		b.driver.close()
		d, err := startDriver(ctx, b.session)
		if err != nil {
			s.setCause("it could not be restarted: " + err.Error())
			return err
		}
		next := &box{session: b.session, driver: d, shared: b.shared}
		if !s.adopt(next) {
			d.close()
			return s.gone()
		}
		return s.showAdded(ctx, next, false)
	})
}

// Reset does the same in a fresh sandbox: nothing stays but the session's settings.
func (s *Session) Reset(ctx context.Context) error {
	return s.renew(ctx, func(b *box) error {
		s.takeNetwork(b)
		err := b.close(ctx)
		if err == nil {
			err = s.start(ctx)
		}
		if err == nil && b.driver != nil {
			err = s.showAdded(ctx, s.present(), true)
		}
		if err != nil {
			s.setCause("it could not be reset: " + err.Error())
		}
		return err
	})
}

// renew ends the cell that runs and calls a function in the session's turn.
func (s *Session) renew(ctx context.Context, do func(*box) error) error {
	if err := s.queue(s.m.opts.Waiting + 1); err != nil { // a full queue is a reason to restart
		return err
	}
	if b := s.present(); b.driver != nil {
		s.setCause("it is being restarted")
		b.driver.live.Kill()
	} else {
		_ = s.Interrupt()
	}
	b, err := s.await(ctx, nil)
	if err != nil {
		return err
	}
	defer s.give()
	s.mu.Lock()
	s.history, s.kept = nil, 0
	s.mu.Unlock()
	return do(b)
}

// Interrupt interrupts the cell that runs; without one it does nothing. The state survives.
func (s *Session) Interrupt() error {
	s.touch()
	s.mu.Lock()
	c := s.current
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.interrupt()
}

// Close ends the session and removes everything of it. It may be called twice.
func (s *Session) Close() { s.end("it was closed") }

// end closes the session; the first reason counts.
func (s *Session) end(why string) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		if s.cause == "" {
			s.cause = why
		}
		b, timer := s.box, s.timer
		s.mu.Unlock()
		close(s.over)
		if timer != nil {
			timer.Stop()
		}
		_ = b.close(context.Background()) // the next start collects what is left
		s.m.remove(s)
		if s.m.opts.OnClose != nil {
			s.m.opts.OnClose(s.id, s.owner, why)
		}
	})
}

// History returns the cells that were executed since the last start, as far as they are kept.
func (s *Session) History() []Past {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Past(nil), s.history...)
}

func (s *Session) remember(p Past) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, p)
	for s.kept += len(p.Code) + pastSize; s.kept > maxHistory; s.history = s.history[1:] {
		s.kept -= len(s.history[0].Code) + pastSize
	}
}
