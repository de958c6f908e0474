package javascript

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Language is JavaScript.
var Language = language.Language{
	Name: "javascript", Title: "JavaScript", Aliases: []string{"js", "node", "nodejs"},
	Extensions: []string{".js", ".mjs", ".cjs"}, Interpreters: []string{"node", "nodejs"}, Projects: []string{packageFile},
	Source: "main.js", Indexes: []string{"index.js", "index.mjs", "index.cjs"},
	Mains: []string{
		"index.js", "index.mjs", "index.cjs", "main.js", "main.mjs", "main.cjs",
		"app.js", "app.mjs", "app.cjs", "server.js", "server.mjs", "server.cjs",
		"src/index.js", "src/index.mjs", "src/index.cjs", "src/main.js", "src/main.mjs", "src/main.cjs",
	},
	Toolchain: &Node, Image: "sandbox-run/node", FindEntry: findEntry, Options: []string{"test", "check"},
	Packages: Packages, Plan: plan, Session: PlanSession,
}

func findEntry(files []language.File, asked string) string {
	if asked != "" {
		return ""
	}
	if _, file, _ := startOf(files); file != "" {
		return file
	}
	return PackageMain(files, extensions...)
}

const packageFile = "package.json"

var extensions = []string{".js", ".mjs", ".cjs", ".json"}

// startOf returns the command with which npm starts a project, the file that it starts, and the arguments of that file. The file is
// package.json for a command that only a shell can run, and "" for a command whose program is not installed.
func startOf(files []language.File) (command, file string, args []string) {
	command = readPackage(files, packageFile).Scripts.Start
	words := strings.Fields(command)
	switch {
	case len(words) == 0:
		return command, "", nil
	case words[0] == "node" && len(words) > 1 && !strings.ContainsAny(command, "\"'\\$&|;<>()*?[]#~`="):
		if file := resolve(files, words[1], extensions); file != "" {
			return command, file, words[2:]
		}
		if words[1] == "." {
			return command, PackageMain(files, extensions...), words[2:]
		}
	}
	first := slices.IndexFunc(words, func(w string) bool { return !strings.Contains(w, "=") }) // behind variables
	if first >= 0 && (words[first] == "node" || language.Find(files, path.Join("node_modules/.bin", words[first])) != nil) {
		return command, packageFile, nil
	}
	return command, "", nil
}

// StartFile returns the first file with one of these extensions in the command with which npm starts a project.
func StartFile(files []language.File, exts ...string) string {
	for _, word := range strings.Fields(readPackage(files, packageFile).Scripts.Start) {
		if file := resolve(files, word, exts); file != "" {
			return file
		}
	}
	return ""
}

// PackageMain returns the entry file that package.json names. As Node does, it accepts a name without an extension, and a
// directory for its index.
func PackageMain(files []language.File, exts ...string) string {
	return resolve(files, readPackage(files, packageFile).Main, exts)
}

// resolve returns the file that Node finds by a path.
func resolve(files []language.File, name string, exts []string) string {
	if name = path.Clean(name); name == "." {
		return ""
	}
	names := []string{name}
	for _, e := range exts {
		names = append(names, name+e, path.Join(name, "index"+e))
	}
	for _, n := range names {
		if language.Find(files, n) != nil && slices.Contains(exts, path.Ext(n)) {
			return n
		}
	}
	return ""
}

// nodePackage has the fields of a package.json that matter here.
type nodePackage struct {
	Main    string `json:"main"`
	Type    string `json:"type"`
	Scripts struct {
		Start string `json:"start"`
	} `json:"scripts"`
}

// readPackage returns an empty value for a missing or malformed file: Node reports the error.
func readPackage(files []language.File, name string) (p nodePackage) {
	if f := language.Find(files, name); f != nil {
		if text, err := f.Content(); err == nil {
			_ = json.Unmarshal(text, &p)
		}
	}
	return p
}

