package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

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
	if app.Ordinary(w) {
		return ""
	}
	with := app.Options{Eager: true, Ahead: c.ahead}
	if f := cmd.Flags().Lookup("docker-host"); f != nil {
		with.DockerHost = f.Value.String()
	}
	b, choice, err := app.OpenAuto(context.Background(), w, with)
	if away := new(app.ElsewhereError); errors.As(err, &away) {
		return away.Backend
	}
	if err == nil { // what is wrong, whoever opens it says once the command line is known to be right
		c.scouted = &opened{b, choice}
	}
	return ""
}

// openBackend opens the backend that was asked for, or the one that auto comes to; then it also says why.
func (c *cli) openBackend(o *boxOptions) (b sandbox.Backend, chosen string, err error) {
	if o.backend != app.Auto {
		b, err = app.Open(o.backend, app.Options{Eager: true, Ahead: c.ahead, Runtime: o.runtime, DockerHost: o.dockerHost})
		return b, "", err
	}
	if s := c.scouted; s != nil {
		c.scouted = nil
		o.backend = s.choice.Backend
		return s.backend, s.choice.Why, nil
	}
	w := app.Want{Require: o.spec.Require, Strict: o.spec.Strict, Runtime: o.runtime}
	b, choice, err := app.OpenAuto(context.Background(), w, app.Options{Eager: true, Ahead: c.ahead, DockerHost: o.dockerHost})
	if away := new(app.ElsewhereError); errors.As(err, &away) {
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
