package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/internal/ignore"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The maximum size of a directory with a program, and of a file that the selection reads.
const (
	maxTreeFiles  = 100_000
	maxTreeBytes  = 256 * sandbox.MiB
	maxIgnoreFile = ignore.MaxSize
)

// selection decides which entries of a directory are copied. The first that applies decides: --include; --exclude; the built-in rules;
// .sandboxignore; .gitignore.
type selection struct {
	include, exclude ignore.Patterns
	isData           bool // .gitignore and .sandboxignore do not count, and contents are read when they are copied into the sandbox
}

// builtinRules leave out what tools write beside a program: the data of version control, environments, caches. Further ones are in
// tree.breaksRule.
const builtinRules = `
.git
.hg
.svn
.venv/
.tox/
.nox/
.gradle/
__pycache__/
**/node_modules/.cache/
`

// The reasons for which entries are left out, beside flags and facts.
const (
	builtinRule = "a built-in rule"
	gitIgnore   = ".gitignore"
	ownIgnore   = ".sandboxignore"
)

// readPatterns reads the values of --include or --exclude.
func readPatterns(flag string, values []string) (all ignore.Patterns, err error) {
	for _, v := range values {
		one := ignore.Parse(v)
		if len(one) != 1 || v[0] == '!' {
			return nil, sandbox.Invalid(flag, "%q is no pattern of .gitignore; write it like data/, *.log or /build", v)
		}
		all = append(all, one...)
	}
	return all, nil
}

// leftOut is an entry of a directory that is not copied.
type leftOut struct {
	path  string
	why   string // an ignore file, a flag, or a fact
	isBad bool   // it can not be copied: a link that leads out, a socket
}

// maxLeftOut bounds the list of entries that are not copied.
const maxLeftOut = 1000

// tree reads the files of a directory and never leaves it. It copies the target of a link that is inside, and leaves out other links.
// Below node_modules links stay links, because package managers build on them.
type tree struct {
	selection
	root  *os.Root
	name  string // of the directory, in messages
	files []executor.File
	bytes sandbox.Size
	above []fs.FileInfo // the directories above the current file
	left  []leftOut
	rules ignore.Patterns // built in
	named []string        // paths that the project names as its entry: .gitignore does not leave them out
}

// scope is how the entries of one directory are judged.
type scope struct {
	git, own *ignore.Level
	included bool   // --include names the directory, or one above it
	only     string // the directory is left out for this reason, and --include names entries below it
	packages bool   // installed packages, which .gitignore is not about
}

// readDirectory reads the program of a directory into memory. Later changes of the directory do not affect the run.
func (s *source) readDirectory(dir string) error {
	t := &tree{name: dir, selection: s.selected, named: []string{path.Clean(s.entry)}}
	if err := t.readRoot(dir); err != nil {
		return err
	}
	defer t.root.Close()
	if len(t.files) == 0 {
		if len(t.left) > 0 {
			first := t.left[0]
			return &sandbox.Error{Op: "read " + dir, Kind: sandbox.ErrInvalid, Hint: "--include " + sandbox.ShellQuote(first.path),
				Err: fmt.Errorf("all its files are left out, such as %s by %s", first.path, first.why)}
		}
		return t.pathError(".", errors.New("there are no files in it"))
	}
	s.files, s.left = t.files, t.left
	//nolint:forbidigo // the directory that the user has named; a volume of it is opened without links
	if real, err := filepath.EvalSymlinks(absoluteName(dir)); err == nil {
		s.hostDir = real
	}
	return nil
}

func (t *tree) readRoot(dir string) (err error) {
	if t.root, err = os.OpenRoot(dir); err != nil {
		return unreadableError(dir, err)
	}
	t.rules = ignore.Parse(builtinRules)
	if !t.isData {
		t.named = append(t.named, t.namedByPackage()...)
	}
	if err := t.readDirectory(t.root, ".", scope{}); err != nil {
		_ = t.root.Close()
		return err
	}
	return nil
}

// namedByPackage returns the paths that package.json names as the start of the program.
func (t *tree) namedByPackage() []string {
	var p struct {
		Main    string
		Scripts struct{ Start string }
	}
	text, err := t.readSmall(t.root, "package.json")
	if err != nil || json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	names := append(strings.Fields(p.Scripts.Start), p.Main)
	for i := range names {
		names[i] = path.Clean(names[i])
	}
	return names
}

// readSmall reads the beginning of a regular file of a directory. Of another entry it reads nothing.
func (t *tree) readSmall(dir *os.Root, name string) (string, error) {
	if st, err := dir.Lstat(name); err != nil || !st.Mode().IsRegular() {
		return "", err
	}
	f, err := t.openFile(dir, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile+1))
	return string(text), err
}