func plan(j *language.Job) error {
	if err := ShowPackages(j); err != nil {
		return err
	}
	if j.Request.Options.Check {
		j.AddCheck("parsed, not run", append([]string{
			j.Tool.Path, "--no-warnings", "--experimental-vm-modules", "-e", parseScript, "--",
		}, j.Sources()...)...)
		return nil
	}
	if j.Request.Options.Test {
		return addTests(j)
	}
	if j.Entry == packageFile {
		return addStart(j)
	}
	entry := j.Entry
	if language.Find(j.Files, entry) == nil { // a directory
		entry = j.Language.Index(j.Files, entry)
	}
	args := append([]string{j.Tool.Path}, HeapFlags(j)...)
	if language.Find(j.Files, packageFile) != nil && isAtLeast(j, [2]int{20, 11}, [2]int{21, 3}) {
		args = append(args, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON") // the detection is intended
	}
	if !isAtLeast(j, [2]int{20, 19}, [2]int{22, 7}) { // newer ones recognise modules by their syntax
		if err := declareModule(j, entry); err != nil {
			return err
		}
	}
	args = append(args, j.Inside(entry))
	if _, file, own := startOf(j.Files); file == entry && j.Request.Entry == "" && len(j.Files) > 1 {
		args = append(args, own...)
	}
	run := j.AddRun(args...)
	run.Process.Warm = WarmStart(j, len(args))
	run.OutOfMemory = OutOfMemory
	run.Suspect = suspectFile
	run.Check = &sandbox.Process{Args: []string{j.Tool.Path, "--no-warnings", "--experimental-vm-modules", "-e", checkScript}}
	return nil
}

// addStart adds the run of the project's start script, in a shell as npm does.
func addStart(j *language.Job) error {
	command, _, _ := startOf(j.Files)
	if command == "" {
		return sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry FILE", "%s has no script start", packageFile)
	}
	run := j.AddRun("/bin/sh", "-c", command+` "$@"`, "sh")
	run.Process.Workdir = j.Dir
	run.OutOfMemory = OutOfMemory
	if flags := HeapFlags(j); len(flags) > 0 {
		j.Setenv("NODE_OPTIONS", strings.Join(flags, " "))
	}
	search := cmp.Or(j.Plan.Spec.Env["PATH"], sandbox.SearchPath)
	commands := j.Inside("node_modules/.bin")
	if j.Layer != nil {
		commands += ":" + modulesAt + "/.bin"
	}
	run.Process.Env = map[string]string{
		"PATH":                commands + ":" + path.Dir(j.Tool.Path) + ":" + search,
		"npm_lifecycle_event": "start", "npm_package_json": j.Inside(packageFile),
	}
	return nil
}

// addTests adds the run of Node's test runner: of all tests that it finds, or of those of the entry. The runner passes the flags of the
// heap on to the processes in which it runs the files.
func addTests(j *language.Job) error {
	if asked := j.Request.Tests; asked != nil {
		if r, ok := packageRunners[asked.Framework]; ok {
			return addPackageTests(j, &r)
		}
	}
	if !isAtLeast(j, [2]int{18, 0}) {
		return sandbox.Errorf(sandbox.ErrUnsupported, "test", "Node 18 or newer", "Node %s has no test runner", j.Tool.Version)
	}
	args := append(append([]string{j.Tool.Path}, HeapFlags(j)...), "--test")
	if j.Request.Tests != nil {
		flags, err := reportTests(j)
		if err != nil {
			return err
		}
		args = append(args, flags...)
	}
	run := j.AddRun(args...)
	run.Process.Workdir = j.Dir
	run.OutOfMemory = OutOfMemory
	entry := j.Request.Entry
	if len(j.Files) == 1 {
		entry = j.Entry
	}
	if entry != "" && path.Clean(entry) != "." { // options come before file names
		run.Process.Args = append(run.Process.Args, path.Clean(entry))
	}
	if j.Request.Tests != nil {
		run.SendReport()
	}
	return nil
}

// isAtLeast compares the version with the first version of each release line that has a feature; newer versions than all of them
// have it.
func isAtLeast(j *language.Job, since ...[2]int) bool {
	parts := strings.SplitN(j.Tool.Version, ".", 3)
	if len(parts) < 2 {
		return true
	}
	major, _ := strconv.Atoi(strings.TrimPrefix(parts[0], "v"))
	minor, _ := strconv.Atoi(parts[1])
	for _, s := range since {
		if major == s[0] {
			return minor >= s[1]
		}
	}
	return major > since[len(since)-1][0]
}

// declareModule makes a program an ES module if only its syntax shows that it is one.
func declareModule(j *language.Job, entry string) error {
	if path.Ext(entry) != ".js" {
		return nil
	}
	for dir := path.Dir(entry); ; dir = path.Dir(dir) {
		if language.Find(j.Files, path.Join(dir, packageFile)) != nil {
			return nil // the project has decided
		}
		if dir == "." {
			break
		}
	}
	text, err := language.Find(j.Files, entry).Content()
	if err != nil {
		return err
	}
	if looksLikeModule(string(text)) {
		j.Files = append(j.Files, language.File{Path: packageFile, Data: []byte(`{"type":"module"}` + "\n")})
	}
	return nil
}

// looksLikeModule reads line by line. It need not be exact: it serves versions of Node that do not detect the syntax.
func looksLikeModule(text string) bool {
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "export" || strings.HasPrefix(word, "export{") || strings.HasPrefix(word, "export*"),
			strings.HasPrefix(word, "import{") || strings.HasPrefix(word, "import*") || strings.HasPrefix(word, `import"`) ||
				strings.HasPrefix(word, "import'"),
			word == "import" && !strings.HasPrefix(rest, "("):
			return true
		case line[0] != ' ' && line[0] != '\t' && strings.Contains(line, "await ") && !strings.Contains(line, "async") &&
			!strings.HasPrefix(word, "//") && !strings.HasPrefix(word, "*"):
			return true // only modules can await at the top level
		}
	}
	return false
}

