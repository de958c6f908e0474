package template

import (
	"bytes"
	"fmt"
	"path"
	"sort"
	"strings"
	"text/template/parse"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/internal/nearest"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Template is a template that was read and found to be in order. It never changes; several
// goroutines may render it.
type Template struct {
	Info
	Text  string // the whole file, for show
	entry string
	files []fileTemplate
	trees map[string]*parse.Tree // what {{define}} gave names to
}

// fileTemplate is one file a template makes; its path may hold placeholders, too.
type fileTemplate struct {
	path, body *parse.Tree
}

// Info says what a template is, without its text.
type Info struct {
	Name        string     `json:"name"`
	Language    string     `json:"language"`
	Description string     `json:"description,omitempty"`
	Source      string     `json:"source"`            // "built-in", or the file
	Shadows     string     `json:"shadows,omitempty"` // the source of the one that this hides
	Problem     string     `json:"problem,omitempty"` // why the file is no template
	Variables   []Variable `json:"variables,omitempty"`
}

// BuiltIn is the Source of templates that come with the executable.
const BuiltIn = "built-in"

// Variable is what a template asks for.
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

// File is one file of it; Path is relative, with slashes.
type File struct {
	Path string
	Data []byte
}

// maxTemplate is the most a template's file may have.
const maxTemplate = 1 << 20

// Parse reads a template. Name and language are those of its file, and hold where the head says
// nothing else.
func Parse(name, language, source, text string) (*Template, error) {
	wrong := func(err error) error {
		return &sandbox.Error{Op: "template " + source, Kind: sandbox.ErrInvalid, Err: err}
	}
	if source == BuiltIn {
		wrong = func(err error) error {
			return &sandbox.Error{Op: "template " + name, Kind: sandbox.ErrInvalid, Err: err}
		}
	}
	if len(text) > maxTemplate {
		return nil, wrong(fmt.Errorf("%d bytes are more than %d", len(text), maxTemplate))
	}
	if !utf8.ValidString(text) {
		return nil, wrong(fmt.Errorf("the file is not UTF-8 text"))
	}
	t := &Template{Info: Info{Name: name, Language: canonical(language), Source: source}, Text: text, trees: map[string]*parse.Tree{}}
	head, body, line, err := cutHead(text)
	if err != nil {
		return nil, wrong(err)
	}
	if err := t.readHead(head); err != nil {
		return nil, wrong(err)
	}
	if t.Name != name {
		return nil, wrong(fmt.Errorf("the head says name: %s, and the file is called %s", t.Name, name))
	}
	if t.Language == "" {
		return nil, wrong(fmt.Errorf("the head names no language, and neither does the file's name"))
	}
	if err := t.split(body, line); err != nil {
		return nil, wrong(err)
	}
	if err := t.checkFields(); err != nil {
		return nil, wrong(err)
	}
	return t, nil
}

// split finds the files in the body: each begins at a line "-- PATH --". Without such a line the
// body is one file. It is cut before it is rendered, so no variable can begin a file.
func (t *Template) split(body string, line int) error {
	main := t.entry
	if main == "" {
		main = "main." + extensionOf(t.Language)
	}
	name, start, at := "", 0, 0
	add := func(end int) error {
		text := body[start:end]
		if name == "" {
			if strings.TrimSpace(text) == "" || t.files != nil {
				return nil
			}
			name = main
		}
		return t.add(name, text, line+strings.Count(body[:start], "\n"))
	}
	for at < len(body) {
		end := len(body)
		if i := strings.IndexByte(body[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if marker, ok := fileMarker(body[at:end]); ok {
			if name == "" && strings.TrimSpace(body[:at]) != "" {
				return fmt.Errorf("line %d: text before the first file (-- %s --)", line, marker)
			}
			if name != "" {
				if err := add(at); err != nil {
					return err
				}
			}
			name, start = marker, end
		}
		at = end
	}
	if err := add(len(body)); err != nil {
		return err
	}
	if len(t.files) == 0 {
		return fmt.Errorf("the body is empty")
	}
	return nil
}

func fileMarker(line string) (string, bool) {
	line = strings.TrimRight(line, "\r\n")
	if len(line) < 7 || !strings.HasPrefix(line, "-- ") || !strings.HasSuffix(line, " --") {
		return "", false
	}
	name := strings.TrimSpace(line[3 : len(line)-3])
	return name, name != ""
}

// add parses one file; the empty comment makes line numbers those of the template's own file.
func (t *Template) add(name, text string, line int) error {
	pathTree, err := t.parse(name, 0)
	if err != nil {
		return err
	}
	body, err := t.parse(text, line-1)
	if err != nil {
		return err
	}
	t.files = append(t.files, fileTemplate{pathTree, body})
	return nil
}

const maxActionDepth = 200

func (t *Template) parse(text string, linesBefore int) (*parse.Tree, error) {
	if deep := nesting(text); deep > maxActionDepth {
		return nil, fmt.Errorf("blocks are nested more than %d deep", maxActionDepth)
	}
	if linesBefore > 0 {
		text = "{{/*" + strings.Repeat("\n", linesBefore) + "*/}}" + text
	}
	names := make(map[string]any, len(functions()))
	for name := range functions() {
		names[name] = true // the parser only asks whether there is one
	}
	tree := parse.New(t.Name)
	sets := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, "", "", sets, names); err != nil {
		return nil, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "template: "))
	}
	for name, defined := range sets {
		if name == t.Name {
			continue
		}
		if t.trees[name] != nil {
			return nil, fmt.Errorf("template %q is defined twice", name)
		}
		t.trees[name] = defined
	}
	return tree, nil
}

