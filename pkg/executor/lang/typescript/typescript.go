package typescript

import (
	"cmp"
	"context"
	"os"
	"path"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/javascript"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Language is TypeScript. Node runs it, once the kit has removed the types.
var Language = language.Language{
	Name: "typescript", Title: "TypeScript", Aliases: []string{"ts", "tsx", "ts-node"},
	Extensions: []string{".ts", ".tsx", ".mts", ".cts", ".jsx"}, Interpreters: []string{"ts-node", "tsx"}, Projects: []string{"tsconfig.json"},
	Source: "main.ts", Dialects: []language.Dialect{{Alias: "tsx", Source: "main.tsx"}}, // the file name decides about the syntax
	Mains: []string{
		"index.ts", "index.tsx", "index.mts", "index.cts", "main.ts", "main.tsx", "main.mts", "main.cts",
		"app.ts", "app.tsx", "app.mts", "app.cts", "server.ts", "server.tsx", "server.mts", "server.cts",
		"src/index.ts", "src/index.tsx", "src/index.mts", "src/index.cts", "src/main.ts", "src/main.tsx", "src/main.mts", "src/main.cts",
	},
	Indexes:   []string{"index.ts", "index.tsx", "index.mts", "index.cts"},
	Toolchain: &javascript.Node, Image: "sandbox-run/typescript", FindEntry: findEntry,
	Working: 64 * sandbox.MiB, // 10 MiB were measured for a small program
	Options: []string{"check"}, Inspect: inspect,
	Packages: javascript.Packages, Plan: plan, Session: javascript.PlanSession,
}

func findEntry(files []language.File, asked string) string {
	if asked != "" {
		return ""
	}
	exts := []string{".ts", ".tsx", ".mts", ".cts"}
	return cmp.Or(javascript.StartFile(files, exts...), javascript.PackageMain(files, exts...))
}

// plan removes the types with the kit, and runs the rest with Node.
func plan(j *language.Job) error {
	entry := j.Entry
	if language.Find(j.Files, entry) == nil { // a directory
		entry = j.Language.Index(j.Files, entry)
	}
	if err := javascript.ShowPackages(j); err != nil {
		return err
	}
	kit, err := j.UseKit()
	if err != nil {
		return err
	}
	dir := moduleDir(j, entry)
	out := path.Join(dir, "main.mjs")
	produces := []string{path.Join(dir, "*.mjs"), path.Join(dir, "*.mjs.map")}
	if j.Request.Options.Check {
		return addCheck(j, kit, entry, out)
	}
	compile := j.AddCompile(produces, kit, "typescript", "--entry", j.Inside(entry), "--out", out)
	compile.Process.Warm = j.WarmKit(2)
	args := append(append([]string{j.Tool.Path, "--enable-source-maps"}, javascript.HeapFlags(j)...), out)
	run := j.AddRun(args...)
	run.Process.Warm = javascript.WarmStart(j, len(args))
	run.OutOfMemory = javascript.OutOfMemory
	return nil
}

// compilerDir is the directory of this machine's TypeScript compiler in the sandbox, and compilerFile its main file.
const (
	compilerDir  = language.ToolDir + "/typescript"
	compilerFile = "bin/tsc"
)

// inspect looks for the TypeScript compiler that npm has installed beside Node, for a check.
func inspect(_ context.Context, j *language.Job) error {
	if j.Request.Options.Check && j.Image == nil {
		dir := filepath.Join(j.Tool.Home, "lib/node_modules/typescript")
		if _, err := os.Stat(filepath.Join(dir, compilerFile)); err == nil {
			j.Inspected = dir
		}
	}
	return nil
}

// addCheck parses the program with the kit, and checks its types where there is a compiler: among the program's files, in its packages, or
// on this machine.
func addCheck(j *language.Job, kit, entry, out string) error {
	compiler := ""
	own := path.Join("node_modules/typescript", compilerFile)
	switch dir, _ := j.Inspected.(string); {
	case language.Find(j.Files, own) != nil:
		compiler = j.Inside(own)
	case javascript.HasPackage(j, "typescript"):
		compiler = javascript.InLayer(own)
	case dir != "":
		j.Mount(dir, compilerDir)
		compiler = path.Join(compilerDir, compilerFile)
	}
	what := "parsed, not type-checked: there is no TypeScript compiler (tsc) here"
	if compiler != "" {
		what = "type-checked, not run"
	}
	j.AddCheck(what, kit, "typescript", "--entry", j.Inside(entry), "--out", out)
	if compiler == "" {
		return nil
	}
	args := []string{j.Tool.Path, compiler, "--noEmit", "--pretty", "false"}
	if language.Find(j.Files, "tsconfig.json") == nil {
		args = append(args, "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext",
			"--allowImportingTsExtensions", "--jsx", "preserve")
		args = append(args, j.Sources()...)
	}
	j.AddCompile(nil, args...)
	return nil
}

// moduleDir returns the directory of the stripped program: a hidden one, unless the program has packages, which Node finds only
// from among them.
func moduleDir(j *language.Job, entry string) string {
	for dir := path.Dir(entry); ; dir = path.Dir(dir) {
		if packages := path.Join(dir, "node_modules"); language.HasDirectory(j.Files, packages) {
			return j.Inside(path.Join(packages, ".cache/sandbox-run"))
		}
		if dir == "." {
			return language.BuildDir
		}
	}
}
