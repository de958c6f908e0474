package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// slow has a compiler and a program that take as long as a file says.
const slow = `
- name: slow
  extensions: [.slow]
  compile: [sh, -c, '. "$0"; test -z "$COMPILER_SLEEPS" || (echo compiling; sleep 30); echo "echo ran; $RUN" >"$1"', "{file}", "{out}"]
  run: [sh, "{out}"]
`

func slowEngine(t *testing.T) *Executor {
	t.Helper()
	languages, err := parseLanguages([]byte(slow))
	if err != nil {
		t.Fatal(err)
	}
	o := realEngine(t).opts
	o.Languages = languages
	return New(shared.manager, o)
}

func TestPhases(t *testing.T) {
	e := slowEngine(t)
	var plan *Plan
	r := expectOn(t, e, Request{Language: "slow", Code: "RUN='exit 3'", CompileLimits: sandbox.Limits{Wall: time.Minute},
		OnPlan: func(p *Plan) { plan = p }}, want{verdict: nonzero, exit: 3, stdout: "ran\n"})
	if len(r.Phases) != 2 || r.Phases[0].Name != PhaseCompile || r.Phases[1].Name != PhaseRun || r.Phases[1].ExitCode != 3 ||
		r.Phases[0].Verdict != sandbox.VerdictOK {
		t.Errorf("%+v", r.Phases)
	}
	if plan == nil || len(plan.Phases) != 2 {
		t.Errorf("the plan was %+v", plan)
	}
	if l := r.Phases[0].Limits; l.Memory != 2*sandbox.GiB || l.Wall != time.Minute || r.Limits.Memory != 512*sandbox.MiB {
		t.Errorf("a compiler had %+v, the program %+v", l, r.Limits)
	}
	// A compiler that fails leaves nothing to run.
	r = expectOn(t, e, Request{Language: "slow", Code: "echo on stdout; echo on stderr >&2; exit 9"},
		want{verdict: noSyntax, stdout: "on stdout\n", said: []string{"on stderr"}})
	if len(r.Phases) != 1 || r.Phases[0].Stdout != "on stdout\n" || r.Phases[0].Stderr != "on stderr\n" || r.Phases[0].Verdict != noSyntax ||
		r.Exit.Code != 9 {
		t.Errorf("%+v", r.Phases)
	}
	// Nor does one that takes too long, which is no error in the program.
	r = expectOn(t, e, Request{Language: "slow", Code: "COMPILER_SLEEPS=1", CompileLimits: sandbox.Limits{Wall: ms(400)}},
		want{verdict: sandbox.VerdictTimeLimit})
	if r.Phase != PhaseCompile || len(r.Phases) != 1 || len(r.Violations) != 1 || r.Violations[0].Allow != "--compile-timeout" {
		t.Errorf("%s: %+v, %+v", r.Phase, r.Phases, r.Violations)
	}
	r = expectOn(t, e, Request{Language: "slow", Code: "x=a; while :; do x=$x$x; done",
		CompileLimits: sandbox.Limits{Memory: 32 * sandbox.MiB}}, want{verdict: sandbox.VerdictMemoryLimit})
	if r.Phase != PhaseCompile || len(r.Violations) != 1 || r.Violations[0].Allow != "--compile-memory" {
		t.Errorf("%s: %+v", r.Phase, r.Violations)
	}
}

