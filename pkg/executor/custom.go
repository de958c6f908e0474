package executor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/yamlite"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// custom is a language of a languages.yaml:
//
//	languages:
//	  - name: c                       # as --lang has it
//	    title: C                      # as people write it; by default the name
//	    aliases: [gcc]
//	    extensions: [.c]              # with the dot
//	    interpreters: [tcc]           # of a shebang
//	    source: main.c                # what a piece of code is called; by default main and the first extension
//	    compile: [gcc, -O2, -o, "{out}", "{files}"]
//	    run: ["{out}"]
//	    version: [gcc, --version]     # prints the version
//	    programs: [gcc, ld]           # that must be there, besides those that compile and run name
//	    paths: [~/.local/share/x]     # further ones of the host that it needs; shown read-only
//	    image: gcc:14                 # what it is run on where the programs are not there
//	    env: {LC_ALL: C}
//	    limits: {memory: 128m, timeout: 10s}
//	    compile_limits: {memory: 1g}
//
// {file} is the entry file, {files} all files with one of the extensions, {dir} their directory, {out} the output of the
// compiler: a file or a directory. Words are passed as arguments without a shell.
type custom struct {
	compile, run []string
	env          map[string]string
	toolchain    toolchain.Custom
}

// LanguagesFile returns the path of the user's languages.yaml; "" for a user without a configuration directory.
func LanguagesFile() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sandbox-run", "languages.yaml")
}

// LoadLanguages reads a languages.yaml, for Options.Languages. A missing file defines no languages.
func LoadLanguages(file string) ([]*Language, error) { return loadFile(file, parseLanguages) }

// LoadDefaultImages reads the images of languages from the same file, for Options.DefaultImages:
//
//	images: {python: "python:3.12-slim", rust: none}
func LoadDefaultImages(file string) (map[string]string, error) { return loadFile(file, parseImages) }

