package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

func TestParse(t *testing.T) {
	for _, bad := range [][]string{{"-n", "59"}, {"-only", "("}, {"more"}, {"-smoke", "-update", "x"},
		{"-against", "x", "-update", "x"}, {"-nonsense"}} {
		if _, err := parse(bad, &strings.Builder{}); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
	o, err := parse([]string{"-smoke", "-n", "1"}, os.Stderr)
	if err != nil || o.pairs != 3 || o.each != 200*time.Millisecond {
		t.Errorf("got %+v, %v", o, err)
	}
	o, err = parse(nil, os.Stderr)
	if err != nil || o.pairs < leastPairs || o.probes < 30 || o.traces < 20 || time.Duration(o.rounds)*o.each < 3*time.Second {
		t.Errorf("the defaults are fewer than the bars ask for: %+v, %v", o, err)
	}
}

func TestRunRefuses(t *testing.T) {
	var out, problems strings.Builder
	if code := run(context.Background(), []string{"-n", "2"}, &out, &problems); code != exitFailed ||
		!strings.Contains(problems.String(), "at least 60") {
		t.Errorf("code %d, %q", code, problems.String())
	}
	if code := run(context.Background(), []string{"-help"}, &out, &problems); code != exitMet {
		t.Errorf("-help ends with %d", code)
	}
}

func TestFinish(t *testing.T) {
	dir := t.TempDir()
	document := filepath.Join(dir, "doc.md")
	if err := os.WriteFile(document, []byte("a\n<!-- bench:begin -->\n<!-- bench:end -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	met := bench.Row{Name: "quick", Unit: "ms", Ours: bench.Stat{P50: 1}, Bar: &bench.Bar{Limit: 2}}
	missed := met
	missed.Name, missed.Ours.P50 = "slow", 3
	for name, c := range map[string]struct {
		o    options
		rows []bench.Row
		want int
	}{
		"met":            {options{json: filepath.Join(dir, "j"), update: document}, []bench.Row{met}, exitMet},
		"missed":         {options{markdown: true}, []bench.Row{met, missed}, exitMissed},
		"smoke":          {options{smoke: true}, []bench.Row{missed}, exitMet},
		"no document":    {options{update: filepath.Join(dir, "none")}, []bench.Row{met}, exitFailed},
		"no marks":       {options{update: filepath.Join(dir, "j")}, []bench.Row{met}, exitFailed},
		"no place for j": {options{json: dir}, []bench.Row{met}, exitFailed},
	} {
		if name == "no marks" {
			if err := os.WriteFile(filepath.Join(dir, "j"), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out, problems strings.Builder
		if code := finish(&c.o, &bench.Report{Rows: c.rows}, &out, &problems); code != c.want {
			t.Errorf("%s: code %d, want %d; %s", name, code, c.want, problems.String())
		}
	}
	text, err := os.ReadFile(document)
	if err != nil || !strings.Contains(string(text), "| quick |") {
		t.Errorf("the document became %q, %v", text, err)
	}
}
