package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// dying is a server that ends after it has said that a cell begins.
type dying struct {
	Transport
	dials int
}

func (d *dying) Dial(context.Context, string, string) (Socket, Header, error) {
	if d.dials++; d.dials > 1 {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotSent, ErrNoServer)
	}
	return &lastWords{}, nil, nil
}

type lastWords struct{ said bool }

func (w *lastWords) Receive(context.Context) ([]byte, bool, error) {
	if w.said {
		return nil, false, io.ErrUnexpectedEOF
	}
	w.said = true
	return []byte(`{"kind":"ready","run":"x/1"}`), false, nil
}

func (*lastWords) Send(context.Context, []byte, bool) error { return nil }
func (*lastWords) Close() error                             { return nil }

// A cell that has begun may have done anything: its error is not that of a request that was not sent, which callers send again.
func TestCellOfServerThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dying{}
		s := &Session{c: New(d), id: "x"}
		_, err := s.Execute(t.Context(), session.Cell{Code: "1", OnEvent: func(sandbox.Event) {}})
		if !errors.Is(err, ErrBroken) || errors.Is(err, ErrNotSent) || d.dials < 3 {
			t.Errorf("%v after %d connections", err, d.dials)
		}
		// Control: one that was never sent says so.
		if _, err := s.Execute(t.Context(), session.Cell{Code: "1", OnEvent: func(sandbox.Event) {}}); !errors.Is(err, ErrNotSent) {
			t.Error(err)
		}
	})
}
