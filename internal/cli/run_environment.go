package cli

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// runEnvironment is where a run takes place: a backend with its manager, the log it is written to, and a context that signals cancel.
type runEnvironment struct {
	log      *audit.Log // nil where nothing is to be written
	unlogged error      // why nothing can be, though it was to be

	manager *sandbox.Manager
	ctx     context.Context
	stop    context.CancelCauseFunc
	// release removes the sandbox and closes the backend. A result is shown only after that. It may be called twice.
	release func() error
}

func (c *Invocation) openRunEnvironment(o *boxOptions) (*runEnvironment, error) {
	log, unlogged, err := o.openAudit()
	if err != nil {
		return nil, err
	}
	b, chosen, err := c.openBackend(o)
	if err != nil {
		return nil, err
	}
	s := &runEnvironment{log: log, unlogged: unlogged, manager: sandbox.NewManager(b, sandbox.Options{Chosen: chosen})}
	s.release = sync.OnceValue(func() error { return errors.Join(s.manager.Close(), b.Close()) })
	s.ctx, s.stop = c.onSignals(func() {
		for _, box := range s.manager.List() {
			_ = s.manager.Kill(box.ID) // it is gone already, or Run reports what went wrong
		}
	})
	return s, nil
}

// close is for the ways out that have worse to report than what can not be removed.
func (s *runEnvironment) close() {
	_ = s.release()
	s.stop(nil)
}

// connectOutput decides where the program's output goes.
func (c *Invocation) connectOutput(o *boxOptions, stop context.CancelCauseFunc) (*outputPrinter, sandbox.IO) {
	streams := sandbox.IO{OutputSpace: new(sandbox.OutputStore).For("")} // which ends with the process
	if o.spill != "" {
		streams.Spill = &sandbox.Spill{Dir: o.spill}
	}
	show := &outputPrinter{c: c, cancelRun: stop}
	if c.format == FormatJSON {
		return show, streams
	}
	if c.format == FormatText && CanRedraw(c.Std.Err) && !o.quiet {
		show.wait = &Progress{To: c.Std.Err}
	}
	if c.format == FormatText && !o.noStream {
		show.out, show.err = c.newSinks(o)
	}
	streams.OnEvent = show.printEvent
	return show, streams
}

// sinks are our two streams, for what the program prints.
func (c *Invocation) newSinks(o *boxOptions) (out, err *sink) {
	plain := o.raw || o.tty // a terminal's whole point is what would be escaped
	tint := ""
	if c.Palette(c.Std.Err) {
		tint = colourRed
	}
	return newSink(c.Std.Out, plain, ""), newSink(c.Std.Err, plain, tint)
}

// attachTerminal hands our terminal over to the program from the moment it starts, if it is to have one, and takes it back whatever
// happens. It returns the terminal's size for the program.
func (c *Invocation) attachTerminal(o *boxOptions, streams *sandbox.IO) (size *sandbox.TTY, returnTerminal func()) {
	if !o.tty {
		return nil, func() {}
	}
	t := newTerminal(c.Std)
	streams.Resize = t.resized
	ended := make(chan struct{})
	streams.Stdin = sandbox.TypedInput(c.Std.In, IsTerminal(c.Std.In), ended)
	show := streams.OnEvent
	streams.OnEvent = func(e sandbox.Event) {
		// A panic here would end the process from another goroutine, past our defers.
		defer t.restoreOnPanic()
		if e.Kind == sandbox.EventPhase && e.Phase == sandbox.DefaultPhase {
			t.makeRaw() // until then, while something is compiled, keys are ours
		}
		show(e)
	}
	return TerminalSize(c.Std.In, c.Std.Out, c.Std.Err), sync.OnceFunc(func() {
		close(ended)
		t.restore()
	})
}

