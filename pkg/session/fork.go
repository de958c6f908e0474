package session

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// ForkOptions describe a fork.
type ForkOptions struct {
	// Name is a name for people, as in Request.
	Name string
	// Replay executes the cells of the session again, in a language whose state can not be forked: with all their side effects.
	Replay bool
	// Begin is called when the session's turn has come, before the work, as that of a Cell. May be nil.
	Begin func(ctx context.Context) error
}

// Fork makes a second session of the same owner. Where the driver can, it is a second interpreter with the same state, in the same sandbox and
// with the same files; threads do not survive. Elsewhere it is a new session with copies of the files: without the state, unless
// ForkOptions.Replay asks for it.
func (s *Session) Fork(ctx context.Context, o ForkOptions) (*Session, error) {
	now := time.Now()
	req := Request{Owner: s.owner, Name: o.Name, Idle: s.idle, Lifetime: s.ends.Sub(now)}
	if req.Lifetime <= 0 {
		return nil, s.gone()
	}
	if err := s.m.admit(&req); err != nil {
		return nil, err
	}
	defer s.m.dismiss(&req)
	b, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.give()
	if b.driver != nil && b.driver.isGone() {
		s.setCause(b.driver.cause())
		return nil, s.endedError()
	}
	if o.Begin != nil {
		if err := o.Begin(ctx); err != nil {
			return nil, err
		}
	}
	s.takeNetwork(b)
	fork := s.m.newSession(s.req)
	fork.parent = s.id
	s.mu.Lock()
	fork.added = append(fork.added, s.added...)
	s.mu.Unlock()
	if b.driver != nil && b.driver.has(protocol.KindFork) && b.driver.live.CanFork() {
		err = s.forkInterpreter(ctx, b, fork)
	} else {
		err = s.forkFiles(ctx, b, fork, o.Replay)
	}
	if err != nil {
		return nil, err
	}
	return s.m.enter(fork, &req)
}

// forkInterpreter has the driver make a second interpreter.
func (s *Session) forkInterpreter(ctx context.Context, b *box, fork *Session) (err error) {
	fork.box = &box{session: b.session, shared: b.shared}
	if !b.shared.join() {
		return s.gone()
	}
	defer func() {
		if err != nil {
			_ = fork.box.close(ctx) // the next start collects what is left
		}
	}()
	live, err := b.driver.live.Fork(ctx, func(dir string) (int, error) {
		var reply protocol.Forked
		err := b.driver.ask(ctx, protocol.KindFork, dir, &reply)
		return reply.PID, err
	})
	if err != nil {
		if b.driver.isGone() {
			s.setCause(b.driver.cause())
			return s.endedError()
		}
		return err
	}
	if fork.box.driver, err = awaitDriver(ctx, live); err != nil {
		return err
	}
	fork.notes = append(fork.notes, "refused system calls of this fork count in session "+s.id)
	for _, p := range s.History() {
		fork.remember(p)
	}
	return nil
}

// forkFiles makes a session with copies of the files. The declarations of compiled cells are copied, too.
func (s *Session) forkFiles(ctx context.Context, b *box, fork *Session, replay bool) (err error) {
	if err := fork.start(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = fork.box.close(ctx) // the next start collects what is left
		}
	}()
	if fork.notes, err = copyFiles(ctx, b.session, fork.box.session); err != nil {
		return err
	}
	if b.driver != nil {
		if err := fork.showAdded(ctx, fork.box, true); err != nil {
			return err
		}
	}
	c := fork.box.session.Composer()
	for _, p := range s.History() {
		switch {
		case c != nil && p.Verdict != sandbox.VerdictCompileError && !replay:
			if composed, err := c.Compose(p.Cell, p.Code); err == nil && composed.Keep != nil {
				composed.Keep()
			}
		case replay:
			if _, err := fork.Execute(ctx, Cell{Code: p.Code}); err != nil {
				return err
			}
		}
	}
	return nil
}

// privateDir has the files of drivers, and packages that were added to a session.
const privateDir = sandbox.HomeDir + "/.sandbox-run"

// copyFiles copies the files of a session to another one, except for links and for those of drivers. The notes say what was left out.
func copyFiles(ctx context.Context, from, to *executor.Session) (notes []string, err error) {
	const most = 1 << 20
	m, source := from.Sandbox()
	_, target := to.Sandbox()
	left, err := m.Take(ctx, source, sandbox.Selection{Patterns: sandbox.ScratchDirs(), MaxFiles: most, MaxBytes: 1 << 50},
		func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
			if strings.HasPrefix(f.Path, privateDir+"/") {
				return nil
			}
			f.Open = func() (io.ReadCloser, error) { return io.NopCloser(r), nil }
			return m.Put(ctx, target, []sandbox.File{f})
		})
	for i, u := range left {
		if i == maxLeft {
			notes = append(notes, fmt.Sprintf("%d more files were not copied", len(left)-i))
			break
		}
		notes = append(notes, "not copied: "+u.Path+": "+u.Reason)
	}
	return notes, err
}

// maxLeft bounds the notes about files that were not copied.
const maxLeft = 10
