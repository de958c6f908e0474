package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/operator"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/guard"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// engine is what runs programs, with all it stands on.
type engine struct {
	*executor.Executor
	settings *operator.Settings
	name     string
	tier     sandbox.Tier
	manager  *sandbox.Manager
	backend  sandbox.Backend
	pool     *pool.Pool // the backend, where sandboxes are made ready beforehand; or nil
	audit    *audit.Log
	log      *slog.Logger

	mu     sync.Mutex
	others map[[2]string]*engine // by backend and runtime, for requests that may choose
}

func openEngine(ctx context.Context, s *operator.Settings, log *slog.Logger, busy func() bool) (*engine, error) {
	trail, err := openAudit(s.AuditLog, log)
	if err != nil {
		return nil, err
	}
	b, chosen, err := openBackend(ctx, s)
	if err != nil {
		return nil, err
	}
	return newEngine(ctx, s, b, chosen, trail, log, busy)
}

// newEngine takes the backend over, whatever becomes of it.
func newEngine(ctx context.Context, s *operator.Settings, b sandbox.Backend, chosen string, trail *audit.Log, log *slog.Logger, busy func() bool) (*engine, error) {
	e := &engine{settings: s, log: log, name: b.Name(), tier: b.Probe(ctx).Tier, backend: b, audit: trail, others: map[[2]string]*engine{}}
	if _, keeps := b.(sandbox.ImageKeeper); !s.NoWarm && !keeps { // such a one has warm containers of its own
		o := pool.Options{Memory: s.WarmMemory, CPU: s.WarmCPUs, Busy: busy, OnFailure: logColdStarts(log)}
		if s.WarmPerKey {
			o.PerTenant = keyLabel
		}
		e.pool = pool.New(b, o)
		e.backend = e.pool
	}
	e.manager = sandbox.NewManager(e.backend, sandbox.Options{Chosen: chosen})
	var err error
	if e.Executor, err = app.NewExecutor(e.manager, app.Engine{
		Audit: trail, Door: audit.DoorAPI, Prestart: e.pool != nil, SharedCache: s.ShareCompiled, OwnKey: guard.Owner,
		OnPreparationFailure: e.logFailure,
	}); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// logColdStarts returns what tells the operator why programs of a kind start cold.
func logColdStarts(log *slog.Logger) func(kind string, err error) {
	return func(kind string, err error) {
		attrs := []any{"kind", kind, "error", err.Error()}
		if u := new(sandbox.Untrusted); errors.As(err, &u) {
			attrs = append(attrs, "path", u.Path, "owner", fmt.Sprintf("%d:%d", u.UID, u.GID), "mode", fmt.Sprintf("%04o", u.Mode))
		}
		log.Warn("nothing could be made ready for programs of a kind; they start cold", attrs...)
	}
}

// keyLabel is whose a sandbox is, where keys share no interpreter that forks (W7).
const keyLabel = "sandbox-run/key"

// Execute runs a program; see api.Engine.
func (e *engine) Execute(ctx context.Context, req executor.Request) (*executor.Result, error) {
	if e.pool != nil && e.settings.WarmPerKey {
		// The label is ours, whatever the request says.
		req.Policy.Labels = maps.Clone(req.Policy.Labels)
		if req.Policy.Labels == nil {
			req.Policy.Labels = map[string]string{}
		}
		req.Policy.Labels[keyLabel] = req.Asker.Key
	}
	return e.Executor.Execute(ctx, req)
}

// logFailure tells the operator that programs start later than they could.
func (e *engine) logFailure(f executor.PreparationFailure) {
	e.log.Warn("warm start unavailable, starting cold", "what", f.What, "error", f.Error, "attempts", f.Attempts, "again", f.Next())
}

// retryEvery is how often it is looked whether something that could not be made is to be tried again; how often that is, the executor says.
const retryEvery = 15 * time.Second

// warm makes ready what was asked for, and later what could not be made at first.
func (e *engine) warm(ctx context.Context) {
	e.makeReady(ctx, e.log)
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if e.RetryPreparations(ctx) {
				e.log.Info("what could not be made before was made")
				e.makeReady(ctx, e.log)
			}
		}
	}
}

// makeReady has something wait for the languages that were named. What can not be made ready is started cold when it is asked for.
func (e *engine) makeReady(ctx context.Context, log *slog.Logger) {
	if e.pool == nil || len(e.settings.Warm) == 0 {
		return
	}
	specs, err := e.PrestartSpecs(ctx, e.settings.Warm...)
	if err == nil {
		err = e.pool.Warm(ctx, specs...)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Warn("not everything is made ready", "languages", e.settings.Warm, "error", err.Error())
	default:
		log.Info("ready for programs", "languages", e.settings.Warm)
	}
}

