package template

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

//go:embed builtin
var builtin embed.FS

// Store finds templates: those of the user's directories, the first before the second, and then the built-in ones. A Store holds no file
// open and keeps nothing, so it sees changes on disk.
type Store struct{ dirs []string }

// Open returns a Store. A missing directory has no templates.
func Open(dirs ...string) *Store { return &Store{dirs} }

// UserDir returns the directory of a user's templates: $XDG_CONFIG_HOME/sandbox-run/templates, or the system's equivalent.
func UserDir() (string, error) {
	config, err := os.UserConfigDir()
	if err != nil {
		return "", &sandbox.Error{Op: "templates", Err: err, Hint: "--dir"}
	}
	return filepath.Join(config, "sandbox-run", "templates"), nil
}

// candidate is a file that may be a template.
type candidate struct {
	name, language string
	source         string
	read           func() ([]byte, error)
}

// List returns every template, by name, language and source. A template that can not be read has a Problem.
func (s *Store) List() []Info {
	var found []Info
	for _, c := range s.candidates() {
		info := Info{Name: c.name, Language: c.language, Source: c.source}
		if t, err := c.parse(); err == nil {
			info = t.Info
		} else {
			info.Problem = err.Error()
			if e := (*sandbox.Error)(nil); errors.As(err, &e) && e.Err != nil {
				info.Problem = e.Err.Error() // the source is there already
			}
		}
		// A template that is found first hides those that are found later.
		i := slices.IndexFunc(found, func(f Info) bool { return f.Name == info.Name && f.Language == info.Language })
		if i < 0 {
			found = append(found, info)
		} else if found[i].Shadows == "" {
			found[i].Shadows = info.Source
		}
	}
	slices.SortFunc(found, func(a, b Info) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Language, b.Language)) })
	return found
}

// Get finds a template. Language may be empty if the name has only one.
func (s *Store) Get(name, language string) (*Template, error) {
	invalid := func(hint, format string, args ...any) error {
		return sandbox.Errorf(sandbox.ErrInvalid, fmt.Sprintf("template %q", name), hint, format, args...)
	}
	wanted := findLanguage(language).name
	var found []*Template
	var names, others []string
	for _, c := range s.candidates() {
		names = append(names, c.name)
		if c.name != name {
			continue
		}
		t, err := c.parse()
		got := c.language
		if err == nil {
			got = t.Language
		}
		switch {
		case wanted != "" && got != wanted:
			others = append(others, got)
		case err != nil:
			return nil, err
		case wanted != "":
			return t, nil
		case !slices.Contains(others, got):
			others = append(others, got)
			found = append(found, t)
		}
	}
	slices.Sort(others)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, invalid("--lang "+others[0], "there is one for each of: %s", strings.Join(others, ", "))
	case len(others) > 0:
		return nil, invalid("--lang "+others[0], "there is none for %s, only for: %s", language, strings.Join(others, ", "))
	}
	hint := "sandbox-run template list"
	if like := nearest.Word(name, names); like != "" {
		hint = like + ", or " + hint
	}
	return nil, invalid(hint, "no such template")
}

func (c candidate) parse() (*Template, error) {
	data, err := c.read()
	if err != nil {
		return nil, &sandbox.Error{Op: "template " + c.source, Err: err}
	}
	return Parse(c.name, c.language, c.source, string(data))
}

// candidates lists all files that may be templates, those that hide others first.
func (s *Store) candidates() []candidate {
	var all []candidate
	add := func(file, source string, read func() ([]byte, error)) {
		all = append(all, candidate{strings.TrimSuffix(file, filepath.Ext(file)), languageOf(file), source, read})
	}
	for _, dir := range s.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, candidate{name: filepath.Base(dir), source: dir, read: func() ([]byte, error) { return nil, err }})
		}
		for _, e := range entries {
			if file := e.Name(); !strings.HasPrefix(file, ".") && !e.IsDir() && filepath.Ext(file) != "" {
				path := filepath.Join(dir, file)
				add(file, path, func() ([]byte, error) { return readFile(path) })
			}
		}
	}
	entries, _ := builtin.ReadDir("builtin") // embedded: it is there
	for _, e := range entries {
		if !e.IsDir() { // harnesses and starters
			// The names end in .tmpl, or the Go tool would take some of the files for its own.
			add(strings.TrimSuffix(e.Name(), ".tmpl"), BuiltIn, func() ([]byte, error) { return readBuiltIn("builtin/" + e.Name()) })
		}
	}
	return all
}

// readFile reads a regular file, and of that no more than a template may have.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a FIFO would block
		return nil, errors.New("no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxTemplate+1))
}

// includeMark in a built-in template stands for a file of builtin/part: the harness that both templates of a language use. It is source
// code as it stands, without placeholders; the template adds the cases and the call of the snippet.
const includeMark = "\n#include "

func readBuiltIn(file string) ([]byte, error) {
	data, err := builtin.ReadFile(file)
	before, rest, ok := strings.Cut(string(data), includeMark)
	if err != nil || !ok {
		return data, err
	}
	name, after, _ := strings.Cut(rest, "\n")
	part, err := builtin.ReadFile("builtin/part/" + name)
	return []byte(before + "\n" + string(part) + after), err
}

// Create writes a commented starter into a directory, which it makes if there is none, and returns the file's name. It never overwrites a
// file.
func Create(dir, name, language string) (string, error) {
	l := findLanguage(language)
	if l.name == "" {
		return "", sandbox.Invalid("--lang", "a template needs a language: %s", strings.Join(languageNames(), ", "))
	}
	head, err := builtin.ReadFile("builtin/starter/head.tmpl")
	if err != nil {
		return "", err
	}
	body, err := builtin.ReadFile("builtin/starter/" + l.name + ".tmpl")
	if err != nil {
		return "", sandbox.Invalid(fmt.Sprintf("--lang %q", language), "no such language: %s; there are: %s",
			suggest([]string{language}, languageNames()), strings.Join(languageNames(), ", "))
	}
	if !isName(name, '_', '-') {
		return "", sandbox.Invalid(fmt.Sprintf("template %q", name), "a template's name is made of letters, digits, - and _")
	}
	path := filepath.Join(dir, name+"."+l.extension)
	failed := func(err error) (string, error) { return "", &sandbox.Error{Op: "template " + path, Err: err} }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failed(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return "", sandbox.Errorf(sandbox.ErrInvalid, "template "+path, "another name", "it is there already")
	}
	if err != nil {
		return failed(err)
	}
	_, err = fmt.Fprintf(f, string(head)+"%s", name, l.name, body)
	return path, errors.Join(err, f.Close())
}
