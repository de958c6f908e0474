package wire

import (
	"encoding/json"
	"maps"
	"slices"
)

// Batch is the body of POST /v1/batch: many inputs for one program, or many programs.
type Batch struct {
	Run           *Run     `json:"run,omitempty" doc:"The program, with what all inputs have in common; it is compiled once."`
	Inputs        []Input  `json:"inputs,omitempty" doc:"What it is run with, one after the other or at a time."`
	Runs          []Run    `json:"runs,omitempty" doc:"In place of run and inputs: programs that have nothing in common."`
	Parallel      Count    `json:"parallel,omitempty" doc:"How many at a time; default and most are the server's."`
	Order         string   `json:"order,omitempty" enum:"input,done" doc:"Order of the answers: the request (input, the default) or the ends."`
	StopOnFailure bool     `json:"stop_on_failure,omitempty" doc:"After an item that was not a success, skip those that have not begun."`
	Webhook       *Webhook `json:"webhook,omitempty" doc:"Address that is sent the summary at the end, where the server does so."`
}

// Input has the fields in which one run of a batch differs from the others.
type Input struct {
	Name          string            `json:"name,omitempty" doc:"Comes back with the item."`
	Args          []string          `json:"args,omitempty" doc:"Arguments, in place of those that all have."`
	Stdin         string            `json:"stdin,omitempty" doc:"Standard input, in place of what all have."`
	StdinEncoding string            `json:"stdin_encoding,omitempty" enum:"text,base64" doc:"How stdin is written here."`
	Env           map[string]string `json:"env,omitempty" doc:"Variables, on top of those that all have."`
	In            []File            `json:"in,omitempty" doc:"Files, besides those that all have."`
}

// With returns a copy of the run with the fields of an input.
func (r Run) With(i *Input) *Run {
	if i.Args != nil {
		r.Args = i.Args
	}
	if i.Stdin != "" || i.StdinEncoding != "" {
		r.Stdin, r.StdinEncoding = i.Stdin, i.StdinEncoding
	}
	if len(i.Env) > 0 {
		env := map[string]string{}
		maps.Copy(env, r.Env)
		maps.Copy(env, i.Env)
		r.Env = env
	}
	if len(i.In) > 0 {
		r.In = append(slices.Clone(r.In), i.In...)
	}
	return &r
}

// The kinds of lines of a batch.
const (
	KindItem    = "item"
	KindSummary = "summary"
)

// BatchItem is the outcome of one run of a batch: a result, an error, or skipped.
type BatchItem struct {
	Kind    string          `json:"kind,omitempty" doc:"item, in a stream."`
	Index   int             `json:"index" doc:"Place in the request, from 0."`
	Name    string          `json:"name,omitempty" doc:"Of its input."`
	ID      string          `json:"id,omitempty" doc:"Of the run, as logs have it."`
	Result  json.RawMessage `json:"result,omitempty" doc:"Exactly what --json prints."`
	Error   *Problem        `json:"error,omitempty" doc:"Why there is no result."`
	Skipped bool            `json:"skipped,omitempty" doc:"It was not begun, because of stop_on_failure."`
}

// BatchSummary is the last line of a batch.
type BatchSummary struct {
	Kind      string         `json:"kind,omitempty" doc:"summary, in a stream."`
	ID        string         `json:"id" doc:"Of the batch, as logs and webhooks have it."`
	Items     int            `json:"items" doc:"How many there were."`
	Succeeded int            `json:"succeeded" doc:"Results with success."`
	Failed    int            `json:"failed" doc:"Results without."`
	Errors    int            `json:"errors" doc:"Items without a result."`
	Skipped   int            `json:"skipped" doc:"Items that were not begun."`
	Verdicts  map[string]int `json:"verdicts" doc:"How often each verdict came."`
	Cached    int            `json:"cached" doc:"Results whose program had been compiled before."`
	Took      float64        `json:"took" doc:"Seconds, all in all."`
	Cancelled bool           `json:"cancelled,omitempty" doc:"The client went away, or the server ended, before all was done."`
}

// BatchResult is the answer to a batch as one document.
type BatchResult struct {
	Items   []BatchItem  `json:"items"`
	Summary BatchSummary `json:"summary"`
}

// DecodeBatch reads the body of a batch from an untrusted client. Its error is a *Problem that names every wrong field.
func DecodeBatch(body []byte) (*Batch, error) {
	b := new(Batch)
	if err := DecodeStrict(body, b); err != nil {
		return nil, err
	}
	wrong := func(field, message string) error { return WrongField(CodeInvalid, field, "%s", message) }
	switch {
	case b.Runs != nil && (b.Run != nil || b.Inputs != nil):
		return nil, wrong("runs", "give either runs, or run and inputs")
	case b.Runs == nil && b.Run == nil:
		return nil, wrong("run", "give run and inputs, or runs")
	case b.Run != nil && len(b.Inputs) == 0:
		return nil, wrong("inputs", "there are none")
	case b.Run == nil && len(b.Runs) == 0: // an empty list
		return nil, wrong("runs", "there are none")
	case b.Order != "" && b.Order != "input" && b.Order != "done":
		return nil, wrong("order", "it is neither input nor done")
	}
	return b, nil
}

// Len returns the number of runs.
func (b *Batch) Len() int { return len(b.Inputs) + len(b.Runs) }

// Item returns the i-th run and the name of its input.
func (b *Batch) Item(i int) (run *Run, name string) {
	if b.Run != nil {
		return b.Run.With(&b.Inputs[i]), b.Inputs[i].Name
	}
	return &b.Runs[i], b.Runs[i].Name
}
