package template

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Template is a parsed and checked template. It never changes; several goroutines may render it.
type Template struct {
	Info
	Text  string // the whole file, for show
	entry string
	files []fileNames
	root  *texttemplate.Template // with which the trees of all files and of each {{define}} are associated
}

// fileNames names the trees of one file that a template makes; its path may hold placeholders, too.
type fileNames struct{ path, body string }

// Info describes a template without its text.
type Info struct {
	Name        string     `json:"name"`
	Language    string     `json:"language"`
	Description string     `json:"description,omitempty"`
	Source      string     `json:"source"`            // "built-in", or the file
	Shadows     string     `json:"shadows,omitempty"` // the source of the template that this one hides
	Problem     string     `json:"problem,omitempty"` // the reason for which the file is no template
	Variables   []Variable `json:"variables,omitempty"`
}

// BuiltIn is the Source of templates in the executable.
const BuiltIn = "built-in"

// Variable is a variable of a template.
type Variable struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Default     any    `json:"default,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// Rendered is code to run.
type Rendered struct {
	Files    []File
	Entry    string // the file to run
	Language string
}

// File is one file of a Rendered; Path is relative, with slashes.
type File struct {
	Path string
	Data []byte
}

// maxTemplate is the size of the largest file of a template, in bytes.
const maxTemplate = 1 << 20

// Parse reads a template. Name and language come from its file name, unless the head has others.
func Parse(name, language, source, text string) (*Template, error) {
	t := &Template{Info: Info{Name: name, Language: findLanguage(language).name, Source: source}, Text: text}
	t.root = texttemplate.New("").Option("missingkey=error")
	if err := t.parse(); err != nil {
		if source == BuiltIn {
			source = name
		}
		return nil, &sandbox.Error{Op: "template " + source, Kind: sandbox.ErrInvalid, Err: err}
	}
	return t, nil
}

func (t *Template) parse() error {
	if len(t.Text) > maxTemplate {
		return fmt.Errorf("%d bytes are more than %d", len(t.Text), maxTemplate)
	}
	if !utf8.ValidString(t.Text) {
		return errors.New("the file is not UTF-8 text")
	}
	head, body, line, err := cutHead(t.Text)
	if err != nil {
		return err
	}
	name := t.Name
	if err := t.readHead(head); err != nil {
		return err
	}
	if t.Name != name {
		return fmt.Errorf("the head says name: %s, and the file is called %s", t.Name, name)
	}
	if t.Language == "" {
		return errors.New("the head names no language, and neither does the file's name")
	}
	used := map[string]bool{}
	if err := t.parseFiles(body, line, used); err != nil {
		return err
	}
	declared := t.variableNames()
	undeclared := slices.DeleteFunc(sortedKeys(used), func(name string) bool { return slices.Contains(declared, name) })
	if len(undeclared) > 0 {
		return fmt.Errorf("the body uses what the head does not declare: %s", suggest(undeclared, declared))
	}
	return nil
}

// parseFiles finds the files in the body: each begins at a line "-- PATH --". Without such a line the body is one file. The body is cut
// before it is rendered, so no variable can begin a file.
func (t *Template) parseFiles(body string, line int, used map[string]bool) error {
	main := t.entry
	if main == "" {
		main = "main." + findLanguage(t.Language).extension
	}
	name, start, at := "", 0, 0
	for l := range strings.Lines(body) {
		if marker, ok := fileMarker(l); ok {
			if name != "" {
				if err := t.parseFile(name, body[start:at], line+strings.Count(body[:start], "\n"), used); err != nil {
					return err
				}
			} else if strings.TrimSpace(body[:at]) != "" {
				return fmt.Errorf("line %d: text before the first file (-- %s --)", line, marker)
			}
			name, start = marker, at+len(l)
		}
		at += len(l)
	}
	if name == "" {
		name = main
		if strings.TrimSpace(body) == "" {
			return errors.New("the body is empty")
		}
	}
	return t.parseFile(name, body[start:], line+strings.Count(body[:start], "\n"), used)
}

func fileMarker(line string) (string, bool) {
	rest, begins := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "-- ")
	name, ends := strings.CutSuffix(rest, " --")
	name = strings.TrimSpace(name)
	return name, begins && ends && name != ""
}

func (t *Template) parseFile(path, body string, line int, used map[string]bool) error {
	number := len(t.files)
	names := fileNames{fmt.Sprintf("\x00path %d", number), fmt.Sprintf("\x00body %d", number)} // {{define}} makes no such names
	t.files = append(t.files, names)
	if err := t.parseText(names.path, path, 0, used); err != nil {
		return err
	}
	return t.parseText(names.body, body, line-1, used)
}

// parseText parses one text; a comment before it makes its line numbers those of the template's file.
func (t *Template) parseText(name, text string, linesBefore int, used map[string]bool) error {
	if err := checkNesting(text); err != nil {
		return err
	}
	if linesBefore > 0 {
		text = "{{/*" + strings.Repeat("\n", linesBefore) + "*/}}" + text
	}
	known := map[string]any{} // the parser looks for the keys only
	for name := range functions() {
		known[name] = true
	}
	for _, name := range builtinFunctions {
		known[name] = true
	}
	trees := map[string]*parse.Tree{}
	tree, err := parse.New(t.Name).Parse(text, "", "", trees, known)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	addChecks(tree.Root, true, used)
	for name, named := range trees {
		if named == tree {
			continue
		}
		if t.root.Lookup(name) != nil {
			return fmt.Errorf("template %q is defined twice", name)
		}
		addChecksToNamed(named)
		if _, err := t.root.AddParseTree(name, named); err != nil {
			return err
		}
	}
	_, err = t.root.AddParseTree(name, tree)
	return err
}

const maxActionDepth = 200

// checkNesting bounds the depth to which the parser calls itself: by blocks, and by brackets.
func checkNesting(text string) error {
	depth := 0
	for i, action := range strings.Split(text, "{{") {
		action, _, _ = strings.Cut(action, "}}")
		word := strings.TrimLeft(strings.TrimPrefix(action, "-"), " \t\r\n")
		opens := func(keyword string) bool { return strings.HasPrefix(word, keyword) }
		switch {
		case i == 0: // before the first action
			continue
		case slices.ContainsFunc([]string{"if", "with", "range", "define", "block"}, opens):
			depth++
		case opens("end"):
			depth--
		}
		if depth > maxActionDepth || strings.Count(action, "(") > maxActionDepth {
			return fmt.Errorf("blocks are nested more than %d deep", maxActionDepth)
		}
	}
	return nil
}

func (t *Template) variableNames() []string {
	names := make([]string, len(t.Variables))
	for i, v := range t.Variables {
		names[i] = v.Name
	}
	return names
}

// suggest lists names, each with the known name that was probably meant.
func suggest(names, known []string) string {
	out := slices.Clone(names)
	for i, name := range names {
		if like := nearest.Word(name, known); like != "" {
			out[i] += " (" + like + "?)"
		}
	}
	return strings.Join(out, ", ")
}

// Render fills the template in. The error names every variable that is missing or unknown.
func (t *Template) Render(vars map[string]any) (Rendered, error) {
	failed := func(err error, hint string) (Rendered, error) {
		return Rendered{}, &sandbox.Error{Op: "template " + t.Name, Kind: sandbox.ErrInvalid, Err: err, Hint: hint}
	}
	data, err := t.completeVariables(vars)
	if err != nil {
		return failed(err, "sandbox-run template show "+t.Name+" --lang "+t.Language)
	}
	out := Rendered{Language: t.Language, Entry: t.entry}
	root, err := t.root.Clone() // several goroutines may render the template, each with functions of its own
	if err != nil {
		return failed(err, "")
	}
	r := &rendering{language: t.Language}
	root.Funcs(r.functions())
	for _, f := range t.files {
		name, err := r.execute(root.Lookup(f.path), data)
		if err == nil {
			err = checkPath(name, out.Files)
		}
		var body string
		if err == nil {
			body, err = r.execute(root.Lookup(f.body), data)
		}
		if err != nil {
			return failed(err, "")
		}
		out.Files = append(out.Files, File{name, []byte(body)})
	}
	if out.Entry == "" {
		out.Entry = out.Files[0].Path
	}
	if !slices.ContainsFunc(out.Files, func(f File) bool { return f.Path == out.Entry }) {
		return failed(fmt.Errorf("entry %q is none of its files", out.Entry), "")
	}
	return out, nil
}

// checkPath refuses paths that lead elsewhere than beside the entry, and a second file of the same path.
func checkPath(name string, before []File) error {
	switch {
	case name == "" || path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../"):
		return fmt.Errorf("file %q: a path must be relative, without . and .. in it", name)
	case strings.ContainsAny(name, "\\\x00\n:"):
		return fmt.Errorf("file %q: a path must do without backslash, colon, line break and NUL", name)
	case slices.ContainsFunc(before, func(f File) bool { return f.Path == name }):
		return fmt.Errorf("file %q is made twice", name)
	}
	return nil
}

// completeVariables puts the given variables and the defaults together.
func (t *Template) completeVariables(vars map[string]any) (map[string]any, error) {
	var missing, problems []string
	data := make(map[string]any, len(t.Variables))
	for _, v := range t.Variables {
		given, ok := vars[v.Name]
		if !ok && v.Required {
			missing = append(missing, v.Name)
			continue
		}
		if !ok {
			given = v.Default
		}
		value, err := toData(given)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		data[v.Name] = value
	}
	known := t.variableNames()
	unknown := slices.DeleteFunc(sortedKeys(vars), func(name string) bool { return slices.Contains(known, name) })
	if missing != nil {
		problems = append(problems, "missing variables: "+strings.Join(missing, ", "))
	}
	if len(unknown) > 0 {
		problems = append(problems, "unknown variables: "+suggest(unknown, known))
	}
	if problems != nil {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return data, nil
}
