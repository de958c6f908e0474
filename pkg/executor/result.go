package executor

import (
	"encoding/json"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Result is the result of a program: that of its run, or of the phase that failed before it.
type Result struct {
	sandbox.Result
	Language string
	Version  string
	Phases   []PhaseResult
	Files    []OutputFile
	Tables   []Table // results of SQL queries
	Deps     *Deps   // installed packages; nil: none
	// Diagnosis explains a failure; nil: there is nothing to say. It is derived from the program's own output.
	Diagnosis *diagnose.Diagnosis
	// Evidence is set with an audit log or with Request.Evidence. It is not part of the JSON.
	Evidence *Evidence
}

// PhaseResult is the result of one phase. A cached phase has no metrics.
type PhaseResult struct {
	Name     string          `json:"name"`
	Cached   bool            `json:"cached"`
	Verdict  sandbox.Verdict `json:"verdict"`
	ExitCode int             `json:"exit_code"` // by the same rule as that of a result
	// ProgramExitCode is the exit code of the phase's own process, such as the compiler; nil if a signal ended it.
	ProgramExitCode *int            `json:"program_exit_code" nullable:"true"`
	Stdout          string          `json:"stdout,omitempty"` // empty for the run: the result has its output
	Stderr          string          `json:"stderr,omitempty"`
	Truncated       bool            `json:"truncated,omitempty"`
	Metrics         monitor.Metrics `json:"metrics"`
	Limits          sandbox.Limits  `json:"limits"`
}

// OutputFile is a file that was copied out, or the reason why it was not.
type OutputFile struct {
	Path   string // relative to /workspace if it is in it, else absolute
	Mode   uint32
	Data   []byte
	Reason string
}

type outputJSON struct {
	Path     string `json:"path"`
	Size     int    `json:"size"`
	Mode     uint32 `json:"mode,omitempty"`
	Content  string `json:"content,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Reason   string `json:"not_taken,omitempty"`
}

// MarshalJSON writes UTF-8 content as text, and other content as base64.
func (f OutputFile) MarshalJSON() ([]byte, error) {
	j := outputJSON{Path: f.Path, Size: len(f.Data), Mode: f.Mode, Reason: f.Reason}
	j.Content, j.Encoding = sandbox.EncodeText(f.Data)
	return json.Marshal(j)
}

// Table is one result of a query. Values are nil, bool, string and json.Number.
type Table struct {
	Columns   []string `json:"columns"`
	Types     []string `json:"types,omitempty"`
	Rows      [][]any  `json:"rows"`
	RowsTotal uint64   `json:"rows_total"`
	Truncated bool     `json:"truncated"`
}

// MarshalJSON writes one document: the result of the sandbox, and the additions of the language.
func (r *Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.with(r.Document())) }

// Encode is MarshalJSON for large output, which it encodes while it is written.
func (r *Result) Encode() (*sandbox.JSON, error) { return r.Result.Encode(r.with) }

// EncodeAs is Encode for a larger document, which value makes of that of the result.
func (r *Result) EncodeAs(value func(Document) any) (*sandbox.JSON, error) {
	return r.Result.Encode(func(d sandbox.Document) any { return value(r.extend(d)) })
}

func (r *Result) with(d sandbox.Document) any { return r.extend(d) }

// Document is a result as JSON: the result of the sandbox, and the additions of the language. Larger documents embed it.
type Document struct {
	sandbox.Document
	Language string        `json:"language"`
	Version  string        `json:"language_version"`
	Phases   []PhaseResult `json:"phases"`
	Files    []OutputFile  `json:"files"`
	Tables   []Table       `json:"tables,omitempty"`
	Deps     *Deps         `json:"deps,omitempty"`
	Error    *Failure      `json:"error,omitempty"`
}

// Failure is the error of a program that failed, as JSON. Results without a run have the same members, but no diagnosis.
type Failure struct {
	sandbox.ErrorInfo
	Diagnosis *diagnose.Diagnosis `json:"diagnosis,omitempty" doc:"Derived from the program's own output, which it can forge."`
}

// failure is the diagnosis with the members that all errors have; the code is the verdict.
func (r *Result) failure() *Failure {
	d := r.Diagnosis
	if d == nil {
		return nil
	}
	f := &Failure{ErrorInfo: sandbox.ErrorInfo{Code: string(r.Verdict), Message: d.Message}, Diagnosis: d}
	if len(d.Suggestions) > 0 {
		f.Hint = d.Suggestions[0]
	}
	return f
}

// ToDocument converts the result.
func (r *Result) ToDocument() Document { return r.extend(r.Document()) }

func (r *Result) extend(d sandbox.Document) Document {
	files := r.Files
	if files == nil {
		files = []OutputFile{}
	}
	return Document{d, r.Language, r.Version, r.Phases, files, r.Tables, r.Deps, r.failure()}
}