// openBackend opens what the operator has chosen, and refuses what is too weak: requests would all be refused.
func openBackend(ctx context.Context, s *operator.Settings) (b sandbox.Backend, chosen string, err error) {
	with := app.Options{Eager: true, Runtime: s.Runtime, DockerHost: s.DockerHost, DiskFloor: s.DiskFloor}
	if s.Backend == app.Auto {
		b, choice, err := app.OpenAuto(ctx, app.Want{Require: s.Require, Runtime: s.Runtime}, with)
		return b, choice.Why, err
	}
	if b, err = app.Open(s.Backend, with); err != nil {
		return nil, "", err
	}
	if err := b.Probe(ctx).Check(floor(s), false); err != nil {
		return nil, "", errors.Join(err, b.Close())
	}
	return b, "", nil
}

func floor(s *operator.Settings) sandbox.Tier {
	if s.Require == "" {
		return sandbox.TierContainer
	}
	return s.Require
}

// noAudit is in the place of a log's name.
const noAudit = "off"

func openAudit(path string, log *slog.Logger) (*audit.Log, error) {
	if path == noAudit {
		return nil, nil
	}
	trail, err := audit.Open(path, audit.Options{})
	if err != nil && path == "" { // nobody has asked for it, and there is no place for it
		log.Warn("nothing is written to an audit log", "error", err.Error())
		return nil, nil
	}
	return trail, err
}

// engineFor gives the engine of another backend, which the policy has allowed. It is opened once and kept.
func (e *engine) engineFor(backend, runtime string) (api.Engine, error) {
	if backend == "" {
		backend = e.settings.Backend
	}
	if runtime == "" && backend == e.settings.Backend {
		runtime = e.settings.Runtime
	}
	if (backend == e.settings.Backend || backend == e.name) && runtime == e.settings.Runtime {
		return e, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if other := e.others[[2]string{backend, runtime}]; other != nil {
		return other, nil
	}
	if err := errors.Join(app.Known(backend), app.TakesRuntime(backend, runtime)); err != nil {
		return nil, err
	}
	s := *e.settings
	s.Backend, s.Runtime, s.NoWarm = backend, runtime, true
	b, err := app.Open(backend, app.Options{Runtime: runtime, DockerHost: s.DockerHost, DiskFloor: s.DiskFloor})
	if err != nil {
		return nil, err
	}
	other, err := newEngine(context.Background(), &s, b, "", e.audit, e.log, nil)
	if err != nil {
		return nil, err
	}
	e.others[[2]string{backend, runtime}] = other
	return other, nil
}

func (e *engine) close() (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.others {
		err = errors.Join(err, other.close())
	}
	return errors.Join(err, e.manager.Close(), e.backend.Close())
}

// inWorld says in which world this server lives, in every answer to a client that has been let in.
func inWorld(world string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if api.PrincipalFrom(r.Context()) != nil {
				w.Header().Set(app.WorldHeader, world)
			}
			next.ServeHTTP(w, r)
		})
	}
}

// options are what the API is made of. Parts of other packages are a line each.
func (r *running) options() (api.Options, error) {
	s := r.settings
	dir := s.Dir
	if dir == "" {
		state, err := userdir.State()
		if err != nil {
			return api.Options{}, &sandbox.Error{Op: "dir", Err: err, Hint: "--dir DIRECTORY"}
		}
		dir = filepath.Join(state, "server")
	}
	self, err := os.Executable()
	if err != nil {
		return api.Options{}, err
	}
	return api.Options{
		Engine: r.engine,
		// By this, commands see whether the server would do what they would themselves.
		Middleware: []func(http.Handler) http.Handler{inWorld(app.World(self))},
		EngineFor:  r.engine.engineFor,
		Auth:       r.door.keys,
		Policy: api.Policy{
			Ceilings: r.ceilings, Require: floor(s), VolumeRoots: s.Volumes, WritableVolumes: s.WritableVolumes, Workspaces: s.Workspaces, DiskFloor: s.DiskFloor, MostWorkspaces: workspace.Most{Workspaces: s.MaxWorkspaces, Bytes: s.WorkspacesSize},
			Backends: s.Backends, Runtimes: s.Runtimes, PassEnv: s.Env, Images: s.Images, WritableRoot: s.WritableRoot, MaxBody: s.MaxBody,
		},
		Audit: r.engine.audit, Log: r.log,
		Dir: dir, Keep: api.Keep{For: s.KeepFor, Runs: s.KeepRuns, Total: s.KeepSize, Spill: s.SpillSize},
		Version: r.serving.Version,
	}, nil
}
