package serve

import (
	"cmp"
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
	"github.com/sandbox-run/sandbox-run/pkg/api/requestcheck"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/pool"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// stack is an executor with its manager, pool and backend.
type stack struct {
	*executor.Executor
	settings *operator.Settings
	name     string
	tier     sandbox.Tier
	manager  *sandbox.Manager
	backend  sandbox.Backend
	pool     *pool.Pool // backend with pooled sandboxes; nil without warm starts
	audit    *audit.Log
	log      *slog.Logger

	mu     sync.Mutex
	others map[[2]string]*stack // by backend and runtime, for requests that choose one
}

func openStack(ctx context.Context, s *operator.Settings, log *slog.Logger, busy func() bool) (*stack, error) {
	auditLog, err := openAudit(s.AuditLog, log)
	if err != nil {
		return nil, err
	}
	b, chosen, err := openBackend(ctx, s)
	if err != nil {
		return nil, err
	}
	return newStack(ctx, s, b, chosen, auditLog, log, busy)
}

// newStack makes a stack over a backend, which it owns from then on and closes on failure.
func newStack(ctx context.Context, s *operator.Settings, b sandbox.Backend, chosen string, auditLog *audit.Log, log *slog.Logger,
	busy func() bool) (*stack, error) {
	e := &stack{settings: s, log: log, name: b.Name(), tier: b.Probe(ctx).Tier, backend: b, audit: auditLog, others: map[[2]string]*stack{}}
	if _, keeps := b.(sandbox.ImageKeeper); !s.NoWarm && !keeps { // an ImageKeeper keeps warm containers itself
		o := pool.Options{Memory: s.WarmMemory, CPU: s.WarmCPUs, Busy: busy, OnFailure: logColdStarts(log)}
		if s.WarmPerKey {
			o.PerTenant = keyLabel
		}
		e.pool = pool.New(b, o)
		e.backend = e.pool
	}
	e.manager = sandbox.NewManager(e.backend, sandbox.Options{Chosen: chosen})
	var err error
	if e.Executor, err = app.NewExecutor(e.manager, app.ExecutorOptions{
		Audit: auditLog, EntryPoint: audit.EntryAPI, Prestart: e.pool != nil, SharedCache: s.ShareCompiled, OwnKey: requestcheck.Owner,
		Registries: registry.Local{File: deps.RegistriesFile()}, InstallFrom: append([]string{}, s.Packages...), InstallDisk: s.PackagesSize,
		LayersSize: s.LayersSize, Installations: s.Installations,
		OnPreparationFailure: e.logPreparationFailure,
	}); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// logColdStarts returns the pool's callback that logs why programs of a kind start cold.
func logColdStarts(log *slog.Logger) func(kind string, err error) {
	return func(kind string, err error) {
		attrs := []any{"kind", kind, "error", err.Error()}
		if u := new(sandbox.Untrusted); errors.As(err, &u) {
			attrs = append(attrs, "path", u.Path, "owner", fmt.Sprintf("%d:%d", u.UID, u.GID), "mode", fmt.Sprintf("%04o", u.Mode))
		}
		log.Warn("warm start unavailable, starting cold", attrs...)
	}
}

// keyLabel is the label with the key of a sandbox, where keys share no zygote.
const keyLabel = "sandbox-run/key"

// Execute runs a program; see api.Executor. It blocks until the program has ended.
func (e *stack) Execute(ctx context.Context, req executor.Request) (*executor.Result, error) {
	if e.pool != nil && e.settings.WarmPerKey {
		// Overwrite a label of this name in the request.
		labels := map[string]string{}
		maps.Copy(labels, req.Policy.Labels)
		labels[keyLabel] = req.Asker.Key
		req.Policy.Labels = labels
	}
	return e.Executor.Execute(ctx, req)
}

// logPreparationFailure logs that prepared files of a toolchain could not be made, so programs start later than they could.
func (e *stack) logPreparationFailure(f executor.PreparationFailure) {
	e.log.Warn("preparation failed, starting without prepared files",
		"what", f.What, "error", f.Error, "attempts", f.Attempts, "retry_at", f.Next())
}

// retryEvery is the interval at which warm asks the executor to retry failed preparations. The executor decides whether a retry is due.
const retryEvery = 15 * time.Second

// warm prepares the configured languages, and retries failed preparations until ctx ends.
func (e *stack) warm(ctx context.Context) {
	e.warmLanguages(ctx, e.log)
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if e.RetryPreparations(ctx) {
				e.log.Info("preparation succeeded after a retry")
				e.warmLanguages(ctx, e.log)
			}
		}
	}
}

