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

// runEnvironment has the backend's manager, the audit log and the context of a run. Signals cancel the context.
type runEnvironment struct {
	log      *audit.Log // nil without an audit log
	unlogged error      // why the default audit log can not be used

	manager *sandbox.Manager
	ctx     context.Context
	stop    context.CancelCauseFunc
	// release removes the sandbox and closes the backend. The result is printed after that. It may be called twice.
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
			_ = s.manager.Kill(box.ID) // the sandbox has ended already, or Run reports the error
		}
	})
	return s, nil
}

// close releases everything. It ignores errors: callers that return early report another error.
func (s *runEnvironment) close() {
	_ = s.release()
	s.stop(nil)
}

// connectOutput makes the printer and the streams for the program's output.
func (c *Invocation) connectOutput(ctx context.Context, o *boxOptions, stop context.CancelCauseFunc) (*outputPrinter, sandbox.IO) {
	streams := sandbox.IO{OutputSpace: new(sandbox.OutputStore).For("")} // freed with the process
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
	if c.format == FormatText && IsTerminal(c.Std.Err) && !o.quiet && !o.tty {
		show.announceWait(ctx, o.limits.Or(sandbox.DefaultLimits()).Grace)
	}
	if c.format == FormatText && !o.noStream {
		show.out, show.err = c.newSinks(o)
	}
	streams.OnEvent = show.printEvent
	return show, streams
}

// newSinks makes the sinks for the program's standard output and standard error.
func (c *Invocation) newSinks(o *boxOptions) (out, err *sink) {
	plain := o.raw || o.tty // a program on a terminal needs its control characters
	out, err = newSink(c.Std.Out, plain), newSink(c.Std.Err, plain)
	for _, s := range []*sink{out, err} {
		if s.escaper != nil {
			s.escaper.colours = bool(c.Palette(s.file))
		}
	}
	if err.escaper != nil && err.escaper.colours {
		err.escaper.tint = colourRed
	}
	return out, err
}

// attachTerminal connects the terminal to the program if --tty is given. The terminal becomes raw when the program starts. The caller
// calls returnTerminal, which restores it and may be called twice. size is that of the program's terminal.
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
		// This runs in another goroutine: a panic would end the process without the deferred functions of the caller.
		defer t.restoreOnPanic()
		show(e) // a header needs the terminal as it was
		if e.Kind == sandbox.EventPhase && e.Phase == sandbox.DefaultPhase {
			t.makeRaw() // during compilation, Ctrl-C still reaches sandbox-run
		}
	}
	return TerminalSize(c.Std.In, c.Std.Out, c.Std.Err), sync.OnceFunc(func() {
		close(ended)
		t.restore()
	})
}

// concludeRun prints the result and sets c.Code. doc is the result as JSON.
func (c *Invocation) concludeRun(s *runEnvironment, o *boxOptions, r *sandbox.Result, doc any, show *outputPrinter, end *outcome) error {
	end.cause = context.Cause(s.ctx)
	r.NameSignal(s.ctx) // a server does not know the signal
	c.Code = r.ExitCode()
	err := show.writeError()
	if err == nil && c.format != FormatText {
		err = c.writeResult(doc)
	}
	switch {
	case errors.Is(err, syscall.EPIPE):
		// The reader of the output is gone: exit silently with the code of a program that SIGPIPE ends.
		c.Code = CodeBrokenPipe
		return nil
	case err != nil:
		return &sandbox.Error{Op: "pass on output", Err: err}
	case c.format == FormatText && !o.quiet || o.summary:
		end.asked = o.summary
		c.printSummary(r, end, show.midLine)
	}
	return nil
}

// nameSignal replaces context.Canceled by the signal that cancelled the context.
func nameSignal(ctx context.Context, err error) error {
	var signal SignalCause
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &signal) {
		return signal
	}
	return err
}

// openedBackend is a backend that auto has chosen.
type openedBackend struct {
	backend sandbox.Backend
	choice  app.Choice
}

// chooseEarly has auto choose a backend before standard input is read, if the choice may be a backend of the full executable: input that
// was read can not be handed over. It returns the name of such a backend; a backend of this executable is kept in c.chosen. If the native
// backend suffices, it does nothing.
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
	if err == nil { // openBackend reports an error, after the command line was checked
		c.chosen = &openedBackend{b, choice}
	}
	return ""
}

// openBackend opens the backend of --backend. For auto, chosen is the reason of the choice.
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

// closeChosen closes a backend that chooseEarly has opened and no run has used.
func (c *Invocation) closeChosen() {
	if c.chosen != nil {
		_ = c.chosen.backend.Close() // it has no sandboxes
		c.chosen = nil
	}
}
