package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// Options configures a Server. Only Executor is required.
type Options struct {
	// Executor runs programs; the caller closes it after the server.
	Executor Executor
	// ExecutorFor returns the executor of a backend and runtime that a request names and Policy allows; nil means that there is only Executor.
	ExecutorFor func(backend, runtime string) (Executor, error)
	// Sessions configures sessions; nil: there are none.
	Sessions *SessionOptions
	// Auth authenticates clients; nil: every client is the owner and may do everything.
	Auth Authenticator
	// Admission decides when runs start; nil: at once.
	Admission Admission
	// Policy is the operator's: ceilings and allowances.
	Policy Policy
	// Observer is told of all events of runs, for metrics, logs and traces; nil means none. See Observers for several.
	Observer Observer
	// Receipts signs results; nil: requests for a receipt are refused.
	Receipts Receipts
	// Webhooks reports finished runs; nil: requests with a webhook are refused.
	Webhooks Webhooks

	// Log gets failures of the server itself; nil means none. Code and secrets are never logged.
	Log *slog.Logger
	// Middleware is between Auth and the routes, the first outermost: PrincipalFrom returns the principal.
	Middleware []func(http.Handler) http.Handler

	// Dir stores accepted asynchronous runs, their results, and uploads. If it is empty, they are in memory and a temporary directory, and are
	// removed with the server.
	Dir  string
	Keep Keep
	// Version is the version of the server, which answers have in a header.
	Version string
}

// Executor runs programs. *executor.Executor implements it.
type Executor interface {
	Execute(ctx context.Context, req executor.Request) (*executor.Result, error)
	CheckLanguages(ctx context.Context) []executor.Availability
}

// Weigher is an optional interface of an Executor that knows the weight of a request for admission.
type Weigher interface {
	Weight(req executor.Request) executor.Weight
}

var (
	_ Executor = (*executor.Executor)(nil)
	_ Weigher  = (*executor.Executor)(nil)
)

// Authenticator finds the principal of a token.
type Authenticator interface {
	// Authenticate returns the principal of a token; "" means no token. The error is ErrUnauthorized for every invalid token, without a
	// reason; any other error is a failure of the server.
	Authenticate(ctx context.Context, token string) (*Principal, error)
}

// RevocationChecker is an optional interface of an Authenticator that knows whether a principal is still authorized. Requests that take
// long are checked.
type RevocationChecker interface {
	// StillAuthorized reports that. It returns true when the keys can not be read.
	StillAuthorized(p *Principal) bool
}

// Scopes of a principal. A principal without scopes has all of them.
const (
	ScopeRun   = "run"   // run programs, and see one's own
	ScopeRead  = "read"  // see one's own runs, languages, limits
	ScopeAdmin = "admin" // metrics, deep health
)

// Principal is the authenticated owner of a request. Runs belong to an ID.
type Principal struct {
	ID     string
	Name   string
	Scopes []string
	Limits KeyLimits
	// Secret identifies the secret that authenticated the request, for RevocationChecker; "" means any. It is not stored: accepted runs belong
	// to the principal, even after a change of its secret.
	Secret string `json:"-"`
}

// KeyLimits are the limits of one principal. A zero field means the server's own.
type KeyLimits struct {
	Limits        sandbox.Limits // ceilings of a run
	CompileLimits sandbox.Limits
	Network       network.Mode // the most of both networks
	Concurrency   int          // runs at a time
	Rate          float64      // runs per second
	Burst         int
}

// Admission decides when runs start.
type Admission interface {
	// Enter blocks until a run may start. The caller calls leave once, when the run is over. The error is a *Refusal, or that of ctx.
	Enter(ctx context.Context, a AdmissionRequest) (leave func(), err error)
}