// checkScript parses a file as Node did: node --check does not parse files that are modules by their syntax only.
const checkScript = `const [goal, file] = process.argv.slice(1), vm = require("vm");
const text = require("fs").readFileSync(file, "utf8").replace(/^\ufeff/, "").replace(/^#!.*/, "");
try {
  if (goal === "module") new vm.SourceTextModule(text, { identifier: file });
  else vm.compileFunction(text, ["exports", "require", "module", "__filename", "__dirname"], { filename: file });
} catch { process.exit(1) }`

// parseScript parses files as Node would, and prints the error of each as Node does. A .js file is a module if it can only be one.
const parseScript = `const vm = require("vm"), fs = require("fs");
const parsers = {
  module: (text, file) => new vm.SourceTextModule(text, { identifier: file }),
  script: (text, file) => vm.compileFunction(text, ["exports", "require", "module", "__filename", "__dirname"], { filename: file }),
};
for (const file of process.argv.slice(1)) {
  const text = fs.readFileSync(file, "utf8").replace(/^\ufeff/, "").replace(/^#!.*/, "");
  const goals = file.endsWith(".mjs") ? ["module"] : file.endsWith(".cjs") ? ["script"] :
    /^\s*(import|export)\b/m.test(text) ? ["script", "module"] : ["module", "script"];
  let wrong;
  for (const goal of goals) {
    try { parsers[goal](text, file); wrong = undefined; break } catch (e) { wrong = e }
  }
  if (!wrong) continue;
  const said = String(wrong.stack).split("\n    at ")[0]; // without the frames of this script
  console.error(said.includes(file) ? said : file + "\n\n" + said);
  process.exitCode = 1;
}`

