package executor

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/java"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// program is a case of a compiled language: what its compiler says and what it says itself are looked at together.
type program struct {
	name string
	all  bool // uses much processor time: for make test-all
	req  Request
	in   string // stdin

	verdict sandbox.Verdict // default ok
	code    int
	out     string   // all of stdout
	has     []string // parts of stdout and stderr together
	hasNot  []string
	files   map[string]string // brought back
}

func runPrograms(t *testing.T, language string, all []program) {
	t.Helper()
	runProgramsOn(t, realEngine(t), language, all)
}

func runProgramsOn(t *testing.T, e *Executor, language string, all []program) {
	t.Helper()
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			if p.all {
				testenv.NeedAll(t, "the other programs")
			}
			p.req.Language = cmp.Or(p.req.Language, language)
			if p.in != "" {
				p.req.Stdin = strings.NewReader(p.in)
			}
			r := expectOn(t, e, p.req, want{verdict: p.verdict, exit: p.code, stdout: p.out, files: p.files})
			said := string(r.Stdout.Bytes()) + string(r.Stderr.Bytes())
			for _, s := range p.has {
				if !strings.Contains(said, s) {
					t.Errorf("no %q in:\n%s", s, said)
				}
			}
			for _, s := range p.hasNot {
				if strings.Contains(said, s) {
					t.Errorf("%q in:\n%s", s, said)
				}
			}
		})
	}
}