func TestCachedPhases(t *testing.T) {
	e := slowEngine(t)
	cached := func(req Request) bool {
		t.Helper()
		return expectOn(t, e, req, want{stdout: "ran\n"}).Phases[0].Cached
	}
	req := Request{Language: "slow", Code: "# cached"}
	if cached(req) || !cached(req) {
		t.Error("the second was not cached, or the first was")
	}
	for name, other := range map[string]Request{
		"code":     {Language: "slow", Code: "# other"},
		"variable": {Language: "slow", Code: "# cached", Env: map[string]string{"X": "1"}},
		"name":     {Language: "slow", Code: "# cached", Name: "y.slow"},
		"mode":     {Language: "slow", Files: []File{{Path: "main.slow", Mode: 0o755, Data: []byte("# cached")}}},
		"file":     {Language: "slow", Files: append(tree("main.slow", "# cached"), named("z")...)},
		"no cache": {Language: "slow", Code: "# cached", NoCache: true},
		"key":      {Language: "slow", Code: "# cached", Asker: Asker{Key: "a"}},
	} {
		if cached(other) {
			t.Errorf("another %s makes no difference", name)
		}
	}
	// One key's compiled programs are its own, unless the operator shares them.
	mine := Request{Language: "slow", Code: "# cached", Asker: Asker{Key: "a"}}
	if !cached(mine) {
		t.Error("a key's own program is not cached")
	}
	theirs := mine
	theirs.Asker.Key = "b"
	if cached(theirs) {
		t.Error("one key has what another has compiled")
	}
	e.opts.SharedCache = true
	theirs.Asker.Key = "c"
	if !cached(theirs) {
		t.Error("shared, and not cached")
	}
	e.opts.SharedCache = false
	// What does not go into a compiler does not count.
	for name, same := range map[string]Request{
		"args":   {Language: "slow", Code: "# cached", Args: []string{"x"}},
		"stdin":  {Language: "slow", Code: "# cached", Stdin: strings.NewReader("x")},
		"inputs": {Language: "slow", Code: "# cached", Inputs: tree("in", "x")},
		"limits": {Language: "slow", Code: "# cached", Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}},
	} {
		if !cached(same) {
			t.Errorf("%s makes a difference", name)
		}
	}
	// A compiler with a network may get another answer each time, so that its program is not kept.
	connected := Request{Language: "slow", Code: "# cached", Policy: Policy{CompileNetwork: sandbox.NetworkLocalhost}}
	for range 2 {
		if cached(connected) {
			t.Error("compiled with a network, and cached")
		}
	}
	connected.Code = "# connected"
	if cached(connected) || cached(Request{Language: "slow", Code: "# connected"}) {
		t.Error("what was compiled with a network is in the cache")
	}
	// The compiler sees the volume, and the cache key does not cover its files.
	volume := Request{Language: "slow", Code: "# cached", Policy: Policy{Volumes: []sandbox.Volume{{Source: t.TempDir(), Target: "/data"}}}}
	for range 2 {
		if cached(volume) {
			t.Error("what was compiled beside a volume was kept")
		}
	}
	// What did not compile is not kept.
	bad := Request{Language: "slow", Code: "exit 1"}
	for range 2 {
		if r := expectOn(t, e, bad, want{verdict: noSyntax}); r.Phases[0].Cached {
			t.Error("an error came from the cache")
		}
	}
}

// A compiler does not see inputs: what it makes is for everybody with the same program.
func TestCompilersSeeNoInputs(t *testing.T) {
	code := "fn main() { println!(\"{}\", include_str!(\"/workspace/in.txt\")); }\n"
	expect(t, Request{Language: "rust", Code: code, Inputs: tree("in.txt", "data")}, want{verdict: sandbox.VerdictCompileError})
	// The program itself does.
	code = "fn main() { print!(\"{}\", std::fs::read_to_string(\"in.txt\").unwrap()); }\n"
	for _, text := range []string{"one's", "another's"} {
		expect(t, Request{Language: "rust", Code: code, Inputs: tree("in.txt", text)}, want{stdout: text})
	}
}

// A program that changes while it is compiled is not kept under the name of what it has become.
func TestChangedWhileCompiled(t *testing.T) {
	e := slowEngine(t)
	now := "# first"
	file := File{Path: "main.slow", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(now)), nil }}
	req := Request{Language: "slow", Files: []File{file}, OnEvent: func(sandbox.Event) { now = "# second" }}
	expectOn(t, e, req, want{stdout: "ran\n"})
	for _, code := range []string{"# first", "# second"} {
		if expectOn(t, e, Request{Language: "slow", Files: tree("main.slow", code)}, want{stdout: "ran\n"}).Phases[0].Cached {
			t.Errorf("%s came from the cache", code)
		}
	}
}

// Programs open their streams by the names that these have everywhere.
func TestStreamsByName(t *testing.T) {
	expect(t, Request{Language: "bash", Code: "cat /dev/stdin >/dev/stdout; echo said >/dev/stderr\n", Stdin: strings.NewReader("given\n")},
		want{stdout: "given\n", said: []string{"said\n"}})
}

