package javascript

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// importScheme begins the specifiers that name a package with its version: import _ from "npm:lodash@4".
const importScheme = "npm:"

// maxSource bounds a file that is searched for imports.
const maxSource = 4 << 20

// npmImport is a specifier in a source: the text between its quotes is source[from:to].
type npmImport struct {
	from, to int
	text     string
}

// parse returns the package of a specifier, and the specifier as Node reads it: npm:@a/b@1/c is @a/b of version 1, and @a/b/c.
func (i npmImport) parse() (p spec, plain string, err error) {
	rest := strings.TrimPrefix(strings.TrimPrefix(i.text, importScheme), "/")
	at := 0
	if strings.HasPrefix(rest, "@") { // a scope
		at = strings.IndexByte(rest, '/') + 1
	}
	if end := strings.IndexByte(rest[at:], '/'); end >= 0 {
		rest, plain = rest[:at+end], rest[at+end:]
	}
	p, err = parseSpec(rest)
	return p, p.name + plain, err
}

// findImports returns the npm: specifiers of a source, in their order. It reads tokens and no grammar: where it takes a regular expression
// for a division, or the text of an element for code, it may be wrong until the end of the line.
func findImports(source []byte) (found []npmImport) {
	if !bytes.Contains(source, []byte(importScheme)) {
		return nil
	}
	s := scanner{text: source}
	if bytes.HasPrefix(source, []byte("#!")) {
		s.skipLine()
	}
	for s.at < len(source) {
		from, quoted := s.next()
		if quoted && bytes.HasPrefix(source[from:s.at-1], []byte(importScheme)) && s.imports() {
			found = append(found, npmImport{from, s.at - 1, string(source[from : s.at-1])})
		}
		if quoted {
			s.push(`"`)
		}
	}
	return found
}

// scanner splits a source into tokens.
type scanner struct {
	text   []byte
	at     int
	last   [4]string // tokens, the latest at the end; `"` stands for every literal
	braces []int     // open braces within each ${ that is open
}

func (s *scanner) push(token string) {
	copy(s.last[:], s.last[1:])
	s.last[len(s.last)-1] = token
}

// imports reports whether the tokens so far lead to the specifier of an import.
func (s *scanner) imports() bool {
	l := s.last
	switch {
	case l[3] == "from" || l[3] == "import":
		return l[2] != "."
	case l[3] != "(":
		return false
	case l[2] == "import" || l[2] == "require":
		return l[1] != "."
	}
	return l[2] == "resolve" && l[1] == "." && (l[0] == "require" || l[0] == "meta")
}

// next reads a token. For a string in one line, it returns where its content begins; the token's last byte is the quote.
func (s *scanner) next() (from int, quoted bool) {
	begin := s.at
	c := s.text[begin]
	s.at++
	switch {
	case c == ' ' || c == '\t' || c == '\r' || c == '\n':
	case isWord(c):
		for s.at < len(s.text) && isWord(s.text[s.at]) {
			s.at++
		}
		s.push(string(s.text[begin:s.at]))
	case c == '"' || c == '\'':
		return begin + 1, s.skipString(c)
	case c == '`':
		s.skipTemplate()
	case c == '/':
		s.skipSlash()
	case c == '{' && len(s.braces) > 0:
		s.braces[len(s.braces)-1]++
		s.push("{")
	case c == '}' && len(s.braces) > 0:
		last := len(s.braces) - 1
		if s.braces[last]--; s.braces[last] < 0 {
			s.braces = s.braces[:last]
			s.skipTemplate()
			break
		}
		s.push("}")
	default:
		s.push(string(c))
	}
	return 0, false
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// skipString skips the rest of a string, and reports whether it ends in this line and has no escapes.
func (s *scanner) skipString(quote byte) (plain bool) {
	plain = true
	for ; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case quote:
			s.at++
			return plain
		case '\\':
			plain = false
			s.at++
		case '\n':
			return false
		}
	}
	s.at = min(s.at, len(s.text))
	return false
}

// skipTemplate skips a template, or the rest of one, up to its end or its next ${.
func (s *scanner) skipTemplate() {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '\\':
			s.at++
		case c == '`':
			s.at++
			s.push(`"`)
			return
		case c == '$' && s.at+1 < len(s.text) && s.text[s.at+1] == '{':
			s.at += 2
			s.braces = append(s.braces, 0)
			s.push("{")
			return
		}
	}
	s.at = min(s.at, len(s.text))
}

