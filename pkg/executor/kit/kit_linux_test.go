package kit

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kitInside is where the tests show the kit.
const kitInside = "/opt/" + kitpath.Name

// world is a sandbox with the kit in it. This test's own executable is the kit: it links this package.
type world struct {
	manager *sandbox.Manager
	id      string
}

func newWorld(t *testing.T, volumes ...sandbox.Volume) *world {
	t.Helper()
	testenv.NeedRoot(t)
	path, err := kitpath.Find()
	if err != nil {
		t.Fatal(err)
	}
	b, err := native.New(native.Options{CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{manager: sandbox.NewManager(b, sandbox.Options{})}
	t.Cleanup(func() {
		if err := errors.Join(w.manager.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	spec := sandbox.Spec{Volumes: append(volumes, sandbox.Volume{Source: path, Target: kitInside}), Workdir: "/tmp"}
	if w.id, err = w.manager.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.manager.Delete(context.WithoutCancel(t.Context()), w.id); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) run(t *testing.T, dir string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	r, err := w.manager.Run(t.Context(), w.id, sandbox.Process{Args: args, Workdir: dir}, sandbox.IO{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != sandbox.VerdictOK && r.Verdict != sandbox.VerdictNonzeroExit {
		t.Fatalf("%v: %s\n%s", args, r.Verdict, r.Stderr.Bytes())
	}
	return string(r.Stdout.Bytes()), string(r.Stderr.Bytes()), r.Exit.Code
}

// files makes a directory that a sandbox may see, and returns it as a volume at /data.
func files(t *testing.T, contents map[string]string) sandbox.Volume {
	t.Helper()
	dir := t.TempDir()
	for name, text := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sandbox.Volume{Source: dir, Target: "/data"}
}

func TestTypeScriptInside(t *testing.T) {
	node, err := exec.LookPath("node")
	if err == nil {
		node, err = filepath.EvalSymlinks(node)
	}
	if err != nil {
		t.Skip("needs node: scripts/deps.sh test installs it")
	}
	volumes := []sandbox.Volume{files(t, map[string]string{
		"main.ts": "import { fail } from './b';\nconsole.log(__filename);\nawait fail('x');\n",
		"b.ts":    "type T = string;\n\nexport async function fail(t: T) {\n  throw new Error('failed ' + t);\n}\n",
		"bad.ts":  "let x: number = ;\n",
		"deep.ts": "let x = " + strings.Repeat("[", 1_000_000),
	})}
	if !strings.HasPrefix(node, "/usr/") {
		volumes = append(volumes, sandbox.Volume{Source: node, Target: "/opt/node"})
		node = "/opt/node"
	}
	w := newWorld(t, volumes...)
	if _, stderr, status := w.run(t, "/data", kitInside, "typescript", "--entry", "main.ts", "--out", "/tmp/build/main.mjs"); status != 0 ||
		stderr != "" {
		t.Fatalf("build: status %d\n%s", status, stderr)
	}
	stdout, stderr, status := w.run(t, "/data", node, "--enable-source-maps", "/tmp/build/main.mjs")
	if stdout != "/data/main.ts\n" || status != 1 || !strings.Contains(stderr, "Error: failed x\n    at fail (/data/b.ts:4:9)\n") {
		t.Errorf("run: status %d\n%s%s", status, stdout, stderr)
	}
	if _, stderr, status := w.run(t, "/data", kitInside, "typescript", "--entry", "bad.ts", "--out", "/tmp/build/bad.mjs"); status != 1 ||
		!strings.Contains(stderr, "bad.ts:1:16:") {
		t.Errorf("a syntax error: status %d\n%s", status, stderr)
	}
	if _, stderr, status := w.run(t, "/data", kitInside, "typescript", "--entry", "deep.ts", "--out", "/tmp/build/deep.mjs"); status != 1 ||
		!strings.Contains(stderr, "too deeply") || len(stderr) > 1000 {
		t.Errorf("a full stack: status %d\n%.2000s", status, stderr)
	}
}

func TestSQLiteInside(t *testing.T) {
	w := newWorld(t, files(t, map[string]string{
		"main.sql":  "SELECT name, 2 * n AS twice FROM items;\nCREATE TEMP TABLE t AS SELECT 1;\nSELEC 1;\n",
		"items.csv": "name,n\nx,4\n",
		"first.sql": "SELEC 1;\nSELECT 2;\n",
	}))
	stdout, stderr, status := w.run(t, "/data", kitInside, "sqlite", "--tables", "/tmp/tables.json", "main.sql")
	if want := " name | twice \n------+-------\n x    |     8\n(1 row)\n\n"; stdout != want || status != 1 ||
		stderr != "main.sql:3: near \"SELEC\": syntax error\n  SELEC 1;\n  ^\n" {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	tables, _, _ := w.run(t, "/data", "cat", "/tmp/tables.json")
	if want := `[{"columns":["name","twice"],"types":["text","integer"],"rows":[["x",8]],"rows_total":1,"truncated":false}]` +
		"\n"; tables != want {
		t.Errorf("tables: %s", tables)
	}
	if _, stderr, status := w.run(t, "/data", kitInside, "sqlite", "first.sql"); status != 65 || !strings.HasPrefix(stderr, "first.sql:1: ") {
		t.Errorf("a syntax error of the first statement: status %d\n%s", status, stderr)
	}
}

func TestPostgresInside(t *testing.T) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("needs postgresql: scripts/deps.sh test installs it")
	}
	bin := filepath.Dir(found[0])
	w := newWorld(t, files(t, map[string]string{
		"setup.sql":  "CREATE TABLE people (id int PRIMARY KEY, name text);\nINSERT INTO people VALUES (1, 'Ann'), (20, '日本');\n",
		"main.sql":   "SELECT *, NULL::int AS nothing FROM people;\n",
		"syntax.sql": "SELECT 1;\nSELECT *\n  FORM people;\nSELECT 2;\n",
		"first.sql":  "SELEC 1;\nSELECT 2;\n",
		"failed.sql": "INSERT INTO people VALUES (1, 'again');\n",
		"same.sql": "SELECT 1 AS id, 'Ann' AS name, NULL AS missing UNION ALL SELECT 20, '日本', NULL ORDER BY 1;\nSELECT 'x' AS \"a " +
			"heading\", 1.5 AS n WHERE 1 = 0;\n",
	}))
	if _, stderr, status := w.run(t, "/data", kitInside, "postgres-template", "--bin", bin, "--out", "/tmp/template"); status != 0 {
		t.Fatalf("template: status %d\n%s", status, stderr)
	}
	postgres := func(scripts ...string) (stdout, stderr string, status int) {
		return w.run(t, "/data", append([]string{kitInside, "postgres", "--bin", bin, "--template", "/tmp/template"}, scripts...)...)
	}
	stdout, stderr, status := postgres("--tables", "/tmp/tables.json", "setup.sql", "main.sql")
	if want := "CREATE TABLE\nINSERT 0 2\n id | name | nothing \n----+------+---------\n  1 | Ann  |        \n 20 | 日本 |        \n(2 " +
		"rows)\n\n"; stdout != want || stderr != "" || status != 0 {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	tables, _, _ := w.run(t, "/data", "cat", "/tmp/tables.json")
	if want := `[{"columns":["id","name","nothing"],"types":["integer","text","integer"],"rows":[[1,"Ann",null],[20,"日本",null]],` +
		`"rows_total":2,"truncated":false}]` + "\n"; tables != want {
		t.Errorf("tables: %s", tables)
	}
	if _, stderr, status := postgres("first.sql"); status != 65 || !strings.HasPrefix(stderr, "psql:first.sql:1: ERROR:  syntax error") {
		t.Errorf("a syntax error of the first statement: status %d\n%s", status, stderr)
	}
	stdout, stderr, status = postgres("syntax.sql")
	if status != 1 || !strings.HasPrefix(stderr, "psql:syntax.sql:3: ERROR:  syntax error at or near \"FORM\"\n") ||
		strings.Contains(stdout, "2") {
		t.Errorf("a syntax error: status %d\n%s%s", status, stdout, stderr)
	}
	_, stderr, status = postgres("setup.sql", "failed.sql")
	if status != 1 || !strings.HasPrefix(stderr, "psql:failed.sql:1: ERROR:  duplicate key") {
		t.Errorf("an error that is not of syntax: status %d\n%s", status, stderr)
	}
	if _, stderr, status = postgres("absent.sql"); status != 1 || !strings.Contains(stderr, "absent.sql: No such file") {
		t.Errorf("no such script: status %d\n%s", status, stderr)
	}
	// The tables of package sqlite have the form of psql's.
	theirs, _, _ := postgres("same.sql")
	ours, stderr, status := w.run(t, "/data", kitInside, "sqlite", "same.sql")
	if ours != theirs {
		t.Errorf("status %d, SQLite prints\n%s%s\npsql prints\n%s", status, ours, stderr, theirs)
	}
	if _, stderr, status := w.run(t, "/data", kitInside, "postgres", "--bin", bin, "--template", "/data", "main.sql"); status != 70 ||
		!strings.Contains(stderr, "template cluster") {
		t.Errorf("no template: status %d\n%s", status, stderr)
	}
}
