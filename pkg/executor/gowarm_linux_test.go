package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func goTool(t *testing.T) *toolchain.Toolchain {
	t.Helper()
	testenv.NeedSystem(t)
	tool, err := (&toolchain.Finder{NoStore: true}).Find(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

// Whoever gives up leaves nothing of the compiler running.
func TestPreparingIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	program, pid := filepath.Join(dir, "go"), filepath.Join(dir, "pid")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nsleep 300 & echo $! >"+pid+".new; mv "+pid+".new "+pid+"; wait\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var child string
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		defer cancel()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if text, err := os.ReadFile(pid); err == nil {
				child = strings.TrimSpace(string(text))
				return
			}
		}
	}()
	w := goWarmth{dir: dir, tool: &toolchain.Toolchain{Path: program}}
	if err := w.build(ctx, []string{"errors"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-watcher
	if child == "" {
		t.Fatal("nothing was started")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // a process that was killed needs a processor to die on
		state, err := os.ReadFile("/proc/" + child + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("process %s is still there: %s", child, state)
		}
	}
}

// Several at once do the work once, each sees what it needs, and who was in the way is not hurt.
func TestWarmthIsMadeOnce(t *testing.T) {
	// Of a user who keeps things to themselves; sandboxes' users see it all the same.
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	w := goWarmth{dir: filepath.Join(t.TempDir(), "go-x"), tool: goTool(t), packages: []string{"errors", "unsafe", "no/such", "example.com/x", "cmd/go", "-x"}}
	// A small standard library for the first time, or this would take long.
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.write(map[string]bool{"begun": true}); err != nil {
		t.Fatal(err)
	}
	if got := w.missing(w.read()); !slices.Equal(got, []string{"errors"}) {
		t.Fatalf("missing are %q", got)
	}
	// What a killed process leaves.
	if err := os.MkdirAll(filepath.Join(w.dir, "home", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	var told atomic.Int32
	on := func(string) func() { told.Add(1); return func() { told.Add(-1) } }
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			mine := w
			var p Plan
			release, err := mine.prepare(context.Background(), &p, true, on)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if len(p.Notes) > 0 {
				t.Error(p.Notes)
			}
			if have := mine.read(); !have["errors"] || !have["begun"] {
				t.Errorf("there are %v", have)
			}
		})
	}
	all.Wait()
	if told.Load() != 0 {
		t.Errorf("%d were told of a beginning without an end", told.Load())
	}
	if _, err := os.Lstat(filepath.Join(w.dir, "home")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its home is left: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(w.buildDir(), "trim.txt")); err != nil || len(text) < 10 {
		t.Errorf("the go command would put the cache in order each time: %q, %v", text, err)
	}
	entries := 0
	err := filepath.WalkDir(w.buildDir(), func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil && st.Mode().Perm()&0o044 != 0o044 {
			t.Errorf("%s: %v", p, st.Mode())
		}
		entries++
		return err
	})
	if err != nil || entries < 260 {
		t.Errorf("%d entries: %v", entries, err)
	}
}

// Of several toolchains' directories the least recently used go, but none that is in use.
func TestWarmthIsBounded(t *testing.T) {
	top := t.TempDir()
	old := time.Now().Add(-time.Hour)
	var releases []func()
	for i, name := range []string{"go-a", "go-b", "go-c", "go-d", "go-e", "go-f"} {
		release, err := useWarm(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "go-a" {
			releases = append(releases, release)
		} else {
			release()
		}
		when := old.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(top, name, warmUsed), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(top, "go-0"+goneSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	dropWarm(t.Context(), filepath.Join(top, "go-f"))
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

// Where nothing can be kept, programs compile all the same.
func TestWithoutWarmth(t *testing.T) {
	e := realEngine(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	opts := e.opts
	opts.WarmDir = filepath.Join(file, "below")
	r := expectOn(t, New(e.manager, opts), Request{Language: "go", Code: "package main\n\nfunc main() { println(\"cold\") }\n", NoCache: true}, want{said: []string{"cold"}})
	if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "compiled anew") }) {
		t.Errorf("nobody says why it was slow: %q", r.Notes)
	}
}

// A package that is in the cache without its index, or not at all, is compiled inside.
func TestWarmthThatLacksSomething(t *testing.T) {
	e := realEngine(t)
	opts := e.opts
	opts.WarmDir = t.TempDir()
	w := goWarmth{dir: warmDirOf(unlinked(opts.WarmDir), goTool(t))}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.write(map[string]bool{"errors": true}); err != nil { // it says so, and is not
		t.Fatal(err)
	}
	expectOn(t, New(e.manager, opts), Request{Language: "go", Code: "package main\n\nimport \"errors\"\n\nfunc main() { println(errors.New(\"cold\").Error()) }\n", NoCache: true}, want{said: []string{"cold"}})
}

// Modules come from the user's module cache, those that are named and no others.
func TestModulesFromTheCache(t *testing.T) {
	e := realEngine(t)
	cache := t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	at := filepath.Join(cache, "cache", "download", "example.com", "!big", "@v")
	other := filepath.Join(cache, "cache", "download", "example.com", "other", "@v")
	for _, dir := range []string{at, other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	source := map[string]string{"go.mod": "module example.com/Big\n\ngo 1.21\n", "big.go": "package big\n\nimport \"container/ring\"\n\nfunc Size() int { return ring.New(3).Len() }\n"}
	sum, modSum := writeModule(t, at, "example.com/Big", "v1.2.3", source)
	if err := os.WriteFile(filepath.Join(other, "v1.0.0.zip"), []byte("not asked for"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := tree("go.mod", "module m\n\ngo 1.21\n\nrequire example.com/Big v1.2.3\n", "go.sum", "example.com/Big v1.2.3 "+sum+"\nexample.com/Big v1.2.3/go.mod "+modSum+"\n",
		"main.go", "package main\n\nimport (\n\t\"fmt\"\n\t\"example.com/Big\"\n\t\"os\"\n\t\"path/filepath\"\n)\n\nfunc main() {\n\tall, _ := filepath.Glob(os.Getenv(\"HOME\") + \"/.sandbox-run/modules/example.com/*\")\n\tfmt.Println(big.Size(), len(all))\n}\n")
	expect(t, Request{Files: files}, want{stdout: "3 1\n"})

	files[0].Data = []byte("module m\n\ngo 1.21\n\nrequire example.com/Big v1.2.4\n")
	_, err := e.Execute(t.Context(), Request{Files: files})
	if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "example.com/Big v1.2.4") || !strings.Contains(err.Error(), "go mod download") {
		t.Errorf("a module that nobody has: %v", err)
	}
}
