package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// How a run at a server goes, over one WebSocket:
//
//	we                                     server
//	 ── handshake ─────────────────────────►
//	 ◄───────────────── version, world ──    another than ours: it is run here, or not at all
//	 ── the run, as JSON ──────────────────►
//	 ◄─ ready: language, walls ───────────
//	 ◄─ events … result, or a problem ────
//	 ── stdin, sizes of the terminal, cancel ─►   from the program's first event on
//
// Until the first event, a run that the server does not take, or can not do, can still be done here: nothing has happened and nothing was
// read away. After it, it is the server's; if that is lost, so is the run, and it is not run twice. The server ends it when we are gone.

// away is a run at a server.
type away struct {
	c       *cli
	o       *runOptions
	session *client.Connection
	name    string          // of the server, for people
	auto    bool            // nobody has asked for it
	ctx     context.Context //nolint:containedctx // of the whole command: signals cancel it
	stop    context.CancelCauseFunc
	hangUp  context.CancelFunc // drops the connection
	ready   *wire.Ready
	weak    error       // why the sandbox is not strong enough
	began   atomic.Bool // there was an event
}

// errLocal: it is to be run here.
var errLocal = errors.New("run it here")

const (
	// serverPatience is the longest silence of a server beyond what the program may take.
	serverPatience = 2 * time.Minute
	// cancelPatience is how long a server may take to hear that a run is to end, and endPatience to end it, after the grace period.
	cancelPatience = 5 * time.Second
	endPatience    = 15 * time.Second
)

// executeAway runs the program at a server, if it is to be. It is errLocal if it is not.
func (c *cli) executeAway(o *runOptions, flags *pflag.FlagSet) (err error) {
	r := &away{c: c, o: o, name: o.server, auto: !o.serverOptions.named()}
	if r.auto && (o.server == serverNever || c.near == nil) {
		return errLocal
	}
	if flag, why := staysFor(flags, r.auto); flag != "" {
		return r.instead(sandbox.Invalid(flag, "%s: %s; leave out --%s, or use --server never", r.name, why, flag))
	}
	if r.auto {
		if r.session, err = c.near.take(c); err != nil {
			return errLocal
		}
		r.name = c.near.transport.Path
	} else {
		transport, err := o.serverOptions.open(c)
		if err != nil {
			return err
		}
		defer transport.Close()
		if r.session, err = talkTo(transport, namedPatience); err != nil {
			return unreachable(r.name, err)
		}
	}
	defer r.session.Close()
	if err := sameVersion(r.session.Header, r.name); err != nil {
		return r.instead(err)
	}
	return r.execute()
}

// instead is what happens to a run that can not take place at the server: it takes place here, or nowhere.
func (r *away) instead(err error) error {
	if r.auto {
		return errLocal
	}
	return err
}

func (r *away) execute() error {
	c, o := r.c, r.o
	req := o.request()
	if err := executor.New(nil, executor.Options{}).Fill(&req); err != nil {
		return r.instead(err)
	}
	var reading context.Context
	reading, r.hangUp = context.WithCancel(context.Background())
	defer r.hangUp()
	r.ctx, r.stop = c.onSignals(r.hangUp)

	show, streams := c.connect(&o.boxOptions, r.stop)
	show.begin = func() { c.headline(o, r.ready) }
	streams.Stdin = o.program.stdin
	var takeBack func()
	req.TTY, takeBack = c.lend(&o.boxOptions, &streams)
	defer takeBack()
	run, err := client.NewRun(&req)
	if err != nil {
		takeBack()
		return r.notCarried(err)
	}
	run.Interactive = true
	r.session.OnReady = func(ready *wire.Ready) {
		// Whatever a server says that it will do, what it has made decides, before the program runs in it.
		if r.ready, r.weak = ready, ready.Isolation.Check(o.policy.Require, o.policy.Strict); r.weak != nil {
			r.hangUp()
		}
	}
	show.wait.start("preparing")
	var result *executor.Result
	if err = r.session.StartRun(reading, run); err == nil {
		result, err = r.follow(reading, patienceFor(&req), &streams)
	}
	takeBack()
	show.finish()
	if err != nil {
		return r.failed(err)
	}
	return r.conclude(result, show)
}

// patienceFor is how long a server may be silent about a run: as long as all of it may take, and what a busy machine adds.
func patienceFor(req *executor.Request) time.Duration {
	wall, compile := req.Limits.Or(sandbox.DefaultLimits()), req.CompileLimits.Wall
	if compile == 0 {
		compile = time.Minute
	}
	return wall.Wall + wall.Grace + compile + serverPatience
}