// beforeExpression are words after which a slash begins a regular expression.
const beforeExpression = " return typeof case in of delete void throw new else do yield await instanceof "

// skipSlash skips a comment or a regular expression; otherwise the slash divides.
func (s *scanner) skipSlash() {
	rest := s.text[s.at:]
	switch {
	case bytes.HasPrefix(rest, []byte("/")):
		s.skipLine()
		return
	case bytes.HasPrefix(rest, []byte("*")):
		if end := bytes.Index(rest[1:], []byte("*/")); end >= 0 {
			s.at += 1 + end + len("*/")
			return
		}
		s.at = len(s.text)
		return
	}
	before := s.last[len(s.last)-1]
	divides := before == ")" || before == "]" || before == "}" || before == `"` ||
		before != "" && isWord(before[0]) && !strings.Contains(beforeExpression, " "+before+" ")
	if divides || !s.skipExpression() {
		s.push("/")
	}
}

// maxExpression bounds a regular expression: the search for the end of one is repeated at each slash.
const maxExpression = 1000

// skipExpression skips a regular expression, if one ends in this line.
func (s *scanner) skipExpression() bool {
	set := false // in brackets, where a slash is an ordinary character
	for at := s.at; at < min(len(s.text), s.at+maxExpression) && s.text[at] != '\n'; at++ {
		switch c := s.text[at]; {
		case c == '\\':
			at++
		case c == '[':
			set = true
		case c == ']':
			set = false
		case c == '/' && !set:
			s.at = at + 1
			s.push(`"`)
			return true
		}
	}
	return false
}

func (s *scanner) skipLine() {
	if end := bytes.IndexByte(s.text[s.at:], '\n'); end >= 0 {
		s.at += end
		return
	}
	s.at = len(s.text)
}

// isSource reports whether a file of the program may have imports.
func isSource(j *language.Job, name string) bool {
	return (name == j.Entry || slices.Contains([]string{".js", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".jsx"}, path.Ext(name))) &&
		!slices.Contains(strings.Split(name, "/"), modulesDir)
}

// importsOf returns the content of a file and its npm: specifiers; none for a file that can have none.
func importsOf(j *language.Job, f *language.File) (text []byte, found []npmImport, err error) {
	if f.Link != "" || !isSource(j, f.Path) {
		return nil, nil, nil
	}
	if text, err = f.Head(maxSource + 1); err != nil || len(text) > maxSource {
		return nil, nil, err
	}
	return text, findImports(text), nil
}

// addImports adds the packages that the sources import by npm: specifiers.
func (d *declared) addImports(j *language.Job) error {
	for i := range j.Files {
		f := &j.Files[i]
		text, found, err := importsOf(j, f)
		if err != nil {
			return err
		}
		line, counted := 1, 0
		for _, n := range found {
			line += bytes.Count(text[counted:n.from], []byte("\n"))
			counted = n.from
			by := fmt.Sprintf("%s, line %d", f.Path, line)
			p, _, err := n.parse()
			if err == nil {
				err = d.add(p, by)
			}
			if err != nil {
				return sandbox.Invalid("files", "%s: %w", by, err)
			}
		}
	}
	return nil
}

// plainImports replaces the npm: specifiers of the program by those that Node reads. Blanks behind the quotes keep all columns.
func plainImports(j *language.Job) error {
	files := slices.Clone(j.Files) // the request keeps its own
	for i := range files {
		text, found, err := importsOf(j, &files[i])
		if err != nil {
			return err
		}
		var made []byte
		done := 0
		for _, n := range found {
			_, plain, err := n.parse()
			if err != nil {
				continue // Node reports it
			}
			quote := string(text[n.to : n.to+1])
			made = append(append(append(made, text[done:n.from]...), plain+quote...), bytes.Repeat([]byte(" "), n.to-n.from-len(plain))...)
			done = n.to + 1
		}
		if done > 0 {
			files[i].Data, files[i].Open = append(made, text[done:]...), nil
		}
	}
	j.Files = files
	return nil
}
