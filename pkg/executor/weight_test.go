package executor

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestWeight(t *testing.T) {
	const mib = sandbox.MiB
	e := New(sandbox.NewManager(nil, sandbox.Options{}),
		Options{Languages: []*Language{{Name: "own", Extensions: []string{".own"}, Working: 512 * mib,
			Plan: func(*language.Job) error { return nil }}}})
	d := sandbox.DefaultLimits()
	kept := 4 * d.Output
	lower := func(run, compile *sandbox.Limits) []string {
		run.Memory, compile.Memory = min(run.Memory, 32*mib), min(compile.Memory, 100*mib)
		return nil
	}
	for name, c := range map[string]struct {
		req  Request
		want sandbox.Size
	}{
		"python":        {Request{Language: "python", Code: "1"}, 512*mib + kept},
		"python, small": {Request{Language: "python", Code: "1", Limits: sandbox.Limits{Memory: 64 * mib}}, 64*mib + kept},
		"much output": {Request{Language: "python", Code: "1", Limits: sandbox.Limits{Memory: 64 * mib, Output: 64 * mib}},
			64*mib + 256*mib},
		"much output, on disk": {Request{Language: "python", Code: "1", Limits: sandbox.Limits{Memory: 64 * mib, Output: 64 * mib},
			OutputSpace: new(sandbox.OutputStore).For("")}, 68 * mib},
		"go, whose default is less": {Request{Language: "go", Code: "package main"}, 256*mib + kept},
		"a large one of Go's":       {Request{Language: "go", Code: "package main", Limits: sandbox.Limits{Memory: 400 * mib}}, 400*mib + kept},
		"rust, small":               {Request{Language: "rust", Code: "fn", Limits: sandbox.Limits{Memory: 64 * mib}}, 512*mib + kept},
		"a compiler that is to have more": {
			Request{Language: "rust", Code: "fn", CompileLimits: sandbox.Limits{Memory: 1500 * mib}}, 1500*mib + kept,
		},
		"and one that is to have less": {
			Request{Language: "rust", Code: "fn", Limits: sandbox.Limits{Memory: 64 * mib}, CompileLimits: sandbox.Limits{Memory: 128 * mib}},
			128*mib + kept,
		},
		"ceilings":              {Request{Language: "rust", Code: "fn", Lower: lower}, 100*mib + kept},
		"found by its name":     {Request{Files: tree("main.rs", "fn main() {}"), Limits: sandbox.Limits{Memory: 64 * mib}}, 512*mib + kept},
		"a language of a file":  {Request{Files: tree("a.own", ""), Limits: sandbox.Limits{Memory: 64 * mib}}, 512*mib + kept},
		"an unknown language":   {Request{Language: "klingon", Code: "1"}, d.Memory + kept},
		"nothing at all to run": {Request{}, d.Memory + kept},
	} {
		if got := e.Weight(c.req); got.Memory != c.want || got.CPUs != d.CPUs {
			t.Errorf("%s: %s with %v cores, want %s", name, got.Memory, got.CPUs, c.want)
		}
	}
	// Every language that compiles is counted for it.
	for _, l := range e.Languages() {
		compiles := map[string]bool{"go": true, "rust": true, "java": true, "typescript": true, "own": true}[l.Name]
		if (l.Working > 0) != compiles {
			t.Errorf("%s is counted for %s of compiling", l.Name, l.Working)
		}
	}
}
