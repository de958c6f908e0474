package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func all(t *testing.T, l *Log, f Filter) (entries []Entry) {
	t.Helper()
	for e, err := range l.Query(f) {
		must(t, err)
		entries = append(entries, e)
	}
	return entries
}

func TestEntryRoundTrip(t *testing.T) {
	l := newLog(t, Options{})
	want := sample(7)
	want.Command = []string{"sh", "-c", "echo \x1b[2J; true"}
	want.Verdict, want.ExitCode = sandbox.VerdictNonzeroExit, 3
	want.Time = time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	must(t, l.Append(want))
	got := all(t, l, Filter{})[0]
	if got.Seq != 1 || got.Kind != KindRun || got.Prev != strings.Repeat("0", 64) || !got.Time.Equal(want.Time) ||
		got.Time.Location() != time.UTC {
		t.Errorf("%+v", got)
	}
	want.Seq, want.Kind, want.Prev, want.Hash, want.Time, want.raw = got.Seq, got.Kind, got.Prev, got.Hash, got.Time, got.raw
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	var names map[string]any
	must(t, json.Unmarshal(got.Line(), &names))
	for _, name := range []string{"seq", "time", "run", "who", "language", "language_version", "code_sha256", "input_sha256", "policy",
		"verdict", "exit_code", "metrics", "prev", "hash"} {
		if names[name] == nil {
			t.Errorf("%s is not in %s", name, got.Line())
		}
	}
	if got.Who.UID != os.Getuid() || got.Who.PID != os.Getpid() || got.Who.EntryPoint != EntryCLI {
		t.Errorf("%+v", got.Who)
	}
	for path, mode := range map[string]os.FileMode{l.Path(): 0o600, l.Path() + ".head": 0o600, filepath.Dir(l.Path()): 0o700} {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v", path, info.Mode())
		}
	}
	intact(t, l, 1)
}

// Text that a program chose is plain ASCII on one line in the log.
func TestProgramTextCanNotBreakLinesOrTerminals(t *testing.T) {
	l := newLog(t, Options{KeepCode: true})
	hostile := "a\nb\r\x00\x1b]0;x\x07\x7f\u0085\u009b31m\u202e\u2028\ufeff\xff\xfe,\"hash\":\"" + strings.Repeat("0", 64) +
		"\"}\n{\"seq\":9}😀"
	e := sample(0)
	e.Language, e.Version, e.Run, e.Error, e.Who.User, e.Policy.Backend, e.Policy.Image = hostile, hostile, hostile, hostile, hostile, hostile,
		hostile
	e.Command, e.Code = []string{hostile, hostile}, hostile
	must(t, l.Append(e))
	must(t, l.Append(sample(1)))
	text, err := os.ReadFile(l.Path())
	must(t, err)
	if n := bytes.Count(text, []byte("\n")); n != 2 {
		t.Errorf("%d lines", n)
	}
	for _, c := range text {
		if c >= 0x7f || c < 0x20 && c != '\n' {
			t.Fatalf("byte %#x in the log", c)
		}
	}
	got := all(t, l, Filter{})[0]
	if want := strings.ToValidUTF8(hostile, "\ufffd\ufffd"); got.Command[0] != want || got.Language != want {
		t.Errorf("%q is not %q", got.Command[0], want)
	}
	if got.CodeEncoding != "base64" || got.Code == "" {
		t.Errorf("code that is no UTF-8: %q %q", got.CodeEncoding, got.Code)
	}
	intact(t, l, 2)
}

func TestValuesWithoutJSONForm(t *testing.T) {
	l := newLog(t, Options{})
	e := sample(0)
	e.Metrics.CPUPercent = math.NaN()
	if err := l.Append(e); err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("%v", err)
	}
	e = sample(0)
	e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := l.Append(e); err == nil || !strings.Contains(err.Error(), "year 10000") {
		t.Errorf("%v", err)
	}
	must(t, l.Append(sample(0)))
	intact(t, l, 1)
}

func TestHugeTextIsCut(t *testing.T) {
	l := newLog(t, Options{KeepCode: true})
	huge := strings.Repeat("\x01", 5<<20)
	e := sample(0)
	e.Language, e.Run, e.Error, e.Code = huge, huge, huge, huge
	e.Command = slices.Repeat([]string{"argument"}, 100_000)
	must(t, l.Append(e))
	e.Code = huge[:maxCode] // the longest line there can be
	must(t, l.Append(e))
	got := all(t, l, Filter{})
	if got[0].Code != "" || !strings.Contains(got[0].CodeOmitted, "5242880") || got[1].Code != e.Code {
		t.Errorf("omitted %q, kept %d", got[0].CodeOmitted, len(got[1].Code))
	}
	if last := got[0].Command[len(got[0].Command)-1]; !strings.Contains(last, "more)") {
		t.Errorf("%q", last)
	}
	intact(t, l, 2)
}

func TestCodeIsKeptOnlyIfConfigured(t *testing.T) {
	for keep, want := range map[bool]string{false: "", true: "print(1)"} {
		l := newLog(t, Options{KeepCode: keep})
		e := sample(0)
		e.Code = "print(1)"
		must(t, l.Append(e))
		if got := all(t, l, Filter{})[0].Code; got != want {
			t.Errorf("%v: %q", keep, got)
		}
	}
}

