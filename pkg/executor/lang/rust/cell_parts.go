package rust

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// maxProgram bounds the code of a cell with the items of those before it.
const maxProgram = 1 << 20

// cellParts are the parts of a cell.
type cellParts struct {
	cell     uint64
	code     string
	text     string // code, with main
	inserted []insertion
	items    []keptItem
	uses     map[string]keptUse
	head     []string // attributes of the crate
	locals   []string
	hasMain  bool
	runs     bool // there are statements
	shows    bool // the value of the last expression

	declared map[string]bool // keys of the names of items
	types    map[string]bool // names of types that have impl blocks
	other    map[string]bool // items without a name, and impl blocks of traits, by their text
	inside   map[string]bool // keys of the parts of other impl blocks, after the text of the head
	paths    map[string]bool // words before ::, such as modules
}

// insertion is a text that is not the user's, at a byte of the code.
type insertion struct {
	at   int
	text string
}

// keptCell has the items of a cell. All other text became spaces.
type keptCell struct {
	cell  uint64
	text  []byte
	items []keptItem
	paths map[string]bool // of cellParts
}

// keptItem is an item: a part of the cell's text.
type keptItem struct {
	at, end int
	names   []itemName
	impl    *implHead
	inside  []keptItem // of an impl block
	text    string     // one line, for people
}

func (i *keptItem) isMain() bool {
	return len(i.names) == 1 && i.names[0] == itemName{valueSpace, "main", "fn"}
}

