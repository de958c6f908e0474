package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Options bound the sessions of a Manager. The zero value has the defaults.
type Options struct {
	// Idle is how long a session lives without a call, and Lifetime how long in all; defaults 30 minutes and 24 hours. Requests may ask
	// for less.
	Idle, Lifetime time.Duration
	// Sessions is the maximum number of sessions, and PerOwner that of one owner; defaults 1000 and Sessions.
	Sessions, PerOwner int
	// Waiting is how many cells of a session may wait for the one that runs; default 16.
	Waiting int
	// Stock keeps started sessions for requests like earlier ones, so that the next one starts at once.
	Stock bool
	// OnClose is called after the end of a session, with the reason. May be nil.
	OnClose func(id, owner, why string)
}

func (o Options) complete() Options {
	o.Idle = cmp.Or(o.Idle, 30*time.Minute)
	o.Lifetime = cmp.Or(o.Lifetime, 24*time.Hour)
	o.Sessions = cmp.Or(o.Sessions, 1000)
	o.PerOwner = cmp.Or(o.PerOwner, o.Sessions)
	o.Waiting = cmp.Or(o.Waiting, 16)
	return o
}

// Manager owns sessions.
type Manager struct {
	executor *executor.Executor
	opts     Options
	stock    stock

	mu       sync.Mutex
	sessions map[string]*Session
	making   map[string]int   // sessions that are being made, by owner
	names    map[ownName]bool // of them
	closed   bool
	work     sync.WaitGroup
}

// ownName is the name of a session, which is its owner's.
type ownName struct{ owner, name string }

// NewManager returns a manager of sessions. The caller closes it before the executor's manager.
func NewManager(e *executor.Executor, o Options) *Manager {
	m := &Manager{executor: e, opts: o.complete(), sessions: map[string]*Session{}, making: map[string]int{}, names: map[ownName]bool{}}
	m.stock.m = m
	return m
}

// Request describes a session.
type Request struct {
	// Request has the language, files, packages, limits, policy and variables. It needs no code. Its limits are those of each cell; memory,
	// processes and disk are those of the whole session.
	executor.Request
	// Owner may use the session; others do not learn that it exists.
	Owner string
	// Name is a name for people; names of an owner are unique. Empty: none.
	Name string
	// Idle and Lifetime are at most those of the Options; 0: the same.
	Idle, Lifetime time.Duration
}

// Errors of sessions. Entry points turn them into statuses.
var (
	// ErrNotFound: there is no such session, or it belongs to another owner, or it has ended.
	ErrNotFound = errors.New("no such session")
	// ErrEnded: the session's interpreter has ended; the error has the cause. Restart starts another.
	ErrEnded = errors.New("the session's interpreter has ended")
	// ErrBusy: too many cells wait, or there are too many sessions.
	ErrBusy = errors.New("too many")
)

// Create makes a session and starts its interpreter.
func (m *Manager) Create(ctx context.Context, req Request) (*Session, error) {
	if err := m.admit(&req); err != nil {
		return nil, err
	}
	defer m.dismiss(&req)
	s, err := m.stock.take(ctx, &req)
	if err != nil {
		return nil, err
	}
	return m.enter(s, &req)
}

// enter gives a started session its owner and its times, and takes it into the list.
func (m *Manager) enter(s *Session, req *Request) (*Session, error) {
	s.mu.Lock()
	s.owner, s.name, s.created = req.Owner, req.Name, time.Now()
	s.idle, s.ends = req.Idle, s.created.Add(req.Lifetime)
	s.mu.Unlock()
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.sessions[s.id] = s
	}
	m.mu.Unlock()
	if closed {
		s.end("the server ends")
		return nil, errClosed()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.timer = time.AfterFunc(min(s.idle, req.Lifetime), s.expire)
	}
	return s, nil
}

// hasName refuses a name that a session of the owner has, or will have. The caller holds mu.
func (m *Manager) hasName(req *Request) error {
	taken := m.names[ownName{req.Owner, req.Name}]
	for _, s := range m.sessions {
		taken = taken || req.Name != "" && s.owner == req.Owner && s.name == req.Name
	}
	if taken {
		return sandbox.Errorf(sandbox.ErrInvalid, "name", "another name, or close that session", "there is a session %q already", req.Name)
	}
	return nil
}

