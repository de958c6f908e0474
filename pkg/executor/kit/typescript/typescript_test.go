package typescript

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write what the programs of testdata say into their archives")

// TestPrograms builds each archive of testdata and runs the result with Node. The archive's comment says what it
// shows; its files build.txt, stdout.txt and stderr.txt are the expected output of the compiler and the program. $DIR is
// the directory of the program, $OUT that of the module.
func TestPrograms(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no programs:", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testProgram(t, path) })
	}
}

func testProgram(t *testing.T, path string) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "build", "main.mjs")
	entry := ""
	want := map[string]string{"build.txt": "", "stdout.txt": "", "stderr.txt": ""}
	program := *archive
	program.Files = nil
	for _, f := range archive.Files {
		if _, expected := want[f.Name]; expected {
			want[f.Name] = string(f.Data)
			continue
		}
		program.Files = append(program.Files, f)
		if entry == "" {
			entry = f.Name
		}
	}
	if err := txtar.Write(&program, dir); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"build.txt": "", "stdout.txt": "", "stderr.txt": ""}
	warnings, err := Build(Options{Dir: dir, Entry: entry, Out: out})
	var failure *Failure
	switch {
	case errors.As(err, &failure):
		got["build.txt"] = failure.Text
	case err != nil:
		t.Fatal(err)
	default:
		got["build.txt"] = warnings
		got["stdout.txt"], got["stderr.txt"] = runNode(t, dir, out)
	}
	for name, text := range got {
		text = strings.ReplaceAll(text, dir, "$DIR")
		text = strings.ReplaceAll(text, filepath.Dir(out), "$OUT")
		text = withoutNode(text)
		got[name] = text
		if text != want[name] && !*update {
			t.Errorf("%s: got\n%s\nwant\n%s", name, text, want[name])
		}
	}
	if *update {
		for _, name := range []string{"build.txt", "stdout.txt", "stderr.txt"} {
			if got[name] != "" {
				program.Files = append(program.Files, txtar.File{Name: name, Data: []byte(got[name])})
			}
		}
		if err := os.WriteFile(path, txtar.Format(&program), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// withoutNode takes out of a trace what differs between releases of Node.
func withoutNode(text string) string {
	lines := strings.SplitAfter(text, "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.Contains(l, "node:internal/") || strings.HasPrefix(l, "Node.js v")
	})
	return strings.Join(lines, "")
}

func runNode(t *testing.T, dir, module string) (stdout, stderr string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node: scripts/deps.sh test installs it")
	}
	cmd := exec.Command(node, "--enable-source-maps", module, "argument")
	cmd.Dir = dir
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String()
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("main.ts", `import { x } from "alias"; console.log(x)`)
	write("x.ts", `export const x = 1`)
	write("other.json", `{"compilerOptions": {"paths": {"alias": ["./x.ts"]}}}`)
	build := func(o Options) error {
		o.Dir = dir
		_, err := Build(o)
		return err
	}
	if err := build(Options{Entry: "main.ts", Out: "out/main.mjs", TSConfig: "other.json"}); err != nil {
		t.Errorf("a tsconfig of another name: %v", err)
	}
	var failure *Failure
	for what, o := range map[string]Options{
		"no paths without it": {Entry: "main.ts", Out: "out/main.mjs"},
		"no such entry":       {Entry: "none.ts", Out: "out/main.mjs"},
		"a directory":         {Entry: ".", Out: "out/main.mjs"},
		"no such tsconfig":    {Entry: "x.ts", Out: "out/main.mjs", TSConfig: "none.json"},
	} {
		if err := build(o); !errors.As(err, &failure) {
			t.Errorf("%s: %v, not a failure of the program", what, err)
		}
	}
	if err := build(Options{Entry: "x.ts", Out: "main.ts/out.mjs"}); err == nil || errors.As(err, &failure) {
		t.Errorf("an output that can not be written: %v", err)
	}
	if err := build(Options{}); err == nil {
		t.Error("nothing asked for, nothing said")
	}
}

// TestLarge: what may exhaust the stack is left to a process that may be lost.
func TestLarge(t *testing.T) {
	dir := t.TempDir()
	text := "export const x = " + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + strings.Repeat(" ", largestUnwatched) + ";"
	if err := os.WriteFile(filepath.Join(dir, "main.ts"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: dir, Entry: "main.ts", Out: "main.mjs"}
	if _, err := Build(o); !errors.Is(err, ErrLarge) {
		t.Errorf("a large file: %v", err)
	}
	o.Disposable = true
	if _, err := Build(o); err != nil {
		t.Errorf("a large file in a process that may be lost: %v", err)
	}
}

// TestCells asks for cells as a session does: what a cell declares and imports stays, and an error is an answer.
func TestCells(t *testing.T) {
	var in, out bytes.Buffer
	for _, q := range []Question{
		{Name: "<cell 1>", Code: "import { join, type Stats } from 'path'\nenum E { A }\nconst unused: number = await 1"},
		{Name: "<cell 2>", Code: "{ a: 1 as number }"},
		{Name: "<cell 3>", Code: "\nlet x: = 1"},
		{Name: "<cell 4>", Code: "`open\n"},
		{Name: "<cell 5>", Code: "'open\n"},
		{File: "missing.ts", Out: "missing.mjs"},
	} {
		if err := json.NewEncoder(&in).Encode(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := ServeCells(t.TempDir(), &in, &out); err != nil {
		t.Fatal(err)
	}
	var answers []Answer
	for d := json.NewDecoder(&out); d.More(); {
		var a Answer
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != 6 {
		t.Fatalf("%+v", answers)
	}
	for _, part := range []string{`import { join } from "path"`, "var E = ", "const unused = await 1"} {
		if !strings.Contains(answers[0].Code, part) || len(answers[0].Map) == 0 || answers[0].Text != "" {
			t.Errorf("no %q in %+v", part, answers[0])
		}
	}
	if answers[1].Code != "({ a: 1 });\n" {
		t.Errorf("%+v", answers[1])
	}
	if a := answers[2]; a.Line != 2 || a.Incomplete || a.Message == "" || !strings.Contains(a.Text, "<cell 3>:2:7") {
		t.Errorf("%+v", a)
	}
	if !answers[3].Incomplete || answers[4].Incomplete || answers[4].Text == "" || answers[5].Text == "" {
		t.Errorf("%+v", answers[3:])
	}
}
