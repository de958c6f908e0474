package golang

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// cellParts are the parts of a cell.
type cellParts struct {
	cell         uint64
	imports      []cellImport
	decls        []cellDecl
	statements   []piece
	locals       map[string]bool // variables that statements declare
	free         []cellUse
	hasMain      bool
	line, column int // where its main begins

	value *piece // the last statement, if it is an expression whose value may be shown; it is the last of statements
	call  bool   // value is a call
	quiet bool   // the compiler has said that value is a call without a result
}

// cellImport is an import; name is "" if the cell gives none.
type cellImport struct {
	cell         uint64
	name, path   string
	line, column int
}

// cellDecl is a declaration of one or several names.
type cellDecl struct {
	cell         uint64
	text         string
	line, column int
	names        []cellName
}

// cellName is a name that a declaration declares, and its place in the text.
type cellName struct {
	name, receiver string // receiver: the type of a method
	kind, text     string
	at             int
	single         bool // without it, nothing is left of the declaration
}

func (n cellName) key() string {
	if n.receiver != "" {
		return n.receiver + "." + n.name
	}
	return n.name
}

// ofOneCell reports whether a name is no part of later programs.
func (n cellName) ofOneCell() bool {
	return n.name == "_" || n.single && n.receiver == "" && (n.name == "main" || n.name == "init")
}

// cellUse is a name that a cell uses and does not declare.
type cellUse struct {
	name         string
	line, column int
}

// without returns the declaration without some names; nil if none is left. The other names keep their places.
func (d cellDecl) without(gone func(cellName) bool) *cellDecl {
	left := d
	left.names = nil
	text := []byte(d.text)
	for _, n := range d.names {
		switch {
		case !gone(n):
			left.names = append(left.names, n)
		case n.name != "_" && !n.single:
			copy(text[n.at:], "_"+strings.Repeat(" ", len(n.name)-1))
		}
	}
	if len(left.names) == 0 {
		return nil
	}
	left.text = string(text)
	return &left
}

// readCell takes a cell apart. The error of a cell that is not Go is a *language.CellError.
func readCell(cell uint64, code string) (*cellParts, error) {
	src := []byte(strings.TrimPrefix(code, "\uFEFF"))
	if len(src) > maxGoLook {
		return nil, &language.CellError{Cell: cell, Text: "it has " + strconv.Itoa(len(src)) + " bytes, the most is " + strconv.Itoa(maxGoLook)}
	}
	if at, why := unbalanced(src); why != "" {
		line, column := positionIn(src, at)
		return nil, &language.CellError{Cell: cell, Line: line, Column: column, Text: "syntax error: " + why}
	}
	c := &cellParts{cell: cell, line: 1, column: 1, locals: map[string]bool{}}
	all := pieces(src)
	for i, p := range all {
		if i == 0 && p.words[0].tok == token.PACKAGE {
			if len(p.words) < 2 || p.words[1].lit != "main" {
				return nil, &language.CellError{Cell: cell, Line: p.line, Column: p.col, Text: "a cell is a part of package main, or has no package"}
			}
			continue
		}
		if p.kind == variable {
			if c.usesLocals(p) {
				c.addLocals(p.names)
			} else {
				p.kind = declaration
			}
		}
		var err error
		switch p.kind {
		case importing:
			err = c.addImports(p)
		case declaration:
			err = c.addDeclaration(p)
		default:
			if len(c.statements) == 0 {
				c.line, c.column = p.line, p.col
			}
			c.addLocals(definedBy(p.words))
			c.statements = append(c.statements, p)
		}
		if err != nil {
			return nil, err
		}
		if i == len(all)-1 && p.kind == statement {
			c.readValue()
		}
	}
	if c.hasMain && len(c.statements) > 0 {
		p := c.statements[0]
		return nil, &language.CellError{Cell: cell, Line: p.line, Column: p.col, Text: "statements beside func main; put them into main"}
	}
	return c, c.resolve()
}

// parse parses a text that begins at a place of the cell, after a head that is not the cell's.
func (c *cellParts) parse(head, text string, line, column int) (*ast.File, *token.FileSet, int, error) {
	set := token.NewFileSet()
	head = "package main\n" + head + lineDirective(cellFile(c.cell), line, column)
	file, err := parser.ParseFile(set, "", head+text, parser.AllErrors)
	var list scanner.ErrorList
	if errors.As(err, &list) && len(list) > 0 {
		at := list[0].Pos
		return nil, nil, 0, &language.CellError{Cell: c.cell, Line: at.Line, Column: at.Column, Text: "syntax error: " + list[0].Msg}
	}
	return file, set, len(head), err
}

