package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// appendEntries is the script command appends. Entries are an hour apart, alternate between Python and Go, and every third has a time
// limit. The last has a language with control characters.
func appendEntries(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: appends N | appends api")
	}
	log, err := audit.Open(filepath.Join(ts.Getenv("XDG_STATE_HOME"), "sandbox-run", "audit.jsonl"), audit.Options{})
	ts.Check(err)
	if args[0] == "api" {
		appendServerEntries(ts, log)
		return
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	for i := range n {
		e := audit.Entry{
			Time: time.Date(2026, 1, 1, i, 0, 0, 0, time.UTC), Run: fmt.Sprintf("run-%d", i),
			Who:      audit.Who{UID: 4242, User: "somebody", PID: 7, EntryPoint: audit.EntryCLI},
			Language: "python", Version: "3.11.2", CodeSHA256: audit.Digest(nil),
			Policy:  audit.Policy{Network: sandbox.NetworkNone, Tier: sandbox.TierContainer, Backend: "native"},
			Verdict: sandbox.VerdictOK, Metrics: &monitor.Metrics{WallTime: monitor.Seconds(12345678), MemoryPeak: 3 << 20},
		}
		if i%2 == 1 {
			e.Language, e.Version = "go", "1.26"
		}
		if i%3 == 2 {
			e.Verdict, e.ExitCode = sandbox.VerdictTimeLimit, 124
		}
		if i == n-1 {
			e.Language, e.Version = "evil\n\x1b[2J\u202e", ""
		}
		ts.Check(log.Append(e))
	}
}

// appendServerEntries appends the entries of a server that was started, used and stopped.
func appendServerEntries(ts *testscript.TestScript, log *audit.Log) {
	for _, e := range []audit.Entry{
		{Kind: audit.KindServerStarted},
		{Kind: audit.KindKey, Reason: "created"},
		{Run: "r-1", Language: "python", Version: "3.11.2", Verdict: sandbox.VerdictOK, Metrics: &monitor.Metrics{}},
		{Kind: audit.KindRefused, Reason: "queue_full", Count: 7},
		{Kind: audit.KindServerStopped},
	} {
		e.Time, e.Who = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), audit.Who{UID: 0, User: "root", PID: 8, EntryPoint: audit.EntryAPI}
		if e.Kind == "" || e.Reason != "" {
			e.Who.Key = "k-1"
		}
		ts.Check(log.Append(e))
	}
}

// signReceipt is the script command signs: it writes a receipt of the user's own server, and the document of the run with it.
func signReceipt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signs RECEIPT RUN")
	}
	state := filepath.Join(ts.Getenv("XDG_STATE_HOME"), "sandbox-run")
	signer, err := receipt.OpenSigner(filepath.Join(state, "server"))
	ts.Check(err)
	log, err := audit.Open(filepath.Join(state, "audit.jsonl"), audit.Options{})
	ts.Check(err)
	link, err := log.Record(audit.Entry{Run: "r-1"})
	ts.Check(err)
	result := ts.ReadFile("result.json")
	outcome, err := receipt.Read([]byte(result))
	ts.Check(err)
	envelope, err := signer.Sign(receipt.Statement{
		Run: "r-1", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), RequestSHA256: audit.Digest([]byte(ts.ReadFile("body.json"))),
		CodeSHA256: audit.Digest([]byte("print(1)")), Outcome: outcome, Audit: &link,
	})
	ts.Check(err)
	text, err := json.Marshal(envelope)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), fmt.Appendf(nil, `{"id":"r-1","result":%s,"receipt":%s}`, result, text), 0o600))
}

// holdWorkspace is the script command holds: it uses a workspace until the script ends.
func holdWorkspace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: holds NAME")
	}
	store := filepath.Join(ts.Getenv("XDG_DATA_HOME"), "sandbox-run", "workspaces")
	w, err := workspace.Open(context.Background(), store, args[0], workspace.Options{Cap: 5 * sandbox.MiB})
	ts.Check(err)
	ts.Defer(func() { _ = w.Close() })
}
