package executor

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Language is one entry of the table: how it is recognised, what it needs, and how a request becomes a plan.
type Language struct {
	Name    string // as requests and results call it
	Title   string // as people write it
	Aliases []string
	// How a program is recognised.
	Extensions   []string // of file names, with the dot
	Interpreters []string // in a shebang
	Projects     []string // files that only a project of this language has
	// Source is what a piece of code is called that has no name.
	Source string
	// Mains are what starts a tree of files, the likeliest first.
	Mains []string
	// Indexes make an entry of the directory they lie in: python -m has __main__.py.
	Indexes []string
	// Directory: the tree itself is what is compiled; no file of it needs to be named.
	Directory bool
	// NamedEntry: what starts it may also be named as the language does, such as a class.
	NamedEntry bool
	// Toolchain is what it is called by pkg/toolchain; empty for a language that needs none.
	Toolchain string
	// Image is what it is run on where there is no toolchain here; empty is that of the table in images.go.
	Image string
	// Options are the names of the LanguageOptions that it understands.
	Options []string
	// Limits and Compile are defaults where the language needs other ones than all.
	Limits, Compile sandbox.Limits
	// Working is the memory that compiling an ordinary program takes, counted generously; 0 where nothing is compiled. See Executor.Weight.
	Working sandbox.Size

	// entry, if the language has it, is what the project itself says starts it; "" is nothing.
	entry func([]File) string
	// look, where there is one, tells the job what its plan has to know of the machine. It only reads.
	look func(context.Context, *job) error
	// plan is pure.
	plan   func(*job) error
	custom *custom // what a file says of it
}

// builtin is the table. A further language is one entry here, and one file.
func builtin() []*Language {
	return []*Language{
		&python, &typescript, &javascript, &golang, &rust, &java, &shell, &sqlite, &postgres,
	}
}

// Languages lists what this executor runs.
func (e *Executor) Languages() []*Language { return e.languages }

// Toolchain finds what a language is run by on this machine; nil for one that needs nothing. Its error says how to get what is missing.
func (e *Executor) Toolchain(ctx context.Context, l *Language) (*toolchain.Toolchain, error) {
	switch {
	case l.custom != nil:
		return e.opts.Toolchains.Custom(ctx, l.custom.toolchain)
	case l.Toolchain != "":
		return e.opts.Toolchains.Find(ctx, l.Toolchain)
	}
	return nil, nil
}

// lookUp finds a language by a name of its own, or says which ones there are.
func (e *Executor) lookUp(name string) (*Language, error) {
	wanted := strings.ToLower(strings.TrimSpace(name))
	for _, l := range e.languages {
		if l.Name == wanted || slices.Contains(l.Aliases, wanted) {
			return l, nil
		}
	}
	var near []string
	for _, l := range e.languages {
		for _, n := range append([]string{l.Name}, l.Aliases...) {
			if strings.HasPrefix(n, wanted) || nearest.Distance(n, wanted) <= 2 {
				near = append(near, n)
				break
			}
		}
	}
	err := &sandbox.Error{Op: "lang", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("unknown language %q; there are %s", name, strings.Join(languageNames(e.languages), ", "))}
	if wanted != "" && len(near) > 0 {
		err.Hint = "--lang " + strings.Join(near, ", or --lang ")
	}
	return nil, err
}

// detect finds out what language a program is in: by the name of its entry, its shebang, the files only one language's projects
// have, and at last by what its files are.
func (e *Executor) detect(files []File, entry string) (*Language, error) {
	if entry == "" && len(files) == 1 {
		entry = files[0].Path
	}
	if entry != "" {
		entry = path.Clean(entry)
		if l := e.byExtension(entry); l != nil {
			return l, nil
		}
		if f := find(files, entry); f != nil {
			if l := e.byShebang(f); l != nil {
				return l, nil
			}
		}
		for _, l := range e.languages {
			if l.index(files, entry) != "" {
				return l, nil
			}
		}
	}
	for _, l := range e.languages {
		// A project file alone is none: JavaScript may have a tsconfig.json, and every language a package.json for its tools.
		named := slices.ContainsFunc(l.Projects, func(p string) bool { return find(files, p) != nil })
		if named && slices.ContainsFunc(files, func(f File) bool { return l.owns(f.Path) && !foreign(f.Path) }) {
			return l, nil
		}
	}
	for _, l := range e.languages {
		for _, m := range l.Mains {
			if find(files, m) != nil {
				return l, nil
			}
		}
	}
	// What lies at the top counts first: below there may be anybody's.
	seen := e.languagesOf(files, func(p string) bool { return !strings.Contains(p, "/") })
	if len(seen) == 0 {
		seen = e.languagesOf(files, func(p string) bool { return !foreign(p) })
	}
	if len(seen) == 1 {
		return seen[0], nil
	}
	err := &sandbox.Error{Op: "lang", Kind: sandbox.ErrInvalid, Hint: "--lang python"}
	if len(seen) > 1 {
		err.Err = fmt.Errorf("which language starts this program? It has files of %s", strings.Join(languageNames(seen), ", "))
		err.Hint = "--entry FILE, or --lang " + seen[0].Name
	} else {
		err.Err = fmt.Errorf("nothing says which language this is in; there are %s", strings.Join(languageNames(e.languages), ", "))
	}
	return nil, err
}

