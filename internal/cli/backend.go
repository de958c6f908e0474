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

// stage is where a run takes place: a backend with its manager, the log it is written to, and a context that signals cancel.
type stage struct {
	log      *audit.Log // nil where nothing is to be written
	unlogged error      // why nothing can be, though it was to be

	manager *sandbox.Manager
	ctx     context.Context
	stop    context.CancelCauseFunc
	// dismantle gives everything back. The sandbox is gone before anybody hears that the program has ended; only then is
	// it a result. Twice is fine.
	dismantle func() error
}

func (c *cli) openStage(o *boxOptions) (*stage, error) {
	log, unlogged, err := o.openAudit()
	if err != nil {
		return nil, err
	}
	b, chosen, err := c.openBackend(o)
	if err != nil {
		return nil, err
	}
	s := &stage{log: log, unlogged: unlogged, manager: sandbox.NewManager(b, sandbox.Options{Chosen: chosen})}
	s.dismantle = sync.OnceValue(func() error { return errors.Join(s.manager.Close(), b.Close()) })
	s.ctx, s.stop = c.onSignals(func() {
		for _, box := range s.manager.List() {
			_ = s.manager.Kill(box.ID) // it is gone already, or Run reports what went wrong
		}
	})
	return s, nil
}

// close is for the ways out that have worse to report than what can not be removed.
func (s *stage) close() {
	_ = s.dismantle()
	s.stop(nil)
}

// connect decides where the program's output goes.
func (c *cli) connect(o *boxOptions, stop context.CancelCauseFunc) (*live, sandbox.IO) {
	streams := sandbox.IO{OutputSpace: new(sandbox.OutputStore).For("")} // which ends with the process
	if o.spill != "" {
		streams.Spill = &sandbox.Spill{Dir: o.spill}
	}
	show := &live{c: c, lost: stop}
	if c.format == formatJSON {
		return show, streams
	}
	if c.format == formatText && drawsOn(c.std.err) && !o.quiet {
		show.wait = &progress{to: c.std.err}
	}
	if c.format == formatText && !o.noStream {
		show.out, show.err = c.sinks(o)
	}
	streams.OnEvent = show.event
	return show, streams
}

// sinks are our two streams, for what the program prints.
func (c *cli) sinks(o *boxOptions) (out, err *sink) {
	plain := o.raw || o.tty // a terminal's whole point is what would be escaped
	tint := ""
	if c.palette(c.std.err) {
		tint = colourRed
	}
	return newSink(c.std.out, plain, ""), newSink(c.std.err, plain, tint)
}

// lend hands our terminal over to the program from the moment it starts, if it is to have one, and takes it back whatever
// happens. It returns the terminal's size for the program.
func (c *cli) lend(o *boxOptions, streams *sandbox.IO) (size *sandbox.TTY, takeBack func()) {
	if !o.tty {
		return nil, func() {}
	}
	t := newTerminal(c.std)
	streams.Resize = t.resized
	ended := make(chan struct{})
	streams.Stdin = sandbox.TypedInput(c.std.in, isTerminal(c.std.in), ended)
	show := streams.OnEvent
	streams.OnEvent = func(e sandbox.Event) {
		// A panic here would end the process from another goroutine, past our defers.
		defer t.restoreOnPanic()
		if e.Kind == sandbox.EventPhase && e.Phase == sandbox.DefaultPhase {
			t.raw() // until then, while something is compiled, keys are ours
		}
		show(e)
	}
	return t.size(), sync.OnceFunc(func() {
		close(ended)
		t.restore()
	})
}

// conclude reports the result and picks the exit code. doc is the result as JSON.
func (c *cli) conclude(s *stage, o *boxOptions, r *sandbox.Result, doc any, show *live, story *story) error {
	c.code = sandbox.CLICode(r.Verdict, r.Exit)
	story.cause = context.Cause(s.ctx)
	var signal signalCause
	if r.Verdict == sandbox.VerdictCancelled && errors.As(story.cause, &signal) {
		c.code = codeSignalBase + int(signal)
	}
	err := show.failure()
	if err == nil && c.format != formatText {
		err = c.writeResult(doc)
	}
	switch {
	case errors.Is(err, syscall.EPIPE):
		// Nobody reads on: end as the program would have without us in between, and quietly.
		c.code = codeBrokenPipe
		return nil
	case err != nil:
		return &sandbox.Error{Op: "pass on output", Err: err}
	case c.format == formatText && !o.quiet:
		c.summarise(r, story, show.midLine)
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

// opened is a backend that auto has come to.
type opened struct {
	backend sandbox.Backend
	choice  app.Choice
}

// scout has auto choose before anything else is read, where that may come to a backend which only the full executable has: what
// was read of standard input can not be handed over. An ordinary run is not among these, and pays nothing. It reports which
// backend that is; one of ours is kept for the run.
func (c *cli) scout(cmd *cobra.Command) (elsewhere string) {
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
	with := app.Options{Eager: true, Early: c.ahead}
	if f := cmd.Flags().Lookup("docker-host"); f != nil {
		with.DockerHost = f.Value.String()
	}
	b, choice, err := app.OpenAuto(context.Background(), w, with)
	if away := new(app.OtherExecutableError); errors.As(err, &away) {
		return away.Backend
	}
	if err == nil { // an error is reported by Open, after the command line was checked
		c.scouted = &opened{b, choice}
	}
	return ""
}

// openBackend opens the backend that was asked for, or the one that auto comes to; then it also says why.
func (c *cli) openBackend(o *boxOptions) (b sandbox.Backend, chosen string, err error) {
	if o.backend != app.Auto {
		b, err = app.Open(o.backend, app.Options{Eager: true, Early: c.ahead, Runtime: o.runtime, DockerHost: o.dockerHost})
		return b, "", err
	}
	if s := c.scouted; s != nil {
		c.scouted = nil
		o.backend = s.choice.Backend
		return s.backend, s.choice.Why, nil
	}
	w := app.Want{Require: o.policy.Require, Strict: o.policy.Strict, Runtime: o.runtime}
	b, choice, err := app.OpenAuto(context.Background(), w, app.Options{Eager: true, Early: c.ahead, DockerHost: o.dockerHost})
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

// dismiss closes a backend that was opened for a command which came to nothing.
func (c *cli) dismiss() {
	if c.scouted != nil {
		_ = c.scouted.backend.Close() // nothing was made in it
		c.scouted = nil
	}
}