// AdmissionRequest is what Admission has to know of a run.
type AdmissionRequest struct {
	Key         string // Principal.ID
	Memory      sandbox.Size
	CPUs        float64
	Concurrency int
	Rate        float64
	Burst       int
	// Accepted marks a run that the server has accepted. Admission orders it, but does not refuse it because the queue is full.
	Accepted bool
	// OnPosition is called with the position in the queue, 1 first, whenever it changes; it must not block. nil means no call.
	OnPosition func(int)
}

// Ready is an optional interface of an Admission that can reserve a place: asynchronous runs are accepted at once and wait later.
type Ready interface {
	// Reserve takes a place in the queue, or fails with a *Refusal. The caller calls release when the run has entered; a second call does
	// nothing.
	Reserve(a AdmissionRequest) (release func(), err error)
}

// Refusal is an answer with status 429 or 503: the client should try again later.
type Refusal struct {
	Status     int    // 429: the principal's own share is used up; 503: the server's
	Code       string // "" means that of the status
	Reason     string
	RetryAfter time.Duration
	Position   int // that the run would have had
}

func (r *Refusal) Error() string { return r.Reason }

// Policy is what requests may choose. The zero value allows nothing of the host, and has the ceilings of DefaultCeilings.
type Policy struct {
	// Ceilings checks the limits of requests; nil means DefaultCeilings.
	Ceilings Ceilings
	// Require is the lowest tier that a request may accept; empty means container.
	Require sandbox.Tier
	// VolumeRoots are the host directories in which volumes may be; none: no volumes. WritableVolumes allows rw.
	VolumeRoots     []string
	WritableVolumes bool
	// WritableRoot lets requests change an image's files during a run.
	WritableRoot bool
	// Workspaces lets requests use workspaces of the server's user. WorkspaceStore is their directory; "" means the user's default.
	Workspaces     bool
	WorkspaceStore string
	// MostWorkspaces bounds the workspaces of one principal; the zero value means 16, of 16 GiB together.
	MostWorkspaces workspace.Most
	// DiskFloor is the free space to leave on the disk of workspaces; 0 means the smaller of 1 GiB and 5 % of it.
	DiskFloor sandbox.Size
	// Backends and Runtimes are those that requests may choose; none: only the server's own.
	Backends []string
	Runtimes []string
	// PassEnv are the variables of the server that requests may pass on.
	PassEnv []string
	// Images are references, or prefixes that end in *, that requests may use; nil: all images of the server.
	Images []string
	// MaxBody bounds a body; 0 means 32 MiB. BodyTimeout bounds the time to read it; 0 means 30 s.
	MaxBody     sandbox.Size
	BodyTimeout time.Duration
}

// Ceilings checks limits and networks. It sets Policy.Bounds of a request whose networks may have rules; otherwise they have none. The error
// names the field and the ceiling: sandbox.Invalid, or an error of kind sandbox.ErrRefused whose Op is the name of the flag or field.
type Ceilings interface {
	Check(req *executor.Request, key KeyLimits) error
}

// Keep bounds what is stored of runs. A zero field means the default.
type Keep struct {
	For  time.Duration // after its end; default 1 h
	Runs int           // finished runs in total; default 10,000
	// RunsPerKey and TotalPerKey bound one principal's; default half of Runs and Total, or all without keys.
	RunsPerKey  int
	TotalPerKey sandbox.Size

	Open   int          // unfinished asynchronous runs; more are refused; default 10,000
	Memory sandbox.Size // of events per run in memory, before they go to disk; default 1 MiB
	Events sandbox.Size // per run on disk; the oldest go first; default 64 MiB
	// Spill bounds the output of running runs and of answers being sent, on disk in total; without room less is kept; default 4 GiB.
	Spill sandbox.Size
	// Total bounds everything on disk; the oldest finished runs of the principal with the most are removed first; default 4 GiB.
	Total     sandbox.Size
	Uploads   sandbox.Size  // of all uploaded files; default 1 GiB
	Upload    sandbox.Size  // of one uploaded file; default 64 MiB
	UploadFor time.Duration // default 1 h
	// Interactive is how long a run waits for its first WebSocket client; default 1 min.
	Interactive time.Duration
}