// languagesOf lists the languages that files have the extensions of, in the order of the table.
func (e *Executor) languagesOf(files []File, counts func(string) bool) []*Language {
	found := map[*Language]bool{}
	for _, f := range files {
		if l := e.byExtension(f.Path); l != nil && counts(f.Path) {
			found[l] = true
		}
	}
	var all []*Language
	for _, l := range e.languages {
		if found[l] {
			all = append(all, l)
		}
	}
	return all
}

func languageNames(all []*Language) []string {
	names := make([]string, len(all))
	for i, l := range all {
		names[i] = l.Name
	}
	return names
}

// foreign reports whether a file was installed or is hidden, and so says nothing of the program.
func foreign(p string) bool {
	for _, part := range strings.Split(p, "/") {
		if part == "node_modules" || part == "vendor" || strings.HasPrefix(part, ".") {
			return true
		}
	}
	return false
}

// source is what a piece of code is called. Who says tsx means the syntax that is known by the file's name.
func (l *Language) source(asked string) string {
	if strings.EqualFold(strings.TrimSpace(asked), "tsx") {
		return "main.tsx"
	}
	return l.Source
}

// owns reports whether a file's name is one of the language's.
func (l *Language) owns(name string) bool {
	ext := strings.ToLower(path.Ext(name))
	return ext != "" && slices.Contains(l.Extensions, ext)
}

// index is the file that makes an entry of a directory, or "".
func (l *Language) index(files []File, dir string) string {
	for _, i := range l.Indexes {
		if p := path.Join(dir, i); find(files, p) != nil {
			return p
		}
	}
	return ""
}

func (e *Executor) byExtension(name string) *Language {
	for _, l := range e.languages {
		if l.owns(name) {
			return l
		}
	}
	return nil
}

func (e *Executor) byShebang(f *File) *Language {
	name := shebang(f)
	if name == "" {
		return nil
	}
	for _, l := range e.languages {
		if slices.Contains(l.Interpreters, name) || slices.Contains(l.Interpreters, strings.TrimRight(name, "0123456789.")) {
			return l
		}
	}
	return nil
}

// maxShebang is as much of a first line as the kernel reads.
const maxShebang = 256

// shebang is the interpreter that a file's first line names: for #!/usr/bin/env -S python3 -u it is python3.
func shebang(f *File) string {
	data, err := f.head(maxShebang)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return ""
	}
	for i, word := range strings.Fields(rest) {
		name := path.Base(word)
		if i == 0 && name != "env" {
			return name
		}
		if i == 0 || strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		return name
	}
	return ""
}

// findEntry decides which file of a tree starts it.
func findEntry(l *Language, files []File, asked string) (string, error) {
	if asked != "" {
		asked = path.Clean(asked)
		if find(files, asked) != nil || l.Directory && hasDirectory(files, asked) || l.index(files, asked) != "" || l.NamedEntry {
			return asked, nil
		}
		err := &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("there is no file %q in the program", asked)}
		if hasDirectory(files, asked) {
			err.Err = fmt.Errorf("directory %q has nothing that starts it", asked)
			if len(l.Indexes) > 0 {
				err.Err = fmt.Errorf("directory %q has none of %s", asked, strings.Join(l.Indexes, ", "))
			}
			err.Hint = "--entry FILE"
		}
		return "", err
	}
	if len(files) == 1 {
		return files[0].Path, nil
	}
	if l.Directory {
		return ".", nil
	}
	if l.entry != nil {
		if own := l.entry(files); own != "" {
			return own, nil
		}
	}
	for _, m := range l.Mains {
		if find(files, m) != nil {
			return m, nil
		}
	}
	var own, dirs []string
	for _, f := range files {
		dir, name := path.Split(f.Path)
		switch {
		case dir == "" && l.owns(name):
			own = append(own, f.Path)
		case strings.Count(dir, "/") == 1 && slices.Contains(l.Indexes, name) && !foreign(dir):
			dirs = append(dirs, path.Clean(dir))
		}
	}
	if len(own) == 1 {
		return own[0], nil
	}
	if len(own) == 0 && len(dirs) == 1 {
		return dirs[0], nil
	}
	err := &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Hint: "--entry FILE"}
	switch {
	case len(own) > 1:
		slices.Sort(own)
		err.Err = fmt.Errorf("which file starts this %s program? It has %s", l.Title, listed(own))
		err.Hint = "--entry " + own[0]
	case len(l.Mains) > 0:
		err.Err = fmt.Errorf("which file starts this %s program? There is none of %s", l.Title, strings.Join(l.Mains, ", "))
	default:
		err.Err = fmt.Errorf("which file starts this %s program?", l.Title)
	}
	return "", err
}

// listed names a few of many.
func listed(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func hasDirectory(files []File, dir string) bool {
	return slices.ContainsFunc(files, func(f File) bool { return strings.HasPrefix(f.Path, dir+"/") })
}
