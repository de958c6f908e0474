package golang

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// goProgram describes a program for the go command.
type goProgram struct {
	root     string   // directory of its module, relative
	target   string   // package to build, relative to root
	library  bool     // target is one file of a package that is no program or, for a check, all packages
	tests    []goTest // instead of target
	untested []goTest // packages beside them without tests
	vendored bool
	imports  []string // of all its files
	direct   bool     // the compiler and the linker can run without the go command
}

// goTest is a package with its import path.
type goTest struct{ dir, target, name string }

// goFile describes a file before its compilation.
type goFile struct {
	path     string
	pkg      string
	test     bool // named so
	ignored  bool // by its first lines
	guarded  bool // by a build constraint
	imports  []string
	funcMain bool
	testFunc bool
}

// maxGoLook is the size of the largest file that is parsed as a whole on the host: a syntax tree is many times larger. For a
// longer file, only the imports are read.
const maxGoLook = 1 << 20

// readGo reads the files of a program. It changes the job's files: it unpacks archives and completes snippets.
func readGo(j *language.Job) (*goProgram, error) {
	if len(j.Files) == 1 {
		if err := readSingleGo(j); err != nil {
			return nil, err
		}
	}
	useLayer(j)
	var files []goFile
	for i := range j.Files {
		f := &j.Files[i]
		if path.Ext(f.Path) != ".go" {
			continue
		}
		src, err := f.Content()
		if err != nil {
			return nil, err
		}
		if f.Open != nil {
			f.Open, f.Data = nil, src
		}
		files = append(files, lookAtGo(f.Path, src))
	}
	if len(files) == 0 {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "files", "--lang, if it is another language", "no file ends in .go")
	}
	p := &goProgram{root: "."}
	seen := map[string]bool{}
	for _, f := range files {
		for _, i := range f.imports {
			seen[i] = true
		}
	}
	p.imports = slices.Sorted(maps.Keys(seen))
	if len(files) == 1 && language.Find(j.Files, "go.mod") == nil && language.Find(j.Files, "go.work") == nil {
		// One file needs no module.
		p.target = "./" + files[0].path
		f := files[0]
		p.library = f.pkg != "" && f.pkg != "main" && !f.test && !j.Request.Options.Test
		if f.test || j.Request.Options.Test {
			if !f.test {
				return nil, errNoTests(".")
			}
			p.tests = []goTest{{dir: path.Dir(f.path), target: p.target, name: "command-line-arguments"}}
		}
		src, err := language.Find(j.Files, f.path).Content()
		if err != nil {
			return nil, err
		}
		p.direct = len(p.tests) == 0 && f.pkg == "main" && isDirect(f.path, src, j.Request.Env)
		return p, nil
	}
	return p, p.choose(j, files)
}

