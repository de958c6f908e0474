package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// Options are what a Server is made of. Only Engine must be given.
type Options struct {
	// Engine runs programs; it outlives the server.
	Engine Engine
	// EngineFor gives the engine of a backend and runtime that a request names and Policy allows; nil has none but Engine.
	EngineFor func(backend, runtime string) (Engine, error)
	// Auth knows who may do what; nil: whoever reaches the socket is its owner and may do everything.
	Auth Authenticator
	// Admission lets runs in; nil: everything at once.
	Admission Admission
	// Policy is the operator's: ceilings and allowances (D12).
	Policy Policy
	// Observer is told of everything, for metrics, logs and traces; nil: nobody is. See Observers for several.
	Observer Observer
	// Receipts signs what became of a run for those who ask; nil: asking is refused.
	Receipts Receipts
	// Webhooks tells others of the end of runs; nil: asking is refused.
	Webhooks Webhooks
	// Audit is for those who observe; the engine has it from whoever made it, and the server itself writes nothing there.
	Audit *audit.Log
	// Log is for failures of the server's own; nil: nowhere. Neither code nor secrets are ever logged.
	Log *slog.Logger
	// Middleware stands between Auth and the routes, the first outermost: PrincipalFrom knows whose request it is.
	Middleware []func(http.Handler) http.Handler

	// Dir is where accepted asynchronous runs and their results are kept, and uploads; empty: in memory and a temporary directory, gone with
	// the server.
	Dir  string
	Keep Keep
	// Version of the program, for clients that want their own.
	Version string
}

// Engine is what runs programs.
type Engine interface {
	Execute(ctx context.Context, req executor.Request) (*executor.Result, error)
	CheckLanguages(ctx context.Context) []executor.Availability
}

// Weigher is what an Engine is too when it knows what a request counts for where it is decided how many there may be at a time.
type Weigher interface {
	Weight(req executor.Request) executor.Weight
}

var (
	_ Engine  = (*executor.Executor)(nil)
	_ Weigher = (*executor.Executor)(nil)
)

// Authenticator knows whose a token is.
type Authenticator interface {
	// Authenticate finds the principal of a token; "" is none at all. Its error is ErrUnauthorized for a token that nobody has, and says nothing
	// about why (A2); any other error is the server's own failure.
	Authenticate(ctx context.Context, token string) (*Principal, error)
}

// Standing is what an Authenticator is too when it can say whether somebody who came in would still be let in: what takes long is looked after.
type Standing interface {
	// Still reports that. One who can not be looked up is not sent away.
	Still(p *Principal) bool
}

// Scopes of a principal. No scopes at all are all of them.
const (
	ScopeRun   = "run"   // run programs, and see one's own
	ScopeRead  = "read"  // see one's own runs, languages
	ScopeAdmin = "admin" // metrics, deep health
)

// Principal is somebody who asks. Runs belong to an ID.
type Principal struct {
	ID     string
	Name   string
	Scopes []string
	Limits KeyLimits
	// Secret says by which of its secrets it came in, for Standing; "" is any. It is not kept: what was accepted is the principal's, whatever its secret is by then.
	Secret string `json:"-"`
}

// KeyLimits are what one principal may use at the most. What is zero is the server's own.
type KeyLimits struct {
	Limits        sandbox.Limits // ceilings of a run
	CompileLimits sandbox.Limits
	Concurrency   int     // runs at a time
	Rate          float64 // runs per second
	Burst         int
}

// Admission lets runs in, in its order.
type Admission interface {
	// Enter waits until a run may start. leave is called once, when it is over. Its error is a *Refusal, or that of ctx.
	Enter(ctx context.Context, a Ask) (leave func(), err error)
}

// Ask is what Admission has to know of a run.
type Ask struct {
	Key         string // of whom: Principal.ID
	Memory      sandbox.Size
	CPUs        float64
	Concurrency int
	Rate        float64
	Burst       int
	// Accepted: the run was promised to be run. Admission still orders it, and does not refuse it for want of room in the queue.
	Accepted bool
	// OnPosition is told where it stands, 1 first, whenever that changes; it does not block. nil: nobody wants to know.
	OnPosition func(int)
}

// Ready is what an Admission is too when it can say beforehand whether it would take a run: asynchronous ones are accepted at once and wait later.
type Ready interface {
	// Reserve takes a place in the queue, or says with a *Refusal that there is none. The place is given up by calling release, which Enter's caller does
	// when the run has been let in. Twice is fine.
	Reserve(a Ask) (release func(), err error)
}

// Refusal is an answer of 429 or 503: try again later.
type Refusal struct {
	Status     int    // 429: the principal's own share is used up; 503: the server's
	Code       string // "" is the status's own
	Reason     string
	RetryAfter time.Duration
	Position   int // at which it would have stood
}

func (r *Refusal) Error() string { return r.Reason }

// Policy is what requests may ask for. The zero value allows nothing of the host, and gives ceilings that are some times the defaults.
type Policy struct {
	// Ceilings compares the limits of requests with the operator's; nil: DefaultCeilings.
	Ceilings Ceilings
	// Require is the least tier that a request may accept; empty is container.
	Require sandbox.Tier
	// VolumeRoots are directories of the host that volumes may show, with what is in them; none: no volumes. WritableVolumes lets them be rw.
	VolumeRoots     []string
	WritableVolumes bool
	// WritableRoot lets requests change an image's files for the time of a run.
	WritableRoot bool
	// Workspaces lets requests name workspaces of the server's user, WorkspaceStore where they are ("" is the user's own).
	Workspaces     bool
	WorkspaceStore string
	// MostWorkspaces is what one principal may have of them; the zero value is 16, of 16 GiB together.
	MostWorkspaces workspace.Most
	// DiskFloor is the free space that the disk below workspaces keeps; 0 is the smaller of 1 GiB and 5 % of it.
	DiskFloor sandbox.Size
	// Backends and Runtimes are what requests may choose of; none: the server's own.
	Backends []string
	Runtimes []string
	// PassEnv are names of the server's variables that requests may have passed on.
	PassEnv []string
	// Images are references, or beginnings of them that end in *, that requests may name; nil: all that the server has.
	Images []string
	// MaxBody is the most that a body may have; 0 is 32 MiB. BodyTimeout is how long it may take; 0 is 30 s.
	MaxBody     sandbox.Size
	BodyTimeout time.Duration
}

