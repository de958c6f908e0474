package executor

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/golang"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/java"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/javascript"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/postgres"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/rust"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/shell"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/sql"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/typescript"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Language describes a language.
type Language = language.Language

// builtin is the table of languages. A new language is one line here, and its own directory below lang.
func builtin() []*Language {
	return []*Language{
		&python.Language,
		&typescript.Language,
		&javascript.Language,
		&golang.Language,
		&rust.Language,
		&java.Language,
		&shell.Language,
		&sql.Language,
		&postgres.Language,
	}
}

// BuiltinLanguages returns the names of the languages that need no languages.yaml.
func BuiltinLanguages() []string { return languageNames(builtin()) }

// ToolchainVariables returns the environment variables that select toolchains or change what they do.
func ToolchainVariables() []string {
	names := toolchain.CommonVariables()
	for _, l := range builtin() {
		if l.Toolchain != nil {
			names = append(names, l.Toolchain.Variables...)
		}
		names = append(names, l.Variables...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Languages returns the languages of this executor.
func (e *Executor) Languages() []*Language { return e.languages }

// Toolchain finds the toolchain of a language on this machine; nil for a language that needs none. Its error names the commands
// that install a missing one.
func (e *Executor) Toolchain(ctx context.Context, l *Language) (*toolchain.Toolchain, error) {
	if l.Toolchain == nil {
		return nil, nil
	}
	return e.opts.Toolchains.Find(ctx, l.Toolchain)
}

// lookUp finds a language by one of its names. Its error lists the languages.
func (e *Executor) lookUp(name string) (*Language, error) {
	wanted := strings.ToLower(strings.TrimSpace(name))
	for _, l := range e.languages {
		if l.Name == wanted || slices.Contains(l.Aliases, wanted) {
			return l, nil
		}
	}
	var near []string
	const longest = 40 // a longer name resembles none
	for _, l := range e.languages {
		if len(wanted) > longest {
			break
		}
		for _, n := range append([]string{l.Name}, l.Aliases...) {
			// Two letters of a short name are another name.
			if len(wanted) > 1 && strings.HasPrefix(n, wanted) || nearest.Distance(n, wanted) <= min(2, (len(wanted)-1)/2) {
				near = append(near, n)
				break
			}
		}
	}
	err := &sandbox.Error{Op: "lang", Kind: sandbox.ErrInvalid,
		Err: fmt.Errorf("unknown language %q; there are %s", name, strings.Join(languageNames(e.languages), ", "))}
	if wanted != "" && len(near) > 0 {
		err.Hint = "--lang " + strings.Join(near, ", or --lang ")
	} else {
		err.Hint = DefineLanguage
	}
	return nil, err
}

// DefineLanguage is the hint for a language that resembles none: languages.yaml is the file of the machine that runs the code.
const DefineLanguage = "define the language in languages.yaml (docs/guide/languages.md)"

// IsLanguage reports whether name is the name of a built-in language, or another name of one.
func IsLanguage(name string) bool {
	return slices.ContainsFunc(builtin(), func(l *Language) bool { return l.Name == name || slices.Contains(l.Aliases, name) })
}

// detect finds the language of a program: by the name of its entry, its shebang, files that only projects of one language have,
// and last by the extensions of its files.
func (e *Executor) detect(files []File, entry string, o LanguageOptions) (*Language, error) {
	if entry == "" && len(files) == 1 {
		entry = files[0].Path
	}
	if entry != "" {
		entry = path.Clean(entry)
		if l := e.byExtension(entry); l != nil {
			return l, nil
		}
		if f := language.Find(files, entry); f != nil {
			if l := e.byShebang(f); l != nil {
				return l, nil
			}
		}
		for _, l := range e.languages {
			if l.Index(files, entry) != "" {
				return l, nil
			}
		}
	}
	// Only a language with the requested options can start the program. If there is none, the refusal names the option.
	able := slices.DeleteFunc(slices.Clone(e.languages), func(l *Language) bool { return checkOptions(l, o) != nil })
	l, seen := e.detectByFiles(files, able)
	if l == nil && len(seen) == 0 && len(able) < len(e.languages) {
		l, seen = e.detectByFiles(files, e.languages)
	}
	if l != nil {
		return l, nil
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

// detectByFiles finds the language of a program among some: by its project files, its usual names, and the extensions of its files.
// If several languages are possible, it returns these instead.
func (e *Executor) detectByFiles(files []File, among []*Language) (_ *Language, seen []*Language) {
	for _, l := range among {
		// A project file alone does not decide: JavaScript may have a tsconfig.json, and every language a package.json for its tools.
		named := slices.ContainsFunc(l.Projects, func(p string) bool { return language.Find(files, p) != nil })
		if named && slices.ContainsFunc(files, func(f File) bool { return l.Owns(f.Path) && !foreign(f.Path) }) {
			return l, nil
		}
	}
	for _, l := range among {
		if language.FirstFile(files, "", l.Mains) != "" {
			return l, nil
		}
	}
	// Files at the top count first: files below may belong to installed packages.
	seen = e.languagesOf(files, among, func(p string) bool { return !strings.Contains(p, "/") })
	if len(seen) == 0 {
		seen = e.languagesOf(files, among, func(p string) bool { return !foreign(p) })
	}
	if len(seen) == 1 {
		return seen[0], nil
	}
	return nil, seen
}

// languagesOf lists those of some languages to which the extensions of files belong, in the order of the table.
func (e *Executor) languagesOf(files []File, among []*Language, counts func(string) bool) []*Language {
	found := map[*Language]bool{}
	for _, f := range files {
		if l := e.byExtension(f.Path); l != nil && counts(f.Path) {
			found[l] = true
		}
	}
	var all []*Language
	for _, l := range among {
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

// foreign reports whether a file is installed or hidden, and thus no evidence of the program's language.
func foreign(p string) bool {
	return slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool {
		return part == "node_modules" || part == "vendor" || strings.HasPrefix(part, ".")
	})
}

func (e *Executor) byExtension(name string) *Language {
	for _, l := range e.languages {
		if l.Owns(name) {
			return l
		}
	}
	return nil
}

func (e *Executor) byShebang(f *File) *Language {
	name := f.Interpreter()
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

// findEntry returns the file of a tree that starts the program. Tests and modules need none, and may be those of a directory.
func findEntry(l *Language, files []File, asked string, o *LanguageOptions) (string, error) {
	directory := l.Directory || o.Test || o.Module != ""
	if asked != "" {
		asked = path.Clean(asked)
		isFile, isDir := language.Find(files, asked) != nil, language.HasDirectory(files, asked)
		if isFile || directory && isDir || l.Index(files, asked) != "" || l.NamedEntry {
			return asked, nil
		}
		if l.FindEntry != nil && l.FindEntry(files, asked) != "" {
			return asked, nil
		}
		err := &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("there is no file %q in the program", asked)}
		if i := slices.IndexFunc(files, func(f File) bool { return l.Owns(f.Path) }); i >= 0 {
			err.Hint = "--entry " + sandbox.ShellQuote(files[i].Path)
		}
		if isDir {
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
	if directory {
		return ".", nil
	}
	if l.FindEntry != nil {
		if own := l.FindEntry(files, ""); own != "" {
			return own, nil
		}
	}
	if main := language.FirstFile(files, "", l.Mains); main != "" {
		return main, nil
	}
	var own, dirs []string
	for _, f := range files {
		dir, name := path.Split(f.Path)
		switch {
		case dir == "" && l.Owns(name):
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
		err.Err = fmt.Errorf("which file starts this %s program? It has %s", l.Title, language.Listed(own))
		err.Hint = "--entry " + own[0]
	case len(l.Mains) > 0:
		err.Err = fmt.Errorf("which file starts this %s program? There is none of %s", l.Title, strings.Join(l.Mains, ", "))
	default:
		err.Err = fmt.Errorf("which file starts this %s program?", l.Title)
	}
	return "", err
}
