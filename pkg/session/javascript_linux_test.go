package session

import (
	"context"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

func TestJavaScriptSession(t *testing.T) {
	req := in("javascript")
	req.Files = []executor.File{{Path: "own.mjs", Data: []byte("export const value = 5\n")}}
	s := create(t, newManager(t, Options{}), req)
	s.shows("const x = 40", "")
	s.shows("console.log('a'); x + 2", "a\n42")
	s.shows("import { value } from './own.mjs'; import fs from 'node:fs'\nfs.existsSync('own.mjs') && value", "5")
	s.shows("await new Promise(r => setTimeout(() => r(require('os').EOL), 1))", `'\n'`)
	if r := s.do("\nnull.x"); r.Verdict != sandbox.VerdictNonzeroExit || r.Error == nil || r.Error.Name != "TypeError" || r.Error.Line != 2 {
		t.Errorf("%s %+v %s", r.Verdict, r.Error, r.Stderr.Bytes())
	}
	lines := []string{"one", "two"}
	r := s.cell(Cell{Code: "prompt('? ') + prompt()", Input: func(context.Context, protocol.Input) (string, bool) {
		line := lines[0]
		lines = lines[1:]
		return line, true
	}})
	if r.Value() != "'onetwo'" {
		t.Errorf("%s %q %s", r.Verdict, r.Value(), r.Stderr.Bytes())
	}
	measure(s)
	for _, loop := range []string{
		"while (true) {}", "await new Promise(() => {})", "setTimeout(() => { while (true) {} }, 1); await new Promise(() => {})",
		"require('child_process').execSync('sleep 1000')",
	} {
		r := s.cell(Cell{Code: loop, Limits: sandbox.Limits{Wall: 300 * time.Millisecond}})
		if r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle {
			t.Errorf("%s: %s %s %s", loop, r.Verdict, r.State, r.Cause)
		}
		s.shows("x", "40")
	}
	req.Limits.Memory = 160 * sandbox.MiB
	s = create(t, s.m, req)
	r = s.do("const all = []; while (true) all.push(new Array(1e6).fill({}))")
	if r.Verdict != sandbox.VerdictMemoryLimit || r.State != StateEnded {
		t.Errorf("%s %s %s", r.Verdict, r.State, r.Stderr.Bytes())
	}
	s = create(t, s.m, in("javascript"))
	if r := s.do("process.exit(7)"); r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 7 || r.State != StateEnded {
		t.Errorf("%s %d %s", r.Verdict, r.Exit.Code, r.State)
	}
}

func TestTypeScriptSession(t *testing.T) {
	req := in("typescript")
	const own = "export interface T { a: number }\nexport const twice = (t: T): number => 2 * t.a\n"
	req.Files = []executor.File{{Path: "own.ts", Data: []byte(own)}}
	s := create(t, newManager(t, Options{}), req)
	s.shows("interface Pair<T> { a: T }\nenum Color { Red, Green }\nconst x: number = 40", "")
	s.shows("const p: Pair<number> = { a: 2 }; console.log('a'); x + p.a as number", "a\n42")
	s.shows("import { twice, T } from './own'\nconst t: T = { a: Color.Green }; twice(t)", "2")
	r := s.do("let y: = 1")
	if r.Verdict != sandbox.VerdictNonzeroExit || r.Error == nil || r.Error.Name != "SyntaxError" || r.Error.Line != 1 {
		t.Errorf("%s %+v %s", r.Verdict, r.Error, r.Stderr.Bytes())
	}
	measure(s)
	r = s.cell(Cell{Code: "while (true) {}", Limits: sandbox.Limits{Wall: 300 * time.Millisecond}})
	if r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle {
		t.Errorf("%s %s", r.Verdict, r.State)
	}
	s.shows("x", "40")
}

// measure logs how long a small cell takes.
func measure(s tester) {
	s.Helper()
	began := time.Now()
	for range 200 {
		s.shows("1+1", "2")
	}
	s.Logf("%v a cell", time.Since(began)/200)
}
