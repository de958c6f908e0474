package template

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// toolchain runs what was rendered, as the executor does in a sandbox.
type toolchain struct {
	needs string // the program without which there is nothing to test
	// commands are run in the directory of the files; the last one is the harness.
	commands func(r Rendered) [][]string
}

var toolchains = map[string]toolchain{
	"python":     {"python3", func(r Rendered) [][]string { return [][]string{{"python3", r.Entry}} }},
	"javascript": {"node", func(r Rendered) [][]string { return [][]string{{"node", r.Entry}} }},
	"typescript": {"node", func(Rendered) [][]string { return [][]string{{"node", "--enable-source-maps", "out.mjs"}} }},
	"shell":      {"bash", func(r Rendered) [][]string { return [][]string{{"bash", r.Entry}} }},
	"go": {"go", func(r Rendered) [][]string {
		build := []string{"go", "build", "-o", "program"}
		for _, f := range r.Files {
			build = append(build, f.Path)
		}
		return [][]string{build, {"./program"}}
	}},
	"rust": {"rustc", func(r Rendered) [][]string {
		return [][]string{{"rustc", "--edition", "2021", "-o", "program", r.Entry}, {"./program"}}
	}},
	"java": {"javac", func(r Rendered) [][]string {
		build := []string{"javac", "-d", "classes"}
		for _, f := range r.Files {
			build = append(build, f.Path)
		}
		return [][]string{build, {"java", "-XX:TieredStopAtLevel=1", "-cp", "classes", strings.TrimSuffix(r.Entry, ".java")}}
	}},
	"sql": {"sqlite3", func(r Rendered) [][]string {
		return [][]string{{"sqlite3", "-bail", "-init", "/dev/null", ":memory:", ".read " + r.Entry}}
	}},
}

// runHarness renders a built-in template and really runs it.
func runHarness(t *testing.T, name, language string, vars map[string]any) (output string, code int) {
	t.Helper()
	testenv.NeedSystem(t)
	tools := toolchains[language]
	if _, err := exec.LookPath(tools.needs); err != nil {
		t.Skipf("%s is not installed", tools.needs)
	}
	tmpl, err := Open().Get(name, language)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := tmpl.Render(vars)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range rendered.Files {
		path := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if language == "typescript" {
		stripTypes(t, dir, rendered)
	}
	scratch := t.TempDir()
	commands := tools.commands(rendered)
	for i, argv := range commands {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TMPDIR="+scratch, "GO111MODULE=off", "GOFLAGS=")
		cmd.WaitDelay = time.Minute
		var both bytes.Buffer
		cmd.Stdout, cmd.Stderr = &both, &both
		err := cmd.Run()
		cancel()
		output = both.String()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s", argv, err, output)
		}
		code = cmd.ProcessState.ExitCode()
		if i < len(commands)-1 && code != 0 {
			t.Fatalf("%v: exit code %d\n%s", argv, code, output)
		}
	}
	left, err := os.ReadDir(scratch)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		// The JVM writes its performance data where it likes.
		if !strings.HasPrefix(e.Name(), "hsperfdata") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	return output, code
}

// expect checks the table of a harness: each line is NAME=pass, or NAME=FAIL with a part of the note.
func expect(t *testing.T, output string, code int, want map[string]string) {
	t.Helper()
	passed := 0
	lines := strings.Split(output, "\n")
	for name, result := range want {
		if result == "pass" {
			passed++
		}
		state, note, _ := strings.Cut(result, " ")
		found := false
		for _, line := range lines {
			rest, ok := strings.CutPrefix(line, name+" ")
			if fields := strings.Fields(rest); ok && len(fields) > 0 && (fields[0] == "pass" || fields[0] == "FAIL") {
				found = true
				if fields[0] != state || !strings.Contains(rest, note) {
					t.Errorf("case %s: %q, want %q", name, line, result)
				}
			}
		}
		if !found {
			t.Errorf("case %s is not in the table", name)
		}
	}
	last := lines[len(lines)-1]
	if last == "" {
		last = lines[len(lines)-2]
	}
	if sum := strings.TrimSpace(last); sum != itoa(passed)+" passed, "+itoa(len(want)-passed)+" failed" {
		t.Errorf("last line %q", last)
	}
	if (code == 0) != (passed == len(want)) {
		t.Errorf("exit code %d, with %d of %d passed", code, passed, len(want))
	}
	if t.Failed() {
		t.Logf("output:\n%s", output)
	}
}

