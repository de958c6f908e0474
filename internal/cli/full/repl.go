package full

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/repl"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

func init() { implement("repl", (*commands).newREPL) }

const replLong = `Starts an interpreter in a fresh sandbox and executes what you type, with its state kept.
Limits are those of each piece of code; memory, processes and disk are those of the whole
session. The sandbox is removed when you leave.

Enter executes a complete statement and otherwise begins a new line. Tab completes, Ctrl-C
interrupts, Ctrl-D leaves, :help lists the commands. The history is kept for each language,
below $XDG_STATE_HOME/sandbox-run/history (~/.local/state/…).

If standard input is no terminal, statements are read from it and executed one after the
other; the exit code is that of the last one that failed.`

func (c *commands) newREPL() *cobra.Command {
	o := &cli.SessionOptions{}
	cmd := &cobra.Command{
		Use:  "repl [flags]",
		Long: replLong,
		Example: `  sandbox-run repl
  sandbox-run repl --lang javascript --memory 256m
  sandbox-run repl --project .
  sandbox-run repl --deps numpy --allow api.example.com
  printf 'x = 6\nx * 7\n' | sandbox-run repl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.Complete(c.Invocation, cmd.Flags())
			if err == nil {
				err = c.runREPL(o, nil)
			}
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	o.AddTo(cmd, c.Invocation, true, nil)
	return cmd
}

// runREPL runs a REPL in a session of this process, and sets c.Code. first is executed before anything is read; nil: nothing.
func (c *commands) runREPL(o *cli.SessionOptions, first *string) error {
	s := c.newScreen(o)
	env, err := c.OpenSessions(o, s.prepare)
	if err != nil {
		return err
	}
	defer env.Close()
	m := session.NewManager(env.Executor, session.Options{Idle: forever, Lifetime: forever})
	defer m.Close()
	open := func(ctx context.Context, language string) (repl.Session, error) {
		if program, needed := o.Detect(); needed && first != nil && language == "" {
			plan, err := env.Executor.Plan(ctx, program)
			if err != nil {
				return nil, err
			}
			language = plan.Language
		}
		s.wait.Start("preparing")
		defer s.wait.End()
		var made *session.Session
		err := env.WithImage(ctx, s.wait.End, func() (err error) {
			made, err = m.Create(ctx, session.Request{Request: o.Request(language)})
			return err
		})
		if err != nil {
			return nil, err
		}
		return &ownSession{made}, nil
	}
	if note := o.LeftOut(); note != "" {
		s.Message(note)
	}
	if env.Unlogged != nil {
		s.Message(executor.AuditNote + env.Unlogged.Error())
	}
	return c.converse(s, first, func(ctx context.Context) (repl.Options, error) {
		made, err := open(ctx, "")
		return repl.Options{Session: made, Open: open, Network: o.Network(), Close: func(old repl.Session) {
			if own, ok := old.(*ownSession); ok {
				own.Close()
			}
		}}, err
	})
}

// interact is runREPL for run --interactive.
func interact(c *cli.Invocation, o *cli.SessionOptions, code string) error {
	return (&commands{c}).runREPL(o, &code)
}

// forever is how long the session of a REPL lives: as long as the REPL.
const forever = 100 * 365 * 24 * time.Hour

// converse runs a REPL with the session that begin opens.
func (c *commands) converse(s *screen, first *string, begin func(context.Context) (repl.Options, error)) error {
	ctx, interrupts, stop := c.signals(s)
	defer stop()
	o, err := begin(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	s.language = func() string { return o.Session.Info().Language }
	terminal := cli.IsTerminal(c.Std.In)
	o.Screen, s.commands = s, []string{"deps"}
	if _, ok := o.Session.(repl.Networker); ok {
		s.commands = append(s.commands, "allow")
	}
	var r *repl.REPL
	if terminal {
		o.Terminal = &repl.TTY{In: c.Std.In, Ask: s.ask, Answered: s.answered, Interrupt: func() { r.Interrupt() }}
	}
	r = repl.New(o)
	s.language = func() string { return r.Session().Info().Language }
	interrupts(func() {
		if terminal {
			s.out.Echoed()
		}
		r.Interrupt()
	})
	ended := make(chan error, 1)
	state := cli.SaveTerminal(c.Std.In)
	go func() {
		if first != nil {
			r.Do(ctx, *first)
		}
		var editor repl.Editor
		if terminal && cli.CanRedraw(c.Std.Out) {
			line := r.NewLineEditor(bool(c.Palette(c.Std.Out)))
			defer line.Close()
			s.greet(o.Session.Info())
			editor = line
		} else {
			editor = r.NewLines(bufio.NewReader(c.Std.In))
		}
		code, err := r.Run(ctx, editor)
		c.Code = code
		ended <- err
	}()
	select {
	case err = <-ended:
	case <-ctx.Done(): // the editor reads the terminal until the process ends
		state.Restore()
		err = context.Cause(ctx)
	}
	return errors.Join(err, s.out.Failure())
}

// signals returns a context that ends with a signal other than Ctrl-C, and a function that says what Ctrl-C does; before that call it ends
// the context, too.
func (c *commands) signals(s *screen) (ctx context.Context, interrupts func(func()), stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.stop = cancel
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // writes to a closed pipe return an error
	all := make(chan os.Signal, 8)
	signal.Notify(all, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	handle := make(chan func(), 1)
	go func() {
		var interrupt func()
		for {
			select {
			case interrupt = <-handle:
			case <-ctx.Done():
				return
			case got := <-all:
				number, ok := got.(syscall.Signal)
				switch {
				case ok && number == syscall.SIGINT && interrupt != nil:
					go interrupt()
				case ok:
					cancel(sandbox.SignalCause(number))
				}
			}
		}
	}()
	return ctx, func(do func()) { handle <- do }, func() {
		signal.Stop(all)
		cancel(nil)
	}
}

// ownSession is a session of this process.
type ownSession struct{ *session.Session }

// Fork makes a session with the same state.
func (s *ownSession) Fork(ctx context.Context) (repl.Session, error) {
	made, err := s.Session.Fork(ctx, session.ForkOptions{})
	if err != nil {
		return nil, err
	}
	return &ownSession{made}, nil
}

var (
	_ repl.Forker    = (*ownSession)(nil)
	_ repl.Packager  = (*ownSession)(nil)
	_ repl.Networker = (*ownSession)(nil)
	_ repl.Session   = (*remoteSession)(nil)
	_ repl.Forker    = (*remoteSession)(nil)
	_ repl.Packager  = (*remoteSession)(nil)
)