// suspectFile reads the beginning of a trace: the file, and how Node parsed it. Traces name modules by URLs.
//
//	file:///workspace/main.mjs:3
//	let a = ;
//	        ^
//	SyntaxError: Unexpected token ';'
func suspectFile(stderr []byte) []string {
	at := bytes.Index(stderr, []byte("\nSyntaxError: "))
	if at < 0 {
		return nil
	}
	// Warnings may come before it.
	for line := range strings.Lines(string(stderr[:at])) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ':')
		if i < 0 {
			continue
		}
		if _, err := strconv.Atoi(line[i+1:]); err != nil {
			continue
		}
		if file, ok := strings.CutPrefix(line[:i], "file://"); ok {
			return []string{"module", unescapeURL(file)}
		}
		if path.IsAbs(line) {
			return []string{"commonjs", line[:i]}
		}
	}
	return nil
}

// unescapeURL decodes the percent signs of a URL's path. (Linking net/url would slow down every start of the command.)
func unescapeURL(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

const (
	// nodeOverhead is Node's memory beside the heap's old generation: Node itself, and three times the largest semi-space (16 MiB).
	nodeOverhead = 80 * sandbox.MiB
	// Below smallNode the young generation is kept small, and so is the overhead.
	smallNode         = 256 * sandbox.MiB
	smallNodeOverhead = 32 * sandbox.MiB
	smallSemiSpace    = "--max-semi-space-size=4"
	// minNodeHeap is the smallest heap with which Node starts and can still collect.
	minNodeHeap = 16 * sandbox.MiB
)

// HeapFlags tell the collector the limit: it works harder before the heap is full, and V8 then reports a full heap. The user's
// NODE_OPTIONS take precedence.
func HeapFlags(j *language.Job) []string {
	own := strings.ReplaceAll(j.Plan.Spec.Env["NODE_OPTIONS"], "_", "-")
	if strings.Contains(own, "--max-old-space-size") || strings.Contains(own, "--max-heap-size") {
		return nil
	}
	memory, overhead := j.Memory(), nodeOverhead
	var flags []string
	if memory < smallNode {
		overhead, flags = smallNodeOverhead, []string{smallSemiSpace}
	}
	heap := minNodeHeap
	if memory > overhead+minNodeHeap {
		heap = memory - overhead
	}
	return append(flags, "--max-old-space-size="+strconv.FormatUint(uint64(heap/sandbox.MiB), 10))
}

// OutOfMemory recognises the end of V8 with a full heap, and that of a worker's thread.
func OutOfMemory(r *sandbox.Result) bool {
	said := r.Stderr.Edges(sandbox.OutputMemory)
	if r.Exit.Signal == int(syscall.SIGABRT) || r.Exit.Code == 128+int(syscall.SIGABRT) {
		return bytes.Contains(said, []byte("heap out of memory")) || bytes.Contains(said, []byte("process out of memory"))
	}
	return bytes.Contains(said, []byte("ERR_WORKER_OUT_OF_MEMORY"))
}

// driver keeps a started Node waiting for its program.
//
//go:embed node.cjs
var driver []byte

// WarmStart returns how Node starts before its program is known, with its first arguments; fixed is their number. It is nil if
// Node reads a variable of the request before the driver can set it.
func WarmStart(j *language.Job, fixed int) *sandbox.Warm {
	if _, own := j.Plan.Spec.Env["NODE_OPTIONS"]; own || !isAtLeast(j, [2]int{16, 0}) {
		return nil
	}
	for name := range j.Request.Env {
		if language.ReadAtStart(name) {
			return nil
		}
	}
	inside := j.ShowDriver("node.cjs", driver)
	if inside == "" {
		return nil
	}
	return &sandbox.Warm{Name: "node", Env: map[string]string{"NODE_OPTIONS": "--require " + inside}, Handshake: "sandbox-run: node waits\n",
		Fixed: fixed}
}