func (c *cellParts) addImports(p piece) error {
	file, set, _, err := c.parse("", p.text, p.line, p.col)
	if err != nil {
		return err
	}
	for _, i := range file.Imports {
		at := set.Position(i.Pos())
		own := cellImport{cell: c.cell, line: at.Line, column: at.Column}
		if own.path, err = strconv.Unquote(i.Path.Value); err != nil {
			return err
		}
		if i.Name != nil {
			own.name = i.Name.Name
		}
		c.imports = append(c.imports, own)
	}
	return nil
}

func (c *cellParts) addDeclaration(p piece) error {
	file, set, head, err := c.parse("", p.text, p.line, p.col)
	if err != nil {
		return err
	}
	d := cellDecl{cell: c.cell, text: p.text, line: p.line, column: p.col}
	offset := func(at token.Pos) int { return set.PositionFor(at, false).Offset - head }
	between := func(from, to token.Pos) string { return shortened(p.text[offset(from):offset(to)]) }
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			n := cellName{name: decl.Name.Name, kind: "func", at: offset(decl.Name.Pos()), single: true, text: between(decl.Pos(), decl.Type.End())}
			if decl.Recv != nil && len(decl.Recv.List) > 0 {
				n.receiver = receiverOf(decl.Recv.List[0].Type)
			}
			c.hasMain = c.hasMain || n.key() == "main"
			d.names = append(d.names, n)
		case *ast.GenDecl:
			kind := decl.Tok.String()
			for _, spec := range decl.Specs {
				var idents []*ast.Ident
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					idents = []*ast.Ident{spec.Name}
				case *ast.ValueSpec:
					idents = spec.Names
				}
				for _, id := range idents {
					d.names = append(d.names, cellName{
						name: id.Name, kind: kind, at: offset(id.Pos()), text: kind + " " + between(spec.Pos(), spec.End()),
					})
				}
			}
		}
	}
	if len(d.names) > 0 { // type () declares nothing
		c.decls = append(c.decls, d)
	}
	return nil
}

// receiverOf returns the name of a receiver's type.
func receiverOf(e ast.Expr) string {
	for {
		switch t := e.(type) {
		case *ast.StarExpr:
			e = t.X
		case *ast.ParenExpr:
			e = t.X
		case *ast.IndexExpr:
			e = t.X
		case *ast.IndexListExpr:
			e = t.X
		case *ast.Ident:
			return t.Name
		default:
			return "_"
		}
	}
}

// shortened puts a declaration into one line of a table.
func shortened(text string) string {
	const most = 120
	if text = strings.Join(strings.Fields(text), " "); len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func (c *cellParts) addLocals(names []string) {
	for _, n := range names {
		if n != "_" {
			c.locals[n] = true
		}
	}
}

// usesLocals reports whether a piece uses a variable of the statements before it.
func (c *cellParts) usesLocals(p piece) bool {
	for i, w := range p.words {
		if w.tok == token.IDENT && c.locals[w.lit] && p.words[i-1].tok != token.PERIOD && !slices.Contains(p.names, w.lit) {
			return true
		}
	}
	return false
}

// definedBy returns the variables that a statement of the form a, b := … declares.
func definedBy(words []word) (names []string) {
	for i := 0; i+1 < len(words) && words[i].tok == token.IDENT; i += 2 {
		if words[i].lit != "_" {
			names = append(names, words[i].lit)
		}
		switch words[i+1].tok {
		case token.DEFINE:
			return names
		case token.COMMA:
		default:
			return nil
		}
	}
	return nil
}

// silent are calls for their effect, which have a result that is of no interest, or none.
var silent = []string{
	"panic", "print", "println", "close", "delete", "clear", "copy", "fmt.Print", "fmt.Println", "fmt.Printf", "fmt.Fprint", "fmt.Fprintln",
	"fmt.Fprintf", "os.Exit", "time.Sleep", "log.Print", "log.Println", "log.Printf", "log.Fatal", "log.Fatalf", "log.Fatalln",
}

// readValue finds out whether the value of the last statement may be shown.
func (c *cellParts) readValue() {
	last := &c.statements[len(c.statements)-1]
	text := strings.TrimSuffix(last.text, ";")
	e, err := parser.ParseExpr(text)
	if err != nil {
		return
	}
	e = ast.Unparen(e)
	call, ok := e.(*ast.CallExpr)
	if ok && slices.Contains(silent, nameOfCall(call)) {
		return
	}
	c.value, c.call = last, ok
}

func nameOfCall(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// shown is the statement whose value is shown; nil: there is none.
func (c *cellParts) shown() *piece {
	if c.quiet || c.hasMain {
		return nil
	}
	return c.value
}

// body is the text of the statements. Variables need no use.
func (c *cellParts) body() string {
	var b strings.Builder
	for i := range c.statements {
		p := &c.statements[i]
		at := "\n" + lineDirective(cellFile(c.cell), p.line, p.col)
		if p == c.shown() {
			show := "\nsandboxRunShow("
			if c.call {
				show = "\nsandboxRunShowCall("
			}
			b.WriteString(show + at + strings.TrimSuffix(p.text, ";") + ")")
			continue
		}
		b.WriteString(at + p.text)
		names := definedBy(p.words)
		if p.kind == variable {
			names = p.names
		}
		for _, n := range names {
			if n != "_" {
				b.WriteString("\n_ = " + n)
			}
		}
	}
	return b.String()
}

// resolve checks the syntax of the statements, and finds the names that the cell does not declare.
func (c *cellParts) resolve() error {
	if _, _, _, err := c.parse("func _() {\n", c.body()+"\n}", c.line, c.column); err != nil {
		return err
	}
	var whole strings.Builder
	for _, d := range c.decls {
		whole.WriteString("\n" + lineDirective(cellFile(c.cell), d.line, d.column) + d.text)
	}
	whole.WriteString("\nfunc _() {" + c.body() + "\n}\n")
	file, set, _, err := c.parse("", whole.String(), 1, 1)
	if err != nil {
		return err
	}
	for _, id := range file.Unresolved {
		at := set.Position(id.Pos())
		c.free = append(c.free, cellUse{id.Name, at.Line, at.Column})
	}
	return nil
}

// selectorBases returns the names X of a program that it uses as X.Y and does not declare: those of imports.
func selectorBases(src string) map[string]bool {
	used := map[string]bool{}
	file, _ := parser.ParseFile(token.NewFileSet(), "", src, 0)
	if file == nil {
		return used
	}
	unknown := map[*ast.Ident]bool{}
	for _, id := range file.Unresolved {
		unknown[id] = true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && unknown[x] {
				used[x.Name] = true
			}
		}
		return true
	})
	return used
}