func errClosed() error {
	return &sandbox.Error{Op: "create a session", Kind: sandbox.ErrState, Err: errors.New("the server is ending")}
}

// admit checks the bounds and fills in the defaults of a request.
func (m *Manager) admit(req *Request) error {
	req.Idle, req.Lifetime = cmp.Or(req.Idle, m.opts.Idle), cmp.Or(req.Lifetime, m.opts.Lifetime)
	if req.Idle < 0 || req.Idle > m.opts.Idle {
		return sandbox.Invalid("idle", "%v is not between 0 and %v", req.Idle, m.opts.Idle)
	}
	if req.Lifetime < 0 || req.Lifetime > m.opts.Lifetime {
		return sandbox.Invalid("lifetime", "%v is not between 0 and %v", req.Lifetime, m.opts.Lifetime)
	}
	if req.Name != "" && !IsName(req.Name) {
		return WrongName(req.Name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.hasName(req); err != nil {
		return err
	}
	all, own := len(m.sessions), 0
	for _, s := range m.sessions {
		if s.owner == req.Owner {
			own++
		}
	}
	for _, n := range m.making {
		all += n
	}
	switch {
	case m.closed:
		return errClosed()
	case all >= m.opts.Sessions:
		return sandbox.Errorf(ErrBusy, "create a session", "try again later", "there are %d sessions, which is the most", all)
	case own+m.making[req.Owner] >= m.opts.PerOwner:
		return sandbox.Errorf(ErrBusy, "create a session", "close one of them", "you have %d sessions, which is the most", m.opts.PerOwner)
	}
	m.making[req.Owner]++
	if req.Name != "" {
		m.names[ownName{req.Owner, req.Name}] = true
	}
	m.work.Add(1)
	return nil
}

func (m *Manager) dismiss(req *Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.making[req.Owner]--; m.making[req.Owner] == 0 {
		delete(m.making, req.Owner)
	}
	delete(m.names, ownName{req.Owner, req.Name})
	m.work.Done()
}

// WrongName is the error of a name that IsName refuses.
func WrongName(name string) error {
	return sandbox.Invalid("name", "%.80q is not a name of at most 64 letters, digits, dots, dashes and underscores", name)
}

// IsName reports whether a session may have a name: it is the name of a file, too.
func IsName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || i > 0 && (c == '.' || c == '-' || c == '_')) {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// Get finds a session of an owner by its id or its name.
func (m *Manager) Get(owner, id string) (*Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.sessions[id]; ok && s.owner == owner {
		return s, nil
	}
	for _, s := range m.sessions {
		if s.owner == owner && s.name == id && id != "" {
			return s, nil
		}
	}
	return nil, sandbox.Errorf(ErrNotFound, fmt.Sprintf("session %.80q", id), "sandbox-run session list", "there is none, or it has ended")
}

// List returns the sessions of an owner, oldest first.
func (m *Manager) List(owner string) []*Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	var own []*Session
	for _, s := range m.sessions {
		if s.owner == owner {
			own = append(own, s)
		}
	}
	slices.SortFunc(own, func(a, b *Session) int { return a.created.Compare(b.created) })
	return own
}

// Count is the number of sessions of all owners.
func (m *Manager) Count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sessions)
}

// remove forgets a session that has ended.
func (m *Manager) remove(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, s.id)
}

// Close ends all sessions. It may be called twice.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	all := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		all = append(all, s)
	}
	m.mu.Unlock()
	var ends sync.WaitGroup
	for _, s := range all {
		ends.Go(func() { s.end("the server ends") })
	}
	ends.Wait()
	m.work.Wait()
	m.stock.close()
}

func newID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b[:])
}

// open makes a session without an owner.
func (m *Manager) open(ctx context.Context, req *Request) (*Session, error) {
	own := req.Request
	own.Stdin, own.OnEvent, own.OnPlan, own.OnReady = nil, nil, nil, nil
	s := m.newSession(own)
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (m *Manager) newSession(req executor.Request) *Session {
	return &Session{m: m, id: newID(), req: req, turn: make(chan struct{}, 1), over: make(chan struct{})}
}

// Languages lists the languages that have sessions.
func (m *Manager) Languages() (list []*language.Language) {
	for _, l := range m.executor.Languages() {
		if executor.HasSessions(l) {
			list = append(list, l)
		}
	}
	return list
}
