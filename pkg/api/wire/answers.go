package wire

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// The paths of the API.
const (
	PathRun       = "/v1/run"
	PathRuns      = "/v1/runs"
	PathFiles     = "/v1/files"
	PathBatch     = "/v1/batch"
	PathTests     = "/v1/tests"
	PathLanguages = "/v1/languages"
	PathLimits    = "/v1/limits"
	PathHealth    = "/v1/health"
	PathOpenAPI   = "/openapi.json"
)

// Media types of answers.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
	TypeNDJSON  = "application/x-ndjson"     // one event per line
	TypeSSE     = "text/event-stream"        // the same as id: SEQ, event: KIND, data: LINE
	TypeBinary  = "application/octet-stream" // files
)

// The headers of this API.
const (
	HeaderRunID          = "Sandbox-Run-Id"      // in an answer: the id of the run
	HeaderReceipt        = "Sandbox-Run-Receipt" // in an answer: the requested receipt, in base64
	HeaderVersion        = "Sandbox-Run-Version" // in every answer; on a server with keys, only in answers to requests with a valid key
	HeaderIdempotencyKey = "Idempotency-Key"     // in a request
	HeaderKey            = "X-API-Key"           // in a request: the key, for clients that can not set Authorization
)

// AppendJSON appends a document of the API with its newline, in the form of the command line: without escapes for HTML.
func AppendJSON(b []byte, doc any) []byte {
	out := bytes.NewBuffer(b)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		// All our documents can be encoded: floats are finite, and maps have string keys.
		panic("api: encode " + err.Error())
	}
	return out.Bytes()
}

// RunState is the progress of a run.
type RunState string

// The states of a run.
const (
	StateQueued  RunState = "queued" // accepted; Position is its place in the queue
	StateRunning RunState = "running"
	StateDone    RunState = "done" // with a result, or with an error of the server
	StateLost    RunState = "lost" // the server ended while the run was in progress; its result is unknown
)

// Over reports whether the state is final.
func (s RunState) Over() bool { return s == StateDone || s == StateLost }

// RunInfo is an accepted run: the answer of POST /v1/runs and GET /v1/runs/{id}.
type RunInfo struct {
	ID       string            `json:"id" doc:"Names the run; other clients can not guess it."`
	State    RunState          `json:"state" enum:"queued,running,done,lost" doc:"How far it is."`
	Position int               `json:"position,omitempty" doc:"Place in the queue; 1 is next."`
	Language string            `json:"language,omitempty" doc:"As it was asked for, or found out."`
	Labels   map[string]string `json:"labels,omitempty"`
	Accepted time.Time         `json:"accepted" doc:"When it was accepted."`
	Started  *time.Time        `json:"started,omitempty" doc:"When it began to run."`
	Ended    *time.Time        `json:"ended,omitempty" doc:"When it was over."`
	Expires  *time.Time        `json:"expires,omitempty" doc:"Until when it is kept at the least, unless room is needed."`
	Verdict  string            `json:"verdict,omitempty" doc:"Of a run that is done: how it ended."`
	// Result has the bytes that --json prints; Error is set instead if the run has no result.
	Result json.RawMessage `json:"result,omitempty" doc:"Of a run that is done: the whole result."`
	Error  *Problem        `json:"error,omitempty" doc:"Of a run that is done without a result, or lost: why."`
	Events *Kept           `json:"events,omitempty" doc:"Which events can still be asked for."`
	// Receipt is set if the request asked for a receipt.
	Receipt json.RawMessage `json:"receipt,omitempty" doc:"The signed receipt that was asked for."`
}

// Kept is the range of a run's events that the server still has: those from First to Last.
type Kept struct {
	First   uint64 `json:"first" doc:"The oldest that is kept."`
	Last    uint64 `json:"last" doc:"The newest so far; 0 is none."`
	Dropped uint64 `json:"dropped,omitempty" doc:"How many older ones are no longer kept."`
}

// RunList is a page of GET /v1/runs, the newest first.
type RunList struct {
	Runs []RunInfo `json:"runs" doc:"Without their results."`
	Next string    `json:"next,omitempty" doc:"Give it as cursor to have the next page; left out on the last."`
}

// Upload is an uploaded file: the answer of PUT /v1/files/{id}.
type Upload struct {
	ID      string    `json:"id" doc:"Names it in a run's files and in."`
	Size    int64     `json:"size" doc:"Bytes."`
	SHA256  string    `json:"sha256" doc:"Of its content."`
	Expires time.Time `json:"expires" doc:"When it is forgotten."`
}

// Languages is the answer of GET /v1/languages.
type Languages struct {
	Languages []executor.Availability `json:"languages"`
}

// LimitList is the answer of GET /v1/limits.
type LimitList struct {
	Limits []LimitInfo `json:"limits"`
}

// LimitInfo is one limit of runs.
type LimitInfo struct {
	Name        string `json:"name" doc:"The field of a run."`
	Description string `json:"description"`
	Default     string `json:"default,omitempty" doc:"The value of a run that sets none; some languages have their own. Left out: no limit."`
	Ceiling     string `json:"ceiling,omitempty" doc:"The most that the operator and your key allow. Left out: no ceiling but the machine."`
}

// Health is the answer of GET /v1/health.
type Health struct {
	Live    bool   `json:"live" doc:"It answers."`
	Ready   bool   `json:"ready" doc:"It takes runs."`
	Version string `json:"version,omitempty"`
	Reason  string `json:"reason,omitempty" doc:"Why it is not ready."`
	Running *int   `json:"running,omitempty" doc:"Runs under way; only with a key."`
	Queued  *int   `json:"queued,omitempty" doc:"Runs that wait; only with a key."`
	Deep    *Deep  `json:"deep,omitempty" doc:"With deep=1: a sandbox that was really run."`
}

// Deep is the result of the sandbox that a deep health check runs.
type Deep struct {
	OK       bool    `json:"ok"`
	Took     float64 `json:"took" doc:"Seconds."`
	Language string  `json:"language,omitempty"`
	Tier     string  `json:"tier,omitempty"`
	Error    string  `json:"error,omitempty"`

	Lacks []string `json:"lacks,omitempty" doc:"What would have programs start sooner and could not be made; they run all the same."`
}
