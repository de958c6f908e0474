package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/linux/memory"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/admission"
	"github.com/sandbox-run/sandbox-run/pkg/api/guard"
	"github.com/sandbox-run/sandbox-run/pkg/api/idempotency"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/observe"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Time-outs of connections. Bodies have theirs in guard, what is written in listen.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	mostHeader    = 64 << 10
	closeTimeout  = 10 * time.Second // for answers that are being written when everything is over
	codeSignal    = 128
	// garbage is how much of it there may be, in percent of what is in use: some 10 MiB, which would be gone through every ten requests.
	garbage = 400
)

// Server serves the HTTP API.
type Server struct{}

var _ cli.Server = Server{}

// running is a server that is open.
type running struct {
	serving  cli.Serving
	settings *operator.Settings
	log      *slog.Logger
	level    *slog.LevelVar
	notify   *listen.Notifier
	door     *door
	engine   *engine
	api      *api.Server
	http     *http.Server
	ceilings *ceilings
	seen     *observe.Observation
	queue    atomic.Pointer[admission.Queue]
	repeated *idempotency.Keeper
	hooks    *webhook.Sender // or nil
}

// Serve runs until it is told to end.
func (Server) Serve(ctx context.Context, s cli.Serving) (err error) {
	r := &running{serving: s, settings: s.Settings, level: new(slog.LevelVar), ceilings: new(ceilings)}
	r.level.Set(s.Settings.LogLevel)
	r.log = slog.New(slog.NewJSONHandler(s.Err, &slog.HandlerOptions{Level: r.level}))
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(garbage))
	}
	restore := limitMemory(r.log)
	defer restore()
	// A log that nobody reads any more must not end us.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	// Signals are taken from the beginning: what comes while it opens ends it as soon as it is open.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	if r.notify, err = listen.NewNotifier(); err != nil {
		return err
	}
	defer r.notify.Close()
	if err := r.open(ctx); err != nil {
		return errors.Join(err, r.close())
	}
	failed := r.start()
	r.seen.Begin()
	r.ready()
	lives, ends := context.WithCancel(ctx)
	var warming sync.WaitGroup
	warming.Go(func() { r.engine.warm(lives) })
	warming.Go(func() { r.pressure().watch(lives) })
	defer warming.Wait()
	defer ends()
	why := r.wait(ctx, signals, failed)
	r.notify.Say("STOPPING=1", "STATUS=ending: "+why.Error())
	r.log.Info("draining", "why", why.Error(), "within", r.settings.DrainTimeout.String())
	r.drain(ctx, signals)
	err = r.close()
	r.log.Info("ended")
	if broken := new(brokenError); errors.As(why, &broken) {
		return errors.Join(broken.err, err)
	}
	return err
}

// open makes everything, the door first: who can not listen has no use for the rest, and a second server touches nothing of the first's.
func (r *running) open(ctx context.Context) (err error) {
	if r.door, err = openDoor(ctx, r.settings, r.log); err != nil {
		return err
	}
	if r.engine, err = openEngine(ctx, r.settings, r.log, r.busy); err != nil {
		return err
	}
	if err := r.ceilings.set(r.settings, r.engine.manager.Machine()); err != nil {
		return err
	}
	o, err := r.options()
	if err != nil {
		return err
	}
	if err := errors.Join(r.loaded(&o), r.observed(&o)); err != nil {
		return err
	}
	if r.api, err = api.New(o); err != nil {
		return err
	}
	r.mountLoad()
	r.http = &http.Server{
		Handler: r.watched(guard.New(r.api.Handler(), guard.Options{
			Hosts: r.settings.Hosts, Origins: r.settings.Origins, Log: r.log,
		})),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: mostHeader, ConnContext: listen.ConnContext,
		DisableGeneralOptionsHandler: true,                                                // what it answers by itself has not been before the guard, and a body of it is waited for without an end
		ErrorLog:                     slog.NewLogLogger(r.log.Handler(), slog.LevelDebug), // clients that go away in the middle are no news
	}
	r.http.Protocols = new(http.Protocols)
	r.http.Protocols.SetHTTP1(true) // see Certificate.Config
	return nil
}