// choose selects the package of a tree to build, and whether to run its tests.
func (p *goProgram) choose(j *language.Job, files []goFile) error {
	dirs := map[string]*goDir{}
	for _, f := range files {
		dir := path.Dir(f.path)
		if !isPackageDir(dir) {
			continue
		}
		d := dirs[dir]
		if d == nil {
			d = &goDir{}
			dirs[dir] = d
		}
		switch {
		case f.test:
			d.tests = true
		case f.ignored:
		case f.pkg != "main":
			d.library = true
		default:
			d.main = true
			if f.funcMain && !f.guarded {
				d.mains = append(d.mains, f.path)
			}
		}
	}
	dir, entryFile := j.Entry, ""
	if strings.HasSuffix(dir, ".go") {
		dir, entryFile = path.Dir(dir), dir
	}
	asked := j.Request.Entry != ""
	var programs, tested []string
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		if dirs[d].main {
			programs = append(programs, d)
		}
		if dirs[d].tests && (!asked || d == dir || strings.HasPrefix(d, dir+"/")) {
			tested = append(tested, d)
		}
	}
	has, below := dirs[dir], dir
	switch {
	case j.Request.Options.Test || strings.HasSuffix(entryFile, "_test.go"):
		if len(tested) == 0 {
			return errNoTests(dir)
		}
	case j.Request.Options.Check && !asked && (len(dirs) > 1 || len(programs) != 1):
		dir, tested, p.library = ".", nil, true // all packages
		if moduleOf(j.Files, ".") == "" && len(dirs) > 0 {
			dir = slices.Min(slices.Collect(maps.Keys(dirs)))
		}
	case has != nil && has.main:
		tested = nil
	case !asked && len(programs) == 1:
		dir, tested = programs[0], nil
	case !asked && len(programs) > 1:
		return sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry "+sandbox.ShellQuote(programs[0]),
			"there is a package main in each of %s", strings.Join(programs, ", "))
	case len(tested) == 0:
		return sandbox.Errorf(sandbox.ErrInvalid, "entry", "package main, with a func main",
			"there is neither a package main nor a test in %s", orHere(dir))
	}
	if len(tested) > 0 {
		dir = tested[0]
	}
	p.root = moduleOf(j.Files, dir)
	if p.root == "" {
		p.root = "."
		if language.Find(j.Files, "go.work") == nil {
			j.Files = append(j.Files, language.File{Path: "go.mod", Data: []byte(playModule(j))})
		}
	}
	p.vendored = language.Find(j.Files, path.Join(p.root, "vendor/modules.txt")) != nil
	module := modulePath(j.Files, p.root)
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		t := goTest{dir: d, target: relativeTo(p.root, d), name: path.Join(module, relativeTo(p.root, d))}
		switch {
		case len(tested) == 0, moduleOf(j.Files, d) != moduleOf(j.Files, dir):
		case slices.Contains(tested, d):
			p.tests = append(p.tests, t)
		case (dirs[d].main || dirs[d].library) && (!asked || d == below || strings.HasPrefix(d, below+"/")):
			p.untested = append(p.untested, t)
		}
	}
	p.target = relativeTo(p.root, dir)
	if p.library {
		p.target = "./..."
		return nil
	}
	if len(tested) > 0 || len(dirs[dir].mains) < 2 {
		return nil
	}
	// Several programs lie in one directory, as scripts do.
	if mains := dirs[dir].mains; entryFile == "" {
		return sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry "+sandbox.ShellQuote(mains[0]),
			"there is a func main in each of %s", strings.Join(mains, ", "))
	}
	p.target = relativeTo(p.root, entryFile)
	return nil
}

// goDir is a directory that holds Go files.
type goDir struct {
	main    bool // a package main
	library bool // another package
	tests   bool
	mains   []string // files with a func main
}

func errNoTests(dir string) error {
	return sandbox.Errorf(sandbox.ErrInvalid, "test", "a file that ends in _test.go", "there are no tests in %s", orHere(dir))
}

func orHere(dir string) string {
	if dir == "." {
		return "this program"
	}
	return dir
}

// isPackageDir reports whether the go command considers a directory.
func isPackageDir(dir string) bool {
	for part := range strings.SplitSeq(dir, "/") {
		if part == "vendor" || part == "testdata" || part != "." && strings.HasPrefix(part, ".") || strings.HasPrefix(part, "_") {
			return false
		}
	}
	return true
}

// moduleOf returns the nearest directory at or above dir with a go.mod, or "".
func moduleOf(files []language.File, dir string) string {
	for ; ; dir = path.Dir(dir) {
		if language.Find(files, path.Join(dir, "go.mod")) != nil {
			return dir
		}
		if dir == "." {
			return ""
		}
	}
}

// modulePath returns the path of the module in a directory; "" without one.
func modulePath(files []language.File, dir string) string {
	f := language.Find(files, path.Join(dir, "go.mod"))
	if f == nil {
		return ""
	}
	text, err := f.Content()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "//")
		if words := strings.Fields(line); len(words) == 2 && words[0] == "module" {
			return strings.Trim(words[1], "\"`")
		}
	}
	return ""
}

// relativeTo returns a path in the form of the go command: ./cmd/hello.
func relativeTo(root, p string) string {
	if p == root {
		return "."
	}
	if root == "." {
		return "./" + p
	}
	return "./" + strings.TrimPrefix(p, root+"/")
}

