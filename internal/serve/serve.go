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

	"github.com/sandbox-run/sandbox-run/internal/linux/memory"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/admission"
	"github.com/sandbox-run/sandbox-run/pkg/api/idempotency"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/observe"
	"github.com/sandbox-run/sandbox-run/pkg/api/requestcheck"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
	"github.com/sandbox-run/sandbox-run/pkg/mcp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Timeouts of connections. Package requestcheck bounds request bodies, package listen bounds writes.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	mostHeader    = 64 << 10
	closeTimeout  = 10 * time.Second // for answers still being written at the end
	codeSignal    = 128
	// garbage is GOGC: the live heap is about 10 MiB, and the default would collect every ten requests.
	garbage = 400
)

// running is an open server.
type running struct {
	serving     Options
	settings    *operator.Settings
	log         *slog.Logger
	level       *slog.LevelVar
	notify      *listen.Notifier
	listeners   *listeners
	stack       *stack
	api         *api.Server
	http        *http.Server
	ceilings    *ceilings
	observation *observe.Observation
	queue       atomic.Pointer[admission.Queue]
	repeated    *idempotency.AnswerStore
	hooks       *webhook.Sender // or nil
}

// Serve runs a server until a signal, the end of ctx or a broken listener ends it. It blocks until all runs have ended.
func Serve(ctx context.Context, s Options) (err error) {
	r := &running{serving: s, settings: s.Settings, level: new(slog.LevelVar), ceilings: new(ceilings)}
	r.level.Set(s.Settings.LogLevel)
	r.log = slog.New(slog.NewJSONHandler(s.Err, &slog.HandlerOptions{Level: r.level}))
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(garbage))
	}
	restore := limitMemory(r.log)
	defer restore()
	// A closed log pipe must not end the server.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	// Register signals first: one that arrives during open ends the server as soon as it is open.
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
	r.observation.Begin()
	r.ready()
	stop := r.startBackground(ctx)
	defer stop()
	why := r.wait(ctx, signals, failed)
	r.notify.Send("STOPPING=1", "STATUS=draining: "+why.Error())
	r.log.Info("draining", "why", why.Error(), "within", r.settings.DrainTimeout.String())
	r.drain(ctx, signals)
	err = r.close()
	r.log.Info("ended")
	if broken := new(brokenError); errors.As(why, &broken) {
		return errors.Join(broken.err, err)
	}
	return err
}

