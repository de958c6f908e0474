package golang

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
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func goTool(t *testing.T) *toolchain.Toolchain {
	t.Helper()
	testenv.NeedSystem(t)
	tool, err := (&toolchain.Finder{NoStore: true}).Find(t.Context(), &description)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

// A cancelled preparation leaves no process of the compiler.
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
	w := libraryCache{dir: dir, tool: &toolchain.Toolchain{Path: program}}
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
func TestLibraryIsCompiledOnce(t *testing.T) {
	// Of a user who keeps things to themselves; sandboxes' users see it all the same.
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	w := libraryCache{dir: filepath.Join(t.TempDir(), "go-x"), tool: goTool(t),
		packages: []string{"errors", "unsafe", "no/such", "example.com/x", "cmd/go", "-x"}}
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
			var p language.Plan
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