// notCarried names the flag.
func (r *away) notCarried(err error) error {
	var not *client.UnsendableError
	if errors.As(err, &not) {
		return r.instead(sandbox.Invalid(not.Field, "%s: %s; use --server never", r.name, not.Reason))
	}
	return r.instead(&sandbox.Error{Op: "read the files of the program", Kind: sandbox.ErrInvalid, Err: plainPathError(err)})
}

// follow shows what happens, until there is a result.
func (r *away) follow(reading context.Context, patience time.Duration, streams *sandbox.IO) (*executor.Result, error) {
	type end struct {
		result *executor.Result
		err    error
	}
	ended, gaveUp := make(chan end, 1), make(chan struct{})
	stop := context.AfterFunc(r.ctx, func() { r.cancel(gaveUp) })
	defer stop()
	go func() {
		result, err := r.watch(reading, patience, streams)
		ended <- end{result, err}
	}()
	select {
	case e := <-ended:
		return e.result, e.err
	case <-gaveUp: // the server is stuck, or whoever reads our output is
		return nil, context.Cause(r.ctx)
	}
}

func (r *away) watch(reading context.Context, patience time.Duration, streams *sandbox.IO) (*executor.Result, error) {
	talk := sync.OnceFunc(func() { r.talk(reading, streams) })
	for {
		ev, err := r.next(reading, patience)
		if err != nil {
			return nil, err
		}
		r.began.Store(true)
		if ev.Result != nil {
			return ev.Result, nil
		}
		if streams.OnEvent != nil {
			streams.OnEvent(ev.Event)
		}
		if ev.Phase == executor.PhaseRun {
			talk()
		}
	}
}

// next waits for the next event, but not for ever.
func (r *away) next(reading context.Context, patience time.Duration) (executor.Event, error) {
	ctx, cancel := context.WithTimeoutCause(reading, patience, client.ErrIdleTimeout)
	defer cancel()
	return r.session.Next(ctx)
}

// talk passes on what is for the program, from the moment it runs.
func (r *away) talk(reading context.Context, streams *sandbox.IO) {
	go func() {
		if streams.Stdin != nil {
			_, _ = io.Copy(r.session, streams.Stdin) // ends when the program does; that is no news
		}
		_ = r.session.CloseWrite()
	}()
	if streams.Resize == nil {
		return
	}
	go func() {
		for {
			select {
			case size := <-streams.Resize:
				_ = r.session.Resize(reading, size) // its end is noticed by who reads
			case <-reading.Done():
				return
			}
		}
	}()
}

// cancel has the server end the program, and hangs up if it does not hear of it. A result is waited for as long as the program may still take.
func (r *away) cancel(gaveUp chan<- struct{}) {
	ctx, done := context.WithTimeout(context.Background(), cancelPatience)
	defer done()
	if r.session.Cancel(ctx) != nil {
		r.hangUp()
	}
	grace := r.o.limits.Grace
	if grace == 0 {
		grace = sandbox.DefaultLimits().Grace
	}
	time.AfterFunc(grace+endPatience, func() { close(gaveUp) })
}

// conclude shows what became of the program, as if it had been run here.
func (r *away) conclude(result *executor.Result, show *live) error {
	if err := result.Isolation.Check(r.o.policy.Require, r.o.policy.Strict); err != nil {
		return err
	}
	s := &stage{ctx: r.ctx, stop: r.stop}
	machine := sandbox.Machine{}
	if !isWeb(r.name) {
		machine = sandbox.ThisMachine()
	}
	return r.c.present(s, r.o, result, show, machine)
}

// failed decides what a run that has no result means.
func (r *away) failed(err error) error {
	var (
		signal  signalCause
		problem *client.Problem
	)
	if errors.As(context.Cause(r.ctx), &signal) {
		return signal
	}
	if r.weak != nil {
		return r.instead(r.weak)
	}
	refused := errors.As(err, &problem)
	if !r.began.Load() && (refused || errors.Is(err, client.ErrNotSent)) {
		if r.auto {
			return errLocal
		}
		return unreachable(r.name, err)
	}
	if refused {
		return err
	}
	return &sandbox.Error{
		Op: "server " + r.name, Err: fmt.Errorf("%w; the program may have run, and is not run again", err), Hint: "--server never, to run it here",
	}
}