func itoa(n int) string { s, _ := asText(n); return s }

// mischief: one function, and what it does depends on its argument.
var mischief = map[string]string{
	"python": `import os, time
def solve(what, n):
    print("noise: 9 passed, 0 failed")
    if what == "throw":
        raise ValueError("no such luck")
    if what == "exit":
        os._exit(0)
    if what == "hang":
        time.sleep(600)
    return [what, n * 2]
`,
	"javascript": `function solve(what, n) {
  console.log("noise: 9 passed, 0 failed")
  if (what === "throw")
    throw new Error("no such luck")
  if (what === "exit") process.exit(0)
  if (what === "hang") for (;;);
  return [what, n * 2]
}`,
	"typescript": `function solve(what: string, n: number): [string, number] {
  console.log("noise: 9 passed, 0 failed")
  if (what === "throw")
    throw new Error("no such luck")
  if (what === "exit") process.exit(0)
  if (what === "hang") for (;;);
  return [what, n * 2]
}`,
	"go": `import ("fmt"; "os")
func solve(what string, n int) []any {
	fmt.Println("noise: 9 passed, 0 failed")
	if what == "throw" {
		panic("no such luck")
	}
	if what == "exit" { os.Exit(0) }
	if what == "hang" { for {} }
	return []any{what, n * 2}
}`,
	"rust": `fn solve(what: String, n: i64) -> (String, i64) {
    println!("noise: 9 passed, 0 failed");
    if what == "throw" {
        panic!("no such luck");
    }
    if what == "exit" { std::process::exit(0); }
    if what == "hang" { loop { std::thread::yield_now(); } }
    (what, n * 2)
}`,
	"java": `import java.util.List;
public class Answer {
  static List<Object> solve(String what, int n) {
    System.out.println("noise: 9 passed, 0 failed");
    if (what.equals("throw"))
      throw new IllegalStateException("no such luck");
    if (what.equals("exit")) System.exit(0);
    if (what.equals("hang")) for (;;) Thread.onSpinWait();
    return List.of(what, n * 2);
  }
}`,
}

const mischiefCases = `
defaults: {timeout: 20s}
cases:
- {name: right, args: [fine, 21], want: [fine, 42]}
- {name: wrong, args: [fine, 21], want: [fine, 43]}
- {name: throws, args: [throw, 1], want: [throw, 2]}
- {name: exits, args: [exit, 1], want: [exit, 2]}
- {name: hangs, args: [hang, 1], want: [hang, 2], timeout: 1500ms}
- {name: 最後, args: [last, 1], want: [last, 2]}
`

func TestHarnessCall(t *testing.T) {
	for language, code := range mischief {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			output, exit := runHarness(t, "harness", language, map[string]any{"code": code, "cases": mischiefCases})
			expect(t, output, exit, map[string]string{
				"right": "pass", "wrong": "FAIL wrong result", "throws": "FAIL", "exits": "FAIL exited with code 0",
				"hangs": "FAIL timed out after 1500 ms", "最後": "pass",
			})
			// The diff of the one, the trace of the other with the user's own line, the cases in order.
			for _, part := range []string{"\n--- want\n+++ got\n@@ -1,4 +1,4 @@\n", "\n-  43\n+  42\n", "no such luck"} {
				if !strings.Contains(output, part) {
					t.Errorf("%q is missing in:\n%s", part, output)
				}
			}
			if file := (map[string]string{
				"python": `snippet.py", line 5`, "javascript": "snippet.cjs:4:", "typescript": "snippet.ts:4:", "go": "snippet.go:5",
				"rust": "snippet.rs:4:", "java": "Answer.java:6",
			})[language]; !strings.Contains(output, file) {
				t.Errorf("the trace does not name %s:\n%s", file, output)
			}
		})
	}
}

