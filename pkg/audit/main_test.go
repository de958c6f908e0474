package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestMain is also the child of tests that need other processes: it appends to the log that a variable names, so
// many entries, or until it is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("AUDIT_TEST_LOG"); path != "" {
		os.Exit(appendForever(path, os.Getenv("AUDIT_TEST_COUNT")))
	}
	goleak.VerifyTestMain(m)
}

func appendForever(path, count string) int {
	most, _ := strconv.Atoi(count) // none: for ever
	size, _ := sandbox.ParseSize(os.Getenv("AUDIT_TEST_SIZE"))
	l, err := Open(path, Options{Wait: time.Minute, MaxSize: size})
	for i := 0; err == nil && (most == 0 || i < most); i++ {
		err = l.Append(sample(i))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// sample is an entry as the executor makes them.
func sample(i int) Entry {
	limits := sandbox.DefaultLimits()
	return Entry{
		Run: fmt.Sprintf("run-%d", i), Who: Me(EntryCLI), Language: "python", Version: "3.11.2",
		CodeSHA256: Digest(fmt.Appendf(nil, "print(%d)", i)), InputSHA256: Digest(nil),
		Policy: Policy{Network: sandbox.NetworkNone, Require: sandbox.TierContainer, Tier: sandbox.TierContainer, Backend: "native",
			Limits: &limits},
		Verdict: sandbox.VerdictOK,
		Metrics: &monitor.Metrics{WallTime: monitor.Seconds(12345678), MemoryPeak: 1 << 20},
	}
}

func newLog(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(filepath.Join(t.TempDir(), "state", "audit.jsonl"), o)
	must(t, err)
	return l
}

// filled is a log with so many entries.
func filled(t testing.TB, n int, o Options) *Log {
	t.Helper()
	l := newLog(t, o)
	for i := range n {
		must(t, l.Append(sample(i)))
	}
	return l
}

func verified(t testing.TB, l *Log) Report {
	t.Helper()
	r, err := l.Verify()
	must(t, err)
	return r
}

func intact(t testing.TB, l *Log, entries uint64) Report {
	t.Helper()
	r := verified(t, l)
	if !r.OK || r.Entries != entries || r.Last != entries || len(r.Faults) > 0 {
		t.Fatalf("want %d entries and no fault: %+v", entries, r)
	}
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
