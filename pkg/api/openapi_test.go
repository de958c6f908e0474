package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// TestAsDescribed: answers match the OpenAPI document, field by field.
func TestAsDescribed(t *testing.T) {
	w := newTestServer(t)
	schemas := w.operations.Components.Schemas
	check := func(name string, document []byte) {
		t.Helper()
		var data any
		decode(t, document, &data)
		res := &huma.ValidateResult{}
		huma.Validate(schemas, schemas.Map()[name], huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, data, res)
		for _, err := range res.Errors {
			t.Errorf("%s: %v", name, err)
		}
	}
	code := "out x\nsave /workspace/a.bin \xff\nhex ff\nexit 3"
	fields := []string{`"out":["*"]`, `"labels":{"a":"b"}`, `"output_limit":2`}
	check("Result", w.ask(200, "POST", wire.PathRun, body(code, fields...)))
	id := w.start(code, fields...)
	w.waitForEnd(id)
	check("RunInfo", w.ask(200, "GET", wire.PathRuns+"/"+id, ""))
	check("RunList", w.ask(200, "GET", wire.PathRuns, ""))
	for _, line := range lines(t, bytes.NewReader(w.ask(200, "GET", wire.PathRuns+"/"+id+"/events", ""))) {
		check("Event", line)
	}
	check("Event", wire.AppendJSON(nil, wire.Notice{Kind: wire.KindGap, From: 1, To: 2}))
	check("Event", wire.AppendJSON(nil, wire.Notice{Kind: wire.KindError, Problem: wire.NewProblem(wire.CodeLost, "x")}))
	check("Upload", w.ask(201, "PUT", wire.PathFiles+"/x", "x"))
	check("Languages", w.ask(200, "GET", wire.PathLanguages, ""))
	check("LimitList", w.ask(200, "GET", wire.PathLimits, ""))
	check("Health", w.ask(200, "GET", wire.PathHealth, ""))
	check("Health", w.ask(503, "GET", wire.PathHealth+"?deep=1", ""))
	check("Problem", w.ask(422, "POST", wire.PathRun, `{"memori":1}`))
	// Requests match it, too: the probe of package wire has every field.
	check("Run", []byte(`{"language":"python","code":"x","timeout":"1.5s","grace":2,"cpus":0.5,"memory":"1.5GiB","disk":1048576,`+
		`"tty":{"rows":1,"cols":1},"files":[{"path":"a","content":"b"}]}`))
	// Control: an unknown field does not match.
	res := &huma.ValidateResult{}
	huma.Validate(schemas, schemas.Map()["Run"], huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, map[string]any{"memori": 1.0}, res)
	if len(res.Errors) == 0 {
		t.Error("an unknown field is as described")
	}
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	decode(t, w.ask(http.StatusOK, "GET", "/openapi.json", ""), &doc)
	if len(doc.Components.Schemas) < 10 {
		t.Errorf("%d schemas", len(doc.Components.Schemas))
	}
}