// concludeRun reports the result and picks the exit code. doc is the result as JSON.
func (c *Invocation) concludeRun(s *runEnvironment, o *boxOptions, r *sandbox.Result, doc any, show *outputPrinter, story *outcome) error {
	c.Code = sandbox.CLICode(r.Verdict, r.Exit)
	story.cause = context.Cause(s.ctx)
	var signal SignalCause
	if r.Verdict == sandbox.VerdictCancelled && errors.As(story.cause, &signal) {
		c.Code = codeSignalBase + int(signal)
	}
	err := show.writeError()
	if err == nil && c.format != FormatText {
		err = c.writeResult(doc)
	}
	switch {
	case errors.Is(err, syscall.EPIPE):
		// The reader of our output is gone: end as the program would have without us in between, and quietly.
		c.Code = CodeBrokenPipe
		return nil
	case err != nil:
		return &sandbox.Error{Op: "pass on output", Err: err}
	case c.format == FormatText && !o.quiet:
		c.printSummary(r, story, show.midLine)
	}
	return nil
}

// nameSignal says that it was a signal that made us give up, where it was.
func nameSignal(ctx context.Context, err error) error {
	var signal SignalCause
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &signal) {
		return signal
	}
	return err
}

// openedBackend is a backend that auto has come to.
type openedBackend struct {
	backend sandbox.Backend
	choice  app.Choice
}

// chooseEarly has auto choose before anything else is read, where that may come to a backend which only the full executable has: what
// was read of standard input can not be handed over. An ordinary run is not among these, and pays nothing. It reports which
// backend that is; one of ours is kept for the run.
func (c *Invocation) chooseEarly(cmd *cobra.Command) (elsewhere string) {
	backend, require := cmd.Flags().Lookup("backend"), cmd.Flags().Lookup("require")
	if backend == nil || require == nil || backend.Value.String() != app.Auto {
		return ""
	}
	w := app.Want{Require: sandbox.Tier(require.Value.String())}
	if strict := cmd.Flags().Lookup("strict"); strict != nil {
		w.Strict = strict.Value.String() == "true"
	}
	if f := cmd.Flags().Lookup("runtime"); f != nil {
		w.Runtime = f.Value.String()
	}
	if app.NativeSuffices(w) {
		return ""
	}
	with := app.Options{Eager: true, Early: c.early}
	if f := cmd.Flags().Lookup("docker-host"); f != nil {
		with.DockerHost = f.Value.String()
	}
	b, choice, err := app.OpenAuto(context.Background(), w, with)
	if away := new(app.OtherExecutableError); errors.As(err, &away) {
		return away.Backend
	}
	if err == nil { // an error is reported by Open, after the command line was checked
		c.chosen = &openedBackend{b, choice}
	}
	return ""
}

// openBackend opens the backend that was asked for, or the one that auto comes to; then it also says why.
func (c *Invocation) openBackend(o *boxOptions) (b sandbox.Backend, chosen string, err error) {
	if o.backend != app.Auto {
		b, err = app.Open(o.backend, app.Options{Eager: true, Early: c.early, Runtime: o.runtime, DockerHost: o.dockerHost})
		return b, "", err
	}
	if s := c.chosen; s != nil {
		c.chosen = nil
		o.backend = s.choice.Backend
		return s.backend, s.choice.Why, nil
	}
	w := app.Want{Require: o.policy.Require, Strict: o.policy.Strict, Runtime: o.runtime}
	b, choice, err := app.OpenAuto(context.Background(), w, app.Options{Eager: true, Early: c.early, DockerHost: o.dockerHost})
	if away := new(app.OtherExecutableError); errors.As(err, &away) {
		_, missing := findFull()
		if missing == nil {
			missing = errors.New("it has to be asked for here: --backend " + away.Backend)
		}
		return nil, "", away.Refusal(w, missing)
	}
	if err != nil {
		return nil, "", err
	}
	o.backend = choice.Backend
	return b, choice.Why, nil
}

// closeChosen closes a backend that was opened for a command which came to nothing.
func (c *Invocation) closeChosen() {
	if c.chosen != nil {
		_ = c.chosen.backend.Close() // nothing was made in it
		c.chosen = nil
	}
}
