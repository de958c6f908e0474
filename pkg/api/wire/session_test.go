package wire

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// What a client writes, a server reads.
func TestSessionBody(t *testing.T) {
	s := Session{Name: "mine", Idle: Duration(time.Minute)}
	s.Run.Language, s.Run.Env, s.Run.In = "python", map[string]string{"A": "b"}, []File{{Path: "a", Content: "b"}}
	s.Run.Limits, s.Run.Workspace = sandbox.Limits{Wall: 2 * time.Second, Memory: sandbox.GiB}, "w"
	s.Run.Policy.Network.Mode = "localhost"
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var again Session
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if d := cmp.Diff(s, again); d != "" {
		t.Errorf("%s\n%s", d, text)
	}
	cell := Cell{Code: "1", Limits: sandbox.Limits{Wall: time.Second, Output: 5}, Interactive: true}
	if text, err = json.Marshal(cell); err != nil {
		t.Fatal(err)
	}
	var other Cell
	if err := DecodeStrict(text, &other); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if d := cmp.Diff(cell, other); d != "" {
		t.Errorf("%s\n%s", d, text)
	}
}

// A session has neither a program nor its input.
func TestSessionFields(t *testing.T) {
	for _, body := range []string{
		`{"code":"1"}`, `{"stdin":"x"}`, `{"args":["x"]}`, `{"tty":{"rows":1,"cols":1}}`, `{"backend":"oci"}`, `{"webhook":{}}`,
		`{"template":"x"}`, `{"interactive":true}`, `{"idle":-1}`, `{"name":1}`, `{"language":"a","language":"b"}`, `{"Run":{}}`, `[]`, ``,
	} {
		var p *Problem
		if err := DecodeStrict([]byte(body), new(Session)); !errors.As(err, &p) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{`{"memory":"1GiB"}`, `{"language":"python"}`, `{"disk":1}`, `{"code":"1","cod":"2"}`} {
		var p *Problem
		if err := DecodeStrict([]byte(body), new(Cell)); !errors.As(err, &p) {
			t.Errorf("cell %s: %v", body, err)
		}
	}
}

// A result of a cell survives the way to the client.
func TestDecodeCell(t *testing.T) {
	r := &session.Result{
		Cell: 7, Displays: []protocol.Display{{Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"2"`)}, Result: true}},
		Error: &protocol.Error{Name: "E", Line: 3}, Interrupted: true, State: session.StateEnded, Cause: "why",
	}
	r.Language, r.Verdict, r.Exit.Code = "python", sandbox.VerdictNonzeroExit, 1
	r.Stdout = sandbox.Output{Head: []byte("a\xff"), Total: 2}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := DecodeCell(text)
	if err != nil {
		t.Fatal(err)
	}
	if again.Value() != "2" || again.Error == nil || *again.Error != *r.Error || again.Cause != "why" || again.State != session.StateEnded ||
		again.Cell != 7 || !again.Interrupted || string(again.Stdout.Bytes()) != "a\xff" || again.Verdict != r.Verdict {
		t.Errorf("%s\n%+v", text, again)
	}
	line := []byte(`{"seq":3,"time":"2026-01-02T03:04:05Z","kind":"result","result":` + string(text) + `}`)
	if ev, r, err := DecodeCellEvent(line); err != nil || ev.Seq != 3 || ev.Kind != executor.EventResult || r == nil || r.Cell != 7 {
		t.Errorf("%+v %+v %v", ev, r, err)
	}
	line = []byte(`{"seq":2,"time":"2026-01-02T03:04:05Z","kind":"input","content":{"prompt":"? "}}`)
	if ev, r, err := DecodeCellEvent(line); err != nil || r != nil || ev.Kind != sandbox.EventInput || string(ev.Content) != `{"prompt":"? "}` {
		t.Errorf("%+v %+v %v", ev, r, err)
	}
}
