package executor

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
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
	// Directory: the tree itself is what is compiled; no file of it needs to be named.
	Directory bool
	// NamedEntry: what starts it may also be named as the language does, such as a class.
	NamedEntry bool
	// Toolchain is what it is called by pkg/toolchain; empty for a language that needs none.
	Toolchain string
	// Options are the names of the LanguageOptions that it understands.
	Options []string
	// Limits and Compile are defaults where the language needs other ones than all.
	Limits, Compile sandbox.Limits

	plan func(*job) error
	// look, where there is one, tells the job what its plan has to know of the machine. It only reads.
	look func(context.Context, *job) error
}

// builtin is the table. A further language is one entry here, and one file.
func builtin() []*Language {
	return []*Language{
		&python,
		&golang,
		&rust,
		&java,
	}
}

// Languages lists what this executor runs.
func (e *Executor) Languages() []*Language { return e.languages }

// lookUp finds a language by a name of its own, or says which ones there are.
func (e *Executor) lookUp(name string) (*Language, error) {
	wanted := strings.ToLower(strings.TrimSpace(name))
	for _, l := range e.languages {
		if l.Name == wanted || slices.Contains(l.Aliases, wanted) {
			return l, nil
		}
	}
	var all, near []string
	for _, l := range e.languages {
		all = append(all, l.Name)
		for _, n := range append([]string{l.Name}, l.Aliases...) {
			if strings.HasPrefix(n, wanted) || nearest.Distance(n, wanted) <= 2 {
				near = append(near, n)
				break
			}
		}
	}
	err := &sandbox.Error{Op: "lang", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("unknown language %q; there are %s", name, strings.Join(all, ", "))}
	if wanted != "" && len(near) > 0 {
		err.Hint = "--lang " + strings.Join(near, ", or --lang ")
	}
	return nil, err
}

// detect finds out what language a program is in: by the name of its entry, its shebang, the files only one language's projects
// have, and at last by what most of its files are.
func (e *Executor) detect(files []File, entry string) (*Language, error) {
	if entry == "" && len(files) == 1 {
		entry = files[0].Path
	}
	if entry != "" {
		if l := e.byExtension(entry); l != nil {
			return l, nil
		}
		if f := find(files, entry); f != nil {
			if l := e.byShebang(f); l != nil {
				return l, nil
			}
		}
	}
	for _, l := range e.languages {
		for _, p := range l.Projects {
			if find(files, p) != nil {
				return l, nil
			}
		}
	}
	for _, l := range e.languages {
		for _, m := range l.Mains {
			if find(files, m) != nil {
				return l, nil
			}
		}
	}
	counts := map[*Language]int{}
	var most *Language
	for _, f := range files {
		if l := e.byExtension(f.Path); l != nil && !strings.Contains(f.Path, "/") {
			if counts[l]++; most == nil || counts[l] > counts[most] {
				most = l
			}
		}
	}
	if most != nil && len(counts) == 1 {
		return most, nil
	}
	names := make([]string, 0, len(e.languages))
	for _, l := range e.languages {
		names = append(names, l.Name)
	}
	return nil, &sandbox.Error{
		Op: "lang", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("nothing says which language this is in; there are %s", strings.Join(names, ", ")),
		Hint: "--lang python",
	}
}

func (e *Executor) byExtension(name string) *Language {
	ext := strings.ToLower(path.Ext(name))
	for _, l := range e.languages {
		if ext != "" && slices.Contains(l.Extensions, ext) {
			return l
		}
	}
	return nil
}

// byShebang reads the first line: #!/usr/bin/env -S python3 -u names python3.
func (e *Executor) byShebang(f *File) *Language {
	data, err := f.content()
	if err != nil {
		return nil
	}
	line, _, _ := strings.Cut(string(data[:min(len(data), 256)]), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return nil
	}
	for _, word := range strings.Fields(rest) {
		name := path.Base(word)
		if name == "env" || strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		for _, l := range e.languages {
			if slices.Contains(l.Interpreters, name) || slices.Contains(l.Interpreters, strings.TrimRight(name, "0123456789.")) {
				return l
			}
		}
		return nil
	}
	return nil
}

// findEntry decides which file of a tree starts it.
func findEntry(l *Language, files []File, asked string) (string, error) {
	if asked != "" {
		asked = path.Clean(asked)
		if find(files, asked) != nil || l.Directory && hasDirectory(files, asked) || l.NamedEntry {
			return asked, nil
		}
		return "", &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("there is no file %q in the program", asked)}
	}
	if len(files) == 1 {
		return files[0].Path, nil
	}
	if l.Directory {
		return ".", nil
	}
	for _, m := range l.Mains {
		if find(files, m) != nil {
			return m, nil
		}
	}
	var own []string
	for _, f := range files {
		if slices.Contains(l.Extensions, path.Ext(f.Path)) && !strings.Contains(f.Path, "/") {
			own = append(own, f.Path)
		}
	}
	if len(own) == 1 {
		return own[0], nil
	}
	return "", &sandbox.Error{
		Op: "entry", Kind: sandbox.ErrInvalid,
		Err:  fmt.Errorf("which file starts this %s program? There is none of %s", l.Title, strings.Join(l.Mains, ", ")),
		Hint: "--entry FILE",
	}
}

func hasDirectory(files []File, dir string) bool {
	return slices.ContainsFunc(files, func(f File) bool { return strings.HasPrefix(f.Path, dir+"/") })
}