// open opens all parts, the listeners first: a server that can not listen needs no other part, and a second server must not touch files of
// the first.
func (r *running) open(ctx context.Context) (err error) {
	if r.listeners, err = openListeners(ctx, r.settings, r.log); err != nil {
		return err
	}
	if err := r.openAPI(ctx); err != nil {
		return err
	}
	r.http = &http.Server{
		Handler: r.observeRequests(requestcheck.New(r.api.Handler(), requestcheck.Options{
			Hosts: r.settings.Hosts, Origins: r.settings.Origins, Log: r.log,
		})),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: mostHeader, ConnContext: listen.ConnContext,
		// net/http's own answer to OPTIONS * would bypass the request checks, and would read a body without a time limit.
		DisableGeneralOptionsHandler: true,
		// Clients that disconnect midway are logged at debug level only.
		ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
	r.http.Protocols = new(http.Protocols)
	r.http.Protocols.SetHTTP1(true) // see Certificate.Config
	return nil
}

// openAPI opens the parts behind the listeners.
func (r *running) openAPI(ctx context.Context) (err error) {
	if r.stack, err = openStack(ctx, r.settings, r.log, r.busy); err != nil {
		return err
	}
	if err := r.ceilings.set(r.settings, r.stack.manager.Machine()); err != nil {
		return err
	}
	o, err := r.options()
	if err != nil {
		return err
	}
	if err := errors.Join(r.addLoadControl(&o), r.addObserver(&o)); err != nil {
		return err
	}
	if r.api, err = api.New(o); err != nil {
		return err
	}
	r.mountLoadControl()
	mcp.Mount(r.api, mcp.Options{Version: r.serving.Version})
	return nil
}

// startBackground starts what goes on beside requests. The caller calls stop, which waits for its end.
func (r *running) startBackground(ctx context.Context) (stop func()) {
	background, cancel := context.WithCancel(ctx)
	var warming sync.WaitGroup
	warming.Go(func() { r.stack.warm(background) })
	warming.Go(func() {
		if err := r.api.PrestartSessions(r.settings.Warm...); err != nil {
			r.log.Warn("sessions start cold", "error", err.Error())
		}
	})
	warming.Go(func() { r.pressure().watch(background) })
	return func() {
		cancel()
		warming.Wait()
	}
}

// start accepts connections on every listener. The channel gets the error of a listener that stops by itself.
func (r *running) start() <-chan error {
	failed := make(chan error, len(r.listeners.set.Listeners()))
	for _, l := range r.listeners.set.Listeners() {
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

// ready reports the addresses to the terminal, the log and systemd.
func (r *running) ready() {
	var at []string
	for _, l := range r.listeners.set.Listeners() {
		at = append(at, l.Via().At)
	}
	where := strings.Join(at, ", ")
	fmt.Fprintf(r.serving.Err, "sandbox-run: serving on %s (pid %d, %s, %s)\n", where, os.Getpid(), r.stack.name, r.stack.tier)
	r.log.Info("serving", "listen", at, "pid", os.Getpid(), "backend", r.stack.name, "tier", r.stack.tier, "version", r.serving.Version)
	for _, note := range r.listeners.notes {
		r.log.Warn(note)
	}
	r.notify.Ready("serving on "+where, r.alive)
}

// pressure returns the sampler of the machine's memory.
func (r *running) pressure() *pressure {
	p := &pressure{read: memory.Read, hold: r.queue.Load().Hold, idle: r.api.IdleMemory, keep: r.queue.Load().Keep, log: r.log}
	if r.stack.pool != nil {
		p.pool = r.stack.pool
	}
	return p
}

// alive answers systemd's watchdog: the manager must answer within a second.
func (r *running) alive() bool {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		r.stack.manager.List()
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

// wait blocks until the server must end, and returns the reason. SIGHUP reloads the settings.
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

// reload applies the settings that can change while the server runs.
func (r *running) reload() {
	r.notify.Send("STATUS=reading settings")
	defer r.notify.Send("STATUS=serving")
	if err := r.listeners.reload(); err != nil {
		r.log.Error("certificate reload failed", "error", err.Error())
	}
	next, err := r.serving.Again()
	if err == nil {
		err = r.ceilings.set(next, r.stack.manager.Machine())
	}
	if err != nil {
		r.log.Error("settings reload failed, keeping the previous ones", "error", err.Error())
		return
	}
	r.level.Set(next.LogLevel)
	if later := operator.Changes(r.settings, next); len(later) > 0 {
		r.log.Warn("settings changed that need a restart", "settings", later)
	}
	r.log.Info("settings reloaded")
}

// drain closes the listeners and waits for runs to end. A second signal cancels the runs, and a third ends the process.
func (r *running) drain(ctx context.Context, signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.settings.DrainTimeout)
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		if err := r.listeners.set.Close(); err != nil {
			r.log.Error("closing listeners failed", "error", err.Error())
		}
		r.queue.Load().Drain()
		if err := r.api.Drain(ctx); err != nil {
			r.log.Warn("drain ended with cancelled runs", "error", err.Error())
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
				r.serving.Exit(codeSignal + int(n)) // sandboxes end with this process, even if a part hangs
			}
			r.log.Warn("cancelling runs", "why", s.String())
		}
	}
}

// close closes all open parts, from the outside in. Parts that were never opened are skipped.
func (r *running) close() (err error) {
	if r.listeners != nil {
		err = errors.Join(err, r.listeners.set.Close())
	}
	if r.api != nil {
		err = errors.Join(err, r.api.Close())
	}
	if r.http != nil {
		// Answers still being written get closeTimeout; then their connections are closed.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if r.http.Shutdown(ctx) != nil {
			err = errors.Join(err, r.http.Close())
		}
	}
	if r.hooks != nil {
		err = errors.Join(err, r.hooks.Close())
	}
	err = errors.Join(err, r.closeObserver())
	if r.stack != nil {
		err = errors.Join(err, r.stack.close())
	}
	if r.listeners != nil {
		err = errors.Join(err, r.listeners.close())
	}
	return err
}
