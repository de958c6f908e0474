package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// outputPrinter prints the program's output while it runs. Events arrive one at a time. mu protects the end of the run, when a write
// may still block.
type outputPrinter struct {
	c         *Invocation
	cancelRun context.CancelCauseFunc // called when standard output or standard error can not be written
	header    func() string           // the header of the run; empty until its sandbox is made; nil for none
	wait      *Progress

	mu      sync.Mutex
	begun   bool
	headed  bool  // the header is printed
	out     *sink // nil if no output is printed while the program runs
	err     *sink
	failed  error
	ended   bool // finish was called
	midLine bool // the last output on the terminal does not end in a newline
}

// sink is standard output or standard error of this process.
type sink struct {
	to       io.Writer
	file     *os.File
	terminal bool
	styled   bool     // bytes that passed unchanged may have changed colours
	escaper  *escaper // nil when bytes pass unchanged
}

// newSink makes a sink. On a terminal it escapes the output unless plain is set; elsewhere it writes all bytes unchanged.
func newSink(f *os.File, plain bool) *sink {
	s := &sink{to: f, file: f, terminal: IsTerminal(f)}
	if s.terminal && !plain {
		s.escaper = newEscaper(f)
		s.to = s.escaper
	}
	return s
}

// reset restores the terminal's own colours, which the program may have changed.
func (s *sink) reset() error {
	if s.escaper != nil {
		s.styled, s.escaper.styled = s.escaper.styled, false
	}
	if !s.styled {
		return nil
	}
	s.styled = false
	_, err := io.WriteString(s.file, resetColours)
	return err
}

// EscapedStderr returns a writer to standard error that escapes control characters if standard error is a terminal.
func (c *Invocation) EscapedStderr() io.Writer { return newSink(c.Std.Err, false).to }

func (l *outputPrinter) printEvent(e sandbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.wait.End()
		l.begun = true
	}
	// Packages are installed before the sandbox of the run is made.
	if l.header != nil && !l.headed {
		if text := l.header(); text != "" {
			l.beginLine()
			fmt.Fprintln(l.c.Std.Err, text)
			l.headed = true
		}
	}
	if l.c.format == FormatNDJSON {
		l.c.seq = e.Seq
		l.keepFailure(l.c.writeLine(e.Document()))
		return
	}
	s := l.out
	switch e.Kind {
	case sandbox.EventPhase:
		l.wait.End()
		switch e.Phase {
		case executor.PhaseInstall:
			l.wait.Start("installing packages")
		case executor.PhaseCompile:
			l.wait.Start("compiling")
		}
		return
	case sandbox.EventPublished:
		for _, p := range e.Published {
			l.wait.End()
			l.c.PrintMessage(fmt.Sprintf("port %d of the program is 127.0.0.1:%d here", p.Sandbox, p.Host))
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
	if !s.terminal {
		return
	}
	if ends, known := endsLine(data); known {
		l.midLine = !ends
	}
	s.styled = s.styled || s.escaper == nil && bytes.IndexByte(data, escapeCode) >= 0
}

// keepFailure keeps the first write error and cancels the run: its output can no longer be delivered.
func (l *outputPrinter) keepFailure(err error) {
	if err != nil && l.failed == nil {
		l.failed = err
		l.cancelRun(err)
	}
}

// finish writes the bytes that escapers hold, and restores the terminal's colours. If a write still blocks, it does nothing.
func (l *outputPrinter) finish() {
	if !l.tryLock() {
		return
	}
	defer l.mu.Unlock()
	l.ended = true
	l.midLine = l.midLine || l.c.signalledTwice.Load() // the terminal has echoed another ^C
	l.wait.End()
	l.flushSinks()
}

// flushSinks writes what the sinks hold. The terminal's colours are its own again: a line of sandbox-run may follow.
func (l *outputPrinter) flushSinks() {
	for _, s := range []*sink{l.out, l.err} {
		if s == nil || l.failed != nil {
			continue
		}
		if s.escaper != nil {
			l.failed = s.escaper.Flush()
		}
		l.failed = errors.Join(l.failed, s.reset())
	}
}

// noticeDelay is how long a program may take to end after Ctrl-C before the command says what it waits for.
const noticeDelay = 200 * time.Millisecond

// announceWait prints, some time after Ctrl-C has cancelled the run, that the program has not ended yet.
func (l *outputPrinter) announceWait(ctx context.Context, grace time.Duration) {
	context.AfterFunc(ctx, func() {
		var signal SignalCause
		if errors.As(context.Cause(ctx), &signal) && signal == interrupt {
			l.mu.Lock()
			l.midLine = l.midLine || !l.ended // the terminal has echoed ^C
			l.mu.Unlock()
			time.AfterFunc(noticeDelay, func() {
				l.printNotice(fmt.Sprintf("the program got SIGINT and has %v to end; Ctrl-C again ends it now", grace))
			})
		}
	})
}

// printNotice prints a line of sandbox-run between the program's output, unless no program runs or a write blocks.
func (l *outputPrinter) printNotice(text string) {
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	if l.ended || !l.begun {
		return
	}
	l.beginLine()
	l.c.PrintMessage(text)
}

// beginLine removes the progress, and ends the colours and the line of the output before it: a line of sandbox-run follows.
func (l *outputPrinter) beginLine() {
	l.wait.End()
	for _, s := range []*sink{l.out, l.err} {
		if s != nil {
			_ = s.reset() // writing the output reports a terminal that is gone
		}
	}
	if l.midLine {
		fmt.Fprintln(l.c.Std.Err)
		l.midLine = false
	}
}

// tryLock locks mu, and reports whether that succeeded in time: a write that blocks holds mu, a notice only for a moment.
func (l *outputPrinter) tryLock() bool {
	for range 50 {
		if l.mu.TryLock() {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// writeError returns the first write error, or nil if a write still blocks.
func (l *outputPrinter) writeError() error {
	if !l.tryLock() {
		return nil
	}
	defer l.mu.Unlock()
	return l.failed
}
