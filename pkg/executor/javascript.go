package executor

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var javascript = Language{
	Name: "javascript", Title: "JavaScript", Aliases: []string{"js", "node", "nodejs"},
	Extensions: []string{".js", ".mjs", ".cjs"}, Interpreters: []string{"node", "nodejs"}, Projects: []string{packageFile},
	Source: "main.js", Mains: nodeMains(".js", ".mjs", ".cjs"), Indexes: []string{"index.js", "index.mjs", "index.cjs"},
	Toolchain: "node", entry: packageMain(".js", ".mjs", ".cjs", ".json"),
	plan: planJavaScript,
}

const packageFile = "package.json"

// nodeMains are the usual names, at the top and in src.
func nodeMains(exts ...string) (mains []string) {
	for _, stem := range []string{"index", "main", "app", "server", "src/index", "src/main"} {
		for _, e := range exts {
			mains = append(mains, stem+e)
		}
	}
	return mains
}

// packageMain reads what a package.json says starts the program. As Node does, it lets the extension be left out, and a directory stand
// for its index.
func packageMain(exts ...string) func([]File) string {
	return func(files []File) string {
		main := path.Clean(strings.TrimPrefix(readPackage(files, packageFile).Main, "./"))
		if main == "." {
			return ""
		}
		names := []string{main}
		for _, e := range exts {
			names = append(names, main+e, path.Join(main, "index"+e))
		}
		for _, n := range names {
			if find(files, n) != nil && slices.Contains(exts, path.Ext(n)) {
				return n
			}
		}
		return ""
	}
}

// nodePackage is what of a package.json is of interest.
type nodePackage struct {
	Main string `json:"main"`
	Type string `json:"type"`
}

// readPackage is empty for a file that is not there or not well-formed: Node says what is wrong with it.
func readPackage(files []File, name string) (p nodePackage) {
	if f := find(files, name); f != nil {
		if text, err := f.content(); err == nil {
			_ = json.Unmarshal(text, &p)
		}
	}
	return p
}

func planJavaScript(j *job) error {
	entry := j.entry
	if find(j.files, entry) == nil { // a directory
		entry = j.lang.index(j.files, entry)
	}
	args := append([]string{j.tool.Path}, j.heapFlags()...)
	if find(j.files, packageFile) != nil && j.nodeAtLeast([2]int{20, 11}, [2]int{21, 3}) {
		args = append(args, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON") // detecting is what we want of it
	}
	if !j.nodeAtLeast([2]int{20, 19}, [2]int{22, 7}) { // they tell modules by their syntax
		if err := j.declareModule(entry); err != nil {
			return err
		}
	}
	args = append(args, j.inside(entry))
	run := j.run(args...)
	run.Process.Warm = j.nodeWarm(len(args))
	run.OutOfMemory = nodeOutOfMemory
	run.Suspect = brokenJavaScript
	run.Check = &sandbox.Process{Args: []string{j.tool.Path, "--no-warnings", "--experimental-vm-modules", "-e", javascriptCheck}}
	return nil
}

// nodeAtLeast compares the version with the first of each line of releases that has something; what is newer than all of them has it.
func (j *job) nodeAtLeast(since ...[2]int) bool {
	parts := strings.SplitN(j.tool.Version, ".", 3)
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

// declareModule lets a program be an ES module that does not say so but by its syntax.
func (j *job) declareModule(entry string) error {
	if path.Ext(entry) != ".js" {
		return nil
	}
	for dir := path.Dir(entry); ; dir = path.Dir(dir) {
		if find(j.files, path.Join(dir, packageFile)) != nil {
			return nil // the project has decided
		}
		if dir == "." {
			break
		}
	}
	text, err := find(j.files, entry).content()
	if err != nil {
		return err
	}
	if looksLikeModule(string(text)) {
		j.files = append(j.files, File{Path: packageFile, Data: []byte(`{"type":"module"}` + "\n")})
	}
	return nil
}

// looksLikeModule reads line by line. It need not be exact: it is asked for versions of Node that do not look themselves.
func looksLikeModule(text string) bool {
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "export" || strings.HasPrefix(word, "export{") || strings.HasPrefix(word, "export*"),
			strings.HasPrefix(word, "import{") || strings.HasPrefix(word, "import*") || strings.HasPrefix(word, `import"`) || strings.HasPrefix(word, "import'"),
			word == "import" && !strings.HasPrefix(rest, "("):
			return true
		case line[0] != ' ' && line[0] != '\t' && strings.Contains(line, "await ") && !strings.Contains(line, "async") && !strings.HasPrefix(word, "//") && !strings.HasPrefix(word, "*"):
			return true // at the top: only modules may wait there
		}
	}
	return false
}

// javascriptCheck parses a file as Node did: node --check would not look into modules it tells by their syntax.
const javascriptCheck = `const [goal, file] = process.argv.slice(1), vm = require("vm");
const text = require("fs").readFileSync(file, "utf8").replace(/^\ufeff/, "").replace(/^#!.*/, "");
try {
  if (goal === "module") new vm.SourceTextModule(text, { identifier: file });
  else vm.compileFunction(text, ["exports", "require", "module", "__filename", "__dirname"], { filename: file });
} catch { process.exit(1) }`

// brokenJavaScript reads the beginning of a trace: the file, and as what it was parsed. Modules are named by URLs.
//
//	file:///workspace/main.mjs:3
//	let a = ;
//	        ^
//	SyntaxError: Unexpected token ';'
func brokenJavaScript(stderr []byte) []string {
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

// unescapeURL undoes the percent signs of a URL's path. (net/url would cost every start of the command.)
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
	// nodeOverhead is what Node needs beside the heap's old generation: itself, and three times the largest semi-space (16 MiB).
	nodeOverhead = 80 * sandbox.MiB
	// Below smallNode the young generation is kept small, and so is the overhead.
	smallNode         = 256 * sandbox.MiB
	smallNodeOverhead = 32 * sandbox.MiB
	smallSemiSpace    = "--max-semi-space-size=4"
	// minNodeHeap is the least with which it starts and can still collect.
	minNodeHeap = 16 * sandbox.MiB
)

// heapFlags let the collector know the limit: it works harder before it is reached, and says so when there is no more. What the user says
// in NODE_OPTIONS goes first.
func (j *job) heapFlags() []string {
	own := strings.ReplaceAll(j.plan.Spec.Env["NODE_OPTIONS"], "_", "-")
	if strings.Contains(own, "--max-old-space-size") || strings.Contains(own, "--max-heap-size") {
		return nil
	}
	memory, overhead := j.memory(), nodeOverhead
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

// nodeOutOfMemory knows how V8 ends when its heap is full, and how the thread of a worker does.
func nodeOutOfMemory(r *sandbox.Result) bool {
	said := r.Stderr.Edges(sandbox.OutputMemory)
	if r.Exit.Signal == int(syscall.SIGABRT) || r.Exit.Code == 128+int(syscall.SIGABRT) {
		return bytes.Contains(said, []byte("heap out of memory")) || bytes.Contains(said, []byte("process out of memory"))
	}
	return bytes.Contains(said, []byte("ERR_WORKER_OUT_OF_MEMORY"))
}
