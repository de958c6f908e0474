package executor

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Every run is in the log, with what it was and what became of it; what is wrong with a request is no run.
func TestRecord(t *testing.T) {
	real := realEngine(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	log, err := audit.Open(path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := real.opts
	o.Audit, o.EntryPoint = log, audit.EntryLibrary
	e := New(real.manager, o)
	const code = "import sys; sys.exit(len(sys.stdin.read()))"
	r, err := e.Execute(t.Context(), Request{Language: "python", Code: code, Stdin: strings.NewReader("abc"),
		Asker: Asker{Run: "run-1", Key: "key-1"}})
	if err != nil || r.Exit.Code != 3 {
		t.Fatal(r, err)
	}
	evidence := r.Evidence
	if _, err := e.Execute(t.Context(), Request{Language: "python", Code: code, Policy: Policy{Require: "microvm"}}); err == nil {
		t.Error("a tier that is not there was not refused")
	}
	if _, err := e.Execute(t.Context(), Request{Language: "nonsense", Code: code}); err == nil {
		t.Error("a language that is not there was not refused")
	}
	var entries []audit.Entry
	for entry, err := range log.Tail(10) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry)
	}
	if len(entries) != 2 {
		t.Fatalf("%d entries", len(entries))
	}
	first, second := entries[0], entries[1]
	if first.Language != "python" || first.CodeSHA256 != audit.Digest([]byte(code)) || first.InputSHA256 != audit.Digest([]byte("abc")) ||
		first.Code != "" ||
		first.Verdict != "nonzero_exit" || first.ExitCode != 3 || first.Policy.Tier != "container" ||
		first.Who.EntryPoint != audit.EntryLibrary || first.Metrics == nil {
		t.Errorf("%s", first.Line())
	}
	if first.Run != "run-1" || first.Who.Key != "key-1" {
		t.Errorf("who asked is not in it: %s", first.Line())
	}
	if want := (Evidence{CodeSHA256: first.CodeSHA256, InputSHA256: first.InputSHA256,
		Entry: audit.Link{Seq: first.Seq, Hash: first.Hash}}); evidence == nil || *evidence != want {
		t.Errorf("%+v is not %+v", evidence, want)
	}
	if second.Run == "run-1" || second.Who.Key != "" {
		t.Errorf("%s", second.Line())
	}
	if second.Error == "" || second.Verdict != sandbox.VerdictInternalError || second.ExitCode != 126 || second.Policy.Require != "microvm" {
		t.Errorf("%s", second.Line())
	}
}

// What can be shown of a run does not need a log.
func TestEvidenceWithoutALog(t *testing.T) {
	e := realEngine(t)
	for _, asked := range []bool{true, false} {
		r, err := e.Execute(t.Context(), Request{Language: "python", Code: "input()", Stdin: strings.NewReader("abc\n"), Evidence: asked})
		if err != nil {
			t.Fatal(err)
		}
		if !asked {
			if r.Evidence != nil {
				t.Errorf("not asked for: %+v", r.Evidence)
			}
			continue
		}
		if r.Evidence == nil || r.Evidence.CodeSHA256 != audit.Digest([]byte("input()")) || r.Evidence.Entry != (audit.Link{}) {
			t.Errorf("%+v", r.Evidence)
		}
	}
}

// A language is ready, or says what it lacks.
func TestSurvey(t *testing.T) {
	real := realEngine(t)
	o := real.opts
	o.Kit = ""
	states := map[string]Availability{}
	for _, a := range New(real.manager, o).CheckLanguages(t.Context()) {
		states[a.Name] = a
	}
	if p := states["python"]; p.State != Ready || p.Version == "" || p.Path == "" {
		t.Errorf("%+v", p)
	}
	if s := states["sql"]; s.State != Incomplete || !strings.Contains(s.Reason, "sandbox-kit") || len(s.Install) == 0 {
		t.Errorf("without the kit: %+v", s)
	}
	for _, a := range real.CheckLanguages(t.Context()) {
		if a.Name == "sql" && a.State != Ready {
			t.Errorf("with the kit: %+v", a)
		}
	}
	// A user whose sandboxes are too weak for a language can not run it.
	weak := conformance.NewFake(nil)
	weak.Pretend(sandbox.Isolation{Tier: sandbox.TierNamespace})
	for _, a := range New(sandbox.NewManager(weak, sandbox.Options{}), real.opts).CheckLanguages(t.Context()) {
		if a.Name == "sql" && a.State != Ready || a.Name == "postgres" && (a.State == Ready || !strings.Contains(a.Reason, "gets namespace")) {
			t.Errorf("at the tier namespace: %+v", a)
		}
	}
}
