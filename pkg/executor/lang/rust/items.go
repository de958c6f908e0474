package rust

import (
	"slices"
	"strings"
)

// lexeme is a token and its place.
type lexeme struct {
	text    string
	at, end int
}

// lex splits a text into tokens. open reports that its last literal or comment has no end.
func lex(src string) (all []lexeme, open bool) {
	t := tokens{rest: src}
	for w := t.next(); w != ""; w = t.next() {
		all = append(all, lexeme{w, len(src) - t.left, len(src) - len(t.rest)})
	}
	return all, t.open
}

// part is an item or a statement of a list, with its attributes.
type part struct {
	lexemes []lexeme
	head    int // that many lexemes are attributes
	item    bool
	inner   bool // it is an attribute of the crate
	ended   bool // by its own rules, not by the end of the text
}

func (p *part) at() int  { return p.lexemes[0].at }
func (p *part) end() int { return p.lexemes[len(p.lexemes)-1].end }

// word returns the text of a lexeme after the attributes; "" beyond the end.
func (p *part) word(i int) string {
	if p.head+i >= len(p.lexemes) {
		return ""
	}
	return p.lexemes[p.head+i].text
}

// last returns the last lexeme; "" without one.
func (p *part) last() string { return p.lexemes[len(p.lexemes)-1].text }

var (
	// blockWords begin statements that end with their block.
	blockWords = []string{"if", "match", "for", "while", "loop", "unsafe", "{", "const"}
	// macroItems are macros whose calls declare statics.
	macroItems = []string{"thread_local", "lazy_static"}
)

// maxNesting bounds the depth of brackets, for functions that call themselves; rustc allows 128 levels.
const maxNesting = 256

