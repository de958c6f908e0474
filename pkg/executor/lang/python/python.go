package python

import (
	"bytes"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Language is Python.
var Language = language.Language{
	Name: "python", Title: "Python", Aliases: []string{"py", "python3"},
	Extensions: []string{".py"}, Interpreters: []string{"python"},
	Source: "main.py", Mains: []string{"__main__.py", "main.py", "app.py"}, Indexes: []string{mainFile},
	Toolchain: &description, Image: "sandbox-run/python", Options: []string{"forbid-imports", "test", "module", "check"},
	FindEntry: findEntry, Inspect: inspect, Packages: packages, Plan: plan, Session: planSession, Imports: packagesDir,
}

const mainFile = "__main__.py"

func plan(j *language.Job) error {
	j.SetToolEnv()                           // those of a virtual environment
	j.Setenv("PYTHONDONTWRITEBYTECODE", "1") // the scratch is deleted before a second import
	if err := addLint(j); err != nil {
		return err
	}
	program, bin := setUp(j)
	if j.Request.Options.Check {
		j.AddCheck("parsed, not run", append([]string{
			j.Tool.Path, "-I", "-S", "-c", "import sys\nfor f in sys.argv[1:]: compile(open(f,'rb').read(), f, 'exec', dont_inherit=True)",
		}, j.Sources()...)...)
		return nil
	}
	module, from := moduleOf(j)
	script, source := scriptOf(j), sourceDir(j)
	isNamed := j.Request.Options.Module != "" || j.Request.Options.Test
	var dirs []string
	if !isNamed && script == nil && module != "" && from != j.Workdir() { // the directory in which -m searches
		dirs = append(dirs, from)
	}
	if source != j.Dir || (!isNamed && script != nil) {
		dirs = append(dirs, source)
	}
	setPath(j, append(dirs, showPackages(j, program)...)...)
	var run *language.Phase
	switch {
	case j.Request.Options.Module != "":
		return addModule(j, program)
	case j.Request.Options.Test:
		return addTests(j, program)
	case script != nil:
		file := path.Join(bin, script.name)
		j.RunFiles = append(j.RunFiles, sandbox.File{Path: file, Mode: 0o755, Data: script.text(program)})
		run = addRun(j, program, file)
	case module != "":
		run = addRun(j, program, "-m", module)
	default:
		run = addRun(j, program, j.Inside(j.Entry))
		if program == j.Tool.Path && source == j.Dir {
			run.Process.Warm = warmStart(j)
		}
	}
	run.Suspect = func(stderr []byte) []string { return suspectFile(stderr, j.Dir) }
	// Isolated (-I) and without site-packages (-S): no code of the program runs here.
	run.Check = &sandbox.Process{Args: []string{
		j.Tool.Path, "-I", "-S", "-c", "import sys; compile(open(sys.argv[1],'rb').read(), sys.argv[1], 'exec', dont_inherit=True)",
	}}
	return nil
}

// addRun adds the run of an interpreter, which prints its stacks at the signal of the drivers.
func addRun(j *language.Job, args ...string) *language.Phase {
	run := j.AddRun(args...)
	run.Process.StackSignal = driver.StackSignal
	return run
}

// addModule adds the run of a module that the request names, in the program's directory.
func addModule(j *language.Job, program string) error {
	module := j.Request.Options.Module
	switch {
	case !isModule(module):
		return sandbox.Invalid("module", "%q is not the name of a module; write it like json.tool", module)
	case j.Request.Options.Test:
		return sandbox.Invalid("module", "it is given with --test; use --module pytest or --module unittest alone")
	case j.Request.Entry != "":
		return sandbox.Invalid("module", "it is given with --entry; leave out one of them")
	}
	addRun(j, program, "-m", module).Process.Workdir = j.Dir
	return nil
}

// setPath sets PYTHONPATH: the directory of the hook for line buffering, those of the arguments, and those of the request. Python writes
// without a buffer if the hook has no place, or Python is too old for it.
func setPath(j *language.Job, dirs ...string) {
	hidden := func(v sandbox.Volume) bool { return strings.HasPrefix(driver.Dir+"/", v.Target+"/") }
	if old, err := toolchain.OlderThan(j.Tool.Version, 3, 7); err != nil || old || slices.ContainsFunc(j.Plan.Spec.Volumes, hidden) {
		j.Setenv("PYTHONUNBUFFERED", "1")
	} else {
		j.RunFiles = append(j.RunFiles, driver.LineBuffering())
		dirs = slices.Insert(dirs, 0, driver.Dir)
	}
	joinPath(j, dirs)
}

// joinPath sets PYTHONPATH to directories, and those of the request.
func joinPath(j *language.Job, dirs []string) {
	dirs = slices.DeleteFunc(append(dirs, j.Plan.Spec.Env["PYTHONPATH"]), func(dir string) bool { return dir == "" })
	if len(dirs) > 0 {
		j.Plan.Spec.Env["PYTHONPATH"] = strings.Join(dirs, ":")
	}
}

// moduleOf returns the module that starts a package, and the directory in which it is found. A package that starts as a file can
// not import its own modules by a relative name.
func moduleOf(j *language.Job) (module, from string) {
	dir, name := path.Split(j.Entry)
	dir = path.Clean(dir)
	if language.Find(j.Files, j.Entry) == nil { // a directory
		dir, name = j.Entry, mainFile
	}
	switch {
	case name != mainFile:
		return "", ""
	case dir != ".":
		if module := strings.ReplaceAll(dir, "/", "."); isModule(module) {
			return module, j.Dir
		}
		return "", "" // python runs a directory too
	case language.Find(j.Files, "__init__.py") != nil: // the tree itself is the package
		return path.Base(j.Dir), path.Dir(j.Dir)
	}
	return "", ""
}

// isModule reports whether every part of a dotted name is an identifier. It accepts all letters beyond ASCII.
func isModule(name string) bool {
	for _, part := range strings.Split(name, ".") {
		if part == "" || part[0] >= '0' && part[0] <= '9' || strings.ContainsFunc(part, func(r rune) bool {
			return r < 0x80 && r != '_' && !(r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z')
		}) {
			return false
		}
	}
	return true
}

// suspectFile reads the end of a trace: the file a SyntaxError is in.
//
//	  File "/workspace/main.py", line 3
//	    x = = 1
//	SyntaxError: invalid syntax
func suspectFile(stderr []byte, dir string) []string {
	at := -1
	for _, kind := range []string{"SyntaxError:", "IndentationError:", "TabError:"} {
		at = max(at, bytes.LastIndex(stderr, []byte("\n"+kind)), bytes.LastIndex(stderr, []byte(": "+kind)))
		if bytes.HasPrefix(stderr, []byte(kind)) {
			at = max(at, 0)
		}
	}
	if at < 0 {
		return nil
	}
	file, rest := lastAfter(stderr[:at], `File "`), lastAfter(stderr[:at], `", line `)
	if file == "" { // Python reports an unreadable encoding in one line
		line, _, _ := strings.Cut(string(stderr[at:]), " on line ")
		if _, file, ok := strings.Cut(line, " in file "); ok {
			return []string{language.Abs(dir, file)}
		}
		return nil
	}
	file, _, _ = strings.Cut(file, `", line `)
	if line, _, _ := strings.Cut(rest, "\n"); strings.Contains(line, ", in ") { // running code has raised it there
		return nil
	}
	return []string{language.Abs(dir, file)}
}

// lastAfter returns the text after the last mark; "" without one.
func lastAfter(text []byte, mark string) string {
	i := bytes.LastIndex(text, []byte(mark))
	if i < 0 {
		return ""
	}
	return string(text[i+len(mark):])
}

// lintScript walks the syntax trees of a program. It sees the source, not the execution: it is a lint, not a control.
const lintScript = `import ast, sys, traceback
n = int(sys.argv[1])
bad, files, found = set(sys.argv[2:2 + n]), sys.argv[2 + n:], 0
def names(node):
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module] + [node.module + "." + a.name for a in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("__import__", "import_module"):
            return [node.args[0].value]
    return []
for file in files:
    try:
        with open(file, "rb") as f:
            tree = ast.parse(f.read(), file)
    except (SyntaxError, ValueError):
        traceback.print_exc(limit=0)
        sys.exit(1)
    for node in ast.walk(tree):
        for name in names(node):
            parts = name.split(".")
            hit = [b for b in (".".join(parts[:i + 1]) for i in range(len(parts))) if b in bad]
            if hit:
                found += 1
                print(f"{file}:{node.lineno}: lint: import of {hit[0]} is forbidden", file=sys.stderr)
                break
sys.exit(1 if found else 0)
`

// maxLinted bounds the names on a command line.
const maxLinted = 512 << 10

func addLint(j *language.Job) error {
	forbidden := j.Request.Options.ForbidImports
	if len(forbidden) == 0 {
		return nil
	}
	args := []string{j.Tool.Path, "-I", "-S", "-c", lintScript, strconv.Itoa(len(forbidden))}
	for _, name := range forbidden {
		if !isModule(name) {
			return sandbox.Invalid("forbid-imports", "%q is not the name of a module; write them like socket,os.path", name)
		}
		args = append(args, name)
	}
	total := 0
	for _, f := range j.Files {
		if j.Language.Owns(f.Path) || f.Path == j.Entry {
			args = append(args, j.Inside(f.Path))
			total += len(args[len(args)-1]) + 1
		}
	}
	if total > maxLinted {
		return sandbox.Invalid("forbid-imports", "the program has too many files to be looked at")
	}
	j.AddCompile(nil, args...)
	return nil
}

// preloadSets are interpreters with loaded modules that take long to load, the fullest first. A program gets the first set with a
// module that it imports, or else an interpreter without modules. The driver leaves out modules that are not installed.
func preloadSets() []preloadSet {
	return []preloadSet{
		{"python+matplotlib", []string{"matplotlib", "seaborn", "pylab"}, driver.Matplotlib()},
		{"python+pandas", []string{"pandas", "numpy", "scipy", "sklearn", "statsmodels"}, driver.Pandas()},
	}
}

type preloadSet struct {
	name           string
	wants, preload []string
}

// Warm Python needs 3.9 or newer, with which the driver is tested.
const warmMajor, warmMinor = 3, 9

// startVariables are further variables that Python, or the C library, reads at the start.
var startVariables = []string{"VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "LOCPATH", "NLSPATH", "GCONV_PATH"}

// warmStart returns how a program in a file waits in an interpreter; nil if variables of the user change how the interpreter
// starts.
func warmStart(j *language.Job) *sandbox.Warm {
	if old, err := toolchain.OlderThan(j.Tool.Version, warmMajor, warmMinor); err != nil || old || !j.MayPrestart() {
		return nil
	}
	for name := range j.Request.Env {
		if strings.HasPrefix(name, "PYTHON") || language.ReadAtStart(name) || slices.Contains(startVariables, name) {
			return nil
		}
	}
	if own := j.Plan.Spec.Env["PYTHONPATH"]; own != "" && own != driver.Dir { // an image's
		return nil
	}
	imports, watches := map[string]bool{}, false
	for _, file := range j.Files {
		if j.Language.Owns(file.Path) {
			named := importsOf(file.Data)
			for _, m := range named {
				imports[m] = true
			}
			watches = watches || driver.Watches(file.Data, named)
		}
	}
	w := driver.Python("python")
	if j.Layer != nil {
		w = driver.Packages(w, packagesAt)
	}
	for _, f := range preloadSets() {
		// A loaded module may have read any variable, and a layer may have another version of it.
		if len(j.Request.Env) == 0 && j.Layer == nil && slices.ContainsFunc(f.wants, func(name string) bool { return imports[name] }) {
			w = driver.Python(f.name, f.preload...)
			break
		}
	}
	if watches {
		w = driver.Watched(w)
	}
	return w
}

// importsOf returns the modules of the import statements in a source. It reads line by line: a text that looks like an import
// only selects another interpreter.
func importsOf(source []byte) (modules []string) {
	add := func(name []byte) {
		name = bytes.TrimSpace(name)
		end := bytes.IndexFunc(name, func(r rune) bool { return r == '.' || r == ' ' || r == '\t' || r == '#' })
		if end >= 0 {
			name = name[:end]
		}
		if len(name) > 0 && len(modules) < mostImports {
			modules = append(modules, string(name))
		}
	}
	for line := range bytes.Lines(source) {
		for statement := range bytes.SplitSeq(line, []byte(";")) {
			statement = bytes.TrimSpace(statement)
			if rest, ok := bytes.CutPrefix(statement, []byte("from ")); ok {
				add(rest)
			} else if rest, ok := bytes.CutPrefix(statement, []byte("import ")); ok {
				for name := range bytes.SplitSeq(rest, []byte(",")) {
					add(name)
				}
			}
		}
	}
	return modules
}

// mostImports bounds the lines that are read.
const mostImports = 1000