// start begins to accept on every listener, and tells when one of them has stopped by itself.
func (r *running) start() <-chan error {
	failed := make(chan error, len(r.door.set.Listeners()))
	for _, l := range r.door.set.Listeners() {
		go func() {
			err := r.http.Serve(l)
			if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
				return
			}
			failed <- &brokenError{&sandbox.Error{Op: "listen " + l.Via().At, Err: err}}
		}()
	}
	return failed
}

// ready says where it is reached, to whoever started it.
func (r *running) ready() {
	var at []string
	for _, l := range r.door.set.Listeners() {
		at = append(at, l.Via().At)
	}
	where := strings.Join(at, ", ")
	fmt.Fprintf(r.serving.Err, "sandbox-run: serving on %s (pid %d, %s, %s)\n", where, os.Getpid(), r.engine.name, r.engine.tier)
	r.log.Info("serving", "listen", at, "pid", os.Getpid(), "backend", r.engine.name, "tier", r.engine.tier, "version", r.serving.Version)
	for _, note := range r.door.notes {
		r.log.Warn(note)
	}
	r.notify.Ready("serving on "+where, r.alive)
}

// pressure watches the memory that all of this lives on.
func (r *running) pressure() *pressure {
	p := &pressure{read: memory.Read, hold: r.queue.Load().Hold, log: r.log}
	if r.engine.pool != nil {
		p.pool = r.engine.pool
	}
	return p
}

// alive is for whoever watches: a server whose manager does not answer is not.
func (r *running) alive() bool {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		r.engine.manager.List()
	}()
	select {
	case <-answered:
		return true
	case <-time.After(time.Second):
		return false
	}
}

type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }

// wait returns why it is over.
func (r *running) wait(ctx context.Context, signals <-chan os.Signal, failed <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-failed:
			return err
		case s := <-signals:
			if s != syscall.SIGHUP {
				return errors.New(s.String())
			}
			r.reload()
		}
	}
}

// reload takes over what can be changed while it runs.
func (r *running) reload() {
	r.notify.Say("STATUS=reading settings")
	defer r.notify.Say("STATUS=serving")
	if err := r.door.reload(); err != nil {
		r.log.Error("certificate not read", "error", err.Error())
	}
	next, err := r.serving.Again()
	if err == nil {
		err = r.ceilings.set(next, r.engine.manager.Machine())
	}
	if err != nil {
		r.log.Error("settings not read; those before hold", "error", err.Error())
		return
	}
	r.level.Set(next.LogLevel)
	if later := operator.Changes(r.settings, next); len(later) > 0 {
		r.log.Warn("settings that hold after a restart only", "settings", later)
	}
	r.log.Info("settings read")
}

// drain takes no more connections and lets runs end. Another signal cancels them, and one more ends the process.
func (r *running) drain(ctx context.Context, signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.settings.DrainTimeout)
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		if err := r.door.set.Close(); err != nil {
			r.log.Error("listeners not closed", "error", err.Error())
		}
		r.queue.Load().Drain()
		if err := r.api.Drain(ctx); err != nil {
			r.log.Warn("runs were cancelled", "error", err.Error())
		}
	}()
	for again := 0; ; {
		select {
		case <-drained:
			return
		case s := <-signals:
			if s == syscall.SIGHUP {
				continue
			}
			cancel()
			if again++; again > 1 {
				n, _ := s.(syscall.Signal)
				r.serving.Exit(codeSignal + int(n)) // sandboxes end with us, whatever is stuck
			}
			r.log.Warn("runs are cancelled", "why", s.String())
		}
	}
}

// close ends what is open, from the outside in. It is also for what was opened only in part.
func (r *running) close() (err error) {
	if r.door != nil {
		err = errors.Join(err, r.door.set.Close())
	}
	if r.api != nil {
		err = errors.Join(err, r.api.Close())
	}
	if r.http != nil {
		// Answers that are being written have a moment; then they are cut off.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if r.http.Shutdown(ctx) != nil {
			err = errors.Join(err, r.http.Close())
		}
	}
	if r.hooks != nil {
		err = errors.Join(err, r.hooks.Close())
	}
	err = errors.Join(err, r.unobserved())
	if r.engine != nil {
		err = errors.Join(err, r.engine.close())
	}
	if r.door != nil {
		err = errors.Join(err, r.door.close())
	}
	return err
}
