package javasource

import "slices"

// Kind is the kind of a piece.
type Kind int

// The kinds of pieces.
const (
	Statement Kind = iota
	Variable       // a declaration of variables
	Member         // a method or a type
	Import
)

// Piece is a statement or declaration outside of classes.
type Piece struct {
	Kind       Kind
	Before     int // offset of the space and comments before it
	Start, End int // offsets of its text
	Words      []string
	Modifiers  int      // how many of Words are modifiers
	Names      []string // of variables
}

// modifiers may stand before a declaration.
var modifiers = []string{
	"public", "protected", "private", "static", "final", "abstract", "synchronized", "native", "strictfp", "default", "sealed", "transient",
	"volatile",
}

// control are words after which a brace does not begin a declaration.
var control = []string{
	"if", "for", "while", "do", "try", "switch", "synchronized", "return", "throw", "new", "else", "catch", "finally", "assert", "yield",
	"break", "continue", "this", "super", "var",
}

// Pieces splits a text at its top level. ok is false if the text is no snippet: it has a package, a type with a main or a main of its
// own, or brackets that do not match.
func Pieces(src string) (all []Piece, ok bool) {
	if s := Scan(src); s.Package != "" || s.Compact || len(s.Mains) > 0 {
		return nil, false
	}
	var (
		t      = tokens{rest: src}
		depth  int
		p      Piece
		before int
	)
	cut := func() {
		if len(p.Words) > 0 {
			p.End = len(src) - len(t.rest)
			p.classify()
			all = append(all, p)
			before = p.End
		}
		p = Piece{}
	}
	for {
		w := t.next()
		if w == "" {
			break
		}
		if len(p.Words) == 0 {
			p.Before, p.Start = before, len(src)-len(t.rest)-t.last
		}
		p.Words = append(p.Words, w)
		switch w {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			if depth--; depth < 0 {
				return nil, false
			}
			if w == "}" && depth == 0 && p.endsAt(t.peek()) {
				cut()
			}
		case ";":
			if depth == 0 {
				cut()
			}
		}
	}
	cut()
	return all, depth == 0 && len(all) > 0
}

// endsAt reports whether a piece that closes a brace ends there, before the next word.
func (p *Piece) endsAt(next string) bool {
	switch next {
	case "else", "catch", "finally", ".", ")", ",", ";", "?", ":", "+", "-", "*", "/", "&", "|", "=", "<", ">", "instanceof", "[":
		return false
	case "while":
		return p.Words[0] != "do"
	}
	if p.Words[0] == "return" || p.Words[0] == "throw" {
		return false
	}
	// After an assignment: an array, a switch, a lambda or a class without a name, up to its semicolon.
	first := slices.IndexFunc(p.Words, func(w string) bool { return w == "=" || w == "(" || w == "{" })
	return p.Words[first] != "="
}

// classify finds the kind of a piece.
func (p *Piece) classify() {
	i := 0
	for i < len(p.Words) {
		switch w := p.Words[i]; {
		case w == "@" && i+1 < len(p.Words) && p.Words[i+1] != "interface": // an annotation, perhaps with arguments
			i += 2
			for i+1 < len(p.Words) && p.Words[i] == "." {
				i += 2
			}
			if i < len(p.Words) && p.Words[i] == "(" {
				i = skipBrackets(p.Words, i)
			}
			continue
		case slices.Contains(modifiers, w) && !(w == "synchronized" && i+1 < len(p.Words) && p.Words[i+1] == "("),
			w == "non" && i+2 < len(p.Words) && p.Words[i+1] == "-":
			if w == "non" {
				i += 2
			}
			i++
			continue
		}
		break
	}
	p.Modifiers = i
	rest := p.Words[i:]
	switch {
	case len(rest) == 0 || rest[0] == ";":
		return
	case rest[0] == "import":
		p.Kind = Import
		return
	case rest[0] == "class" || rest[0] == "interface" || rest[0] == "enum" || rest[0] == "@" ||
		rest[0] == "record" && len(rest) > 2 && (rest[2] == "(" || rest[2] == "<"):
		p.Kind = Member
		return
	case rest[0] != "var" && slices.Contains(control, rest[0]):
		return
	}
	// A method with type parameters: <T> T name(…) { … }. Otherwise a type, a name, and what follows it.
	at := 0
	if rest[0] == "<" {
		at = skipBrackets(rest, 0)
	}
	name := skipType(rest, at)
	if name < 0 || name+1 >= len(rest) || !isName(rest[name]) {
		return
	}
	switch rest[name+1] {
	case "(":
		if end := skipBrackets(rest, name+1); end < len(rest) && (rest[end] == "{" || rest[end] == "throws") {
			p.Kind = Member
		}
	case "=", ";", ",", "[":
		p.Kind = Variable
		depth := 0
		for n := name; n < len(rest); n++ {
			switch rest[n] {
			case "(", "[", "{", "<":
				depth++
			case ")", "]", "}", ">":
				depth--
			}
			if n == name || depth == 0 && rest[n-1] == "," && isName(rest[n]) {
				p.Names = append(p.Names, rest[n])
			}
		}
	}
}

// skipType returns the index after a type: a name with dots, type arguments and brackets; -1 if there is none.
func skipType(words []string, i int) int {
	for {
		if i >= len(words) || !isName(words[i]) {
			return -1
		}
		i++
		if i < len(words) && words[i] == "<" {
			i = skipBrackets(words, i)
		}
		if i >= len(words) || words[i] != "." {
			break
		}
		i++
	}
	for i+1 < len(words) && words[i] == "[" && words[i+1] == "]" {
		i += 2
	}
	return i
}

// skipBrackets returns the index after the bracket that closes the one at i.
func skipBrackets(words []string, i int) int {
	closing := map[string]string{"(": ")", "<": ">", "{": "}"}[words[i]]
	depth := 0
	for n := i; n < len(words); n++ {
		switch words[n] {
		case words[i]:
			depth++
		case closing:
			if depth--; depth == 0 {
				return n + 1
			}
		}
	}
	return len(words)
}

// isName reports whether a word can be a name.
func isName(w string) bool {
	for _, r := range w {
		return isLetter(r) && (w == "var" || !slices.Contains(control, w))
	}
	return false
}