// Way is how a run was requested.
type Way string

// The ways.
const (
	WayRun    Way = "run"    // POST /v1/run, the whole result
	WayStream Way = "stream" // POST /v1/run, events
	WayAsync  Way = "async"  // POST /v1/runs
	WayBatch  Way = "batch"  // part of a batch, or another caller of Server.Do
)

// Info is a run as observers see it, without its code.
type Info struct {
	ID        string
	Principal *Principal
	Way       Way
	Language  string // as requested; of a finished run, as detected
	Accepted  time.Time
}

// Finished is a finished run.
type Finished struct {
	Info
	Started time.Time // zero if it never started
	Ended   time.Time
	// RequestSHA256 is the digest of the body as it was received.
	RequestSHA256 string
	// Result is the run's result, and Document its JSON; Err is why there is none. Both can be read until Close.
	Result   *executor.Result
	Document *sandbox.JSON
	Err      error
	// Run is the request. Observers must not change or log it.
	Run *wire.Run
}

// Close returns the disk space of the run's output. The caller of Server.Do calls it; the output can not be read afterwards.
func (f *Finished) Close() {
	if f.Result != nil {
		f.Result.Close()
	}
}

// Refused is a request that was refused before a run began.
type Refused struct {
	Principal *Principal // nil if not authenticated
	Method    string
	Route     string // the pattern, not the path
	Status    int
	Code      string // of the problem
	Detail    string
}

// Observer receives the events of runs. Its methods are called from many goroutines and must not block.
type Observer interface {
	// Queued: a run was accepted and waits for Admission.
	Queued(ctx context.Context, r Info)
	// Started: the run was admitted.
	Started(ctx context.Context, r Info)
	// Finished: a run that was Queued is over.
	Finished(ctx context.Context, f *Finished)
	// Refused: a request was answered with a status of 400 or more before a run began.
	Refused(ctx context.Context, r Refused)
	// Session: a session was created, or has ended.
	Session(ctx context.Context, e SessionEvent)
}

// Observers calls several observers in order.
type Observers []Observer

// Queued calls each observer.
func (all Observers) Queued(ctx context.Context, r Info) {
	for _, o := range all {
		o.Queued(ctx, r)
	}
}

// Started calls each observer.
func (all Observers) Started(ctx context.Context, r Info) {
	for _, o := range all {
		o.Started(ctx, r)
	}
}

// Finished calls each observer.
func (all Observers) Finished(ctx context.Context, f *Finished) {
	for _, o := range all {
		o.Finished(ctx, f)
	}
}

// Refused calls each observer.
func (all Observers) Refused(ctx context.Context, r Refused) {
	for _, o := range all {
		o.Refused(ctx, r)
	}
}

// Session calls each observer.
func (all Observers) Session(ctx context.Context, e SessionEvent) {
	for _, o := range all {
		o.Session(ctx, e)
	}
}

// Receipts signs results.
type Receipts interface {
	// Receipt is called once for a run with a receipt, before a client sees its end.
	Receipt(ctx context.Context, f *Finished) (json.RawMessage, error)
}

// Webhooks reports finished runs.
type Webhooks interface {
	// Check refuses an invalid or forbidden webhook, before the run is accepted.
	Check(hook *wire.Webhook) error
	// Keep stores the webhook of a finished run on disk. It is sent once send is called, or after a restart: a receiver learns of a run only
	// when it can get it, and a crash loses no webhook. The result is in result, not in run; it may be large, and is nil where there is none.
	Keep(owner string, hook *wire.Webhook, run wire.RunInfo, result *sandbox.JSON) (send func(), err error)
}

type principalKey struct{}

// PrincipalFrom returns the principal of a request's context; nil outside of a request.
func PrincipalFrom(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}