// readSingleGo turns one file into a form that the go command understands.
func readSingleGo(j *language.Job) error {
	f := j.Files[0]
	src, err := f.Content()
	if err != nil {
		return err
	}
	if files := unpackGo(src); files != nil {
		if err := language.CheckNames("files", files); err != nil {
			return err
		}
		j.Files, j.Entry = files, "."
		if j.Request.Entry != "" && j.Request.Entry != f.Path {
			j.Entry = j.Request.Entry
		}
		if len(files) == 1 {
			j.Entry = files[0].Path
		}
		return nil
	}
	if path.Base(f.Path) == "go.mod" {
		return nil
	}
	if strings.ContainsAny(f.Path, "\n\r") {
		return sandbox.Invalid("files", "name %q contains a line break", f.Path)
	}
	if firstToken(src) == token.EOF {
		return sandbox.Errorf(sandbox.ErrInvalid, "code", "statements, or package main with a func main",
			"there is nothing in %s but comments", path.Base(f.Path))
	}
	shown := path.Base(f.Path)
	out := language.File{Path: f.Path, Mode: f.Mode, Data: src}
	if !hasPackageClause(src) {
		if len(src) > maxGoLook {
			return sandbox.Invalid("code", "a snippet of %d bytes; from %d on, write the package clause and func main", len(src), maxGoLook)
		}
		out.Data = wrapSnippet(shown, bytes.TrimPrefix(src, []byte("\uFEFF")))
	}
	if path.Ext(out.Path) != ".go" {
		out.Path = path.Join(path.Dir(out.Path), "main.go")
	}
	if g := lookAtGo(out.Path, out.Data); !g.test && !g.funcMain && g.testFunc {
		out.Path = strings.TrimSuffix(out.Path, ".go") + "_test.go"
	}
	if path.Base(out.Path) != shown && bytes.Equal(out.Data, src) && j.Request.Name+j.Request.Entry != "" {
		out.Data = append([]byte(lineDirective(shown, 1, 1)), src...)
	}
	j.Files = []language.File{out}
	j.Entry = out.Path
	return nil
}

// unpackGo returns the files of a txtar archive, or nil if it is none: a complete program may contain text that looks like one.
func unpackGo(src []byte) []language.File {
	archive := txtar.Parse(src)
	if len(archive.Files) == 0 {
		return nil
	}
	before := bytes.TrimSpace(archive.Comment)
	switch {
	case len(src) > maxGoLook && len(before) > 0: // too long to parse
		return nil
	case len(before) > 0 && (parses(src) || !hasPackageClause(src) && parses(wrapSnippet("main.go", src))):
		return nil
	}
	var files []language.File
	if len(before) > 0 && !onlyComments(archive.Comment) {
		head := archive.Comment // as the Go playground has it
		if !hasPackageClause(head) {
			head = wrapSnippet("main.go", head)
		}
		files = append(files, language.File{Path: "main.go", Data: head})
	}
	for _, f := range archive.Files {
		files = append(files, language.File{Path: f.Name, Data: f.Data})
	}
	return files
}

func parses(src []byte) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	return err == nil
}

// onlyComments: text before the first file that is for people. It may be Go's comments, or plain words.
func onlyComments(text []byte) bool {
	return firstToken(text) == token.EOF || !parses(text) && !parses(wrapSnippet("main.go", text))
}

// lookAtGo reads a file as far as it can be parsed.
func lookAtGo(p string, src []byte) goFile {
	g := goFile{path: p, test: strings.HasSuffix(p, "_test.go")}
	mode := parser.SkipObjectResolution | parser.ParseComments
	if !isPackageDir(path.Dir(p)) || len(src) > maxGoLook {
		mode = parser.ImportsOnly
	}
	file, _ := parser.ParseFile(token.NewFileSet(), "", src, mode)
	if file == nil {
		return g
	}
	if file.Name != nil {
		g.pkg = file.Name.Name
	}
	g.imports = importsIn(file)
	for _, c := range file.Comments {
		if c.Pos() > file.Package {
			break
		}
		for _, l := range c.List {
			g.guarded = g.guarded || strings.HasPrefix(l.Text, "//go:build ")
			g.ignored = g.ignored || strings.TrimSpace(l.Text) == "//go:build ignore"
		}
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			g.funcMain = g.funcMain || f.Name.Name == "main" && g.pkg == "main"
			g.testFunc = g.testFunc || isTestName(f.Name.Name) && f.Type.Params.NumFields() == 1 || isExample(f)
		}
	}
	return g
}

// importsOf returns the imports of a file, even if the rest can not be parsed.
func importsOf(src []byte) []string {
	file, _ := parser.ParseFile(token.NewFileSet(), "", src, parser.ImportsOnly)
	if file == nil {
		return nil
	}
	return importsIn(file)
}

func importsIn(file *ast.File) []string {
	var all []string
	for _, i := range file.Imports {
		if s, err := strconv.Unquote(i.Path.Value); err == nil {
			all = append(all, s)
		}
	}
	return all
}

func isTestName(name string) bool {
	for _, prefix := range []string{"Test", "Benchmark", "Fuzz"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && (rest == "" || !('a' <= rest[0] && rest[0] <= 'z')) {
			return true
		}
	}
	return false
}

func isExample(f *ast.FuncDecl) bool {
	return strings.HasPrefix(f.Name.Name, "Example") && f.Type.Params.NumFields() == 0
}