// warmLanguages fills the pool for the configured languages. A language that fails starts cold.
func (e *stack) warmLanguages(ctx context.Context, log *slog.Logger) {
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
		log.Warn("warm start incomplete", "languages", e.settings.Warm, "error", err.Error())
	default:
		log.Info("warm start ready", "languages", e.settings.Warm)
	}
}

// openBackend opens the configured backend, and refuses one below the required tier: every request would be refused.
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

func floor(s *operator.Settings) sandbox.Tier { return cmp.Or(s.Require, sandbox.TierContainer) }

// noAudit is the value of --audit-log that disables the log.
const noAudit = "off"

func openAudit(path string, log *slog.Logger) (*audit.Log, error) {
	if path == noAudit {
		return nil, nil
	}
	auditLog, err := audit.Open(path, audit.Options{})
	if err != nil && path == "" { // the operator did not request a log
		log.Warn("audit log unavailable, running without", "error", err.Error())
		return nil, nil
	}
	return auditLog, err
}

// engineFor returns the executor of another backend that the policy allows. It opens each backend once and keeps it.
func (e *stack) engineFor(backend, runtime string) (api.Executor, error) {
	backend = cmp.Or(backend, e.settings.Backend)
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
	if err := errors.Join(app.CheckBackend(backend), app.CheckRuntime(backend, runtime)); err != nil {
		return nil, err
	}
	s := *e.settings
	s.Backend, s.Runtime, s.NoWarm = backend, runtime, true
	b, err := app.Open(backend, app.Options{Runtime: runtime, DockerHost: s.DockerHost, DiskFloor: s.DiskFloor})
	if err != nil {
		return nil, err
	}
	other, err := newStack(context.Background(), &s, b, "", e.audit, e.log, nil)
	if err != nil {
		return nil, err
	}
	e.others[[2]string{backend, runtime}] = other
	return other, nil
}

func (e *stack) close() (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.others {
		err = errors.Join(err, other.close())
	}
	return errors.Join(err, e.manager.Close(), e.backend.Close())
}

// withEnvironmentDigest adds the environment digest to every answer to an authenticated client.
func withEnvironmentDigest(digest string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if api.PrincipalFrom(r.Context()) != nil {
				w.Header().Set(app.EnvironmentHeader, digest)
			}
			next.ServeHTTP(w, r)
		})
	}
}

// options returns the options of the API.
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
	var auth api.Authenticator // an untyped nil: every client is the owner
	if r.listeners != nil {
		auth = r.listeners.keys
	}
	return api.Options{
		Executor: r.stack, Sessions: r.sessionOptions(),
		// With the digest, commands see whether the server would treat a run as they would.
		Middleware:  []func(http.Handler) http.Handler{withEnvironmentDigest(app.EnvironmentDigest(self))},
		ExecutorFor: r.stack.engineFor,
		Auth:        auth,
		Policy: api.Policy{
			Ceilings: r.ceilings, Require: floor(s), VolumeRoots: s.Volumes, WritableVolumes: s.WritableVolumes,
			Workspaces: s.Workspaces, DiskFloor: s.DiskFloor, MostWorkspaces: workspace.Most{Workspaces: s.MaxWorkspaces, Bytes: s.WorkspacesSize},
			Backends: s.Backends, Runtimes: s.Runtimes, PassEnv: s.Env, Images: s.Images, WritableRoot: s.WritableRoot, MaxBody: s.MaxBody,
		},
		Log: r.log,
		Dir: dir, Keep: api.Keep{For: s.KeepFor, Runs: s.KeepRuns, Total: s.KeepSize, Spill: s.SpillSize},
		Version: r.serving.Version,
	}, nil
}
