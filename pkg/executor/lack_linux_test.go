package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLackBackOff(t *testing.T) {
	now := time.Now()
	for attempts, want := range map[int]time.Duration{0: time.Minute, 1: time.Minute, 2: 4 * time.Minute, 3: 16 * time.Minute, 5: 256 * time.Minute, 6: 6 * time.Hour, 1000: 6 * time.Hour} {
		l := &Lack{At: now, Attempts: attempts}
		if got := l.Next().Sub(now); got != want {
			t.Errorf("after %d: %v", attempts, got)
		}
		if l.due(now.Add(want-time.Second)) || !l.due(now.Add(want)) {
			t.Errorf("after %d: not due when it is", attempts)
		}
	}
	if l := (&Lack{At: now.Add(time.Hour), Attempts: 9}); !l.due(now) {
		t.Error("the clock was set back, and it is never tried again")
	}
}

// A driver that could not be made is told of, is done without, and is made later, ever more rarely tried; nothing else of what is prepared is lost by it.
func TestJavaDriverThatFails(t *testing.T) {
	pooledEngine(t) // real sandboxes
	ctx := context.Background()
	dir := t.TempDir()
	broken, tried := filepath.Join(dir, "broken"), filepath.Join(dir, "tried")
	java, err := pooled.lookUp("java")
	fine(t, err)
	real, err := pooled.Toolchain(ctx, java)
	if err != nil {
		t.Skip("there is no JDK: ", err)
	}
	// The compiler of the JDK, which does not compile the driver while a file is there.
	tool := *real
	tool.Programs = map[string]string{"javac": filepath.Join(dir, "javac")}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *stringConcat*) echo >>%s; if [ -e %s ]; then echo no room >&2; exit 1; fi;; esac\nexec %s \"$@\"\n", tried, broken, onHost(real, real.Programs["javac"]))
	fine(t, os.WriteFile(tool.Programs["javac"], []byte(script), 0o755))
	fine(t, os.WriteFile(broken, nil, 0o600))

	var told []Lack
	var w *javaWarmth
	start := func() *Executor {
		told = nil
		e := New(pooled.manager, Options{Toolchains: &toolchain.Finder{Store: filepath.Join(shared.dir, "toolchains")}, WarmDir: filepath.Join(dir, "warm"), Ahead: true, OnLack: func(l Lack) { told = append(told, l) }})
		w = &javaWarmth{dir: warmDirOf(e.warmDir(), &tool), tool: &tool, engine: e, ahead: true}
		return e
	}
	prepare := func(e *Executor) (waits bool) {
		t.Helper()
		req := Request{Language: "java", Code: javaHello}
		plan, release, err := e.plan(ctx, &req)
		fine(t, err)
		defer release()
		undo, err := w.prepare(ctx, plan, true, nil)
		fine(t, err)
		defer undo()
		if archive, _ := w.there(); !archive {
			t.Error("there is no archive")
		}
		return plan.Phases[0].Process.Warm != nil
	}
	attempts := func(want int) {
		t.Helper()
		text, err := os.ReadFile(tried)
		fine(t, err)
		if got := strings.Count(string(text), "\n"); got != want {
			t.Errorf("tried %d times, want %d", got, want)
		}
	}
	age := func(by time.Duration) { // of the mark, as if that had been long ago
		t.Helper()
		l := readLack(w.made() + lackSuffix)
		l.At = l.At.Add(-by)
		text, err := json.Marshal(l)
		fine(t, err)
		fine(t, os.WriteFile(w.made()+lackSuffix, text, 0o600))
	}

	e := start()
	for range 3 {
		if prepare(e) {
			t.Fatal("a driver that there is not")
		}
	}
	attempts(1)
	if len(told) != 1 || told[0].Attempts != 1 || !strings.Contains(told[0].Error, "no room") || len(e.Lacks()) != 1 || len(e.Marked()) != 1 {
		t.Errorf("told %+v, lacks %+v, marked %+v", told, e.Lacks(), e.Marked())
	}
	if e.Retry(ctx) {
		t.Error("made")
	}
	attempts(1) // it was not yet time

	e = start() // another process knows, too, and leaves it to Retry
	age(2 * time.Minute)
	if prepare(e) || len(told) != 1 {
		t.Errorf("told %+v", told)
	}
	attempts(1)
	if e.Retry(ctx) || len(told) != 2 || told[1].Attempts != 2 {
		t.Errorf("told %+v", told)
	}
	attempts(2)

	fine(t, os.Remove(broken))
	e = start()
	age(2 * time.Minute)
	prepare(e)
	if e.Retry(ctx) { // the second time it takes longer
		t.Error("made")
	}
	attempts(2)
	e = start()
	age(2 * time.Minute)
	if prepare(e) {
		t.Error("a driver that there is not")
	}
	before, err := os.Stat(filepath.Join(w.made(), javaArchive))
	fine(t, err)
	if !e.Retry(ctx) || len(e.Lacks()) > 0 || len(e.Marked()) > 0 {
		t.Fatalf("lacks %+v, marked %+v", e.Lacks(), e.Marked())
	}
	attempts(3)
	after, err := os.Stat(filepath.Join(w.made(), javaArchive))
	fine(t, err)
	if !os.SameFile(before, after) {
		t.Error("sandboxes that are shown the archive have lost it")
	}
	if !prepare(e) {
		t.Error("nothing waits, and there is a driver")
	}
	attempts(3)
}

// Where nothing can be written, it is not tried for every program, nor kept quiet.
func TestJavaNowhere(t *testing.T) {
	var told []Lack
	e := New(nil, Options{WarmDir: "/proc/nowhere", OnLack: func(l Lack) { told = append(told, l) }})
	w := &javaWarmth{dir: "/proc/nowhere/java", tool: &toolchain.Toolchain{}, engine: e}
	for range 3 {
		if _, err := w.prepare(context.Background(), &Plan{}, true, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) != 1 || len(e.Lacks()) != 1 {
		t.Errorf("%+v", told)
	}
}
