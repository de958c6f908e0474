package template

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

//go:embed builtin
var builtin embed.FS

// Store finds templates: those of the user's directories, the first before the second, and then
// the built-in ones. It holds no file open and keeps nothing, so what changes on disk is seen.
type Store struct{ dirs []string }

// Open makes a Store. Directories that do not exist hold no templates.
func Open(dirs ...string) *Store { return &Store{dirs} }

// UserDir is where a user's templates are: $XDG_CONFIG_HOME/sandbox-run/templates, or what the
// system has instead.
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

// List names every template, by name, language and source; one that can not be read has a Problem.
func (s *Store) List() []Info {
	var all []Info
	for _, c := range s.candidates() {
		t, err := c.parse()
		info := Info{Name: c.name, Language: c.language, Source: c.source}
		if err == nil {
			info = t.Info
		} else {
			info.Problem = cause(err)
		}
		all = append(all, info)
	}
	// What is found first hides what is found later.
	var seen []Info
	for _, info := range all {
		hidden := false
		for i := range seen {
			if seen[i].Name == info.Name && seen[i].Language == info.Language {
				hidden = true
				if seen[i].Shadows == "" {
					seen[i].Shadows = info.Source
				}
			}
		}
		if !hidden {
			seen = append(seen, info)
		}
	}
	sort.SliceStable(seen, func(i, j int) bool {
		if seen[i].Name != seen[j].Name {
			return seen[i].Name < seen[j].Name
		}
		return seen[i].Language < seen[j].Language
	})
	return seen
}

// cause is an error without the file it names, where that is said anyway.
func cause(err error) string {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

// Get finds a template. Language may be empty where the name has one only.
func (s *Store) Get(name, language string) (*Template, error) {
	invalid := func(hint, format string, args ...any) error {
		return &sandbox.Error{Op: fmt.Sprintf("template %q", name), Kind: sandbox.ErrInvalid, Err: fmt.Errorf(format, args...), Hint: hint}
	}
	wanted := canonical(language)
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
		default:
			if !contains(others, got) {
				others = append(others, got)
				found = append(found, t)
			}
		}
	}
	sort.Strings(others)
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

// candidates are all files that may be templates, those that hide others first.
func (s *Store) candidates() []candidate {
	var all []candidate
	for _, dir := range s.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, candidate{name: filepath.Base(dir), source: dir, read: func() ([]byte, error) { return nil, err }})
		}
		for _, e := range entries {
			file := e.Name()
			if strings.HasPrefix(file, ".") || e.IsDir() || filepath.Ext(file) == "" {
				continue
			}
			path := filepath.Join(dir, file)
			all = append(all, candidate{strings.TrimSuffix(file, filepath.Ext(file)), languageOf(file), path, func() ([]byte, error) { return readFile(path) }})
		}
	}
	entries, err := builtin.ReadDir("builtin")
	if err != nil {
		return all // embedded: it is there
	}
	for _, e := range entries {
		if e.IsDir() { // parts of templates
			continue
		}
		file := "builtin/" + e.Name()
		// Their names end in .tmpl, or the Go tool would take some of them for its own.
		source := strings.TrimSuffix(e.Name(), ".tmpl")
		name := strings.TrimSuffix(source, filepath.Ext(source))
		all = append(all, candidate{name, languageOf(source), BuiltIn, func() ([]byte, error) { return readBuiltIn(file) }})
	}
	return all
}

// readFile reads a regular file, and of that no more than a template may have.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a FIFO would have us wait
		return nil, errors.New("no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxTemplate+1))
}

// includeMark in a built-in template stands for another embedded file: what the languages, or the
// two kinds of a language, have in common is written once.
const includeMark = "\n#include "

func readBuiltIn(file string) ([]byte, error) {
	data, err := builtin.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text := string(data)
	for {
		before, rest, ok := strings.Cut(text, includeMark)
		if !ok {
			return []byte(text), nil
		}
		name, after, _ := strings.Cut(rest, "\n")
		part, err := builtin.ReadFile("builtin/part/" + name + ".tmpl")
		if err != nil {
			return nil, err
		}
		text = before + "\n" + string(part) + after
	}
}