func loadFile[T any](file string, parse func([]byte) (T, error)) (found T, err error) {
	if file == "" {
		return found, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err == nil {
		found, err = parse(text)
	}
	if err != nil {
		return found, sandbox.Invalid("languages", "%s: %w", file, err)
	}
	return found, nil
}

func parseImages(text []byte) (map[string]string, error) {
	doc, err := yamlite.Decode(text)
	if err != nil {
		return nil, err
	}
	m, _ := doc.(yamlite.Map)
	for _, p := range m {
		if p.Key != "images" {
			continue
		}
		images, err := variables(p)
		if err != nil {
			return nil, fmt.Errorf("line %d: images: %w", p.Line, err)
		}
		return images, nil
	}
	return nil, nil
}

func parseLanguages(text []byte) ([]*Language, error) {
	doc, err := yamlite.Decode(text)
	if err != nil {
		return nil, err
	}
	if m, ok := doc.(yamlite.Map); ok {
		for _, p := range m {
			if p.Key != "languages" && p.Key != "images" {
				return nil, fmt.Errorf("line %d: %q where only languages and images belong", p.Line, p.Key)
			}
		}
		doc, _ = m.Get("languages")
	}
	list, ok := doc.([]any)
	if !ok && doc != nil {
		return nil, fmt.Errorf("%s where a list of languages belongs", yamlite.Kind(doc))
	}
	var all []*Language
	seen := map[string]bool{}
	for i, item := range list {
		m, ok := item.(yamlite.Map)
		if !ok {
			return nil, fmt.Errorf("language %d is %s, and must be a mapping", i+1, yamlite.Kind(item))
		}
		l, err := parseLanguage(m)
		if err != nil {
			return nil, err
		}
		for _, n := range append([]string{l.Name}, l.Aliases...) {
			if seen[n] {
				return nil, fmt.Errorf("line %d: there are two languages %q", m[0].Line, n)
			}
			seen[n] = true
		}
		all = append(all, l)
	}
	return all, nil
}

func parseLanguage(m yamlite.Map) (*Language, error) {
	c := &custom{}
	l := &Language{Plan: c.plan}
	fields := map[string]func(yamlite.Pair) error{
		"name": setText(&l.Name), "title": setText(&l.Title), "source": setText(&l.Source), "image": setText(&l.Image),
		"aliases": setTexts(&l.Aliases), "extensions": setTexts(&l.Extensions), "interpreters": setTexts(&l.Interpreters),
		"mains": setTexts(&l.Mains), "compile": setTexts(&c.compile), "run": setTexts(&c.run), "version": setTexts(&c.toolchain.VersionCommand),
		"programs": setTexts(&c.toolchain.Programs), "paths": setTexts(&c.toolchain.Paths),
		"env":    func(p yamlite.Pair) (err error) { c.env, err = variables(p); return err },
		"limits": setLimits(&l.Limits), "compile_limits": setLimits(&l.Compile),
	}
	for _, p := range m {
		set, err := fields[p.Key], errors.New("there is no such field; there are name, title, aliases, extensions, interpreters, mains, source, "+
			"compile, run, version, programs, paths, image, env, limits, compile_limits")
		if set != nil {
			err = set(p)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", p.Line, p.Key, err)
		}
	}
	if err := c.complete(l); err != nil {
		line := 0
		if len(m) > 0 {
			line = m[0].Line
		}
		return nil, fmt.Errorf("line %d: language %q: %w", line, l.Name, err)
	}
	return l, nil
}

// complete checks a custom language and sets its defaults.
func (c *custom) complete(l *Language) error {
	if l.Name == "" {
		return errors.New("it has no name")
	}
	for _, n := range append([]string{l.Name}, l.Aliases...) {
		if n != strings.ToLower(n) || strings.TrimSpace(n) != n || n == "" {
			return fmt.Errorf("name %q must be in lower case and without spaces", n)
		}
	}
	for i, e := range l.Extensions {
		if !strings.HasPrefix(e, ".") || len(e) < 2 || strings.ContainsAny(e, "/*") {
			return fmt.Errorf("extension %q is not one; write it like .c", e)
		}
		l.Extensions[i] = strings.ToLower(e)
	}
	if len(c.run) == 0 {
		return errors.New(`it has no run; write it like ["{out}"] or [lua, "{file}"]`)
	}
	for _, command := range [][]string{c.compile, c.run} {
		if err := checkCommand(command, len(c.compile) > 0); err != nil {
			return err
		}
	}
	if len(c.compile) > 0 && !slices.ContainsFunc(c.compile, func(w string) bool { return strings.Contains(w, "{out}") }) {
		return errors.New(`compile does not say {out}: where is what it makes?`)
	}
	l.Title = cmp.Or(l.Title, l.Name)
	if l.Source == "" {
		l.Source = "main"
		if len(l.Extensions) > 0 {
			l.Source += l.Extensions[0]
		}
	}
	if err := language.CheckName("source", l.Source); err != nil {
		return err
	}
	if len(l.Mains) == 0 {
		l.Mains = []string{l.Source}
	}
	c.toolchain.Name = l.Name
	for _, command := range [][]string{c.compile, c.run} {
		if len(command) > 0 && !strings.Contains(command[0], "{") && !slices.Contains(c.toolchain.Programs, command[0]) {
			c.toolchain.Programs = append(c.toolchain.Programs, command[0])
		}
	}
	if len(c.toolchain.Programs) == 0 {
		return errors.New("it names no program")
	}
	if len(c.compile) > 0 {
		l.Working = 512 * sandbox.MiB // an estimate
	}
	var err error
	if l.Toolchain, err = c.toolchain.Description(); err != nil {
		return err
	}
	l.Directory = slices.Contains(c.compile, "{files}") && !strings.Contains(strings.Join(slices.Concat(c.compile, c.run), " "), "{file}")
	return nil
}

// placeholders of commands.
var placeholders = []string{"{file}", "{files}", "{dir}", "{out}"}

func checkCommand(words []string, compiled bool) error {
	for i, w := range words {
		if w == "" && i == 0 {
			return errors.New("a command has no program")
		}
		rest := w
		for {
			_, after, ok := strings.Cut(rest, "{")
			if !ok {
				break
			}
			name, more, closed := strings.Cut(after, "}")
			switch p := "{" + name + "}"; {
			case !closed || !slices.Contains(placeholders, p):
				return fmt.Errorf("%q: there are only %s", w, strings.Join(placeholders, ", "))
			case p == "{files}" && w != p:
				return fmt.Errorf("%q: {files} is many words and must stand alone", w)
			case p == "{out}" && !compiled:
				return fmt.Errorf("%q: nothing is made without compile", w)
			}
			rest = more
		}
	}
	return nil
}

// customOut is the path of a custom compiler's output.
const customOut = sandbox.TmpDir + "/program"

func (c *custom) plan(j *language.Job) error {
	for k, v := range c.env {
		j.Setenv(k, v)
	}
	j.SetToolEnv()
	if j.Image != nil && len(c.toolchain.Paths) > 0 {
		j.Plan.Notes = append(j.Plan.Notes, "paths of this machine that "+j.Language.Title+" asks for are not shown on an image")
	}
	if len(c.compile) > 0 {
		j.AddCompile([]string{customOut}, fillCommand(j, c.compile)...)
	}
	j.AddRun(fillCommand(j, c.run)...)
	return nil
}

// fillCommand replaces the placeholders of a command, and its program by the toolchain's path.
func fillCommand(j *language.Job, words []string) []string {
	file := j.Inside(j.Entry)
	put := strings.NewReplacer("{file}", file, "{dir}", j.Dir, "{out}", customOut)
	var args []string
	for i, w := range words {
		switch {
		case w == "{files}":
			for _, f := range j.Files {
				if j.Language.Owns(f.Path) || f.Path == j.Entry {
					args = append(args, j.Inside(f.Path))
				}
			}
		case i == 0 && j.Tool.Programs[path.Base(w)] != "":
			args = append(args, j.Tool.Programs[path.Base(w)])
		default:
			args = append(args, put.Replace(w))
		}
	}
	return args
}

func setText(to *string) func(yamlite.Pair) error {
	return func(p yamlite.Pair) error {
		s, ok := p.Value.(string)
		if *to = s; !ok || s == "" || strings.ContainsRune(s, 0) {
			return fmt.Errorf("it is %s, and must be a text", yamlite.Kind(p.Value))
		}
		return nil
	}
}

func setTexts(to *[]string) func(yamlite.Pair) error {
	return func(p yamlite.Pair) error {
		list, ok := p.Value.([]any)
		if !ok {
			return fmt.Errorf("it is %s, and must be a list of texts; write it like [a, b]", yamlite.Kind(p.Value))
		}
		*to = make([]string, len(list))
		for i, item := range list {
			if (*to)[i], ok = asText(item); !ok {
				return fmt.Errorf("number %d of the list is %s, and must be a text", i+1, yamlite.Kind(item))
			}
		}
		return nil
	}
}

// asText returns a text, or the digits of a number.
func asText(v any) (string, bool) {
	if n, ok := v.(yamlite.Number); ok {
		return string(n), true
	}
	s, ok := v.(string)
	return s, ok
}

func variables(p yamlite.Pair) (map[string]string, error) {
	m, ok := p.Value.(yamlite.Map)
	if !ok {
		return nil, fmt.Errorf("it is %s, and must be a mapping of variables", yamlite.Kind(p.Value))
	}
	all := make(map[string]string, len(m))
	for _, v := range m {
		if all[v.Key], ok = asText(v.Value); !ok {
			return nil, fmt.Errorf("line %d: %s is %s, and must be a text", v.Line, v.Key, yamlite.Kind(v.Value))
		}
	}
	return all, nil
}

// setLimits reads limits in the form of results, with optional units.
func setLimits(to *sandbox.Limits) func(yamlite.Pair) error {
	return func(p yamlite.Pair) error {
		m, ok := p.Value.(yamlite.Map)
		if !ok {
			return fmt.Errorf("it is %s, and must be a mapping; write it like {memory: 128m, timeout: 10s}", yamlite.Kind(p.Value))
		}
		for _, field := range m {
			text, _ := asText(field.Value)
			row := sandbox.FindLimit(field.Key)
			if row == nil || row.Name != field.Key || text == "" {
				return fmt.Errorf("line %d: %s: %v is no such limit", field.Line, field.Key, field.Value)
			}
			if err := row.Parse(to, text); err != nil {
				return fmt.Errorf("line %d: %s: %v is no such limit: %w", field.Line, field.Key, field.Value, err)
			}
		}
		return nil
	}
}
