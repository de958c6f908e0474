package template

import (
	"cmp"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"maps"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/goimports"
	"github.com/sandbox-run/sandbox-run/internal/javasource"
)

// snippet fits a user's code in beside a harness, line for line: no change moves a line, so traces name the user's own. The result has
// path (the file's name), code, and what the language's harness must know.
func snippet(language, code string) (map[string]any, error) {
	if strings.TrimSpace(code) == "" {
		return nil, errors.New("the code is empty")
	}
	l := findLanguage(language)
	out := map[string]any{"path": "snippet." + l.extension, "code": code}
	if l.snippet == nil {
		return out, nil
	}
	changed, err := l.snippet(code)
	maps.Copy(out, changed)
	return out, err
}

// goSnippet puts code into package main, and reports whether the code has a main function. Code without a package clause need not import
// the standard library either.
func goSnippet(code string) (map[string]any, error) {
	var s scanner.Scanner
	files := token.NewFileSet()
	src := []byte(code)
	s.Init(files.AddFile("", files.Base(), len(src)), src, nil, 0)
	depth, main, packaged := 0, false, ""
	var last token.Token
	first := true
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		switch {
		case tok == token.LBRACE, tok == token.LPAREN:
			depth++
		case tok == token.RBRACE, tok == token.RPAREN:
			depth--
		case tok == token.IDENT && last == token.FUNC && depth == 0 && lit == "main":
			main = true
		case tok == token.IDENT && last == token.PACKAGE && packaged == "":
			at := files.Position(pos).Offset
			packaged = code[:at] + "main" + code[at+len(lit):]
		}
		if first && tok != token.PACKAGE {
			packaged = "package main; "
			for _, p := range goimports.Missing([]byte(packaged + code)) {
				packaged += "import " + strconv.Quote(p) + "; "
			}
			packaged += code
		}
		first = false
		last = tok
	}
	if packaged == "" {
		packaged = code
	}
	return map[string]any{"code": packaged, "main": main}, nil
}

func javascriptSnippet(code string) (map[string]any, error) {
	if isModule(code) {
		return map[string]any{"path": "snippet.mjs"}, nil
	}
	return map[string]any{"path": "snippet.cjs"}, nil
}

// isModule reports whether JavaScript is an ES module: whether a line begins with import or export.
func isModule(code string) bool {
	for line := range strings.SplitSeq(code, "\n") {
		line = strings.TrimSpace(line)
		for _, word := range []string{"import", "export"} {
			rest, ok := strings.CutPrefix(line, word)
			if ok && rest != "" && strings.ContainsAny(rest[:1], " {*\"'") && !strings.HasPrefix(strings.TrimSpace(rest), "=") {
				return true
			}
		}
	}
	return false
}

// rustSnippet takes attributes of the whole crate out, which can not stand in an included file.
func rustSnippet(code string) (map[string]any, error) {
	var b strings.Builder
	for line := range strings.Lines(code) {
		if strings.HasPrefix(strings.TrimSpace(line), "#![") {
			line = strings.Replace(line, "#![", "//[", 1)
		}
		b.WriteString(line)
	}
	return map[string]any{"code": b.String()}, nil
}

// javaSnippet finds the package and the top-level types, of which the public one names the file.
// It puts methods without a class into one.
func javaSnippet(code string) (map[string]any, error) {
	s := javasource.Scan(code)
	if len(s.Classes) == 0 {
		if s.Package != "" || s.Imports {
			return nil, errors.New("no class: code with a package or imports needs one")
		}
		return map[string]any{"path": "Snippet.java", "code": "class Snippet { " + code + "\n}", "classes": []any{"Snippet"}}, nil
	}
	public := cmp.Or(s.Public, s.Classes[0])
	if public == "SandboxHarness" {
		return nil, fmt.Errorf("class %s is the harness's own", public)
	}
	dir := ""
	if s.Package != "" {
		dir = strings.ReplaceAll(s.Package, ".", "/") + "/"
	}
	classes := []any{s.Qualified(public)}
	for _, name := range s.Classes {
		if name != public {
			classes = append(classes, s.Qualified(name))
		}
	}
	return map[string]any{"path": dir + public + ".java", "code": code, "classes": classes}, nil
}

// upTo is the length of a text up to and with an end, or all of it.
func upTo(s, end string) int {
	if i := strings.Index(s, end); i >= 0 {
		return i + len(end)
	}
	return len(s)
}

// sqlSnippet is one query, without the semicolon, that can stand in brackets.
func sqlSnippet(code string) (map[string]any, error) {
	var end byte
	query := code
	for i := 0; i < len(code); i++ {
		rest := code[i:]
		switch c := code[i]; {
		case strings.HasPrefix(rest, "--"):
			i += upTo(rest, "\n") - 1
		case strings.HasPrefix(rest, "/*"):
			i += 1 + upTo(rest[2:], "*/")
		case c == '\'' || c == '"' || c == '`':
			i += upTo(rest[1:], string(c))
		case c == ';':
			if end == 0 {
				query = code[:i]
			}
			end = c
		case end != 0 && c != ' ' && c != '\t' && c != '\n' && c != '\r':
			return nil, errors.New("more than one statement; the harness of SQL runs one query against each case")
		}
	}
	return map[string]any{"code": query}, nil
}