func TestGo(t *testing.T) {
	runPrograms(t, "go", []program{
		{name: "hello", req: Request{Code: "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello, wörld ☺\") }\n"},
			out: "hello, wörld ☺\n"},
		{
			name: "stdin, args, env, exit code",
			req: Request{
				Code: `package main
import ("bufio"; "fmt"; "os")
func main() {
	s := bufio.NewScanner(os.Stdin)
	for s.Scan() { fmt.Println("line", s.Text()) }
	fmt.Println(os.Args[1:], os.Getenv("COLOUR"))
	os.Exit(7)
}`,
				Args: []string{"a", "b c"}, Env: map[string]string{"COLOUR": "blau"},
			},
			in: "x\ny\n", out: "line x\nline y\n[a b c] blau\n", verdict: sandbox.VerdictNonzeroExit, code: 7,
		},
		{
			name: "panic", req: Request{Code: "package main\n\nfunc main() {\n\tvar m map[string]int\n\tm[\"a\"] = 1\n}\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 2, has: []string{"assignment to entry in nil map", "/workspace/main.go:5"},
		},
		{
			name: "panic in a file of its own name", req: Request{Name: "crash.go", Code: "package main\n\nfunc main() {\n\tpanic(\"no\")\n}\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 2, has: []string{"panic: no", "crash.go:4"},
		},
		{
			name: "compile error", req: Request{Code: "package main\n\nfunc main() {\n\tx := 1\n\ty()\n}\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"./main.go:4:2: declared and not used: x", "./main.go:5:2: undefined: y"},
			hasNot: []string{"/tmp"},
		},
		{
			name: "syntax error", req: Request{Code: "package main\n\nfunc main() {\n\tif {\n}\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"main.go:4:5: syntax error: missing condition in if statement"},
		},
		{
			name: "snippet", req: Request{Code: "x := []int{3, 1, 2}\nsort.Ints(x)\nfmt.Println(x, strings.Repeat(\"ab\", 2))\n"},
			out: "[1 2 3] abab\n",
		},
		{
			name: "snippet with declarations", req: Request{Code: `type T struct{ n int }

func (t *T) add(n int) { t.n += n; count++ }

const step = 2

var count int

t := &T{}
for i := range 3 { t.add(i * step) }
func() { fmt.Println(t.n, count, double(4)) }()

func double(n int) int { return 2 * n }
`}, out: "6 3 8\n",
		},
		{
			name: "snippet that panics", req: Request{Code: "x := []int{1}\n\ni := 5\nfmt.Println(x[i])\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 2, has: []string{"index out of range [5]", "main.go:4"},
		},
		{
			name: "snippet that does not compile", req: Request{Code: "x := 1\n\nfunc f() int {\n\treturn \"a\"\n}\n\n  y = 3\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"main.go:1:1: declared and not used: x", "main.go:4:9: cannot use",
				"main.go:7:3: undefined: y"},
		},
		{
			name: "several files",
			req: Request{Files: tree("main.go", "package main\nfunc main() { hello() }\n", "other.go",
				"package main\nimport \"fmt\"\nfunc hello() { fmt.Println(\"other\") }\n",
				"other_windows.go", "package main\nfunc hello() {}\n")}, out: "other\n",
		},
		{
			name: "packages without a module",
			req: Request{Files: tree("main.go", "package main\nimport \"play.ground/sub\"\nfunc main() { sub.Hi() }\n", "sub/sub.go",
				"package sub\nimport \"fmt\"\nfunc Hi() { fmt.Println(\"sub\") }\n")},
			out: "sub\n",
		},
		{
			name: "module",
			req: Request{Files: tree("go.mod", "module example.com/m\n\ngo 1.21\n", "cmd/tool/main.go",
				"package main\nimport (\"example.com/m/lib\"; \"fmt\"; _ \"embed\")\n//go:embed text.txt\nvar text string\n"+
					"func main() { fmt.Print(lib.Name, text) }\n",
				"cmd/tool/text.txt", " embedded\n", "lib/lib.go", "package lib\nconst Name = \"lib\"\n")}, out: "lib embedded\n",
		},
		{
			name: "vendored module",
			req: Request{Files: tree("go.mod", "module m\n\ngo 1.21\n\nrequire example.com/dep v1.0.0\n", "main.go",
				"package main\nimport \"example.com/dep\"\nfunc main() { dep.Hi() }\n",
				"vendor/modules.txt", "# example.com/dep v1.0.0\n## explicit; go 1.21\nexample.com/dep\n", "vendor/example.com/dep/dep.go",
				"package dep\nimport \"fmt\"\nfunc Hi() { fmt.Println(\"vendored\") }\n")},
			out: "vendored\n",
		},
		{
			name: "one of several programs",
			req: Request{Files: tree("a.go", "package main\nfunc main() { println(\"a\") }\n", "b.go",
				"package main\nfunc main() { println(\"b\") }\n"), Entry: "b.go"},
			has: []string{"b\n"}, hasNot: []string{"a\n"},
		},
		{
			name: "txtar",
			req: Request{Code: "package main\n\nimport \"play.ground/x\"\n\nfunc main() { x.F() }\n-- go.mod --\nmodule play.ground\n" +
				"-- x/x.go --\npackage x\n\nimport \"fmt\"\n\nfunc F() { fmt.Println(\"from x\") }\n"},
			out: "from x\n",
		},
		{
			name: "tests",
			req: Request{Files: tree("a.go", "package a\nfunc Add(a, b int) int { return a + b }\n", "a_test.go",
				"package a\nimport \"testing\"\nfunc TestAdd(t *testing.T) { if Add(1, 2) != 3 { t.Fatal() } }\nfunc TestBad(t *testing.T) {\n"+
					"\tt.Error(\"as it is\")\n}\n")},
			verdict: sandbox.VerdictNonzeroExit, code: 1,
			has: []string{"--- FAIL: TestBad", "a_test.go:5: as it is", "FAIL\nexit status 1\nFAIL\tplay.ground\t0."}, hasNot: []string{"PASS"},
		},
		{
			name: "test in one file", req: Request{Code: "package main\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Log(\"in x\") }\n"},
			has: []string{"PASS\nok  \tcommand-line-arguments\t0."}, hasNot: []string{"in x"},
		},
		{
			name: "verbose test", req: Request{Code: "package main\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Log(\"in x\") }\n",
				Args: []string{"-v", "-count=2"}},
			has: []string{"--- PASS: TestX", "main_test.go:5: in x", "=== RUN   TestX"},
		},
		{
			name:    "test that panics",
			req:     Request{Code: "package main\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { panic(\"no\") }\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"panic: no", "exit status 2\nFAIL\tcommand-line-arguments\t0."},
		},
		{
			name:    "vetted test",
			req:     Request{Code: "package main\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Logf(\"%d\", \"x\") }\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"main_test.go:5", "Logf format %d has arg \"x\" of wrong type string"},
		},
		{
			name: "file of another package", req: Request{Code: "package lib\n\nfunc F() {}\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"package command-line-arguments is not a main package"},
		},
		{
			name: "one of several packages fails", req: Request{Options: LanguageOptions{Test: true},
				Files: tree("go.mod", "module example.org/m // m\n\ngo 1.21\n", "main.go", "package main\nfunc main() {}\n",
					"a/a_test.go", "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Fatal(\"bad\") }\n",
					"b/b_test.go", "package b\nimport \"testing\"\nfunc TestB(t *testing.T) {}\n")},
			verdict: sandbox.VerdictNonzeroExit, code: 1,
			has: []string{"?   \texample.org/m\t[no test files]\n", "FAIL\texample.org/m/a\t0.", "ok  \texample.org/m/b\t0.", "s\nFAIL\n"},
		},
		{
			name: "tests of several packages", req: Request{Options: LanguageOptions{Test: true},
				Files: tree("go.mod", "module m\n\ngo 1.21\n", "main.go", "package main\nfunc main() {}\n",
					"a/a_test.go", "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {}\n", "b/b_test.go",
					"package b\nimport \"testing\"\nimport \"os\"\n"+
						"func TestB(t *testing.T) { if _, err := os.Stat(\"testdata\"); err != nil { t.Fatal(err) } }\n",
					"b/testdata/x", "")}, has: []string{"?   \tm\t[no test files]\n", "ok  \tm/a\t0.", "ok  \tm/b\t0."}, hasNot: []string{"FAIL"},
		},
		{
			name: "files", req: Request{
				Code: "package main\nimport (\"fmt\"; \"os\")\nfunc main() {\n\tb, err := os.ReadFile(\"in.txt\")\n\tfmt.Println(string(b), err)\n" +
					"\tif err := os.WriteFile(\"out/r.txt\", b, 0o644); err != nil { _ = os.Mkdir(\"out\", 0o755); " +
					"fmt.Println(os.WriteFile(\"out/r.txt\", b, 0o644)) }\n}\n",
				Inputs: tree("in.txt", "in"), Outputs: sandbox.Selection{Patterns: []string{"out/**"}},
			},
			out: "in <nil>\n<nil>\n", files: map[string]string{"out/r.txt": "in"},
		},
		{
			name: "threads and a child", req: Request{Code: `package main
import ("fmt"; "os/exec"; "sync"; "sync/atomic")
func main() {
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 1000 { wg.Go(func() { n.Add(1) }) }
	wg.Wait()
	out, err := exec.Command("echo", "child").Output()
	fmt.Print(n.Load(), " ", string(out), err, "\n")
}`}, out: "1000 child\n<nil>\n",
		},
		{
			name: "too much memory",
			req: Request{Code: "package main\n\nfunc main() {\n\tvar all [][]byte\n\tfor {\n\t\tb := make([]byte, 1<<20)\n" +
				"\t\tfor i := range b { b[i] = 1 }\n\t\tall = append(all, b)\n\t}\n}\n"},
			verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "more memory than there is",
			req: Request{Code: "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tn := 1 << 46\n\tb := make([]byte, n)\n" +
				"\tfmt.Println(len(b))\n}\n"},
			verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "much garbage", all: true,
			req: Request{Code: "package main\n\nimport \"fmt\"\n\nvar keep []byte\n\nfunc main() {\n\tlive := make([][]byte, 50)\n" +
				"\tfor i := range 6000 {\n\t\tkeep = make([]byte, 1<<20)\n\t\tkeep[i] = 1\n\t\tlive[i%50] = keep\n\t}\n\tfmt.Println(\"done\")\n}\n"},
			out: "done\n",
		},
		{
			name: "too long", req: Request{Code: "package main\n\nfunc main() {\n\tfor {\n\t}\n}\n", Limits: sandbox.Limits{Wall: time.Second}},
			verdict: sandbox.VerdictTimeLimit, code: 2, // that of SIGQUIT
		},
	})
}

// What lies in /workspace is the volume's; the program lies elsewhere, and runs there.
func TestCompiledBesideAVolume(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data.txt"), []byte("of the volume"), 0o644); err != nil {
		t.Fatal(err)
	}
	volume := Policy{Volumes: []sandbox.Volume{{Source: dir, Target: sandbox.WorkspaceDir}}}
	for language, code := range map[string]string{
		"go":   "package main\nimport (\"fmt\"; \"os\")\nfunc main() { b, _ := os.ReadFile(\"data.txt\"); fmt.Println(string(b)) }\n",
		"rust": "fn main() { println!(\"{}\", std::fs::read_to_string(\"data.txt\").unwrap()); }\n",
		"java": "public class Main { public static void main(String[] a) throws Exception { " +
			"System.out.println(java.nio.file.Files.readString(java.nio.file.Path.of(\"data.txt\"))); } }\n",
	} {
		t.Run(language, func(t *testing.T) {
			expect(t, Request{Language: language, Code: code, Policy: volume}, want{stdout: "of the volume\n"})
		})
	}
}

// What a compiler says is heard once, even if it was asked twice.
func TestCompilerIsHeardOnce(t *testing.T) {
	for _, c := range []struct{ code, says string }{
		{"package main\n\nimport \"no/such/package\"\n\nfunc main() { such.Do() }\n", "no/such/package is not in std"},
		{"package main\n\nfunc main() { wrong() }\n", "undefined: wrong"},
	} {
		var heard strings.Builder
		var last uint64
		expect(t, Request{Language: "go", Code: c.code, OnEvent: func(ev sandbox.Event) {
			if ev.Seq <= last {
				t.Errorf("event %d after %d", ev.Seq, last)
			}
			last = ev.Seq
			heard.Write(ev.Data)
		}}, want{verdict: sandbox.VerdictCompileError, said: []string{c.says}})
		if n := strings.Count(heard.String(), c.says); n != 1 {
			t.Errorf("heard %d times: %s", n, heard.String())
		}
	}
}

// Without what toolchains prepare, the cache still finds what was compiled.
func TestCachedWithoutWarmth(t *testing.T) {
	e := realEngine(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	opts := e.opts
	opts.WarmDir = filepath.Join(file, "below")
	cold := New(e.manager, opts)
	req := Request{Language: "java", Code: "public class Twice { public static void main(String[] a) { System.out.println(\"twice\"); } }\n"}
	for _, cached := range []bool{false, true} {
		if r := expectOn(t, cold, req, want{stdout: "twice\n"}); r.Phases[0].Cached != cached {
			t.Errorf("cached: %v", r.Phases[0].Cached)
		}
	}
}

// What a build script leaves is there every time, for what it was compiled with.
func TestBuildScriptRunsEachTime(t *testing.T) {
	files := tree(
		"Cargo.toml", "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
		"build.rs", "fn main() { std::fs::write(std::env::var(\"OUT_DIR\").unwrap() + \"/left\", \"left\").unwrap(); }\n",
		"src/main.rs", "fn main() { print!(\"{}\", std::fs::read_to_string(concat!(env!(\"OUT_DIR\"), \"/left\")).unwrap()); }\n",
	)
	for range 2 {
		if r := expect(t, Request{Language: "rust", Files: files}, want{stdout: "left"}); r.Phases[0].Cached {
			t.Error("what a build script did came from the cache")
		}
	}
}

// A compiler with very much to say is passed on while it says it: nothing is kept back without end.
func TestEventBufferIsBounded(t *testing.T) {
	n := 0
	h := &eventBuffer{to: func(sandbox.Event) { n++ }}
	one := sandbox.Event{Data: make([]byte, maxBuffered/4)}
	for range 4 {
		h.add(one)
	}
	if n != 0 || h.passedOn() {
		t.Errorf("%d were passed on", n)
	}
	h.add(one)
	h.add(one)
	if n != 6 || !h.passedOn() || h.events != nil {
		t.Errorf("%d of 6 were passed on, %d are kept", n, len(h.events))
	}
}

// A limit that the compiler meets is told as one.
func TestCompilerMeetsItsLimits(t *testing.T) {
	for language, code := range map[string]string{
		"go":   "package main\nimport \"fmt\"\nfunc main() { fmt.Println(1) }\n",
		"rust": "fn main() { println!(\"1\"); }\n",
		"java": "public class Main { public static void main(String[] a) { System.out.println(1); } }\n",
	} {
		t.Run(language, func(t *testing.T) {
			memory := 8 * sandbox.MiB
			expect(t, Request{Language: language, Code: code, NoCache: true, CompileLimits: sandbox.Limits{Memory: memory}},
				want{verdict: sandbox.VerdictMemoryLimit})
			if language != "java" { // whose files are small
				volume := sandbox.Volume{Source: t.TempDir(), Target: "/data", Writable: true, Cap: 256 * sandbox.KiB}
				r := expect(t, Request{Language: language, Code: code, NoCache: true, Policy: Policy{Volumes: []sandbox.Volume{volume}}},
					want{verdict: sandbox.VerdictDiskLimit, exit: 1})
				if !slices.ContainsFunc(r.Violations, func(v sandbox.Violation) bool { return v.Allow == "--workspace-cap" }) {
					t.Errorf("%+v", r.Violations)
				}
			}
			expect(t, Request{Language: language, Code: code, NoCache: true}, want{})
		})
	}
}

// A file that is nothing but a main, in a JDK that takes it.
func TestJavaWithoutAClass(t *testing.T) {
	homes, _ := filepath.Glob("/usr/lib/jvm/*")
	for _, home := range homes {
		finder := &toolchain.Finder{NoStore: true, Environ: []string{"JAVA_HOME=" + home, "PATH=" + home + "/bin"}}
		tool, err := finder.Find(t.Context(), java.Language.Toolchain)
		if err != nil || tool.Home != home {
			continue
		}
		major, _ := strconv.Atoi(strings.SplitN(tool.Version, ".", 2)[0])
		e := realEngine(t)
		opts := e.opts
		opts.Toolchains = finder
		req := Request{Language: "java",
			Code: "import java.util.*;\n\nString name() { return \"compact\"; }\n\nvoid main() {\n  System.out.println(name());\n}\n"}
		t.Run(filepath.Base(home), func(t *testing.T) {
			if major >= 21 {
				expectOn(t, New(e.manager, opts), req, want{stdout: "compact\n"})
				return
			}
			r := expectOn(t, New(e.manager, opts), req, want{verdict: sandbox.VerdictCompileError, exit: 1})
			if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "JDK 21") }) {
				t.Errorf("%d: %q", major, r.Notes)
			}
		})
	}
}

func TestCompilesSideBySide(t *testing.T) {
	e := realEngine(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			word := strings.Repeat("x", i+1)
			for range 2 { // compiled, and from the cache
				r, err := e.Execute(context.Background(), Request{Language: "go",
					Code: "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"" + word + "\") }\n"})
				if err != nil {
					t.Error(err)
					return
				}
				if r.Verdict != sandbox.VerdictOK || string(r.Stdout.Bytes()) != word+"\n" {
					t.Errorf("%s: %s %q %s", word, r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
				}
			}
		})
	}
	all.Wait()
}

func TestRust(t *testing.T) {
	cargo := "[package]\nname = \"my-tool\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"
	runPrograms(t, "rust", []program{
		{name: "hello", req: Request{Code: "fn main() {\n    println!(\"hello, wörld ☺\");\n}\n"}, out: "hello, wörld ☺\n"},
		{
			name: "stdin, args, env, exit code",
			req: Request{
				Code: `use std::io::BufRead;
fn main() {
    for l in std::io::stdin().lock().lines() { println!("line {}", l.unwrap()); }
    let a: Vec<String> = std::env::args().skip(1).collect();
    println!("{:?} {}", a, std::env::var("COLOUR").unwrap());
    std::process::exit(7);
}`,
				Args: []string{"a", "b c"}, Env: map[string]string{"COLOUR": "blau"},
			},
			in: "x\ny\n", out: "line x\nline y\n[\"a\", \"b c\"] blau\n", verdict: sandbox.VerdictNonzeroExit, code: 7,
		},
		{
			name: "panic", req: Request{Code: "fn main() {\n    let v: Vec<i32> = vec![];\n    println!(\"{}\", v[3]);\n}\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 101, has: []string{"main.rs:3:21", "index out of bounds"},
		},
		{
			name: "backtrace", req: Request{Name: "crash-it.rs", Code: "fn f() { panic!(\"no\"); }\nfn main() {\n    f();\n}\n",
				Env: map[string]string{"RUST_BACKTRACE": "1"}},
			verdict: sandbox.VerdictNonzeroExit, code: 101, has: []string{"crash-it.rs:1:10", "crash-it.rs:3"},
		},
		{
			name: "compile error", req: Request{Code: "fn main() {\n    let x: i32 = \"a\";\n}\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"error[E0308]", "main.rs:2:18"}, hasNot: []string{"/tmp"},
		},
		{name: "modules",
			req: Request{Files: tree("main.rs", "mod util;\nfn main() { util::hi(); }\n", "util.rs", "pub fn hi() { println!(\"util\"); }\n")},
			out: "util\n"},
		{name: "edition", req: Request{Code: "fn main() { let async = 1; println!(\"{}\", async); }\n",
			Options: LanguageOptions{Edition: "2015"}}, out: "1\n"},
		{name: "release", req: Request{Code: "fn main() { println!(\"{}\", cfg!(debug_assertions)); }\n",
			Options: LanguageOptions{Release: true}}, out: "false\n"},
		{
			name: "test", req: Request{Code: "#[test]\nfn good() {}\n#[test]\nfn bad() { assert_eq!(1, 2); }\nfn main() {}\n",
				Options: LanguageOptions{Test: true}},
			verdict: sandbox.VerdictNonzeroExit, code: 101, has: []string{"test good ... ok", "test bad ... FAILED", "main.rs:4:12"},
		},
		{
			name: "snippet",
			req: Request{Code: "#![allow(unused)]\nuse std::collections::HashMap;\nfn twice(x: i32) -> i32 { 2 * x }\n" +
				"struct P<'a> { name: &'a str }\nlet mut m = HashMap::new();\nm.insert('\\'', twice(21));\n" +
				"println!(\"{:?} {}\", m, P { name: r#\"fn main() {\"# }.name);\n// the end"},
			out: "{'\\'': 42} fn main() {\n",
		},
		{name: "snippet with a byte order mark", req: Request{Code: "\ufeff#![allow(unused)]\nlet x = 1;\nprintln!(\"{}\", 2);\n"},
			out: "2\n"},
		{name: "error in a snippet", req: Request{Code: "let x = 1;\nlet y: i32 = \"a\";\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"error[E0308]", "main.rs:2:14"}},
		{name: "library", req: Request{Code: "pub fn f() {}\n"}, verdict: sandbox.VerdictCompileError, code: 1, has: []string{"E0601"}},
		{
			name: "cargo, tests and documentation", req: Request{Options: LanguageOptions{Test: true}, Files: tree("Cargo.toml", cargo,
				"src/lib.rs", "/// ```\n/// assert_eq!(my_tool::two(), 3);\n/// ```\npub fn two() -> i32 { 2 }\n#[test]\nfn unit() {}\n",
				"tests/whole.rs", "#[test]\nfn whole() {}\n")},
			verdict: sandbox.VerdictNonzeroExit, code: 101, has: []string{"Running unittests src/lib.rs", "test unit ... ok",
				"Running tests/whole.rs", "test whole ... ok", "Doc-tests my_tool", "src/lib.rs - two (line 1) ... FAILED"},
		},
		{name: "cargo",
			req: Request{Files: tree("Cargo.toml", cargo, "src/main.rs",
				"mod a;\nfn main() { println!(\"{} {}\", a::A, env!(\"CARGO_PKG_VERSION\")); }\n", "src/a.rs", "pub const A: i32 = 5;\n")},
			out: "5 0.1.0\n"},
		{
			name: "cargo, path and vendored crates, build script", req: Request{Files: tree(
				"Cargo.toml", cargo+"[dependencies]\nlocal = { path = \"local\" }\nthird = \"1\"\n", "src/main.rs",
				"fn main() { println!(\"{} {} {}\", local::f(), third::g(), env!(\"MADE\")); }\n",
				"build.rs", "fn main() { println!(\"cargo:rustc-env=MADE=made\"); }\n",
				"local/Cargo.toml", "[package]\nname = \"local\"\nversion = \"0.1.0\"\nedition = \"2021\"\n", "local/src/lib.rs",
				"pub fn f() -> i32 { 1 }\n",
				".cargo/config.toml", "[source.crates-io]\nreplace-with = \"vendored-sources\"\n[source.vendored-sources]\ndirectory = \"vendor\"\n",
				"vendor/third/Cargo.toml", "[package]\nname = \"third\"\nversion = \"1.0.0\"\nedition = \"2021\"\n", "vendor/third/src/lib.rs",
				"pub fn g() -> i32 { 2 }\n",
				"vendor/third/.cargo-checksum.json", "{\"files\":{},\"package\":\"0000000000000000000000000000000000000000000000000000000000000000\"}",
			)}, out: "1 2 made\n",
		},
		{
			name: "cargo, one of several", req: Request{Entry: "src/bin/two.rs", Options: LanguageOptions{Release: true},
				Files: tree("Cargo.toml", cargo, "src/main.rs", "fn main() {}\n", "src/bin/two.rs", "fn main() { println!(\"two\"); }\n")},
			out: "two\n",
		},
		{
			name: "cargo panic", req: Request{Files: tree("Cargo.toml", cargo, "src/main.rs", "fn main() {\n    None::<i32>.unwrap();\n}\n")},
			verdict: sandbox.VerdictNonzeroExit, code: 101, has: []string{"src/main.rs:2:17"},
		},
		{
			name: "cargo compile error", req: Request{Files: tree("Cargo.toml", cargo, "src/main.rs", "fn main() {\n    x();\n}\n")},
			verdict: sandbox.VerdictCompileError, code: 101, has: []string{"src/main.rs:2:5", "E0425"},
		},
		{
			name:    "cargo without a registry",
			req:     Request{Files: tree("Cargo.toml", cargo+"[dependencies]\nserde = \"1\"\n", "src/main.rs", "fn main() {}\n")},
			verdict: sandbox.VerdictCompileError, code: 101, has: []string{"serde"},
		},
		{
			name: "cargo test", req: Request{Options: LanguageOptions{Test: true},
				Files: tree("Cargo.toml", cargo, "src/lib.rs", "#[test]\nfn good() {}\n", "tests/it.rs",
					"#[test]\nfn outside() { panic!(\"as it is\"); }\n")},
			verdict: sandbox.VerdictNonzeroExit, code: 101, has: []string{"as it is", "tests/it.rs:2"},
		},
		{
			name: "files", req: Request{
				Code:   "use std::fs;\nfn main() { let s = fs::read_to_string(\"in.txt\").unwrap(); fs::write(\"out.txt\", s + \"!\").unwrap(); }\n",
				Inputs: tree("in.txt", "in"), Outputs: sandbox.Selection{Patterns: []string{"out.txt"}},
			}, files: map[string]string{"out.txt": "in!"},
		},
		{
			name: "threads and a child", req: Request{Code: `use std::process::Command;
fn main() {
    let t: Vec<_> = (0..20).map(|i| std::thread::spawn(move || i)).collect();
    let n: i32 = t.into_iter().map(|t| t.join().unwrap()).sum();
    let out = Command::new("echo").arg("child").output().unwrap();
    println!("{} {}", n, String::from_utf8_lossy(&out.stdout).trim());
}`}, out: "190 child\n",
		},
		{
			name:    "too much memory",
			req:     Request{Code: "fn main() {\n    let mut v: Vec<Vec<u8>> = vec![];\n    loop { v.push(vec![1u8; 1 << 20]); }\n}\n"},
			verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "more memory than there is",
			req: Request{Code: "fn main() {\n    let n: usize = std::env::args().count() << 50;\n    let v: Vec<u8> = Vec::with_capacity(n);\n" +
				"    println!(\"{}\", v.capacity());\n}\n"}, verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "much garbage", all: true,
			req: Request{Code: "fn main() {\n    let mut n = 0usize;\n" +
				"    for i in 0..5000 { let v = vec![i as u8; 1 << 20]; n += v[i] as usize; }\n    println!(\"{}\", n > 0);\n}\n"}, out: "true\n",
		},
		{name: "too long", req: Request{Code: "fn main() { loop { std::hint::spin_loop() } }\n", Limits: sandbox.Limits{Wall: time.Second}},
			verdict: sandbox.VerdictTimeLimit},
	})
}