func TestCancel(t *testing.T) {
	e := slowEngine(t)
	for phase, req := range map[string]Request{
		PhaseCompile: {Language: "slow", Code: "COMPILER_SLEEPS=1"},
		PhaseRun:     {Language: "slow", Code: "RUN='echo running; sleep 30'"},
	} {
		t.Run(phase, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req.OnEvent = func(ev sandbox.Event) {
				if ev.Kind == sandbox.EventStdout && ev.Phase == phase {
					cancel()
				}
			}
			began := time.Now()
			r, err := e.Execute(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != sandbox.VerdictCancelled || r.Phase != phase || time.Since(began) > 20*time.Second {
				t.Errorf("%s in %s after %v", r.Verdict, r.Phase, time.Since(began))
			}
		})
	}
	t.Run("check", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		// Cancelled when the program has ended and its check is about to begin.
		req := Request{Language: "python", Code: "x = =", OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventStderr && strings.Contains(string(ev.Data), "SyntaxError") {
				cancel()
			}
		}}
		r, err := e.Execute(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict != sandbox.VerdictCancelled && r.Verdict != nonzero && r.Verdict != noSyntax {
			t.Error(r.Verdict)
		}
	})
	t.Run("before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r, err := e.Execute(ctx, Request{Language: "shell", Code: "echo ran"})
		if err == nil && r.Verdict != sandbox.VerdictCancelled || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", r, err)
		}
	})
	if left := shared.manager.List(); len(left) != 0 {
		t.Errorf("%d sandboxes are left", len(left))
	}
}

