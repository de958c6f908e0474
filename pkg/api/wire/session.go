package wire

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// PathSessions is the path of sessions. A cell has the path PathSessions/ID/cells/N; the number of a cell that begins is in HeaderRunID, as
// ID/N.
const PathSessions = "/v1/sessions"

// Session is a session to create: the body of POST /v1/sessions. It has the fields of a run that [SessionFields] lists, and the settings of
// a run; its limits are those of each cell.
type Session struct {
	Run Run `json:"-"`

	Name     string   `json:"name,omitempty" doc:"Name for people; it may be used in place of the id, and is unique among your sessions."`
	Idle     Duration `json:"idle,omitempty" doc:"Time without a call after which the session ends."`
	Lifetime Duration `json:"lifetime,omitempty" doc:"Time after which the session ends in any case."`
}

// SessionFields are the fields of a run that a session has, besides the settings.
var SessionFields = []string{"language", "image", "files", "env", "in", "workspace", "workspace_cap", "workspace_inodes", "pass_env"}

// Settings returns the settings of a run.
func (s *Session) Settings() []executor.Field { return s.Run.Settings() }

// MarshalJSON writes the fields that are set.
func (s Session) MarshalJSON() ([]byte, error) {
	run := s.Run
	run.Name = "" // that of a file
	type plain Session
	own, err := json.Marshal(plain(s))
	rest, failed := json.Marshal(run)
	return joinObjects(own, rest), errors.Join(err, failed)
}

// UnmarshalJSON reads a session as DecodeStrict does.
func (s *Session) UnmarshalJSON(b []byte) error { return DecodeStrict(b, s) }

// Cell is a piece of code for a session: the body of POST /v1/sessions/{id}/cells, and the first message of /v1/sessions/{id}/cells/ws.
type Cell struct {
	Code string `json:"code,omitempty" doc:"The code." example:"1 + 1"`
	// Limits has the wall time, the CPU time and the output of the cell.
	Limits      sandbox.Limits `json:"-"`
	Interactive bool           `json:"interactive,omitempty" doc:"Ask for input: an event of kind input, which the client answers."`
	Receipt     bool           `json:"receipt,omitempty" doc:"Ask for a signed receipt, where the server gives any."`
}

// CellLimits are the limits that a cell may have of its own.
var CellLimits = []string{"timeout", "cpu_time", "output_limit"}

// Settings returns the limits.
func (c *Cell) Settings() (fields []executor.Field) {
	for _, l := range sandbox.AllLimits() {
		if slices.Contains(CellLimits, l.Name) {
			fields = append(fields, executor.Field{Name: l.Name, Usage: l.Usage, Doc: l.Doc, Example: l.Example, Value: l.Field(&c.Limits)})
		}
	}
	return asJSON(fields)
}

// MarshalJSON writes the fields that are set.
func (c Cell) MarshalJSON() ([]byte, error) {
	type tagged Cell
	return withSettings(tagged(c), c.Settings())
}

// SessionList is the answer of GET /v1/sessions.
type SessionList struct {
	Sessions []session.Info `json:"sessions" doc:"The oldest first."`
}

// Code is the body of check and inspect.
type Code struct {
	Code string `json:"code" doc:"The code; for inspect, a name or an expression."`
}

// Completion is the body of complete.
type Completion struct {
	Code   string `json:"code" doc:"The code."`
	Cursor *int   `json:"cursor,omitempty" doc:"Bytes of the code before the cursor; left out: at the end."`
}

// Line is the body of input: the answer to a question of the running cell.
type Line struct {
	Line string `json:"line,omitempty" doc:"The line, without its end."`
	End  bool   `json:"end,omitempty" doc:"In place of a line: there is no more input."`
	Seq  uint64 `json:"seq,omitempty" doc:"Number of the event that asks. Given, the line answers no other question."`
}

// Network is the body of network.
type Network struct {
	Network network.Policy `json:"network" doc:"The network of the cells that follow, as in a run."`
}

// Fork is the body of fork.
type Fork struct {
	Name   string `json:"name,omitempty" doc:"Name of the new session."`
	Replay bool   `json:"replay,omitempty" doc:"In a language without forks, execute the cells again, with all their side effects."`
}

// Packages is the body of packages.
type Packages struct {
	Packages []string `json:"packages" doc:"What to install, as in deps." example:"[\"requests\"]"`
}

// Added is the answer of packages.
type Added struct {
	Deps *executor.Deps `json:"deps" doc:"What was installed."`
}

// History is the answer of GET /v1/sessions/{id}/history.
type History struct {
	Cells []session.Past `json:"cells" doc:"The oldest first."`
}

// SessionFiles is the answer of GET /v1/sessions/{id}/files.
type SessionFiles struct {
	Files    []session.Entry   `json:"files"`
	NotTaken []sandbox.Untaken `json:"not_taken,omitempty" doc:"What is no file, or too much."`
}

// DecodeCell reads the result of a cell, as DecodeResult reads that of a run.
func DecodeCell(b []byte) (*session.Result, error) {
	var own struct {
		Cell        uint64          `json:"cell"`
		Displays    json.RawMessage `json:"displays"`
		Exception   json.RawMessage `json:"exception"`
		Interrupted bool            `json:"interrupted"`
		State       session.State   `json:"session_state"`
		Cause       string          `json:"session_cause"`
	}
	if err := json.Unmarshal(b, &own); err != nil {
		return nil, err
	}
	run, err := DecodeResult(b)
	if err != nil {
		return nil, err
	}
	r := &session.Result{Result: *run, Cell: own.Cell, Interrupted: own.Interrupted, State: own.State, Cause: own.Cause}
	for _, part := range []struct {
		text json.RawMessage
		into any
	}{{own.Displays, &r.Displays}, {own.Exception, &r.Error}} {
		if part.text != nil {
			if err := json.Unmarshal(part.text, part.into); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// DecodeCellEvent reads one line of the stream of a cell. The last event has the result.
func DecodeCellEvent(line []byte) (sandbox.Event, *session.Result, error) {
	var doc struct {
		Seq    uint64            `json:"seq"`
		Time   time.Time         `json:"time"`
		Kind   sandbox.EventKind `json:"kind"`
		Result json.RawMessage   `json:"result"`
	}
	if err := json.Unmarshal(line, &doc); err != nil {
		return sandbox.Event{}, nil, err
	}
	if doc.Kind == executor.EventResult && doc.Result != nil {
		r, err := DecodeCell(doc.Result)
		return sandbox.Event{Seq: doc.Seq, Time: doc.Time, Kind: doc.Kind}, r, err
	}
	ev, err := DecodeEvent(line)
	return ev.Event, nil, err
}
