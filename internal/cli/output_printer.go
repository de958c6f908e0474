package cli

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// outputPrinter prints the program's output while it runs. Events arrive one at a time. mu protects the end of the run, when a write
// may still block.
type outputPrinter struct {
	c         *Invocation
	cancelRun context.CancelCauseFunc // called when standard output or standard error can not be written
	begin     func()                  // called once, after the sandbox is made and before any output
	wait      *Progress

	mu      sync.Mutex
	begun   bool
	out     *sink // nil if no output is printed while the program runs
	err     *sink
	failed  error
	midLine bool // the last output on the terminal does not end in a newline
}

// sink is standard output or standard error of this process.
type sink struct {
	to       io.Writer
	terminal bool
	escaper  *escaper // nil when bytes pass unchanged
}

// newSink makes a sink. On a terminal it escapes and tints the output unless plain is set; elsewhere it writes all bytes unchanged.
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

// tinted writes in a colour, and resets the colour after each write.
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
			s = l.err // output of the compiler
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

// writeTo writes to a sink. The caller holds mu, or no more events arrive.
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

// keepFailure keeps the first write error and cancels the run: its output can no longer be delivered.
func (l *outputPrinter) keepFailure(err error) {
	if err != nil && l.failed == nil {
		l.failed = err
		l.cancelRun(err)
	}
}

// finish writes the bytes that escapers hold. If a write still blocks, it does nothing.
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

// writeError returns the first write error, or nil if a write still blocks.
func (l *outputPrinter) writeError() error {
	if !l.mu.TryLock() {
		return nil
	}
	defer l.mu.Unlock()
	return l.failed
}
