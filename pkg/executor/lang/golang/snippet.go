package golang

import (
	"fmt"
	"go/scanner"
	"go/token"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/goimports"
)

// A snippet is Go without a package clause, as people paste it:
//
//	x := 3                         package main
//	type T struct{ a int }    ►    import "fmt"
//	fmt.Println(T{x})              type T …
//	                               func main() { x := 3; fmt.Println(T{x}) }
//
// Line directives keep the user's positions in messages.

// hasPackageClause reports whether the first word of a file is package. A file of comments has no package clause either, but
// needs no wrapping.
func hasPackageClause(src []byte) bool {
	first := firstToken(src)
	return first == token.PACKAGE || first == token.EOF
}

// firstToken returns the first token that is no comment; token.EOF for a file without code.
func firstToken(src []byte) token.Token {
	s, _ := scanGo(src)
	_, tok, _ := s.Scan()
	return tok
}

// scanGo returns a scanner without comments that ignores errors: the compiler reports them better.
func scanGo(src []byte) (*scanner.Scanner, *token.File) {
	var s scanner.Scanner
	f := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(f, src, func(token.Position, string) {}, 0)
	return &s, f
}

// pieceKind is the place of a piece of a snippet in the file.
type pieceKind int

const (
	statement pieceKind = iota
	importing
	declaration // a function, a type, a constant
	variable    // stays among the statements unless a function needs it
)

// piece is a statement or declaration at the top level of a snippet, with the comments before it.
type piece struct {
	kind      pieceKind
	text      string
	line, col int
	words     []word // the tokens
	names     []string
}

type word struct {
	tok token.Token
	lit string
}

// pieces splits a snippet at the semicolons, written or implied, outside of brackets.
func pieces(src []byte) []piece {
	s, f := scanGo(src)
	var (
		all   []piece
		words []word
		start int
		depth int
	)
	cut := func(end int) {
		if len(words) > 0 {
			at := f.Position(f.Pos(start))
			p := piece{text: string(src[start:end]), line: at.Line, col: at.Column, words: words}
			p.kind = kindOf(words)
			if p.kind == variable {
				p.names = namesOf(words)
				if strings.Contains(p.text, "//go:embed") {
					p.kind = declaration
				}
			}
			all = append(all, p)
			words = nil
			start = end
		}
	}
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			cut(len(src))
			return all
		case token.LPAREN, token.LBRACE, token.LBRACK:
			depth++
		case token.RPAREN, token.RBRACE, token.RBRACK:
			depth--
		case token.SEMICOLON:
			if depth <= 0 {
				end := f.Offset(pos)
				if lit == ";" {
					end++
				}
				cut(min(end, len(src)))
				continue
			}
		}
		words = append(words, word{tok, lit})
	}
}

func kindOf(w []word) pieceKind {
	switch w[0].tok {
	case token.IMPORT:
		return importing
	case token.TYPE, token.CONST:
		return declaration
	case token.VAR:
		return variable
	case token.FUNC:
		// func Name(…) and func (r T) Name(…) are declarations; func(…) … {…}() is a statement.
		if len(w) > 1 && w[1].tok == token.IDENT {
			return declaration
		}
		depth := 0
		for i := 1; i < len(w); i++ {
			switch w[i].tok {
			case token.LPAREN:
				depth++
			case token.RPAREN:
				depth--
			}
			if depth == 0 {
				if i+2 < len(w) && w[i+1].tok == token.IDENT && w[i+2].tok == token.LPAREN {
					return declaration
				}
				break
			}
		}
	}
	return statement
}

// namesOf returns the names that a var declares: those before a type or =, of each of its lines.
func namesOf(w []word) []string {
	var names []string
	depth, reading := 0, true
	for i := 1; i < len(w); i++ {
		switch w[i].tok {
		case token.LPAREN, token.LBRACE, token.LBRACK:
			if depth++; depth == 1 && i == 1 {
				depth = 0 // var ( … )
			} else {
				reading = false
			}
		case token.RPAREN, token.RBRACE, token.RBRACK:
			depth--
		case token.SEMICOLON:
			reading = depth <= 0
		case token.IDENT:
			if reading {
				names = append(names, w[i].lit)
				reading = i+1 < len(w) && w[i+1].tok == token.COMMA
			}
		case token.COMMA:
		default:
			reading = false
		}
	}
	return names
}

// wrapSnippet turns a snippet into a file. name is the file name in positions.
func wrapSnippet(name string, src []byte) []byte {
	all := pieces(src)
	used := map[string]bool{} // in functions, which do not see the variables of main
	for _, p := range all {
		if p.kind == declaration && p.words[0].tok == token.FUNC {
			for _, w := range p.words {
				if w.tok == token.IDENT {
					used[w.lit] = true
				}
			}
		}
	}
	var imports, top, body strings.Builder
	main := false
	first := lineDirective(name, 1, 1) // where main begins
	for _, p := range all {
		if p.kind == variable && slices.ContainsFunc(p.names, func(n string) bool { return used[n] }) {
			p.kind = declaration
		}
		to := &body
		if (p.kind == statement || p.kind == variable) && body.Len() == 0 {
			first = lineDirective(name, p.line, p.col)
		}
		switch p.kind {
		case importing:
			to = &imports
		case declaration:
			to = &top
			main = main || len(p.words) > 1 && p.words[0].tok == token.FUNC && p.words[1].lit == "main"
		}
		fmt.Fprintf(to, "\n%s%s", lineDirective(name, p.line, p.col), p.text)
	}
	compose := func(found string) []byte {
		text := "package main\n" + found + imports.String() + top.String()
		// Without statements there is nothing to wrap: the snippet has a main of its own, or the compiler reports that it has none.
		if body.Len() > 0 || !main && !strings.Contains(top.String(), "func Test") {
			text += "\n" + first + "func main() {" + body.String() + "\n}\n"
		}
		return []byte(text)
	}
	whole := compose("")
	var found strings.Builder
	for _, p := range goimports.Missing(whole) {
		found.WriteString("import " + strconv.Quote(p) + "\n")
	}
	if found.Len() == 0 {
		return whole
	}
	return compose(found.String())
}

// lineDirective gives the position of the code after it.
func lineDirective(name string, line, col int) string {
	return fmt.Sprintf("//line %s:%d:%d\n", name, line, col)
}
