package audit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// rotated makes a log of several files, the first of them a year old.
func rotated(t *testing.T) *Log {
	t.Helper()
	l := newLog(t, Options{MaxSize: 4000})
	for i := range 30 {
		e := sample(i)
		e.Time = time.Now()
		if i < 8 {
			e.Time = e.Time.Add(-365 * 24 * time.Hour)
		}
		must(t, l.Append(e))
	}
	if n := len(rotatedFiles(t, l)); n < 4 {
		t.Fatalf("%d files were rotated", n)
	}
	return l
}

func rotatedFiles(t *testing.T, l *Log) []string {
	t.Helper()
	names, err := filepath.Glob(l.Path() + ".0*")
	must(t, err)
	return names
}

func TestPruneBySize(t *testing.T) {
	l := rotated(t)
	before := rotatedFiles(t, l)
	removed, err := l.Prune(Keep{Size: 10_000}, EntryCLI)
	must(t, err)
	after := rotatedFiles(t, l)
	if len(removed) == 0 || len(after) != len(before)-len(removed) || removed[0] != filepath.Base(before[0]) ||
		slices.Contains(after, before[0]) {
		t.Fatalf("removed %q\nof %q\nleft %q", removed, before, after)
	}
	r, err := l.Verify()
	must(t, err)
	if !r.OK || r.First == 1 || r.Last != 31 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0].What, "were pruned, as entry 31 says") {
		t.Errorf("%+v", r)
	}
	last := all(t, l, Filter{})
	if e := last[len(last)-1]; e.Kind != KindPruned || e.Pruned == nil || e.Pruned.To != r.First-1 || e.Who.EntryPoint != EntryCLI {
		t.Errorf("%+v", e)
	}
	// What is written afterwards, and pruned again, holds as well.
	for i := range 20 {
		must(t, l.Append(sample(i)))
	}
	_, err = l.Prune(Keep{Size: 5_000}, EntryLibrary)
	must(t, err)
	if r, err = l.Verify(); err != nil || !r.OK {
		t.Errorf("%+v, %v", r, err)
	}
	if removed, err := l.Prune(Keep{Size: 1 << 20}, EntryCLI); err != nil || removed != nil {
		t.Errorf("%q, %v: there was nothing to remove", removed, err)
	}
}

func TestPruneByAge(t *testing.T) {
	l := rotated(t)
	if removed, err := l.Prune(Keep{Age: 2 * 365 * 24 * time.Hour}, EntryCLI); err != nil || len(removed) != 0 {
		t.Errorf("%q, %v", removed, err)
	}
	removed, err := l.Prune(Keep{Age: 24 * time.Hour}, EntryCLI)
	must(t, err)
	if len(removed) == 0 || len(rotatedFiles(t, l)) == 0 {
		t.Errorf("%q removed, %q left", removed, rotatedFiles(t, l))
	}
	if first := all(t, l, Filter{})[0]; first.Seq == 1 {
		t.Error("the oldest entry is there still")
	}
	if r, err := l.Verify(); err != nil || !r.OK {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := l.Prune(Keep{}, EntryCLI); err == nil {
		t.Error("Prune without a bound should remove nothing and fail")
	}
}

// Verify detects a removal beyond the recorded range, and a record that the log itself did not write.
func TestPrunedDoesNotExcuseMore(t *testing.T) {
	t.Run("more is gone", func(t *testing.T) {
		l := rotated(t)
		_, err := l.Prune(Keep{Size: 10_000}, EntryCLI)
		must(t, err)
		must(t, os.Remove(rotatedFiles(t, l)[0]))
		if r, err := l.Verify(); err != nil || r.OK || r.Faults[0].Kind != FaultDeleted {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("killed in between", func(t *testing.T) {
		l := rotated(t)
		names := rotatedFiles(t, l)
		second, err := os.ReadFile(names[1])
		must(t, err)
		info, err := os.Stat(names[0])
		must(t, err)
		total := int64(0)
		for _, name := range append(names, l.Path()) {
			info, err := os.Stat(name)
			must(t, err)
			total += info.Size()
		}
		removed, err := l.Prune(Keep{Size: sandbox.Size(total - info.Size() - 1)}, EntryCLI)
		must(t, err)
		if len(removed) != 2 {
			t.Fatalf("%q", removed)
		}
		must(t, os.WriteFile(names[1], second, 0o600)) // Prune was still to remove it
		if r, err := l.Verify(); err != nil || !r.OK {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("a claim without a chain", func(t *testing.T) {
		l := rotated(t)
		must(t, os.Remove(rotatedFiles(t, l)[0]))
		must(t, l.Append(Entry{Kind: KindPruned, Pruned: &Pruned{To: 1 << 40}})) // Append drops Pruned
		if r, err := l.Verify(); err != nil || r.OK {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
