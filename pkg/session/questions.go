package session

import (
	"context"
	"errors"
	"strconv"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// question asks the driver something in the session's turn.
func (s *Session) question(ctx context.Context, kind protocol.Kind, body string, reply any, arg ...string) error {
	b, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer s.give()
	switch d := b.driver; {
	case d == nil || !d.has(kind):
		return sandbox.Errorf(sandbox.ErrUnsupported, string(kind), "", "sessions of %s can not answer that", b.session.Language().Title)
	case d.isGone():
		s.setCause(d.cause())
		return s.endedError()
	default:
		if err := d.ask(ctx, kind, body, reply, arg...); err != nil {
			if errors.Is(err, ErrEnded) {
				s.setCause(d.cause())
				return s.endedError()
			}
			return err
		}
		return nil
	}
}

// Check reports whether code is a complete cell, for editors that decide between a new line and the execution.
func (s *Session) Check(ctx context.Context, code string) (r protocol.Checked, err error) {
	if c := s.present().session.Composer(); c != nil {
		if _, err := s.take(ctx); err != nil {
			return r, err
		}
		defer s.give()
		return protocol.Checked{Status: c.Check(code)}, nil
	}
	return r, s.question(ctx, protocol.KindCheck, code, &r)
}

// Complete lists how the word before the cursor, a number of bytes, may go on.
func (s *Session) Complete(ctx context.Context, code string, cursor int) (r protocol.Completed, err error) {
	if cursor < 0 || cursor > len(code) {
		return r, sandbox.Invalid("cursor", "%d is not within the %d bytes of the code", cursor, len(code))
	}
	if err = s.question(ctx, protocol.KindComplete, code, &r, strconv.Itoa(cursor)); err != nil {
		return r, err
	}
	if r.Start < 0 || r.End < r.Start || r.End > len(code) { // of foreign code, perhaps
		return protocol.Completed{Start: cursor, End: cursor}, nil
	}
	return r, nil
}

// Inspect describes the value of a name or an expression.
func (s *Session) Inspect(ctx context.Context, code string) (r protocol.Inspected, err error) {
	return r, s.question(ctx, protocol.KindInspect, code, &r)
}

// Variables lists the user's variables; of compiled languages, what the cells have declared.
func (s *Session) Variables(ctx context.Context) (r protocol.Variables, err error) {
	if c := s.present().session.Composer(); c != nil {
		if _, err := s.take(ctx); err != nil {
			return r, err
		}
		defer s.give()
		for _, d := range c.Declared() {
			r.Variables = append(r.Variables, protocol.Variable{Name: d.Name, Type: d.Kind, Value: d.Text})
		}
		return r, nil
	}
	return r, s.question(ctx, protocol.KindVariables, "", &r)
}
