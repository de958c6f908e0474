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
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A run at a server uses one WebSocket:
//
//	client                                 server
//	 ── handshake ─────────────────────────►
//	 ◄─ version, environment digest ──────     if they differ from the client's, the run takes place here or is refused
//	 ── the run, as JSON ──────────────────►
//	 ◄─ ready: language, isolation ───────
//	 ◄─ events … result, or a problem ────
//	 ── stdin, terminal sizes, cancel ─────►   from the first event on
//
// Until the first event, a run that the server refuses can still take place here: nothing has run and no input was consumed. After the
// first event, a run whose connection breaks is lost and is not repeated. The server ends a run whose client has disconnected.

// remoteRun is a run at a server.
type remoteRun struct {
	c              *Invocation
	o              *runOptions
	session        *client.Connection
	name           string          // of the server, for people
	auto           bool            // --server auto: what the server does not do, this process does
	ctx            context.Context //nolint:containedctx // of the whole command: signals cancel it
	stop           context.CancelCauseFunc
	dropConnection context.CancelFunc // drops the connection
	ready          *wire.Ready
	refusal        error       // why the sandbox is not strong enough
	started        atomic.Bool // there was an event
}

const (
	extraSilence  = 2 * time.Minute  // added to the time limits of a run: how long a server may send no event
	cancelTimeout = 5 * time.Second  // to send the cancel message
	endTimeout    = 15 * time.Second // added to the grace period: how long a cancelled run may take to end
)

// runRemotely runs the program at a server, if the flags and the local server allow it. If done is false, nothing has run, and the caller
// runs the program here.
func (c *Invocation) runRemotely(o *runOptions, flags *pflag.FlagSet) (done bool, err error) {
	r := &remoteRun{c: c, o: o, name: o.server, auto: !o.serverOptions.namesServer()}
	if r.auto && (o.server == serverNever || c.local == nil) {
		return false, nil
	}
	if flag, why := localFlag(flags, r.auto); flag != "" {
		return r.refuse(sandbox.Invalid(flag, "%s: %s; leave out --%s, or use --server never", r.name, why, flag))
	}
	if req := o.request(); r.auto && req.Environment() != "" {
		return false, nil
	}
	if r.auto {
		if r.session = c.local.takeSession(c); r.session == nil {
			return false, nil
		}
		r.name = c.local.transport.Path
	} else {
		transport, err := o.serverOptions.openTransport(c)
		if err != nil {
			return true, err
		}
		defer transport.Close()
		if r.session, err = openSession(transport, namedServerTimeout); err != nil {
			return true, explainUnreachable(r.name, err)
		}
	}
	defer r.session.Close()
	if err := checkServerVersion(r.session.Header, r.name); err != nil {
		return r.refuse(err)
	}
	return r.executeRemotely()
}

// refuse ends a run that can not take place at the server: with --server auto it takes place here, otherwise nowhere.
func (r *remoteRun) refuse(err error) (done bool, _ error) {
	if r.auto {
		return false, nil
	}
	return true, err
}

func (r *remoteRun) executeRemotely() (done bool, err error) {
	c, o := r.c, r.o
	req := o.request()
	if err := executor.New(nil, executor.Options{}).Fill(&req); err != nil {
		return r.refuse(err)
	}
	var reading context.Context
	reading, r.dropConnection = context.WithCancel(context.Background())
	defer r.dropConnection()
	r.ctx, r.stop = c.onSignals(r.dropConnection)

	show, streams := c.connectOutput(r.ctx, &o.boxOptions, r.stop)
	if c.hasHeader(&o.boxOptions) {
		show.header = func() string { return c.formatHeader(r.ready) }
	}
	streams.Stdin = o.program.stdin
	var returnTerminal func()
	req.TTY, returnTerminal = c.attachTerminal(&o.boxOptions, &streams)
	defer returnTerminal()
	run, err := client.NewRun(&req)
	if err != nil {
		returnTerminal()
		return r.explainNotCarried(err)
	}
	run.Interactive = true
	r.session.OnReady = func(ready *wire.Ready) {
		// The isolation of the sandbox that the server has made decides, before the program runs in it.
		if r.ready, r.refusal = ready, ready.Isolation.Check(o.policy.Require, o.policy.Strict); r.refusal != nil {
			r.dropConnection()
		}
	}
	show.wait.Start("preparing")
	var result *executor.Result
	if err = r.session.StartRun(reading, run); err == nil {
		result, err = r.followRun(reading, silenceTimeout(&req), &streams)
	}
	returnTerminal()
	show.finish()
	if err != nil {
		return r.explainFailure(err)
	}
	return true, r.reportResult(result, show)
}

// silenceTimeout returns how long a server may send no event of a run: all its time limits, and extraSilence for a busy machine.
func silenceTimeout(req *executor.Request) time.Duration {
	wall, compile := req.Limits.Or(sandbox.DefaultLimits()), req.CompileLimits.Wall
	if compile == 0 {
		compile = time.Minute
	}
	if len(req.Options.Deps) > 0 || req.Options.Install || req.Options.Lock != "" {
		compile += executor.InstallTime
	}
	return wall.Wall + wall.Grace + compile + extraSilence
}