// programs double the number they read, and do as they are told.
var programs = map[string]string{
	"python": `import sys, time
word, n = sys.stdin.readline().split()
if word == "hang": time.sleep(600)
if word == "throw": raise ValueError(word)
print(word, int(n) * 2)
if word == "exit": sys.exit(3)
`,
	"javascript": `import { readFileSync } from "node:fs"
const [word, n] = readFileSync(0, "utf8").trim().split(" ")
if (word === "hang") for (;;);
if (word === "throw") throw new Error(word)
console.log(word, n * 2)
if (word === "exit") process.exit(3)
`,
	"typescript": `import { readFileSync } from "node:fs"
const [word, n]: string[] = readFileSync(0, "utf8").trim().split(" ")
if (word === "hang") for (;;);
if (word === "throw") throw new Error(word)
console.log(word, Number(n) * 2)
if (word === "exit") process.exit(3)
`,
	"go": `package answer

import ("fmt"; "os")

func main() {
	var word string
	var n int
	fmt.Scan(&word, &n)
	if word == "hang" { for {} }
	if word == "throw" { panic(word) }
	fmt.Println(word, n*2)
	if word == "exit" { os.Exit(3) }
}
`,
	"rust": `#![allow(dead_code)]
use std::io;
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let (word, n) = line.trim().split_once(' ').ok_or("two words")?;
    if word == "hang" { loop { std::thread::yield_now(); } }
    if word == "throw" { return Err("thrown".into()); }
    println!("{} {}", word, n.parse::<i64>()? * 2);
    if word == "exit" { std::process::exit(3); }
    Ok(())
}
`,
	"java": `package some.where;
import java.util.Scanner;
class Other {}
public class Program {
  public static void main(String[] args) {
    var in = new Scanner(System.in);
    String word = in.next();
    int n = in.nextInt();
    if (word.equals("hang")) for (;;) Thread.onSpinWait();
    if (word.equals("throw")) throw new IllegalStateException(word);
    System.out.println(word + " " + n * 2);
    if (word.equals("exit")) System.exit(3);
  }
}
`,
	"shell": `read -r word n
if [ "$word" = hang ]; then while :; do :; done; fi
if [ "$word" = throw ]; then nosuchcommand; exit 127; fi
echo "$word $((n * 2))"
if [ "$word" = exit ]; then exit 3; fi
`,
}

const programCases = `
defaults: {timeout: 20s}
cases:
- {name: right, stdin: "fine 21\n", want: "fine 42\n"}
- {name: wrong, stdin: "fine 21\n", want: "fine 43\n"}
- {name: no newline, stdin: "fine 21\n", want: "fine 42"}
- {name: ignored, stdin: "fine 21\n", want: "fine 42  \n\n", ignore_trailing_space: true}
- {name: throws, stdin: "throw 1", want: "throw 2\n"}
- {name: exits, stdin: "exit 1", want: "exit 2\n"}
- {name: exits right, stdin: "exit 1", want: "exit 2\n", exit_code: 3}
- {name: hangs, stdin: "hang 1", want: "hang 2\n", timeout: 1500ms}
- {name: 最後, stdin: "last 1", want: "last 2\n"}
`

func TestHarnessStdio(t *testing.T) {
	for language, code := range programs {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			output, exit := runHarness(t, "stdio", language, map[string]any{"code": code, "cases": programCases})
			expect(t, output, exit, map[string]string{
				"right": "pass", "wrong": "FAIL wrong output", "no newline": "FAIL wrong output", "ignored": "pass", "throws": "FAIL exit code",
				"exits": "FAIL exit code 3, not 0", "exits right": "pass", "hangs": "FAIL timed out after 1500 ms", "最後": "pass",
			})
			if part := "\n-fine 43\n+fine 42\n"; !strings.Contains(output, part) {
				t.Errorf("%q is missing in:\n%s", part, output)
			}
		})
	}
}
