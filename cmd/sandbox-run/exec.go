package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// exec runs the command, shows what it prints and what became of it, and leaves the exit code in
// c.code. Its error is for failures of ours.
func (c *cli) exec(o *execOptions) error {
	backend, err := app.Open(o.backend, true)
	if err != nil {
		return err
	}
	manager := sandbox.NewManager(backend, sandbox.Options{})
	// The sandbox is gone before anybody hears that the command has ended; only then is it a result.
	dismantle := sync.OnceValue(func() error { return errors.Join(manager.Close(), backend.Close()) })
	defer func() { _ = dismantle() }() // for the ways out below that have worse to report

	var sandboxID atomic.Value
	ctx, stop := onSignals(func() {
		if id, ok := sandboxID.Load().(string); ok {
			_ = manager.Kill(id) // it is gone already, or Run reports what went wrong
		}
	})
	defer stop(nil)

	id, err := manager.Create(ctx, o.spec)
	if err != nil {
		return interrupted(ctx, err)
	}
	sandboxID.Store(id)

	show, streams := c.connect(o, stop)
	result, err := c.attended(o, &streams, func() (*sandbox.Result, error) {
		return manager.Run(ctx, id, o.process, streams)
	})
	show.finish()
	left := dismantle()
	if err != nil {
		return errors.Join(interrupted(ctx, err), left)
	}
	if left != nil {
		result.Notes = append(result.Notes, cleanupNote+left.Error())
	}
	return c.conclude(ctx, o, result, show)
}

// cleanupNote begins the note on what could not be removed.
const cleanupNote = "clean-up: "

// connect decides where the program's output goes.
func (c *cli) connect(o *execOptions, stop context.CancelCauseFunc) (*live, sandbox.IO) {
	streams := sandbox.IO{}
	if o.spill != "" {
		streams.Spill = &sandbox.Spill{Dir: o.spill}
	}
	if o.stdin {
		streams.Stdin = c.std.in
	}
	show := &live{lost: stop}
	if c.json {
		return show, streams
	}
	plain := o.raw || o.tty // a terminal's whole point is what would be escaped
	show.out, show.err = newSink(c.std.out, plain), newSink(c.std.err, plain)
	streams.OnEvent = show.event
	return show, streams
}

// attended runs with our terminal handed over to the program, if it has one, and takes the
// terminal back whatever happens.
func (c *cli) attended(o *execOptions, streams *sandbox.IO, run func() (*sandbox.Result, error)) (*sandbox.Result, error) {
	if !o.tty {
		return run()
	}
	t := newTerminal(c.std)
	o.process.TTY = t.size()
	streams.Resize = t.resized
	ended := make(chan struct{})
	defer close(ended)
	streams.Stdin = &typed{from: c.std.in, interactive: t.raw(), ended: ended}
	defer t.restore()
	if show := streams.OnEvent; show != nil {
		// A panic here would end the process from another goroutine, past our defers.
		streams.OnEvent = func(e sandbox.Event) {
			defer t.restoreOnPanic()
			show(e)
		}
	}
	return run()
}

// conclude reports the result and picks the exit code.
func (c *cli) conclude(ctx context.Context, o *execOptions, r *sandbox.Result, show *live) error {
	c.code = sandbox.CLICode(r.Verdict, r.Exit)
	cause := context.Cause(ctx)
	var signal signalCause
	if r.Verdict == sandbox.VerdictCancelled && errors.As(cause, &signal) {
		c.code = codeSignalBase + int(signal)
	}
	if err := show.failure(); err != nil {
		if !errors.Is(err, syscall.EPIPE) {
			return &sandbox.Error{Op: "pass on output", Err: err}
		}
		// Nobody reads on: end as the program would have without us in between, and quietly.
		c.code = codeBrokenPipe
		return nil
	}
	if c.json {
		err := c.writeJSON(r)
		if errors.Is(err, syscall.EPIPE) {
			c.code, err = codeBrokenPipe, nil
		}
		return err
	}
	if !o.quiet {
		c.summarise(r, cause, show.midLine)
	}
	return nil
}

// interrupted says that it was a signal that made us give up, where it was.
func interrupted(ctx context.Context, err error) error {
	var signal signalCause
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &signal) {
		return signal
	}
	return err
}

// typed is what is fed to a terminal. A terminal has no end of input that can be closed without
// hanging up, so the end of a file is typed, and then there is silence until the program ends.
type typed struct {
	from        io.Reader
	interactive bool // a person types: the end of input is theirs to type
	ended       <-chan struct{}
	partial     bool // the last line has no newline yet
	eof         bool
}

const endOfTransmission = 4 // Ctrl-D

func (t *typed) Read(p []byte) (int, error) {
	if t.eof {
		<-t.ended
		return 0, io.EOF
	}
	n, err := t.from.Read(p)
	if n > 0 {
		t.partial = p[n-1] != '\n'
		return n, nil
	}
	if err == nil || len(p) < 2 {
		return 0, nil
	}
	t.eof = true
	if t.interactive {
		return t.Read(p)
	}
	p[0], p[1] = endOfTransmission, endOfTransmission
	if t.partial {
		return 2, nil // the first only ends the line
	}
	return 1, nil
}