// blank replaces a part of a text by spaces.
func blank(text []byte) {
	for i := range text {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
}

// readCell takes a cell apart. The error is a *language.CellError.
func readCell(cell uint64, code string) (*cellParts, error) {
	c := &cellParts{cell: cell, code: strings.TrimPrefix(code, byteOrderMark), uses: map[string]keptUse{}}
	if len(c.code) > maxProgram {
		return nil, &language.CellError{Cell: cell, Text: fmt.Sprintf("it has %d bytes, the most is %d", len(c.code), maxProgram)}
	}
	all, open := lex(c.code)
	if open {
		return nil, c.refused(len(c.code), "the last string or comment has no end")
	}
	if at, why := brackets(all); why != "" {
		if at < 0 {
			at = len(c.code)
		}
		return nil, c.refused(at, why)
	}
	statement := -1 // where the first one begins
	list := parts(all)
	for i := range list {
		p := &list[i]
		switch {
		case p.inner:
			c.head = append(c.head, c.code[p.at():p.end()])
		case p.item && kindOfItem(p) == "use":
			c.addUses(p)
		case p.item:
			item := c.itemOf(p)
			c.hasMain = c.hasMain || item.isMain()
			c.items = append(c.items, item)
		default:
			c.locals = append(c.locals, boundBy(p)...)
			if !c.runs {
				c.runs, statement = true, p.at()
			}
		}
	}
	if c.hasMain && c.runs {
		return nil, c.refused(statement, "statements beside fn main; put them into main")
	}
	if c.runs {
		c.addMain(list)
	}
	text := []byte(c.code)
	for i := range list {
		if list[i].inner { // it is in the file that includes this one
			blank(text[list[i].at():list[i].end()])
		}
	}
	for _, i := range slices.Backward(c.inserted) {
		text = slices.Insert(text, i.at, []byte(i.text)...)
	}
	c.text = string(text)
	c.index(all)
	return c, nil
}

// addMain puts the statements into main. What it inserts is as far from the user's text as possible: on the lines before and after it.
func (c *cellParts) addMain(list []part) {
	first, last, begins := -1, 0, 0
	for i := range list {
		if !list[i].item && !list[i].inner {
			last = i
			if first < 0 {
				first = i
			}
		}
	}
	if first > 0 {
		begins = list[first-1].end()
	}
	c.insert(begins, "fn main() {")
	c.shows = last == len(list)-1 && hasValue(&list[last])
	if c.shows {
		if last > 0 {
			begins = list[last-1].end()
		}
		c.insert(begins, "cell_value!(")
	}
	switch {
	case c.shows:
		c.insert(len(c.code), "\n)}")
	case last == len(list)-1:
		c.insert(len(c.code), "\n}")
	default:
		c.insert(list[last].end(), "}")
	}
}

func (c *cellParts) insert(at int, text string) { c.inserted = append(c.inserted, insertion{at, text}) }

// place returns the line of a byte, and its column in characters.
func (c *cellParts) place(at int) (line, column int) {
	before := c.code[:at]
	return strings.Count(before, "\n") + 1, len([]rune(before[strings.LastIndexByte(before, '\n')+1:])) + 1
}

func (c *cellParts) refused(at int, why string) error {
	line, column := c.place(at)
	return &language.CellError{Cell: c.cell, Line: line, Column: column, Text: why}
}

// columnOf returns the column of the code for one of the program.
func (c *cellParts) columnOf(line, column int) int {
	shift := 0
	for _, i := range c.inserted {
		if l, before := c.place(i.at); l == line && column >= before+shift+len(i.text) {
			shift += len(i.text)
		}
	}
	return column - shift
}

// hasValue reports whether a statement is an expression whose value may be shown.
func hasValue(p *part) bool {
	if p.last() == ";" || slices.Contains([]string{"let", "for", "while", "return"}, p.word(0)) {
		return false
	}
	return !(isWord(p.word(0)) && p.word(1) == "!" && p.word(2) == "{") // it may be statements
}

// shortened puts an item into one line of a table.
func shortened(text string) string {
	const most = 120
	if text = strings.Join(strings.Fields(text), " "); len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// itemOf describes an item.
func (c *cellParts) itemOf(p *part) keptItem {
	i := keptItem{at: p.at(), end: p.end(), names: namesOf(p)}
	begin, end := p.end(), p.end()
	if p.head < len(p.lexemes) {
		begin = p.lexemes[p.head].at
	}
	for n := range p.lexemes[p.head:] {
		if w := p.word(n); w == "{" || w == ";" {
			end = p.lexemes[p.head+n].at
			break
		}
	}
	i.text = shortened(c.code[begin:end])
	if kindOfItem(p) != "impl" {
		return i
	}
	h := implOf(p)
	i.impl = &h
	if body := p.head + h.body + 1; !h.trait && body < len(p.lexemes) {
		for _, f := range parts(p.lexemes[body : len(p.lexemes)-1]) {
			if f.item {
				i.inside = append(i.inside, keptItem{at: c.documented(f.at()), end: f.end(), names: namesOf(&f)})
			}
		}
	}
	return i
}

func (c *cellParts) addUses(p *part) {
	attributes := ""
	if p.head > 0 {
		attributes = c.code[p.lexemes[0].at:p.lexemes[p.head-1].end] + " "
	}
	for _, leaf := range leavesOf(p) {
		name := leaf.name
		if name == "*" || name == "_" {
			name = leaf.path
		}
		c.uses[name] = keptUse{attributes, leaf.path}
	}
}

// index fills in the maps of what the cell declares.
func (c *cellParts) index(all []lexeme) {
	for _, m := range []*map[string]bool{&c.declared, &c.types, &c.other, &c.inside, &c.paths} {
		*m = map[string]bool{}
	}
	for i := range all {
		if i+2 < len(all) && isWord(all[i].text) && all[i+1].text == ":" && all[i+2].text == ":" {
			c.paths[all[i].text] = true
		}
	}
	for _, i := range c.items {
		for _, n := range i.names {
			c.declared[n.key()] = true
			if slices.Contains([]string{"struct", "enum", "union", "type"}, n.kind) {
				c.types[n.name] = true
			}
		}
		switch {
		case i.impl == nil && len(i.names) == 0:
			c.other[i.text] = true
		case i.impl != nil && i.impl.trait:
			c.other[i.impl.text] = true
		}
		for _, f := range i.inside {
			for _, n := range f.names {
				c.inside[i.impl.text+" "+n.key()] = true
			}
		}
	}
}

// replaces reports whether a cell replaces an item of an earlier one.
func (c *cellParts) replaces(old *keptItem) bool {
	switch {
	case old.impl != nil:
		return c.types[old.impl.of] || old.impl.trait && c.other[old.impl.text]
	case len(old.names) == 0:
		return c.other[old.text]
	}
	return slices.ContainsFunc(old.names, func(n itemName) bool { return c.declared[n.key()] })
}

// replacesInside reports whether a cell replaces a part of an impl block without a trait.
func (c *cellParts) replacesInside(of *implHead, old *keptItem) bool {
	return slices.ContainsFunc(old.names, func(n itemName) bool { return c.inside[of.text+" "+n.key()] })
}

// kept returns what later programs have of the cell.
func (c *cellParts) kept() *keptCell {
	k := &keptCell{cell: c.cell, text: []byte(c.code), paths: c.paths}
	at := 0
	for _, i := range c.items {
		if i.isMain() || len(i.names) == 1 && i.names[0].name == "_" {
			continue
		}
		i.at = max(c.documented(i.at), at)
		k.items = append(k.items, i)
		blank(k.text[at:i.at])
		at = i.end
	}
	k.text = k.text[:at]
	return k
}

// documented returns where the comment lines before an item begin.
func (c *cellParts) documented(at int) int {
	for {
		before := strings.TrimRight(c.code[:at], " \t\r\n")
		line := before[strings.LastIndexByte(before, '\n')+1:]
		if trimmed := strings.TrimSpace(line); !strings.HasPrefix(trimmed, "///") {
			return at
		}
		at = len(before) - len(line)
	}
}

// Check reports whether the code is a complete cell.
func (c *composer) Check(code string) string {
	const complete, incomplete, invalid = "complete", "incomplete", "invalid"
	all, open := lex(code)
	at, why := brackets(all)
	switch {
	case why != "" && at >= 0:
		return invalid
	case open || why != "":
		return incomplete
	}
	list := parts(all)
	if len(list) == 0 {
		return complete
	}
	last := &list[len(list)-1]
	switch end := last.last(); {
	case last.ended:
		return complete
	case last.item, last.word(0) == "", last.word(0) == "let", end == "else":
		return incomplete
	case strings.Contains("+-*/=,&|^%", end), end == "." && (len(all) < 2 || all[len(all)-2].text != "."):
		return incomplete
	}
	return complete
}
