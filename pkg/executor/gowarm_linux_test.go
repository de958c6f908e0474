package executor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/golang"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func goTool(t *testing.T) *toolchain.Toolchain {
	t.Helper()
	testenv.NeedSystem(t)
	tool, err := (&toolchain.Finder{NoStore: true}).Find(t.Context(), golang.Language.Toolchain)
	if err != nil {
		t.Fatal(err)
	}
	return tool
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
	r := expectOn(t, New(e.manager, opts), Request{Language: "go", Code: "package main\n\nfunc main() { println(\"cold\") }\n", NoCache: true},
		want{said: []string{"cold"}})
	if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "compiled anew") }) {
		t.Errorf("no note on the slow compilation: %q", r.Notes)
	}
}

// A package that is in the cache without its index, or not at all, is compiled inside.
func TestWarmthThatLacksSomething(t *testing.T) {
	e := realEngine(t)
	opts := e.opts
	opts.WarmDir = t.TempDir()
	dir := prepared.ToolchainDir((&prepared.Store{Root: opts.WarmDir}).Dir(), goTool(t))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "warmed"), []byte("errors\n"), 0o644); err != nil { // it says so, and is not
		t.Fatal(err)
	}
	expectOn(t, New(e.manager, opts), Request{Language: "go",
		Code: "package main\n\nimport \"errors\"\n\nfunc main() { println(errors.New(\"cold\").Error()) }\n", NoCache: true},
		want{said: []string{"cold"}})
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
	source := map[string]string{"go.mod": "module example.com/Big\n\ngo 1.21\n",
		"big.go": "package big\n\nimport \"container/ring\"\n\nfunc Size() int { return ring.New(3).Len() }\n"}
	sum, modSum := writeModule(t, at, "example.com/Big", "v1.2.3", source)
	if err := os.WriteFile(filepath.Join(other, "v1.0.0.zip"), []byte("not asked for"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := tree("go.mod", "module m\n\ngo 1.21\n\nrequire example.com/Big v1.2.3\n", "go.sum",
		"example.com/Big v1.2.3 "+sum+"\nexample.com/Big v1.2.3/go.mod "+modSum+"\n",
		"main.go",
		"package main\n\nimport (\n\t\"fmt\"\n\t\"example.com/Big\"\n\t\"os\"\n\t\"path/filepath\"\n)\n\nfunc main() {\n"+
			"\tall, _ := filepath.Glob(os.Getenv(\"HOME\") + \"/.sandbox-run/modules/example.com/*\")\n\tfmt.Println(big.Size(), len(all))\n}\n")
	expect(t, Request{Files: files}, want{stdout: "3 1\n"})

	files[0].Data = []byte("module m\n\ngo 1.21\n\nrequire example.com/Big v1.2.4\n")
	_, err := e.Execute(t.Context(), Request{Files: files})
	if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "example.com/Big v1.2.4") ||
		!strings.Contains(err.Error(), "--install") {
		t.Errorf("missing module: %v", err)
	}
}