func TestStream(t *testing.T) {
	e := slowEngine(t)
	var seq uint64
	var kinds []string
	var result *Result
	var text strings.Builder
	for ev, err := range e.Stream(t.Context(), Request{Language: "slow",
		Code: "echo building >&2; RUN='echo one; sleep 0.1; echo two >&2; exit 4'", NoCache: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if result != nil {
			t.Fatal("something came after the result")
		}
		if ev.Seq <= seq {
			t.Errorf("number %d after %d", ev.Seq, seq)
		}
		seq = ev.Seq
		switch ev.Kind {
		case EventResult:
			result = ev.Result
		case sandbox.EventStdout, sandbox.EventStderr:
			fmt.Fprintf(&text, "%s %s: %s", ev.Phase, ev.Kind, ev.Data)
		case sandbox.EventPhase:
			kinds = append(kinds, ev.Phase)
		}
		if _, err := json.Marshal(ev); err != nil {
			t.Error(err)
		}
	}
	if result == nil || result.Verdict != nonzero || result.Exit.Code != 4 {
		t.Fatalf("%+v", result)
	}
	if !slices.Equal(kinds, []string{PhaseCompile, PhaseRun}) {
		t.Errorf("phases were %q", kinds)
	}
	for _, s := range []string{"compile stderr: building\n", "run stdout: ran\n", "one\n", "run stderr: two\n"} {
		if !strings.Contains(text.String(), s) {
			t.Errorf("%q is not in %q", s, text.String())
		}
	}
}

func TestStreamBreak(t *testing.T) {
	e := realEngine(t)
	began := time.Now()
	for ev, err := range e.Stream(t.Context(), Request{Language: "shell", Code: "while :; do echo line; done"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == sandbox.EventStdout {
			break
		}
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v to end", d)
	}
	if left := shared.manager.List(); len(left) != 0 {
		t.Errorf("%d sandboxes are left", len(left))
	}
	// One that never looked at an event.
	for range e.Stream(t.Context(), Request{Language: "shell", Code: "sleep 30"}) {
		break
	}
	n := 0
	for _, err := range e.Stream(t.Context(), Request{Language: "nonsense", Code: "x"}) {
		if n++; !errors.Is(err, sandbox.ErrInvalid) {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("a bad request makes %d events", n)
	}
}

func TestOutputs(t *testing.T) {
	r := expect(t, Request{
		Language: "shell",
		Code: "mkdir -p out/deep; echo a >out/a.txt; echo b >out/deep/b.txt; head -c 100000 /dev/zero >out/big.bin; echo t >/tmp/t.txt; " +
			"echo x >out/tool; chmod 755 out/tool; ln -s /etc/passwd out/link; mkfifo out/fifo; exit 5",
		Outputs: sandbox.Selection{Patterns: []string{"out/**", "/tmp/*.txt", "nothing*"}, MaxBytes: 50_000},
	},
		want{verdict: nonzero, exit: 5, files: map[string]string{"out/a.txt": "a\n", "out/deep/b.txt": "b\n", "/tmp/t.txt": "t\n",
			"out/tool": "x\n"}})
	for _, f := range r.Files {
		switch f.Path {
		case "out/big.bin", "out/link", "out/fifo":
			if f.Reason == "" || f.Data != nil {
				t.Errorf("%+v", f)
			}
		case "out/tool":
			if f.Mode != 0o755 {
				t.Errorf("%+v", f)
			}
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Verdict  string
		Language string
		Version  string `json:"language_version"`
		Phases   []struct{ Name string }
		Files    []struct {
			Path, Content string
			Size          int
			NotTaken      string `json:"not_taken"`
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Verdict != "nonzero_exit" || doc.Language != "shell" || doc.Version != r.Version || len(doc.Phases) != 1 ||
		len(doc.Files) != len(r.Files) {
		t.Errorf("%s", text)
	}
	if none := expect(t, Request{Language: "shell", Code: ":"}, want{}); !strings.Contains(must(json.Marshal(none)), `"files":[]`) {
		t.Error("no files are not an empty list")
	}
}

func must(b []byte, err error) string { return string(b) + fmt.Sprint(err) }

// A volume at /workspace is the user's: the program lies elsewhere, and runs there all the same.
func TestVolumeAsWorkspace(t *testing.T) {
	dir := t.TempDir()
	volume := Policy{Volumes: []sandbox.Volume{{Source: dir, Target: sandbox.WorkspaceDir}}}
	expect(t, Request{Files: tree("main.py", "import os, util\nprint(os.getcwd(), __file__, os.listdir('.'))", "util.py", ""), Policy: volume},
		want{stdout: "/workspace /home/sandbox/code/main.py []\n"})
	expect(t, Request{Language: "javascript", Code: "console.log(process.cwd(), __dirname)", Policy: volume},
		want{stdout: "/workspace /home/sandbox/code\n"})
	expect(t, Request{Language: "python", Code: "x = =", Policy: volume}, want{verdict: noSyntax})
	expect(t, Request{Files: tree("pkg/__init__.py", "", "pkg/__main__.py", "from . import a\nprint(a.x)", "pkg/a.py", "x=1"), Policy: volume},
		want{stdout: "1\n"})
}

// Fifty programs in several languages at a time: each result is its own.
func TestConcurrent(t *testing.T) {
	e := slowEngine(t)
	programs := []func(token string) Request{
		func(k string) Request {
			return Request{Language: "python", Code: "import sys\nprint(sys.argv[1], '" + k + "', sys.stdin.read())", Args: []string{k},
				Stdin: strings.NewReader(k)}
		},
		func(k string) Request {
			return Request{Language: "javascript", Code: "console.log(process.argv[2], '" + k + "', require('fs').readFileSync(0,'utf8'))",
				Args: []string{k}, Stdin: strings.NewReader(k)}
		},
		func(k string) Request {
			return Request{Language: "shell", Code: "echo $1 " + k + " $(cat)", Args: []string{k}, Stdin: strings.NewReader(k)}
		},
		func(k string) Request {
			return Request{Language: "typescript", Code: "import fs from 'fs'; console.log(process.argv[2] as string, '" + k +
				"', fs.readFileSync(0,'utf8'))", Args: []string{k}, Stdin: strings.NewReader(k)}
		},
		func(k string) Request {
			return Request{Language: "slow", Code: "RUN='echo " + k + " " + k + " $(cat)'", Args: []string{k}, Stdin: strings.NewReader(k)}
		},
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			token := fmt.Sprintf("token-%d-%d", i, i*7919)
			req := programs[i%len(programs)](token)
			req.Outputs = sandbox.Selection{Patterns: []string{"*.out"}}
			req.Inputs = tree(token+".out", token)
			req.Limits.Wall = 2 * time.Minute // the machine is busy
			r, err := e.Execute(t.Context(), req)
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			said := strings.TrimPrefix(string(r.Stdout.Bytes()), "ran\n")
			if expected := token + " " + token + " " + token + "\n"; r.Verdict != sandbox.VerdictOK || said != expected {
				t.Errorf("%d (%s): %s, %q instead of %q; %s", i, req.Language, r.Verdict, said, expected, r.Stderr.Bytes())
			}
			if len(r.Files) != 1 || r.Files[0].Path != token+".out" || string(r.Files[0].Data) != token {
				t.Errorf("%d: files %+v", i, r.Files)
			}
		})
	}
	all.Wait()
	if left := shared.manager.List(); len(left) != 0 {
		t.Errorf("%d sandboxes are left", len(left))
	}
}
