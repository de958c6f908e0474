package typescript

import (
	"cmp"
	"path"

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
	Working:  64 * sandbox.MiB, // 10 MiB were measured for a small program
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
	compile := j.AddCompile(produces, kit, "typescript", "--entry", j.Inside(entry), "--out", out)
	compile.Process.Warm = j.WarmKit(2)
	args := append(append([]string{j.Tool.Path, "--enable-source-maps"}, javascript.HeapFlags(j)...), out)
	run := j.AddRun(args...)
	run.Process.Warm = javascript.WarmStart(j, len(args))
	run.OutOfMemory = javascript.OutOfMemory
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
