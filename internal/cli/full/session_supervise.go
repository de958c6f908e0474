package full

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/detached"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/requestcheck"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// superviseName is the hidden subcommand of session that a supervisor of a named session executes.
const superviseName = "supervise"

// newSessionSupervise makes the command of a detached supervisor. Its flags are those that concern the whole process; the session itself is
// created over its socket.
func (c *commands) newSessionSupervise() *cobra.Command {
	o := &cli.SessionOptions{}
	life := &lifetimes{}
	cmd := &cobra.Command{
		Use: superviseName + " NAME", Hidden: true, Args: cobra.ExactArgs(1), Short: "Supervise a named session",
		RunE: func(cmd *cobra.Command, args []string) error {
			parent, ok := detached.OpenParent()
			if !ok {
				return sandbox.Invalid(superviseName, "session create starts it")
			}
			err := o.Complete(c.Invocation, cmd.Flags())
			if err == nil {
				err = c.supervise(args[0], o, life, parent)
			}
			parent.Ready(err) // does nothing after the first call
			return err
		},
	}
	o.AddProcessFlags(cmd.Flags(), c.Invocation)
	life.addFlags(cmd.Flags())
	return cmd
}

// lifetimes are the flags of how long a session lives.
type lifetimes struct{ idle, all time.Duration }

func (l *lifetimes) addFlags(fs *pflag.FlagSet) {
	cli.AddParsed(fs, &l.idle, "idle", "30m", "`time` without a call after which the session ends", cli.ReadDuration)
	cli.AddParsed(fs, &l.all, "lifetime", "24h", "`time` after which the session ends in any case", cli.ReadDuration)
}

// noCeilings lets the user's own requests do what the user's own runs may do.
type noCeilings struct{}

// Check sets no bounds.
func (noCeilings) Check(req *executor.Request, _ api.KeyLimits) error {
	req.Policy.Bounds = network.Bounds{}
	return nil
}

// sessionEnds is told of the end of sessions.
type sessionEnds struct {
	api.Observers
	ended chan struct{}
}

// Session notices the end of a session.
func (e sessionEnds) Session(_ context.Context, event api.SessionEvent) {
	if event.Ended == "" {
		return
	}
	select {
	case e.ended <- struct{}{}:
	default: // the supervisor has another one to look at
	}
}

// shutdown is how long answers may take after the end of the last session.
const shutdown = 5 * time.Second

// supervise serves the HTTP API for the sessions of this process until the last one has ended.
func (c *commands) supervise(name string, o *cli.SessionOptions, life *lifetimes, parent *detached.Parent) error {
	path, err := detached.Path(name)
	if err != nil {
		return err
	}
	listeners, err := listen.Open(context.Background(), listen.Options{Addresses: []listen.Address{{Path: detached.Socket(path)}}})
	if err != nil {
		return err
	}
	defer func() {
		_ = detached.Remove(path) // the lock is ours until Close; gc removes what is left
		_ = listeners.Close()
	}()
	log, err := openLog(path)
	if err != nil {
		return err
	}
	env, err := c.OpenSessions(o, nil)
	if err != nil {
		return err
	}
	defer env.Close()
	ends := sessionEnds{ended: make(chan struct{}, 1)}
	info, ok := debug.ReadBuildInfo()
	server, err := api.New(api.Options{
		Executor: env.Executor, Sessions: &api.SessionOptions{Executor: env.Executor, Bounds: session.Options{Idle: life.idle, Lifetime: life.all}},
		Policy: api.Policy{
			Ceilings: noCeilings{}, Require: sandbox.TierProcess, VolumeRoots: []string{"/"}, WritableVolumes: true, WritableRoot: true,
		},
		Observer: ends, Log: log, Dir: filepath.Join(path, "api"), Version: cli.Version(info, ok),
	})
	if err != nil {
		return err
	}
	defer server.Close()
	web := &http.Server{
		Handler:           requestcheck.New(server.Handler(), requestcheck.Options{Log: log}),
		ReadHeaderTimeout: shutdown, ConnContext: listen.ConnContext, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	for _, l := range listeners.Listeners() {
		go func() { failed <- web.Serve(l) }()
	}
	log.Info("serving", "name", name, "pid", os.Getpid())
	parent.Ready(nil)
	why := awaitEnd(server, parent, ends.ended, failed)
	log.Info("ending", "why", why)
	ctx, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	return web.Shutdown(ctx)
}

// awaitEnd waits until there is no session any more, and returns the reason.
func awaitEnd(server *api.Server, parent *detached.Parent, ended <-chan struct{}, failed <-chan error) string {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	begun := make(chan bool, 1)
	go func() { begun <- parent.Await() }()
	created := false
	for {
		select {
		case created = <-begun:
			if !created {
				return "no session was created"
			}
		case <-ended:
		case got := <-signals:
			return got.String()
		case err := <-failed:
			return err.Error()
		}
		if created && server.SessionCount() == 0 {
			return "the last session has ended"
		}
	}
}

// openLog opens the log of a supervisor, which gets its crash, too.
func openLog(path string) (*slog.Logger, error) {
	dir, err := userdir.OpenDir(path, userdir.Write)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.Open(detached.LogName, userdir.Append)
	if err != nil {
		return nil, err
	}
	_ = debug.SetCrashOutput(f, debug.CrashOptions{}) // without it, a crash has no text
	return slog.New(slog.NewTextHandler(io.Writer(f), nil)), nil
}