// readDirectory reads a directory that is opened as dir and has the path rel.
func (t *tree) readDirectory(dir *os.Root, rel string, in scope) error {
	d, err := dir.Open(".")
	if err != nil {
		return t.pathError(rel, err)
	}
	self, err := d.Stat()
	var entries []fs.DirEntry
	if err == nil {
		entries, err = d.ReadDir(-1)
	}
	_ = d.Close() // the directories above stay open, one descriptor each
	if err != nil {
		return t.pathError(rel, err)
	}
	if slices.ContainsFunc(t.above, func(above fs.FileInfo) bool { return os.SameFile(above, self) }) {
		t.leaveOut(leftOut{rel, "a link to a directory that it lies in", true})
		return nil
	}
	t.above = append(t.above, self)
	defer func() { t.above = t.above[:len(t.above)-1] }()
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	if rel != "." && !in.included && (hasEntry(entries, "pyvenv.cfg") || hasEntry(entries, "CACHEDIR.TAG")) {
		t.leaveOut(leftOut{rel, builtinRule, false})
		return nil
	}
	if !t.isData && in.only == "" {
		if in, err = t.readIgnoreFiles(dir, rel, entries, in); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := t.readEntry(dir, path.Join(rel, e.Name()), e.Type(), entries, in); err != nil {
			return err
		}
	}
	return nil
}

func hasEntry(entries []fs.DirEntry, names ...string) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return slices.Contains(names, e.Name()) })
}

// readIgnoreFiles adds the ignore files of a directory to its scope.
func (t *tree) readIgnoreFiles(dir *os.Root, rel string, entries []fs.DirEntry, in scope) (scope, error) {
	for _, file := range []struct {
		name  string
		level **ignore.Level
	}{{gitIgnore, &in.git}, {ownIgnore, &in.own}} {
		if !hasEntry(entries, file.name) || in.packages && file.name == gitIgnore {
			continue
		}
		text, err := t.readSmall(dir, file.name) // git does not follow links, either
		if err == nil {
			*file.level, err = (*file.level).Below(rel, text)
		}
		if err != nil {
			return in, t.pathError(path.Join(rel, file.name), err)
		}
	}
	return in, nil
}

// judge decides about an entry: why is empty if it is copied. below is the scope of its own entries.
func (t *tree) judge(p string, isDir bool, siblings []fs.DirEntry, in scope) (below scope, why string) {
	below = in
	below.packages = in.packages || isPackageDir(path.Base(p))
	switch {
	case t.include.Match(p, isDir) == ignore.Matched:
		below.included, below.only = true, ""
		return below, ""
	case t.exclude.Match(p, isDir) == ignore.Matched:
		why = "--exclude"
	case in.included:
	case in.only != "":
		why = in.only
	default:
		why = t.leavesOut(p, isDir, siblings, in)
	}
	if why != "" && isDir && t.include.MayMatchBelow(p) {
		below.included, below.only, why = false, why, ""
	}
	return below, why
}

// leavesOut returns the rule or the ignore file that leaves out an entry; "" for none.
func (t *tree) leavesOut(p string, isDir bool, siblings []fs.DirEntry, in scope) string {
	isTarget := isDir && path.Base(p) == "target" && hasEntry(siblings, "Cargo.toml", "pom.xml", "build.sbt")
	if isTarget || t.rules.Match(p, isDir) == ignore.Matched {
		return builtinRule
	}
	switch in.own.Match(p, isDir) {
	case ignore.Matched:
		return ownIgnore
	case ignore.Negated:
		return ""
	}
	isNamed := slices.ContainsFunc(t.named, func(n string) bool { return n == p || strings.HasPrefix(n, p+"/") })
	if !in.packages && !isPackageDir(path.Base(p)) && !isNamed && in.git.Match(p, isDir) == ignore.Matched {
		return gitIgnore
	}
	return ""
}

// isPackageDir reports whether a directory has installed packages. Programs need them, and ignore files usually name them.
func isPackageDir(name string) bool { return name == "node_modules" || name == "vendor" }

func (t *tree) leaveOut(l leftOut) {
	if len(t.left) < maxLeftOut {
		t.left = append(t.left, l)
	}
}

func (t *tree) readEntry(dir *os.Root, rel string, kind fs.FileMode, siblings []fs.DirEntry, in scope) error {
	isLink := kind&fs.ModeSymlink != 0
	var broken error
	if isLink {
		var st fs.FileInfo
		if st, broken = t.root.Stat(rel); broken == nil {
			kind = st.Mode().Type()
		}
	}
	below, why := t.judge(rel, kind.IsDir(), siblings, in)
	switch {
	case why != "":
		t.leaveOut(leftOut{rel, why, false})
		return nil
	case !utf8.ValidString(rel): // a sandbox has no file of such a name: plans, results and the HTTP API are JSON
		t.leaveOut(leftOut{rel, "its name is not UTF-8", true})
		return nil
	case broken != nil:
		t.leaveOut(leftOut{rel, "a link that leads to nothing in the directory", true})
		return nil
	case isLink && strings.Contains("/"+rel, "/node_modules/"):
		return t.readLink(rel)
	case kind.IsDir():
		sub, err := t.openDirectory(dir, rel, isLink)
		if err != nil {
			return t.pathError(rel, err)
		}
		defer sub.Close()
		return t.readDirectory(sub, rel, below)
	case kind.IsRegular():
		return t.readFile(dir, rel, isLink)
	}
	t.leaveOut(leftOut{rel, "neither a file nor a directory", true})
	return nil
}

