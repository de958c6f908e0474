package command_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/command"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
)

func run(stdin string, args ...string) (stdout, stderr string, status int) {
	var out, err bytes.Buffer
	status = command.Run(args, command.Streams{In: strings.NewReader(stdin), Out: &out, Err: &err})
	return out.String(), err.String(), status
}

func TestStatus(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"good.ts": "export const x: number = 1", "bad.ts": "let = =", "warned.ts": "console.log({ a: 1, a: 2 })",
		"large.ts":    "// " + strings.Repeat("x", 100_000) + "\nexport const x: number = 1",
		"largebad.ts": "// " + strings.Repeat("x", 100_000) + "\nlet = =",
		"deep.ts":     "let x = " + strings.Repeat("[", 1_000_000),
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args, stdin string
		status      int
		stderr      string // part of it; "" means that nothing is said
	}{
		{"", "", 2, "usage: sandbox-kit TOOL"},
		{"nonsense", "", 2, "usage: sandbox-kit TOOL"},
		{"typescript", "", 2, "usage: sandbox-kit typescript"},
		{"typescript --nonsense", "", 2, "nonsense"},
		{"typescript --entry good.ts --out out/good.mjs more", "", 2, "usage"},
		{"typescript --entry good.ts --out out/good.mjs", "", 0, ""},
		{"typescript --entry warned.ts --out out/warned.mjs", "", 0, "WARNING"},
		{"typescript --entry bad.ts --out out/bad.mjs", "", 1, "bad.ts:1:6:"},
		{"typescript --entry none.ts --out out/none.mjs", "", 1, "none.ts"},
		{"typescript --entry good.ts --out good.ts/x.mjs", "", 70, "not a directory"},
		{"typescript --entry large.ts --out out/large.mjs", "", 0, ""},
		{"typescript --entry largebad.ts --out out/largebad.mjs", "", 1, "largebad.ts:2:6:"},
		{"typescript --entry deep.ts --out out/deep.mjs", "", 1, "too deeply"},
		{"sqlite", "SELECT 1", 0, ""},
		{"sqlite", "SELEC 1", 65, "<stdin>:1: near"},
		{"sqlite", "SELECT * FROM x", 1, "no such table"},
		{"sqlite none.sql", "", 1, "none.sql: no such file"},
		{"sqlite --tables none/t.json", "SELECT 1", 70, "none/t.json"},
		{"sqlite --nonsense", "", 2, "nonsense"},
		{"compiler --source x", "", 2, "usage"},
		{"maven", "", 2, "usage"},
		{"maven --index http://127.0.0.1:1/ --out x --report y --lock z g:a:1", "", 2, "usage"},
		{"maven --index http://127.0.0.1:1/ --out x --report y gson", "", 1, "is not group:artifact:version"},
		{"postgres", "", 2, "usage"},
		{"postgres --bin /none --template /none", "", 70, "template cluster"},
		{"postgres-template", "", 2, "usage"},
		{"postgres-template --bin /none --out x", "", 70, "initdb"},
	} {
		_, stderr, status := run(c.stdin, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("sandbox-kit %s: status %d, want %d\n%.1000s", c.args, status, c.status, stderr)
		}
	}
}

// TestName: a program that links the kit is the kit if it is called so, and itself if not.
func TestName(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{kitpath.Name: "usage: sandbox-kit",
		filepath.Join("/some/where", kitpath.Name): "usage: sandbox-kit", "other": "PASS"} {
		cmd := exec.Command(self, "-test.run", "^$")
		cmd.Args[0] = name
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("called %s: %s", name, out)
		}
	}
}
