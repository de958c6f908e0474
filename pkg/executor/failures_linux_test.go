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

	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A driver that could not be made is reported, programs start without it, and it is made later, ever more rarely tried; nothing else
// that is prepared is lost by it.
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
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *stringConcat*) echo >>%s; if [ -e %s ]; then echo no room >&2; exit 1; fi;; esac\n"+
		"exec %s \"$@\"\n", tried, broken, prepared.HostPath(real, real.Programs["javac"]))
	fine(t, os.WriteFile(tool.Programs["javac"], []byte(script), 0o755))
	fine(t, os.WriteFile(broken, nil, 0o600))

	var told []PreparationFailure
	var made string // where what is prepared lies
	start := func() *Executor {
		told = nil
		e := New(pooled.manager, Options{
			Toolchains: &toolchain.Finder{Store: filepath.Join(shared.dir, "toolchains")}, WarmDir: filepath.Join(dir, "warm"), Prestart: true,
			OnPreparationFailure: func(f PreparationFailure) { told = append(told, f) },
		})
		made = filepath.Join(prepared.ToolchainDir(e.prepared.Dir(), &tool), "jdk-2-ahead")
		return e
	}
	prepare := func(e *Executor) (waits bool) {
		t.Helper()
		undo, plan := preparePlan(t, e, &tool)
		defer undo()
		if st, err := os.Stat(made); err != nil || !st.IsDir() {
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
		text, err := os.ReadFile(made + ".failed")
		fine(t, err)
		var f PreparationFailure
		fine(t, json.Unmarshal(text, &f))
		f.At = f.At.Add(-by)
		text, err = json.Marshal(f)
		fine(t, err)
		fine(t, os.WriteFile(made+".failed", text, 0o600))
	}

	e := start()
	for range 3 {
		if prepare(e) {
			t.Fatal("a driver that there is not")
		}
	}
	attempts(1)
	if len(told) != 1 || told[0].Attempts != 1 || !strings.Contains(told[0].Error, "no room") || len(e.PreparationFailures()) != 1 ||
		len(e.MarkedFailures()) != 1 {
		t.Errorf("told %+v, lacks %+v, marked %+v", told, e.PreparationFailures(), e.MarkedFailures())
	}
	if e.RetryPreparations(ctx) {
		t.Error("made")
	}
	attempts(1) // it was not yet time

	e = start() // another process knows, too, and leaves it to Retry
	age(2 * time.Minute)
	if prepare(e) || len(told) != 1 {
		t.Errorf("told %+v", told)
	}
	attempts(1)
	if e.RetryPreparations(ctx) || len(told) != 2 || told[1].Attempts != 2 {
		t.Errorf("told %+v", told)
	}
	attempts(2)

	fine(t, os.Remove(broken))
	e = start()
	age(2 * time.Minute)
	prepare(e)
	if e.RetryPreparations(ctx) { // the second time it takes longer
		t.Error("made")
	}
	attempts(2)
	e = start()
	age(2 * time.Minute)
	if prepare(e) {
		t.Error("a driver that there is not")
	}
	before, err := os.Stat(filepath.Join(made, "javac.jsa"))
	fine(t, err)
	if !e.RetryPreparations(ctx) || len(e.PreparationFailures()) > 0 || len(e.MarkedFailures()) > 0 {
		t.Fatalf("lacks %+v, marked %+v", e.PreparationFailures(), e.MarkedFailures())
	}
	attempts(3)
	after, err := os.Stat(filepath.Join(made, "javac.jsa"))
	fine(t, err)
	if !os.SameFile(before, after) {
		t.Error("sandboxes that are shown the archive have lost it")
	}
	if !prepare(e) {
		t.Error("nothing waits, and there is a driver")
	}
	attempts(3)
}

// preparePlan plans a Java program for a toolchain, and prepares the plan.
func preparePlan(t *testing.T, e *Executor, tool *toolchain.Toolchain) (release func(), _ *Plan) {
	t.Helper()
	j, err := e.newJob(&Request{Language: "java", Code: javaHello})
	fine(t, err)
	j.Tool, j.WarmDir = tool, e.prepared.Dir()
	plan, err := newPlan(j, bigMachine)
	fine(t, err)
	release, err = plan.Prepare(context.Background(), &plan.Plan, true, nil)
	fine(t, err)
	return release, plan
}

// Where nothing can be written, it is not tried for every program, nor kept quiet.
func TestJavaNowhere(t *testing.T) {
	var told []PreparationFailure
	e := New(nil, Options{WarmDir: "/proc/nowhere", OnPreparationFailure: func(f PreparationFailure) { told = append(told, f) }})
	for range 3 {
		release, _ := preparePlan(t, e, &toolchain.Toolchain{Name: "java", ID: "x", Version: "21", Path: "/nowhere/java",
			Programs: map[string]string{"javac": "/nowhere/javac"}})
		release()
	}
	if len(told) != 1 || len(e.PreparationFailures()) != 1 {
		t.Errorf("%+v", told)
	}
}
