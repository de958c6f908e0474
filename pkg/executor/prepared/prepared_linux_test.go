package prepared

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Of several toolchains' directories the least recently used go, but none that is in use.
func TestWarmthIsBounded(t *testing.T) {
	top := t.TempDir()
	old := time.Now().Add(-time.Hour)
	var releases []func()
	for i, name := range []string{"go-a", "go-b", "go-c", "go-d", "go-e", "go-f"} {
		release, err := Use(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "go-a" {
			releases = append(releases, release)
		} else {
			release()
		}
		when := old.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(top, name, usedName), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(top, "go-0"+goneSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	DropOthers(t.Context(), filepath.Join(top, "go-f"))
	var left []string
	entries, _ := os.ReadDir(top)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"go-a", "go-c", "go-d", "go-e", "go-f"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, not %q: a is in use, b is the oldest of the others", left, want)
	}
	for _, r := range releases {
		r()
	}
}

func TestFailureBackOff(t *testing.T) {
	now := time.Now()
	for attempts, want := range map[int]time.Duration{0: time.Minute, 1: time.Minute, 2: 4 * time.Minute, 3: 16 * time.Minute,
		5: 256 * time.Minute, 6: 6 * time.Hour, 1000: 6 * time.Hour} {
		l := &Failure{At: now, Attempts: attempts}
		if got := l.Next().Sub(now); got != want {
			t.Errorf("after %d: %v", attempts, got)
		}
		if l.Due(now.Add(want-time.Second)) || !l.Due(now.Add(want)) {
			t.Errorf("after %d: not due when it is", attempts)
		}
	}
	if l := (&Failure{At: now.Add(time.Hour), Attempts: 9}); !l.Due(now) {
		t.Error("the clock was set back, and it is never tried again")
	}
}

// A driver's file that is gone is written again; one that can not be costs nothing but warmth.
func TestDriverFile(t *testing.T) {
	dir, want := filepath.Join(t.TempDir(), "warm"), []byte("module.exports = 1\n")
	file, err := writeFile(dir, "node.cjs", want)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := writeFile(dir, "node.cjs", want); err != nil || again != file {
		t.Errorf("%s %v", again, err)
	}
	if err := os.WriteFile(file, []byte("cut short"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := writeFile(dir, "node.cjs", want); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != string(want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := os.Chmod(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := writeFile(dir, "node.cjs", want); err == nil {
		t.Error("anybody may write to it")
	}
	if got := (&Store{Root: "/proc/nowhere"}).File("node.cjs", want); got != "" {
		t.Error(got)
	}
}
