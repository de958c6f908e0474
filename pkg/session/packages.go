package session

import (
	"context"
	"errors"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// addition is an installation in a session that runs.
type addition struct {
	packages []string
	dir      string // in the sandbox
}

// AddPackages installs packages between two cells. They stay until the session is closed, also after Restart and Reset.
func (s *Session) AddPackages(ctx context.Context, packages []string) (*executor.Deps, error) {
	b, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.give()
	switch d := b.driver; {
	case d == nil:
		return s.addToCompiled(ctx, b, packages)
	case d.isGone():
		s.setCause(d.cause())
		return nil, s.endedError()
	case !d.has(protocol.KindPackages):
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "deps", "name the packages when the session is created",
			"a session of %s takes no packages later", b.session.Language().Title)
	}
	added, err := s.install(ctx, b, packages)
	if err != nil {
		return nil, err
	}
	return added.Deps, s.showPackages(ctx, b, added.Dir)
}

// install installs packages into the session's sandbox, and remembers them. It is called in the session's turn.
func (s *Session) install(ctx context.Context, b *box, packages []string) (*executor.Added, error) {
	added, err := b.session.Install(ctx, packages)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.added = append(s.added, addition{slices.Clone(packages), added.Dir})
	}
	return added, err
}

// showPackages lets the driver import from a directory.
func (s *Session) showPackages(ctx context.Context, b *box, dir string) error {
	var nothing struct{}
	err := b.driver.ask(ctx, protocol.KindPackages, dir, &nothing)
	if err != nil && b.driver.isGone() {
		s.setCause(b.driver.cause())
		return s.endedError()
	}
	return err
}

// showAdded lets a driver that was started again import the packages of earlier additions; again installs them in a sandbox that does not
// have them yet.
func (s *Session) showAdded(ctx context.Context, b *box, again bool) error {
	s.mu.Lock()
	added := slices.Clone(s.added)
	s.mu.Unlock()
	for i := range added {
		if again {
			a, err := b.session.Install(ctx, added[i].packages)
			if err != nil {
				return err
			}
			added[i].dir = a.Dir
		}
		if err := s.showPackages(ctx, b, added[i].dir); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added = added
	return nil
}

// addToCompiled moves a session of compiled cells into a sandbox with more packages: its programs find them there as those of a run do.
func (s *Session) addToCompiled(ctx context.Context, b *box, packages []string) (*executor.Deps, error) {
	if len(packages) == 0 {
		return nil, sandbox.Invalid("deps", "no packages are named")
	}
	req := s.req
	req.Options.Deps = language.JoinRequirements(append(slices.Clone(req.Options.Deps), packages...))
	opened, err := s.m.executor.OpenSession(ctx, req)
	if err != nil {
		return nil, err
	}
	notes, err := copyFiles(ctx, b.session, opened)
	if err != nil {
		_ = opened.Close(context.WithoutCancel(ctx)) // the next start collects what is left
		return nil, err
	}
	opened.TakeCells(b.session)
	next := &box{session: opened, shared: &shares{n: 1}}
	if !s.adopt(next) {
		return nil, errors.Join(s.gone(), next.close(ctx))
	}
	s.mu.Lock()
	s.req, s.notes = req, append(s.notes, notes...)
	s.mu.Unlock()
	return opened.Deps(), b.close(ctx)
}
