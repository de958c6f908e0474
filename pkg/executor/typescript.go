package executor

import (
	"path"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var typescript = Language{
	Name: "typescript", Title: "TypeScript", Aliases: []string{"ts", "tsx", "ts-node"},
	Extensions: []string{".ts", ".tsx", ".mts", ".cts", ".jsx"}, Interpreters: []string{"ts-node", "tsx"}, Projects: []string{"tsconfig.json"},
	Source: "main.ts", Mains: nodeMains(".ts", ".tsx", ".mts", ".cts"), Indexes: []string{"index.ts", "index.tsx", "index.mts", "index.cts"},
	Toolchain: "node", entry: packageMain(".ts", ".tsx", ".mts", ".cts"),
	Working: 64 * sandbox.MiB, // 10 MiB were seen for a small program
	plan:    planTypeScript,
}

// planTypeScript strips the types with a tool of ours, and runs what is left.
func planTypeScript(j *job) error {
	entry := j.entry
	if find(j.files, entry) == nil { // a directory
		entry = j.lang.index(j.files, entry)
	}
	kit, err := j.useKit()
	if err != nil {
		return err
	}
	dir := j.moduleDir(entry)
	out := path.Join(dir, "main.mjs")
	compile := j.compile([]string{path.Join(dir, "*.mjs"), path.Join(dir, "*.mjs.map")}, kit, "typescript", "--entry", j.inside(entry), "--out", out)
	compile.Process.Warm = j.kitWarm(2)
	args := append(append([]string{j.tool.Path, "--enable-source-maps"}, j.heapFlags()...), out)
	run := j.run(args...)
	run.Process.Warm = j.nodeWarm(len(args))
	run.OutOfMemory = nodeOutOfMemory
	return nil
}

// moduleDir is where the stripped program goes: out of sight, unless there are packages, which Node finds only from among them.
func (j *job) moduleDir(entry string) string {
	for dir := path.Dir(entry); ; dir = path.Dir(dir) {
		if packages := path.Join(dir, "node_modules"); hasDirectory(j.files, packages) {
			return j.inside(path.Join(packages, ".cache/sandbox-run"))
		}
		if dir == "." {
			return buildDir
		}
	}
}