// openDirectory opens a directory by its name in dir: a path would be resolved from the top. The target of a link may be elsewhere.
func (t *tree) openDirectory(dir *os.Root, rel string, isLink bool) (*os.Root, error) {
	if isLink {
		return t.root.OpenRoot(rel)
	}
	return dir.OpenRoot(path.Base(rel))
}

// readLink adds a link as it is.
func (t *tree) readLink(rel string) error {
	target, err := t.root.Readlink(rel)
	if err != nil {
		return t.pathError(rel, err)
	}
	if path.IsAbs(target) || !fs.ValidPath(path.Join(path.Dir(rel), target)) {
		t.leaveOut(leftOut{rel, "a link that leads out of the directory", true})
		return nil
	}
	return t.add(executor.File{Path: rel, Link: target})
}

func (t *tree) readFile(dir *os.Root, rel string, isLink bool) error {
	open := func() (*os.File, error) { return t.openFile(dir, path.Base(rel)) }
	if isLink {
		open = func() (*os.File, error) { return t.openFile(t.root, rel) }
	}
	f, err := open()
	if err != nil {
		return t.pathError(rel, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return t.pathError(rel, err)
	}
	if !st.Mode().IsRegular() {
		return t.pathError(rel, errors.New("it is no regular file any more"))
	}
	file := executor.File{Path: rel, Mode: st.Mode().Perm()}
	if t.isData {
		file.Open = func() (io.ReadCloser, error) { return t.openFile(t.root, rel) }
		return t.add(file)
	}
	if t.bytes += sandbox.Size(st.Size()); t.bytes > maxTreeBytes {
		return t.tooLargeError("more than "+maxTreeBytes.String(), rel, sandbox.Size(st.Size()))
	}
	// The file may grow meanwhile; no more than the counted size is read.
	file.Data = make([]byte, st.Size())
	n, err := io.ReadFull(f, file.Data)
	if file.Data = file.Data[:n]; err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return t.pathError(rel, err)
	}
	return t.add(file)
}

func (t *tree) add(f executor.File) error {
	if len(t.files) == maxTreeFiles {
		return t.tooLargeError(fmt.Sprintf("more than %d files", maxTreeFiles), f.Path, 0)
	}
	t.files = append(t.files, f)
	return nil
}

// openFile opens a file. It does not block if a pipe has replaced the file.
func (t *tree) openFile(dir *os.Root, name string) (*os.File, error) {
	return dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// tooLargeError names the deepest entry with most of the bytes or, for a size of 0, of the files, up to the file that did not fit.
func (t *tree) tooLargeError(what, last string, size sandbox.Size) error {
	type usage struct {
		files int
		bytes sandbox.Size
	}
	all := map[string]usage{}
	add := func(p string, size sandbox.Size) {
		for p != "." {
			u := all[p]
			all[p] = usage{u.files + 1, u.bytes + size}
			p = path.Dir(p)
		}
	}
	for _, f := range t.files {
		add(f.Path, sandbox.Size(len(f.Data)))
	}
	add(last, size)
	most := ""
	for _, p := range slices.Sorted(maps.Keys(all)) { // a directory comes before its entries
		u := all[p]
		isMost := 2*u.bytes > t.bytes
		if size == 0 {
			isMost = 2*u.files > len(t.files)
		}
		if isMost && (most == "" || strings.HasPrefix(p, most+"/")) {
			most = p
		}
	}
	err := &sandbox.Error{
		Op: "read " + t.name, Kind: sandbox.ErrInvalid, Err: fmt.Errorf("it holds %s", what),
		Hint: "the directory of the program alone; --volume shows the rest",
	}
	if u := all[most]; most != "" {
		err.Err = fmt.Errorf("it holds %s, most of it in %s (files: %d, %s)", what, most, u.files, u.bytes)
		err.Hint = fmt.Sprintf("--exclude %s; --volume, if the program needs it", sandbox.ShellQuote("/"+most))
	}
	return err
}

func (t *tree) pathError(rel string, err error) error {
	e := &sandbox.Error{Op: "read " + filepath.Join(t.name, rel), Kind: sandbox.ErrInvalid, Err: plainPathError(err)}
	if rel != "." && errors.Is(err, fs.ErrPermission) {
		e.Hint = "--exclude " + sandbox.ShellQuote("/"+rel)
	}
	return e
}

// noteLeftOut describes the entries that are not copied, or only those that could not be; "" if there are none.
func noteLeftOut(left []leftOut, all bool) string {
	var names []string
	for _, l := range left {
		if all || l.isBad {
			names = append(names, fmt.Sprintf("%s (%s)", l.path, l.why))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "left out of the sandbox: " + language.Listed(names)
}