// brackets finds the first bracket without its partner. at is -1 if more text may close it.
func brackets(all []lexeme) (at int, why string) {
	var open []lexeme
	for _, l := range all {
		switch l.text {
		case "(", "[", "{":
			if open = append(open, l); len(open) > maxNesting {
				return l.at, "brackets are nested too deeply"
			}
		case ")", "]", "}":
			if len(open) == 0 || !strings.Contains("() [] {}", open[len(open)-1].text+l.text) {
				return l.at, "unexpected " + l.text
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return -1, "the " + open[len(open)-1].text + " is not closed"
	}
	return 0, ""
}

// parts splits a list of items and statements, whose brackets match.
func parts(all []lexeme) (list []part) {
	for len(all) > 0 {
		p := nextPart(all)
		all = all[len(p.lexemes):]
		if !p.item && !p.inner && p.word(0) == ";" && p.head == 0 {
			continue // empty
		}
		list = append(list, p)
	}
	return list
}

// nextPart returns the first part of a list.
func nextPart(all []lexeme) part {
	p := part{lexemes: all}
	for p.word(0) == "#" {
		next := 1
		if p.word(1) == "!" {
			next = 2
		}
		if p.word(next) != "[" {
			break
		}
		end := p.head + next + group(all[p.head+next:])
		if next == 2 {
			return part{lexemes: all[:end], head: end, inner: true, ended: true}
		}
		p.head = end
	}
	p.item = isItem(&p)
	rest := all[p.head:]
	ends := func(n int) part {
		p.lexemes, p.ended = all[:p.head+n], true
		return p
	}
	// A macro call that is written as a block ends with it, as an item does.
	block := p.item || slices.Contains(blockWords, p.word(0)) || p.word(0) == "'" ||
		isWord(p.word(0)) && p.word(1) == "!" && (p.word(2) == "{" || isWord(p.word(2)) && p.word(3) == "{")
	valued := p.item && slices.ContainsFunc([]string{"const", "static", "type", "use"}, func(w string) bool { return kindOfItem(&p) == w })
	for i := 0; i < len(rest); i++ {
		switch rest[i].text {
		case ";":
			return ends(i + 1)
		case "(", "[", "{":
			brace := rest[i].text == "{" && !valued && !(i > 0 && rest[i-1].text == "<")
			i += group(rest[i:]) - 1
			if brace && block && !continues(&p, rest[i+1:]) {
				return ends(i + 1)
			}
		}
	}
	return p
}

// continues reports whether a statement goes on after a block.
func continues(p *part, rest []lexeme) bool {
	if len(rest) == 0 || p.item {
		return false
	}
	switch rest[0].text {
	case "else", "?":
		return true
	case ".":
		return len(rest) < 2 || rest[1].text != "." // a range begins a statement
	}
	return false
}

// group returns the number of lexemes of a group in brackets, all of them if it has no end.
func group(all []lexeme) int {
	depth := 0
	for i, l := range all {
		switch l.text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(all)
}

// isItem reports whether a part is an item: what may stand outside of functions.
func isItem(p *part) bool { return kindOfItem(p) != "" }

// kindOfItem returns the word that says what an item is; "" for a statement.
func kindOfItem(p *part) string {
	i := 0
	if p.word(0) == "pub" {
		if i = 1; p.word(1) == "(" {
			i += group(p.lexemes[p.head+1:])
		}
	}
	if p.word(i) == "default" && p.word(i+1) != "" && slices.Contains(itemWords, p.word(i+1)) {
		i++
	}
	for ; ; i++ {
		next := p.word(i + 1)
		switch w := p.word(i); w {
		case "fn", "struct", "enum", "trait", "mod", "type", "static", "use", "impl":
			if w == "static" && (next == "|" || next == "move") {
				return ""
			}
			return w
		case "const":
			switch next {
			case "fn", "unsafe", "extern", "async":
			case "{", "|", "move":
				return ""
			default:
				return w
			}
		case "unsafe", "safe":
			if !slices.Contains([]string{"fn", "impl", "trait", "extern", "auto", "mod"}, next) {
				return ""
			}
		case "async":
			if next != "fn" && next != "unsafe" {
				return ""
			}
		case "auto":
			if next != "trait" {
				return ""
			}
		case "extern":
			switch {
			case next == "crate":
				return "crate"
			case next == `"` && p.word(i+2) == "{", next == "{":
				return "extern"
			case next == `"`:
				i++
			}
		case "union":
			if !isWord(next) {
				return ""
			}
			return w
		case "macro_rules":
			if next != "!" {
				return ""
			}
			return w
		default:
			if slices.Contains(macroItems, w) && next == "!" {
				return w
			}
			return ""
		}
	}
}

// Name spaces of names: a type and a function may have the same name.
const (
	typeSpace  = "type"
	valueSpace = "value"
	macroSpace = "macro"
	useSpace   = "use"
)

// itemName is a name that an item declares.
type itemName struct{ space, name, kind string }

func (n itemName) key() string { return n.space + " " + n.name }

// namesOf returns the names that an item declares.
func namesOf(p *part) []itemName {
	kind := kindOfItem(p)
	after := func(word string, skip ...string) string {
		for i := range p.lexemes[p.head:] {
			if p.word(i) == word {
				for i++; slices.Contains(skip, p.word(i)); i++ {
				}
				return p.word(i)
			}
		}
		return ""
	}
	switch kind {
	case "struct", "enum", "trait", "mod", "type", "union":
		return []itemName{{typeSpace, after(kind), kind}}
	case "fn", "static":
		return []itemName{{valueSpace, after(kind, "mut"), kind}}
	case "const":
		return []itemName{{valueSpace, after(kind, "mut"), kind}}
	case "macro_rules":
		return []itemName{{macroSpace, after("!"), kind}}
	case "crate":
		name := after("crate")
		if as := after("as"); as != "" {
			name = as
		}
		return []itemName{{typeSpace, name, kind}}
	case "thread_local", "lazy_static":
		var names []itemName
		for i := range p.lexemes[p.head:] {
			if p.word(i) == "static" {
				if i++; p.word(i) == "ref" {
					i++
				}
				names = append(names, itemName{valueSpace, p.word(i), "static"})
			}
		}
		return names
	}
	return nil
}

// implHead is what an impl block is for: the last name of its type, and all of its head without spaces.
type implHead struct {
	of, text string
	trait    bool
	body     int // index of its first brace, from the attributes on
}

// implOf reads the head of an impl block.
func implOf(p *part) (h implHead) {
	i := 0
	for p.word(i) != "impl" {
		i++
	}
	var text []string
	begin := i + 1
	if p.word(begin) == "<" {
		begin = p.angles(begin)
	}
	for i = begin; p.word(i) != "" && p.word(i) != "{"; i++ {
		switch w := p.word(i); {
		case w == "<":
			end := p.angles(i)
			for ; i < end; i++ {
				text = append(text, p.word(i))
			}
			i--
		case w == "for" && p.word(i+1) != "<":
			h.trait, h.of = true, ""
			text = append(text, w)
		case w == "where":
			for p.word(i+1) != "" && p.word(i+1) != "{" {
				i++
			}
		case w == "'": // a lifetime
			text = append(text, w, p.word(i+1))
			i++
		default:
			if isWord(w) && w != "mut" && w != "dyn" && w != "const" {
				h.of = w
			}
			text = append(text, w)
		}
	}
	h.body, h.text = i, strings.Join(text, " ")
	return h
}

// angles returns the index after a group in angle brackets that begins at an index.
func (p *part) angles(i int) int {
	depth := 0
	for ; p.word(i) != ""; i++ {
		switch p.word(i) {
		case "<":
			depth++
		case ">":
			if p.word(i-1) == "-" {
				continue
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case "(", "[", "{":
			i += group(p.lexemes[p.head+i:]) - 1
		}
	}
	return i
}

// useLeaf is one name of a use declaration.
type useLeaf struct{ path, name string }

// leavesOf returns the names of a use declaration. The name of a glob is "*".
func leavesOf(p *part) (leaves []useLeaf) {
	i := 0
	for p.word(i) != "use" {
		i++
	}
	words := p.lexemes[p.head+i+1:]
	if len(words) > 0 && words[len(words)-1].text == ";" {
		words = words[:len(words)-1]
	}
	var read func(prefix string, words []lexeme)
	read = func(prefix string, words []lexeme) {
		path, name := prefix, ""
		for i := 0; i < len(words); i++ {
			switch w := words[i].text; w {
			case "{":
				end := i + group(words[i:]) - 1
				list := words[i+1 : end]
				for len(list) > 0 {
					n := 0
					for n < len(list) && list[n].text != "," {
						if list[n].text == "{" {
							n += group(list[n:]) - 1
						}
						n++
					}
					read(path, list[:n])
					list = list[min(n+1, len(list)):]
				}
				return
			case "as":
				if i+1 < len(words) {
					leaves = append(leaves, useLeaf{strings.TrimSuffix(path, "::") + " as " + words[i+1].text, words[i+1].text})
				}
				return
			case ":":
				if !strings.HasSuffix(path, "::") {
					path += "::"
				}
			case "self":
				if prefix != "" && path == prefix {
					path = strings.TrimSuffix(prefix, "::")
					name = path[strings.LastIndex(path, ":")+1:]
					continue
				}
				path, name = path+w, w
			default:
				path, name = path+w, w
			}
		}
		if name != "" {
			leaves = append(leaves, useLeaf{path, name})
		}
	}
	read("", words)
	return leaves
}

// keywords may stand in a pattern and are no variables.
var keywords = []string{"mut", "ref", "box", "true", "false", "const", "self", "crate", "super", "if", "in", "as", "_"}

// boundBy returns the variables that a let statement declares.
func boundBy(p *part) (names []string) {
	if p.item || p.word(0) != "let" {
		return nil
	}
	depth := 0
	for i := 1; ; i++ {
		w, next := p.word(i), p.word(i+1)
		switch {
		case w == "", depth == 0 && (w == "=" || w == ":" && next != ":" && p.word(i-1) != ":"):
			return names
		case w == "(" || w == "[" || w == "{":
			depth++
		case w == ")" || w == "]" || w == "}":
			depth--
		case !isWord(w) || slices.Contains(keywords, w) || p.word(i-1) == "'":
		case next == "(" || next == "{" || next == "!" || next == ":" && (depth > 0 || p.word(i+2) == ":"):
		case strings.ToLower(w[:1]) == w[:1]: // a constant or a variant otherwise
			names = append(names, w)
		}
	}
}