// explainNotCarried names the flag that client.NewRun could not send.
func (r *remoteRun) explainNotCarried(err error) (done bool, _ error) {
	var not *client.UnsendableError
	if errors.As(err, &not) {
		return r.refuse(sandbox.Invalid(not.Field, "%s: %s; use --server never", r.name, not.Reason))
	}
	return r.refuse(&sandbox.Error{Op: "read the files of the program", Kind: sandbox.ErrInvalid, Err: plainPathError(err)})
}

// followRun passes on events until the result. It gives up when a cancelled run does not end in time.
func (r *remoteRun) followRun(reading context.Context, silence time.Duration, streams *sandbox.IO) (*executor.Result, error) {
	type end struct {
		result *executor.Result
		err    error
	}
	ended, gaveUp := make(chan end, 1), make(chan struct{})
	stop := context.AfterFunc(r.ctx, func() { r.cancelRun(gaveUp) })
	defer stop()
	go func() {
		result, err := r.readEvents(reading, silence, streams)
		ended <- end{result, err}
	}()
	select {
	case e := <-ended:
		return e.result, e.err
	case <-gaveUp: // the server does not answer, or a write of the output blocks
		return nil, context.Cause(r.ctx)
	}
}

func (r *remoteRun) readEvents(reading context.Context, silence time.Duration, streams *sandbox.IO) (*executor.Result, error) {
	startInput := sync.OnceFunc(func() { r.sendInput(reading, streams) })
	for {
		ev, err := r.nextEvent(reading, silence)
		if err != nil {
			return nil, err
		}
		r.started.Store(true)
		if ev.Result != nil {
			return ev.Result, nil
		}
		if streams.OnEvent != nil {
			streams.OnEvent(ev.Event)
		}
		if ev.Phase == executor.PhaseRun {
			startInput()
		}
	}
}

func (r *remoteRun) nextEvent(reading context.Context, silence time.Duration) (executor.Event, error) {
	ctx, cancel := context.WithTimeoutCause(reading, silence, client.ErrIdleTimeout)
	defer cancel()
	return r.session.Next(ctx)
}

// sendInput starts to send standard input and terminal sizes to the program.
func (r *remoteRun) sendInput(reading context.Context, streams *sandbox.IO) {
	go func() {
		if streams.Stdin != nil {
			_, _ = io.Copy(r.session, streams.Stdin) // fails when the program ends; readEvents reports that
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
				_ = r.session.Resize(reading, size) // readEvents reports a broken connection
			case <-reading.Done():
				return
			}
		}
	}()
}

// cancelRun asks the server to end the program, and drops the connection if the message can not be sent. It closes gaveUp when the grace
// period and endTimeout are over.
func (r *remoteRun) cancelRun(gaveUp chan<- struct{}) {
	ctx, done := context.WithTimeout(context.Background(), cancelTimeout)
	defer done()
	var signal SignalCause
	if r.session.Cancel(ctx, errors.As(context.Cause(r.ctx), &signal) && signal == interrupt) != nil {
		r.dropConnection()
	}
	grace := r.o.limits.Grace
	if grace == 0 {
		grace = sandbox.DefaultLimits().Grace
	}
	time.AfterFunc(grace+endTimeout, func() { close(gaveUp) })
}

// reportResult prints the result as that of a run here. It refuses a result whose isolation is too weak.
func (r *remoteRun) reportResult(result *executor.Result, show *outputPrinter) error {
	if err := result.Isolation.Check(r.o.policy.Require, r.o.policy.Strict); err != nil {
		return err
	}
	if req := r.o.request(); req.Environment() != "" && result.Language == "python" {
		result.Notes = append(result.Notes, fmt.Sprintf("%sthe virtual environment %s: it is on this machine; --include %s sends it",
			language.UnusedNote, req.Environment(), req.Environment()))
	}
	s := &runEnvironment{ctx: r.ctx, stop: r.stop}
	machine := sandbox.Machine{}
	if !isWeb(r.name) {
		machine = sandbox.ThisMachine()
	}
	return r.c.presentResult(s, r.o, result, show, machine)
}

// explainFailure decides about a run without a result: it takes place here, or its error is returned.
func (r *remoteRun) explainFailure(err error) (done bool, _ error) {
	var (
		signal  SignalCause
		problem *client.Problem
	)
	if errors.As(context.Cause(r.ctx), &signal) {
		return true, signal
	}
	if r.refusal != nil {
		return r.refuse(r.refusal)
	}
	refused := errors.As(err, &problem)
	if !r.started.Load() && (refused || errors.Is(err, client.ErrNotSent)) {
		return r.refuse(explainUnreachable(r.name, err))
	}
	if refused {
		return true, err
	}
	return true, &sandbox.Error{
		Op: "server " + r.name, Err: fmt.Errorf("%w; the program may have run, and is not run again", err),
		Hint: "--server never, to run it here",
	}
}
