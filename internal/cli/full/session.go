package full

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/detached"
	"github.com/sandbox-run/sandbox-run/internal/repl"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

func init() { implement("session", (*commands).newSession) }

func (c *commands) newSession() *cobra.Command {
	cmd := c.NewGroup("session",
		`A session is a sandbox with an interpreter that keeps its state between pieces of code. It has
a name, and lives until it is closed or idle. A running server holds it (--server; auto is your
own server); without one, it has a process of its own.`,
		"  sandbox-run session create --name lab\n  sandbox-run session exec lab --code 'x = 6 * 7; x'\n  sandbox-run session close lab")
	cmd.AddCommand(c.newSessionCreate(), c.newSessionExec(), c.newSessionAttach(), c.newSessionList(), c.newSessionFiles(), c.newSessionCopy(),
		c.newSessionFork(), c.newSessionInterrupt(), c.newSessionRestart(), c.newSessionClose(), c.newSessionSupervise())
	return cmd
}

// sessionCommand makes a subcommand about one session, which is its first argument. most is the number of further arguments.
func (c *commands) sessionCommand(use string, most int, o *cli.SessionOptions, do func(ctx context.Context, s *client.Session, args []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.CheckServerFlags(cmd.Flags())
			switch {
			case err != nil:
			case len(args) == 0:
				err = &sandbox.Error{Op: cli.CommandWords(cmd), Kind: sandbox.ErrInvalid, Err: errors.New("it needs the name of a session"),
					Hint: "sandbox-run session list"}
			case len(args) > most+1:
				err = &sandbox.Error{Op: cli.CommandWords(cmd), Kind: sandbox.ErrInvalid, Err: fmt.Errorf("unexpected argument %q", args[most+1]),
					Hint: cli.HelpHint(cmd)}
			default:
				var s *client.Session
				if s, err = c.findSession(cmd.Context(), o, args[0]); err == nil {
					err = do(cmd.Context(), s, args[1:])
				}
			}
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	o.AddServerFlags(cmd.Flags())
	return cmd
}

// supervisor is a client of the detached supervisor of a name.
func supervisor(name string) (*client.Client, error) {
	path, err := detached.Path(name)
	if err != nil {
		return nil, err
	}
	return client.New(&client.Unix{Path: detached.Socket(path)}), nil
}

// places are the servers and supervisors that may have a session, the likeliest first.
func (c *commands) places(o *cli.SessionOptions, name string) (all []*client.Client, err error) {
	server, err := o.Server(c.Invocation)
	if err != nil || o.NamesServer() {
		return []*client.Client{server}, err
	}
	living, err := detached.List()
	if err != nil {
		return nil, err
	}
	if i := slices.Index(living, name); i > 0 {
		living[0], living[i] = living[i], living[0]
	}
	for _, own := range living {
		s, err := supervisor(own)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if server != nil {
		all = append(all, server)
	}
	return all, nil
}

// findSession finds a session by its name or its id.
func (c *commands) findSession(ctx context.Context, o *cli.SessionOptions, name string) (*client.Session, error) {
	all, err := c.places(o, name)
	if err != nil {
		return nil, err
	}
	for _, place := range all {
		s, err := place.Sessions().Get(ctx, name)
		switch {
		case err == nil:
			return s, nil
		case o.NamesServer() || !errors.Is(err, session.ErrNotFound) && !errors.Is(err, client.ErrNoServer) && !isUnsupported(err):
			return nil, err
		}
	}
	return nil, sandbox.Errorf(sandbox.ErrInvalid, fmt.Sprintf("session %.80q", name), "sandbox-run session list", "there is none, or it has ended")
}

// isUnsupported reports whether a server has no sessions.
func isUnsupported(err error) bool {
	var e *sandbox.Error
	return errors.As(err, &e) && errors.Is(e.Kind, sandbox.ErrUnsupported)
}

func (c *commands) newSessionCreate() *cobra.Command {
	o, life := &cli.SessionOptions{}, &lifetimes{}
	name := ""
	cmd := &cobra.Command{
		Use: "create [flags]", Short: "Create a session",
		Long: `Starts an interpreter in a fresh sandbox, and prints the name of the session. Limits are those of
each piece of code; memory, processes and disk are those of the whole session.`,
		Example: "  sandbox-run session create --name lab --lang python --memory 1g\n  sandbox-run session create --idle 2h --deps numpy",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.Complete(c.Invocation, cmd.Flags())
			if err == nil {
				err = cli.CheckNotEmpty(cmd.Flags(), "name")
			}
			if err == nil {
				req := session.Request{Request: o.Request(""), Name: name, Idle: life.idle, Lifetime: life.all}
				err = c.createSession(cmd, o, &req)
			}
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	o.AddTo(cmd, c.Invocation, false, func(fs *pflag.FlagSet) {
		fs.StringVar(&name, "name", "", "`name` of the session (default a random one)")
		life.addFlags(fs)
		o.AddServerFlags(fs)
	})
	return cmd
}

// createSession makes a session at a server or, without one, with a supervisor of its own, and prints its name.
func (c *commands) createSession(cmd *cobra.Command, o *cli.SessionOptions, req *session.Request) error {
	asked, err := client.NewSession(req)
	if err != nil {
		return sessionField(err)
	}
	server, err := o.Server(c.Invocation)
	if err != nil {
		return err
	}
	if server != nil {
		made, err := server.Sessions().Create(cmd.Context(), asked)
		if err == nil || o.NamesServer() || !isUnsupported(err) {
			return c.printCreated(o, made, err)
		}
	}
	if asked.Name == "" {
		asked.Name = randomName()
	}
	if !session.IsName(asked.Name) {
		return session.WrongName(asked.Name)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"session", superviseName, asked.Name}, cli.ProcessFlags(cmd.Flags())...)
	for _, flag := range []string{"idle", "lifetime"} {
		if f := cmd.Flags().Lookup(flag); f.Changed {
			args = append(args, "--"+flag, f.Value.String())
		}
	}
	p, err := startSupervisor(self, asked.Name, args)
	if err != nil {
		return err
	}
	own, err := supervisor(asked.Name)
	if err != nil {
		p.Abandon()
		return err
	}
	made, err := own.Sessions().Create(cmd.Context(), asked)
	if err != nil {
		p.Abandon()
		return err
	}
	return c.printCreated(o, made, p.Keep())
}

// startSupervisor starts the supervisor of a name. The directory may be removed meanwhile by the collection of a dead one.
func startSupervisor(self, name string, args []string) (p *detached.Process, err error) {
	for range 3 {
		if detached.IsAlive(name) {
			return nil, sandbox.Errorf(sandbox.ErrInvalid, "name", "another name, or sandbox-run session close "+name, "there is a session %q already", name)
		}
		if p, err = detached.Start(self, args); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil && detached.IsAlive(name) { // the other one of two creations of the name
		return startSupervisor(self, name, args)
	}
	if err != nil {
		return nil, &sandbox.Error{Op: "start the session's supervisor", Err: err}
	}
	return p, nil
}

func (c *commands) printCreated(o *cli.SessionOptions, s *client.Session, err error) error {
	if err != nil {
		return err
	}
	if note := o.LeftOut(); note != "" {
		c.PrintMessage(note)
	}
	i := s.Info()
	for _, n := range i.Notes {
		c.PrintMessage(n)
	}
	_, err = fmt.Fprintln(c.Std.Out, cmp.Or(i.Name, i.ID))
	return err
}

func (c *commands) newSessionAttach() *cobra.Command {
	o := &cli.SessionOptions{}
	cmd := c.sessionCommand("attach NAME [flags]", 0, o, func(_ context.Context, s *client.Session, _ []string) error {
		return c.converse(c.newScreen(o), nil, func(context.Context) (repl.Options, error) { return repl.Options{Session: &remoteSession{s}}, nil })
	})
	cmd.Short = "Type code into a session"
	cmd.Long = "As repl, in a session that exists: what was executed before is there, and the session\nstays when you leave."
	cmd.Example = "  sandbox-run session attach lab"
	o.AddPrintFlags(cmd.Flags(), c.Invocation)
	return cmd
}

func (c *commands) newSessionList() *cobra.Command {
	o := &cli.SessionOptions{}
	cmd := &cobra.Command{
		Use: "list [flags]", Short: "List your sessions",
		Long:    "Lists your sessions: those of a server, and those with a process of their own.",
		Example: "  sandbox-run session list\n  sandbox-run session list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.CheckServerFlags(cmd.Flags())
			if err == nil {
				err = c.listSessions(cmd.Context(), o)
			}
			return cli.NameSource(cmd.Flags(), err, cli.HelpHint(cmd))
		},
	}
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the sessions as one JSON document")
	o.AddServerFlags(cmd.Flags())
	return cmd
}

func (c *commands) listSessions(ctx context.Context, o *cli.SessionOptions) error {
	places, err := c.places(o, "")
	if err != nil {
		return err
	}
	all := []session.Info{}
	for _, place := range places {
		list, err := place.Sessions().List(ctx)
		if err != nil && (o.NamesServer() || !errors.Is(err, client.ErrNoServer) && !isUnsupported(err)) {
			return err
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b session.Info) int { return a.Created.Compare(b.Created) })
	if c.JSON {
		return c.WriteJSON(struct {
			Sessions []session.Info `json:"sessions"`
		}{all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(c.Std.Out, "there are no sessions")
		return err
	}
	t := c.NewTable(c.Std.Out, "NAME", "LANGUAGE", "STATE", ">CELLS", ">MEMORY", "CREATED", "ENDS")
	for _, i := range all {
		memory := "-"
		if i.Usage != nil {
			memory = sandbox.Size(i.Usage.Memory).String()
		}
		if err := t.Add(cmp.Or(i.Name, i.ID), i.Language, string(i.State), strconv.FormatUint(i.Cells, 10), memory, formatTime(i.Created),
			formatTime(i.Expires)); err != nil {
			return err
		}
	}
	return t.Flush()
}

func (c *commands) newSessionInterrupt() *cobra.Command {
	cmd := c.sessionCommand("interrupt NAME [flags]", 0, &cli.SessionOptions{}, func(_ context.Context, s *client.Session, _ []string) error {
		return s.Interrupt()
	})
	cmd.Short = "Interrupt the code that runs in a session"
	cmd.Long = "Interrupts the code that runs, as Ctrl-C does. The state stays."
	cmd.Example = "  sandbox-run session interrupt lab"
	return cmd
}

func (c *commands) newSessionRestart() *cobra.Command {
	cmd := c.sessionCommand("restart NAME [flags]", 0, &cli.SessionOptions{}, func(ctx context.Context, s *client.Session, _ []string) error {
		return s.Restart(ctx)
	})
	cmd.Short = "Start another interpreter in a session"
	cmd.Long = "Ends the interpreter and starts another one in the same sandbox: the files stay, the state\ndoes not."
	cmd.Example = "  sandbox-run session restart lab"
	return cmd
}

func (c *commands) newSessionFork() *cobra.Command {
	var o session.ForkOptions
	cmd := c.sessionCommand("fork NAME [flags]", 0, &cli.SessionOptions{}, func(ctx context.Context, s *client.Session, _ []string) error {
		made, err := s.Fork(ctx, o)
		return c.printCreated(&cli.SessionOptions{}, made, err)
	})
	cmd.Short = "Make another session with the same state"
	cmd.Long = `Makes a second session, and prints its name. In Python and shell it is a second interpreter with
the same state in the same sandbox, whose files both see; threads are not copied. In other
languages it is a new sandbox with copies of the files, without the state.`
	cmd.Example = "  sandbox-run session fork lab --name try"
	cmd.Flags().StringVar(&o.Name, "name", "", "`name` of the new session (default its id)")
	cmd.Flags().BoolVar(&o.Replay, "replay", false, "where the state can not be copied, execute the code again, with its side effects")
	return cmd
}

// remoteSession is a session of a server.
type remoteSession struct{ *client.Session }

// Fork makes a session with the same state.
func (s *remoteSession) Fork(ctx context.Context) (repl.Session, error) {
	made, err := s.Session.Fork(ctx, session.ForkOptions{})
	if err != nil {
		return nil, err
	}
	return &remoteSession{made}, nil
}

func (c *commands) newSessionClose() *cobra.Command {
	o := &cli.SessionOptions{}
	cmd := c.sessionCommand("close NAME [flags]", 0, o, func(ctx context.Context, s *client.Session, _ []string) error {
		if err := s.Delete(ctx); err != nil {
			return err
		}
		awaitSupervisor(s.Info().Name)
		return nil
	})
	cmd.Short = "End a session, with all that is in it"
	cmd.Long = "Ends a session: its code, its sandbox and its files."
	cmd.Example = "  sandbox-run session close lab"
	return cmd
}

// awaitSupervisor waits for the end of a supervisor whose last session was closed, so that its name is free. It gives up on one that has
// other sessions.
func awaitSupervisor(name string) {
	path, err := detached.Path(name)
	if err != nil || name == "" {
		return
	}
	for deadline := time.Now().Add(2 * shutdown); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err != nil {
			return
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		list, err := client.New(&client.Unix{Path: detached.Socket(path)}).Sessions().List(ctx)
		cancel()
		if err == nil && len(list) > 0 {
			return
		}
	}
}

// sessionField gives the error of a request that has no form for a server the shape of a wrong flag.
func sessionField(err error) error {
	var field *client.UnsendableError
	if errors.As(err, &field) {
		if field.Field == "files" {
			field.Field = "project"
		}
		return sandbox.Invalid(field.Field, "%s", field.Reason)
	}
	return err
}

// randomName is a name for a session without one.
func randomName() string { return "s-" + strings.ToLower(rand.Text()[:10]) }