// Ceilings says what is too much. Its error is one that names the field and the ceiling: sandbox.Invalid, or an error of kind sandbox.ErrRefused. Op is the name
// of the flag or field.
type Ceilings interface {
	Check(req *executor.Request, key KeyLimits) error
}

// Keep says how long and how much of finished runs is kept. What is zero is a default.
type Keep struct {
	For  time.Duration // after its end; default 1 h
	Runs int           // finished ones in all; default 10,000
	// RunsPerKey and TotalPerKey are of one principal's; default half, or all where there are no keys.
	RunsPerKey  int
	TotalPerKey sandbox.Size

	Open      int           // accepted ones that are not over; more are refused; default 10,000
	Memory    sandbox.Size  // of events per run in memory, before they go to disk; default 1 MiB
	Events    sandbox.Size  // per run on disk; the oldest go first; default 64 MiB
	Spill     sandbox.Size  // of the output of runs under way and of answers being sent, on disk in all; without room less is kept; default 4 GiB
	Total     sandbox.Size  // of everything on disk; the oldest finished runs of whoever has the most go first; default 4 GiB
	Uploads   sandbox.Size  // of uploaded files, in all; default 1 GiB
	Upload    sandbox.Size  // of one; default 64 MiB
	UploadFor time.Duration // default 1 h
	// Interactive is how long a run waits for its first WebSocket client; default 1 min.
	Interactive time.Duration
}

// Way is how a run was asked for.
type Way string

// The ways.
const (
	WayRun    Way = "run"    // POST /v1/run, the whole result
	WayStream Way = "stream" // POST /v1/run, events
	WayAsync  Way = "async"  // POST /v1/runs
	WayBatch  Way = "batch"  // part of a batch, or another caller of Server.Do
)

// Info is a run as observers see it: never its code.
type Info struct {
	ID        string
	Principal *Principal
	Way       Way
	Language  string // as it was asked for; of a finished one, as it was found out
	Accepted  time.Time
}

// Finished is a run that is over.
type Finished struct {
	Info
	Started time.Time // zero: it never did
	Ended   time.Time
	// RequestSHA256 is the digest of the body as it was received.
	RequestSHA256 string
	// Result is what became of it, and Document the same as it is sent; Err is why there is none. Both can be read until Close.
	Result   *executor.Result
	Document *sandbox.JSON
	Err      error
	// Run is the request. It is not to be changed, nor logged.
	Run *wire.Run
}

// Close returns the disk space of the run's output. The caller of Server.Do calls it; the output can not be read afterwards.
func (f *Finished) Close() {
	if f.Result != nil {
		f.Result.Close()
	}
}

// Refused is a request that was not let in.
type Refused struct {
	Principal *Principal // nil: nobody known
	Method    string
	Route     string // the pattern, not the path
	Status    int
	Code      string // of the problem
	Detail    string
}

// Observer is told what happens. Its methods are called from many goroutines and do not block.
type Observer interface {
	// Queued: a run was accepted, and waits for Admission.
	Queued(ctx context.Context, r Info)
	// Started: it was let in.
	Started(ctx context.Context, r Info)
	// Finished: it is over, and was one that had been Queued.
	Finished(ctx context.Context, f *Finished)
	// Refused: a request was answered with a status of 400 or more before there was a run.
	Refused(ctx context.Context, r Refused)
}

// Observers are several as one.
type Observers []Observer

// Queued tells each.
func (all Observers) Queued(ctx context.Context, r Info) {
	for _, o := range all {
		o.Queued(ctx, r)
	}
}

// Started tells each.
func (all Observers) Started(ctx context.Context, r Info) {
	for _, o := range all {
		o.Started(ctx, r)
	}
}

// Finished tells each.
func (all Observers) Finished(ctx context.Context, f *Finished) {
	for _, o := range all {
		o.Finished(ctx, f)
	}
}

// Refused tells each.
func (all Observers) Refused(ctx context.Context, r Refused) {
	for _, o := range all {
		o.Refused(ctx, r)
	}
}

// Receipts signs what became of a run.
type Receipts interface {
	// Receipt is called once, before anybody hears of the end of a run that asked for one.
	Receipt(ctx context.Context, f *Finished) (json.RawMessage, error)
}

// Webhooks tells others of the end of runs.
type Webhooks interface {
	// Check refuses an address that is not told anything, before the run is accepted.
	Check(ctx context.Context, p *Principal, hook *wire.Webhook) error
	// Keep takes over telling of a run that is over. What it was given is on disk when it returns, and is told once tell is called, or after a restart:
	// nobody hears of a run before he can ask for it, and no crash has one forgotten.
	// Its result is not in run but in result, which may be large and is nil where there is none.
	Keep(owner string, hook *wire.Webhook, run wire.RunInfo, result *sandbox.JSON) (tell func(), err error)
}

type principalKey struct{}

// PrincipalFrom is whose request a context belongs to; nil outside of one.
func PrincipalFrom(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}