func TestTailAndQuery(t *testing.T) {
	// Rotated after every fourth entry or so.
	l := newLog(t, Options{MaxSize: 4000})
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 20 {
		e := sample(i)
		e.Time = begin.Add(time.Duration(i) * time.Hour)
		if i%2 == 1 {
			e.Language, e.Verdict = "go", sandbox.VerdictTimeLimit
		}
		if i%5 == 0 {
			e.Who.UID, e.Who.User = 4242, "other"
			e.Who.EntryPoint, e.Who.Key = EntryAPI, "k1"
		}
		if i == 10 {
			e.Kind, e.Reason, e.Count = KindRefused, "queue_full", 7
		}
		link, err := l.Record(e)
		must(t, err)
		if link.Seq != uint64(i+1) || len(link.Hash) != hashLen {
			t.Errorf("%+v", link)
		}
	}
	if r := intact(t, l, 20); len(r.Files) < 4 {
		t.Fatalf("rotated into %q only", r.Files)
	}
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 3: 3, 7: 7, 20: 20, 1000: 20} {
		var seqs []uint64
		for e, err := range l.Tail(n) {
			must(t, err)
			seqs = append(seqs, e.Seq)
		}
		if len(seqs) != want || want > 0 && (seqs[0] != uint64(20-want+1) || seqs[want-1] != 20) {
			t.Errorf("tail %d: %v", n, seqs)
		}
	}
	for name, c := range map[string]struct {
		filter Filter
		want   int
	}{
		"all":      {Filter{}, 20},
		"since":    {Filter{Since: begin.Add(15 * time.Hour)}, 5},
		"until":    {Filter{Until: begin.Add(15 * time.Hour)}, 15},
		"between":  {Filter{Since: begin.Add(time.Hour), Until: begin.Add(3 * time.Hour)}, 2},
		"language": {Filter{Language: "Go"}, 10},
		"verdict":  {Filter{Verdict: sandbox.VerdictTimeLimit}, 10},
		"user":     {Filter{User: "other"}, 4},
		"uid":      {Filter{User: "4242"}, 4},
		"several":  {Filter{User: "other", Language: "go"}, 2},
		"unknown":  {Filter{User: "unknown user"}, 0},
		"door":     {Filter{EntryPoint: EntryAPI}, 4},
		"key":      {Filter{Key: "k1"}, 4},
		"no key":   {Filter{Key: "k"}, 0},
		"kind":     {Filter{Kind: KindRefused}, 1},
		"runs":     {Filter{Kind: KindRun, EntryPoint: EntryAPI}, 3},
	} {
		if got := len(all(t, l, c.filter)); got != c.want {
			t.Errorf("%s: %d entries, want %d", name, got, c.want)
		}
	}
	for range l.Query(Filter{}) {
		break // and nothing is left open: see TestNothingStaysOpen
	}
}

func TestMissingLog(t *testing.T) {
	l := newLog(t, Options{})
	if got := all(t, l, Filter{}); len(got) != 0 {
		t.Error(got)
	}
	for range l.Tail(5) {
		t.Error("an entry of no log")
	}
	if _, err := l.Verify(); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("verify: %v, want an error", err)
	}
	if _, err := os.Stat(filepath.Dir(l.Path())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading has made a directory: %v", err)
	}
}

func TestManyGoroutines(t *testing.T) {
	l := newLog(t, Options{Wait: time.Minute, MaxSize: 20_000})
	other, err := Open(l.Path(), Options{Wait: time.Minute, MaxSize: 20_000})
	must(t, err)
	var done sync.WaitGroup
	for i := range 16 {
		log := l
		if i%2 == 0 {
			log = other
		}
		done.Go(func() {
			for j := range 25 {
				if err := log.Append(sample(i*100 + j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	intact(t, l, 400)
	seen := map[string]bool{}
	for _, e := range all(t, l, Filter{}) {
		seen[e.Run] = true
	}
	if len(seen) != 400 {
		t.Errorf("%d different runs", len(seen))
	}
}

func TestOpenRefusesPathsWithoutFileName(t *testing.T) {
	for _, path := range []string{"/tmp/", "a\x00b"} {
		if _, err := Open(path, Options{}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := Open("x", Options{Wait: -1}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Error(err)
	}
}

func TestDefaultPath(t *testing.T) {
	for _, c := range []struct{ state, home, want string }{
		{"/s", "/h", "/s/sandbox-run/audit.jsonl"},
		{"", "/h", "/h/.local/state/sandbox-run/audit.jsonl"},
		{"relative", "/h", "/h/.local/state/sandbox-run/audit.jsonl"},
		{"", "", ""},
	} {
		t.Setenv("XDG_STATE_HOME", c.state)
		t.Setenv("HOME", c.home)
		got, err := DefaultPath()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync=%v", sync), func(b *testing.B) {
			l := newLog(b, Options{Sync: sync})
			e := sample(0)
			b.ReportAllocs()
			for b.Loop() {
				must(b, l.Append(e))
			}
		})
	}
}

// BenchmarkOpenAppend measures the cost for a command, which opens the log for one entry.
func BenchmarkOpenAppend(b *testing.B) {
	path := newLog(b, Options{}).Path()
	for b.Loop() {
		l, err := Open(path, Options{})
		must(b, err)
		must(b, l.Append(sample(0)))
	}
}