// nesting bounds the depth to which the parser calls itself: by blocks, and by brackets.
func nesting(text string) int {
	depth, most := 0, 0
	for {
		i := strings.Index(text, "{{")
		if i < 0 {
			return most
		}
		text = text[i+2:]
		action := text
		if end := strings.Index(text, "}}"); end >= 0 {
			action = text[:end]
		}
		word := strings.TrimLeft(strings.TrimPrefix(action, "-"), " \t\r\n")
		for _, opening := range []string{"if", "with", "range", "define", "block"} {
			if strings.HasPrefix(word, opening) {
				depth++
			}
		}
		if strings.HasPrefix(word, "else") { // else if is a block within
			depth++
			most = max(most, depth)
			depth--
		}
		if strings.HasPrefix(word, "end") {
			depth--
		}
		most = max(most, depth, strings.Count(action, "("))
	}
}

// checkFields finds what the body uses and the head does not declare, all of it at once.
func (t *Template) checkFields() error {
	declared := t.variableNames()
	unknown := map[string]bool{}
	for _, f := range t.files {
		rootFields(f.path.Root, true, unknown)
		rootFields(f.body.Root, true, unknown)
	}
	for _, name := range declared {
		delete(unknown, name)
	}
	if len(unknown) == 0 {
		return nil
	}
	names := make([]string, 0, len(unknown))
	for name := range unknown {
		names = append(names, name)
	}
	sort.Strings(names)
	return fmt.Errorf("the body uses what the head does not declare: %s", withNear(names, declared))
}

func (t *Template) variableNames() []string {
	names := make([]string, len(t.Variables))
	for i, v := range t.Variables {
		names[i] = v.Name
	}
	return names
}

// withNear lists names, each with the one that was probably meant.
func withNear(names, known []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = name
		if like := nearest.Word(name, known); like != "" {
			out[i] += " (" + like + "?)"
		}
	}
	return strings.Join(out, ", ")
}

// Render fills the template in. Every variable that is missing or unknown is named at once.
func (t *Template) Render(vars map[string]any) (Rendered, error) {
	op := "template " + t.Name
	data, err := t.data(vars)
	if err != nil {
		return Rendered{}, &sandbox.Error{Op: op, Kind: sandbox.ErrInvalid, Err: err, Hint: "sandbox-run template show " + t.Name + " --lang " + t.Language}
	}
	out := Rendered{Language: t.Language, Entry: t.entry}
	spent := &budget{maxSteps, MaxOutput}
	for _, f := range t.files {
		name, err := t.run(f.path, data, spent)
		if err == nil {
			err = checkPath(name, out.Files)
		}
		var body string
		if err == nil {
			body, err = t.run(f.body, data, spent)
		}
		if err != nil {
			return Rendered{}, &sandbox.Error{Op: op, Kind: sandbox.ErrInvalid, Err: err}
		}
		out.Files = append(out.Files, File{name, []byte(body)})
	}
	if out.Entry == "" {
		out.Entry = out.Files[0].Path
	}
	for _, f := range out.Files {
		if f.Path == out.Entry {
			return out, nil
		}
	}
	return Rendered{}, &sandbox.Error{Op: op, Kind: sandbox.ErrInvalid, Err: fmt.Errorf("entry %q is none of its files", out.Entry)}
}

func (t *Template) run(tree *parse.Tree, data map[string]any, spent *budget) (string, error) {
	m := &machine{trees: t.trees, language: t.Language, budget: spent}
	text, err := m.run(tree, data)
	if err != nil {
		// The position is of the text that was parsed, which has the lines of the template's file.
		where, _ := m.tree.ErrorContext(&parse.TextNode{NodeType: parse.NodeText, Pos: m.at})
		return "", fmt.Errorf("%s: %w", lineOnly(where), err)
	}
	return text, nil
}

// lineOnly turns NAME:LINE:COLUMN into "line LINE".
func lineOnly(where string) string {
	parts := strings.Split(where, ":")
	if len(parts) < 2 {
		return where
	}
	return "line " + parts[len(parts)-2]
}

// checkPath refuses to write anywhere but beside the entry, or one file twice.
func checkPath(name string, before []File) error {
	switch {
	case name == "" || path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../"):
		return fmt.Errorf("file %q: a path must be relative, without . and .. in it", name)
	case strings.ContainsAny(name, "\\\x00\n:"):
		return fmt.Errorf("file %q: a path must do without backslash, colon, line break and NUL", name)
	}
	for _, f := range before {
		if f.Path == name {
			return fmt.Errorf("file %q is made twice", name)
		}
	}
	return nil
}

// data puts the given variables and the defaults together.
func (t *Template) data(vars map[string]any) (map[string]any, error) {
	known := t.variableNames()
	var unknown, missing []string
	for name := range vars {
		if !contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	data := make(map[string]any, len(known))
	for _, v := range t.Variables {
		given, ok := vars[v.Name]
		switch {
		case ok:
		case v.Required:
			missing = append(missing, v.Name)
			continue
		default:
			given = v.Default
		}
		value, err := plain(given, 0)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		data[v.Name] = value
	}
	if unknown == nil && missing == nil {
		return data, nil
	}
	sort.Strings(unknown)
	var text bytes.Buffer
	if missing != nil {
		fmt.Fprintf(&text, "missing variables: %s", strings.Join(missing, ", "))
	}
	if unknown != nil {
		if missing != nil {
			text.WriteString("; ")
		}
		fmt.Fprintf(&text, "unknown variables: %s", withNear(unknown, known))
	}
	return nil, fmt.Errorf("%s", text.String())
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}
