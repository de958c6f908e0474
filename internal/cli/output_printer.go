package cli

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// outputPrinter passes the program's output on while it runs. Events come one at a time; mu is for the end,
// when a write that blocks may still be under way.
type outputPrinter struct {
	c         *Invocation
	cancelRun context.CancelCauseFunc // told when our own output can not be written any more
	begin     func()                  // called once, when there is a sandbox and before anything is shown
	wait      *Progress

	mu      sync.Mutex
	begun   bool
	out     *sink // nil where nothing is shown while it runs
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

// newSink escapes for terminals unless plain, and shows what it writes in a colour; everywhere else output is exact.
func newSink(f *os.File, plain bool, tint string) *sink {
	s := &sink{to: f, terminal: IsTerminal(f)}
	if s.terminal && !plain {
		var to io.Writer = f
		if tint != "" {
			to = tinted{f, tint}
		}
		s.escaper = newEscaper(to)
		s.to = s.escaper
	}
	return s
}

// EscapedStderr returns a writer to standard error that escapes control characters if standard error is a terminal.
func (c *Invocation) EscapedStderr() io.Writer { return newSink(c.Std.Err, false, "").to }

// tinted writes in a colour, and leaves none behind.
type tinted struct {
	to   io.Writer
	code string
}

func (t tinted) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	_, err := io.WriteString(t.to, Palette(true).in(t.code, string(p)))
	return len(p), err
}

func (l *outputPrinter) printEvent(e sandbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun && l.begin != nil {
		l.wait.End()
		l.begin()
	}
	l.begun = true
	if l.c.format == FormatNDJSON {
		l.c.seq = e.Seq
		l.keepFailure(l.c.writeLine(e.Document()))
		return
	}
	s := l.out
	switch e.Kind {
	case sandbox.EventPhase:
		l.wait.End()
		if e.Phase == executor.PhaseCompile {
			l.wait.Start("compiling")
		}
		return
	case sandbox.EventStdout:
		if e.Phase != "" && e.Phase != executor.PhaseRun {
			s = l.err // a compiler's, and not the program's
		}
	case sandbox.EventStderr:
		s = l.err
	default:
		return
	}
	if s == nil || len(e.Data) == 0 {
		return
	}
	l.wait.End()
	l.writeTo(s, e.Data)
}

// writeTo is called with mu held, or when there are no more events.
func (l *outputPrinter) writeTo(s *sink, data []byte) {
	if l.failed != nil || len(data) == 0 {
		return
	}
	if _, err := s.to.Write(data); err != nil {
		l.keepFailure(err)
		return
	}
	if s.terminal {
		l.midLine = data[len(data)-1] != '\n'
	}
}

// keepFailure keeps the first error of writing output, and ends the run: its output has no reader any more.
func (l *outputPrinter) keepFailure(err error) {
	if err != nil && l.failed == nil {
		l.failed = err
		l.cancelRun(err)
	}
}

// finish writes what an escaper still holds, unless a write is stuck: then nothing can be written.
func (l *outputPrinter) finish() {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	l.wait.End()
	l.flushSinks()
}

func (l *outputPrinter) flushSinks() {
	for _, s := range []*sink{l.out, l.err} {
		if s != nil && s.escaper != nil && l.failed == nil {
			l.failed = s.escaper.Flush()
		}
	}
}

// failure is why our own output could not be written, if it could not.
func (l *outputPrinter) writeError() error {
	if !l.mu.TryLock() {
		return nil
	}
	defer l.mu.Unlock()
	return l.failed
}
