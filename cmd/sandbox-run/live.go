package main

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// live passes the program's output on while it runs. Events come one at a time; mu is for the end,
// when a write that blocks may still be under way.
type live struct {
	lost context.CancelCauseFunc // told when our own output can not be written any more

	mu      sync.Mutex
	out     *sink // nil with --json
	err     *sink
	failed  error
	midLine bool // what is on the terminal does not end in a newline
}

// sink is one of our streams.
type sink struct {
	to       io.Writer
	terminal bool
	escaper  *escaper // nil when bytes pass unchanged
}

// newSink escapes for terminals unless plain; everywhere else output is exact.
func newSink(f *os.File, plain bool) *sink {
	s := &sink{to: f, terminal: isTerminal(f)}
	if s.terminal && !plain {
		s.escaper = newEscaper(f)
		s.to = s.escaper
	}
	return s
}

func (l *live) event(e sandbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.out
	switch e.Kind {
	case sandbox.EventStdout:
	case sandbox.EventStderr:
		s = l.err
	default:
		return
	}
	if l.failed != nil || len(e.Data) == 0 {
		return
	}
	if _, err := s.to.Write(e.Data); err != nil {
		l.failed = err
		l.lost(err)
		return
	}
	if s.terminal {
		l.midLine = e.Data[len(e.Data)-1] != '\n'
	}
}

// finish writes what an escaper still holds, unless a write is stuck: then nothing can be written.
func (l *live) finish() {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	for _, s := range []*sink{l.out, l.err} {
		if s != nil && s.escaper != nil && l.failed == nil {
			l.failed = s.escaper.Flush()
		}
	}
}

// failure is why our own output could not be written, if it could not.
func (l *live) failure() error {
	if !l.mu.TryLock() {
		return nil
	}
	defer l.mu.Unlock()
	return l.failed
}