// universal are the names that Go itself declares.
const universal = " any bool byte comparable complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune string uint " +
	"uint8 uint16 uint32 uint64 uintptr true false iota nil append cap clear close complex copy delete imag len make max min new panic print " +
	"println real recover "

// unbalanced finds the first token that can not be, or a bracket without its partner. at is len(src) if more text may complete the cell.
func unbalanced(src []byte) (at int, why string) {
	var s scanner.Scanner
	f := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(f, src, func(p token.Position, msg string) {
		if why == "" {
			at, why = p.Offset, msg
			if msg == "comment not terminated" || msg == "raw string literal not terminated" {
				at = len(src)
			}
		}
	}, 0)
	partner := map[token.Token]token.Token{token.RPAREN: token.LPAREN, token.RBRACE: token.LBRACE, token.RBRACK: token.LBRACK}
	type bracket struct {
		tok token.Token
		at  int
	}
	var open []bracket
	for {
		pos, tok, _ := s.Scan()
		if why != "" {
			return at, why
		}
		switch tok {
		case token.EOF:
			if len(open) > 0 {
				last := open[len(open)-1]
				line, _ := positionIn(src, last.at)
				return len(src), "the " + last.tok.String() + " of line " + strconv.Itoa(line) + " is not closed"
			}
			return 0, ""
		case token.LPAREN, token.LBRACE, token.LBRACK:
			open = append(open, bracket{tok, f.Offset(pos)})
		case token.RPAREN, token.RBRACE, token.RBRACK:
			if len(open) == 0 || open[len(open)-1].tok != partner[tok] {
				return f.Offset(pos), "unexpected " + tok.String()
			}
			open = open[:len(open)-1]
		}
	}
}

// positionIn returns the line and the column of a byte.
func positionIn(src []byte, at int) (line, column int) {
	before := string(src[:min(at, len(src))])
	return strings.Count(before, "\n") + 1, len(before) - strings.LastIndexByte(before, '\n')
}

// Check reports whether the code is a complete cell.
func (c *composer) Check(code string) string {
	const complete, incomplete, invalid = "complete", "incomplete", "invalid"
	code = strings.TrimPrefix(code, "\uFEFF")
	src := []byte(code)
	if at, why := unbalanced(src); why != "" {
		if at == len(src) {
			return incomplete
		}
		return invalid
	}
	_, err := readCell(0, code)
	var e *language.CellError
	switch line, column := positionIn(src, len(strings.TrimRight(code, " \t\r\n"))); {
	case err == nil:
		return complete
	case errors.As(err, &e) && (e.Line > line || e.Line == line && e.Column >= column): // the parser has looked for more
		return incomplete
	}
	return invalid
}
