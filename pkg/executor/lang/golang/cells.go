package golang

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/goimports"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// The program of a cell is one file, so that it can be compiled directly:
//
//	cell 1:  type T struct{ a int }      package main
//	         import "strings"            import "fmt"                   completed, as for a snippet; strings is not used here
//	         x := 1                      type T struct{ a int }         kept
//	cell 2:  func twice(t T) int …   ►   func twice(t T) int { … }
//	         var seven = 7               var seven = 7                  its initialiser runs in the program of every later cell
//	         fmt.Println("a")            func main() { fmt.Println("a")
//	         twice(T{seven})             sandboxRunShow(twice(T{seven})) }
//
// Line directives name the cell and the user's line. A declaration replaces earlier ones of the same name; that of a type removes its
// earlier methods. main, init, blank names and dot imports belong to their cell alone.

// composer composes the programs of a session's cells.
type composer struct {
	kept    []cellDecl
	imports map[string]cellImport // by the name in the program
	names   map[string]string     // of packages by path, as the compiler has told them
	locals  map[string]uint64     // variables of statements, with their last cell, unless a declaration came later
	removed map[string]uint64     // methods T.M that a declaration of T in a cell has removed
}

// NewComposer returns the composer of a new session.
func NewComposer() language.Composer {
	c := &composer{}
	c.Reset()
	return c
}

// Reset forgets all cells.
func (c *composer) Reset() {
	*c = composer{
		imports: map[string]cellImport{}, names: map[string]string{}, locals: map[string]uint64{}, removed: map[string]uint64{},
	}
}

// Compose returns the program of a cell.
func (c *composer) Compose(cell uint64, code string) (*language.Composition, error) {
	own, err := readCell(cell, code)
	if err != nil {
		return nil, err
	}
	if len(c.imports)+len(own.imports) > maxNames {
		return nil, &language.CellError{Cell: cell, Text: fmt.Sprintf("there are more than %d imports; restart the session", maxNames)}
	}
	imported := map[string]bool{}
	for _, i := range own.imports {
		imported[c.nameOf(i)] = true
	}
	for _, use := range own.free {
		from, ok := c.locals[use.name]
		if !ok || imported[use.name] || strings.Contains(universal, " "+use.name+" ") {
			continue
		}
		return nil, &language.CellError{Cell: cell, Line: use.line, Column: use.column, Text: language.VariableOfAnotherCell(use.name, from,
			fmt.Sprintf("declare it in this cell, too (%s := …), or in cell %d with var, const or func, which later cells see (the initialiser "+
				"of a var runs again in each of them)", use.name, from))}
	}
	return c.compose(own)
}

// compose makes the program of a cell that was read.
func (c *composer) compose(own *cellParts) (*language.Composition, error) {
	decls, removed := c.merge(own)
	text := c.program(own, decls)
	if len(text) > maxGoLook {
		return nil, &language.CellError{Cell: own.cell, Text: fmt.Sprintf(
			"the program with the declarations of the earlier cells has %d bytes, the most is %d; restart the session", len(text), maxGoLook)}
	}
	return &language.Composition{
		Files:   []language.File{{Path: Language.Source, Data: text}},
		Keep:    func() { c.keep(own, decls, removed) },
		Revise:  func(stderr string) (*language.Composition, error) { return c.revise(own, stderr) },
		Explain: func(phase, stderr string) language.Failure { return c.explain(own, removed, phase, stderr) },
	}, nil
}

// merge returns the declarations that remain beside those of a cell, and the methods that it removes.
func (c *composer) merge(own *cellParts) (kept []cellDecl, removed []string) {
	names, types := map[string]bool{}, map[string]bool{}
	for _, d := range own.decls {
		for _, n := range d.names {
			names[n.key()] = true
			types[n.name] = types[n.name] || n.receiver == ""
		}
	}
	for _, d := range c.kept {
		left := d.without(func(n cellName) bool {
			gone := n.receiver != "" && types[n.receiver]
			if gone && !names[n.key()] {
				removed = append(removed, n.key())
			}
			return gone || names[n.key()]
		})
		if left != nil {
			kept = append(kept, *left)
		}
	}
	return kept, removed
}

// keep makes the declarations of a cell part of later programs.
func (c *composer) keep(own *cellParts, decls []cellDecl, removed []string) {
	c.kept = decls
	for _, name := range removed {
		note(c.removed, name, own.cell)
	}
	for _, d := range own.decls {
		if left := d.without(cellName.ofOneCell); left != nil {
			c.kept = append(c.kept, *left)
		}
		for _, n := range d.names {
			delete(c.removed, n.key())
			delete(c.imports, n.key())
			delete(c.locals, n.key())
		}
	}
	for _, i := range own.imports {
		if i.name == "." {
			continue
		}
		name := c.nameOf(i)
		if i.name == "_" {
			name = "_ " + i.path // all of them are kept
		}
		c.imports[name] = i
		delete(c.locals, name)
	}
	for name := range own.locals {
		note(c.locals, name, own.cell)
	}
}

// maxNames bounds the imports of a session, and the names that messages explain.
const maxNames = 10_000

func note(names map[string]uint64, name string, cell uint64) {
	if _, known := names[name]; known || len(names) < maxNames {
		names[name] = cell
	}
}

// nameOf is the name of an imported package in the program.
func (c *composer) nameOf(i cellImport) string {
	return cmp.Or(i.name, c.names[i.path], goimports.PackageName(i.path))
}

// knows reports whether the name of an imported package is no guess. The compiler tells the name of a package that is imported in vain.
func (c *composer) knows(i cellImport) bool {
	return i.name != "" || c.names[i.path] != "" || !strings.Contains(i.path, ".")
}

// program writes the program of a cell.
func (c *composer) program(own *cellParts, decls []cellDecl) []byte {
	var top strings.Builder
	for _, d := range slices.Concat(decls, own.decls) {
		fmt.Fprintf(&top, "\n%s%s", lineDirective(cellFile(d.cell), d.line, d.column), d.text)
	}
	if !own.hasMain {
		top.WriteString("\n" + lineDirective(cellFile(own.cell), own.line, own.column) + "func main() {" + own.body())
		top.WriteString("\n}\n")
	}
	if own.shown() != nil {
		top.WriteString(showFunction)
	}
	rest := top.String()
	used := selectorBases("package main\n" + rest)
	var imports strings.Builder
	write := func(i cellImport) {
		fmt.Fprintf(&imports, "\n%simport %s %s", lineDirective(cellFile(i.cell), i.line, i.column), i.name, strconv.Quote(i.path))
	}
	here := map[string]bool{}
	for _, i := range own.imports {
		name := c.nameOf(i)
		here[name] = true
		if !used[name] && i.name != "." && c.knows(i) {
			i.name = "_" // it must exist
		}
		write(i)
	}
	for _, name := range slices.Sorted(maps.Keys(c.imports)) {
		if i := c.imports[name]; !here[name] && (used[name] || i.name == "_" || !c.knows(i)) {
			write(i)
		}
	}
	if own.shown() != nil {
		imports.WriteString("\nimport (sandboxRunFmt \"fmt\"; sandboxRunReflect \"reflect\")")
	}
	whole := "package main\n" + imports.String() + rest
	var found strings.Builder
	for _, p := range goimports.Missing([]byte(whole)) {
		found.WriteString("import " + strconv.Quote(p) + "\n")
	}
	return []byte("package main\n" + found.String() + imports.String() + rest)
}

// cellFile is the name of a cell in messages and traces.
func cellFile(cell uint64) string { return "cell " + strconv.FormatUint(cell, 10) }

// showFunction prints the values of an expression: text quoted, and structures as in Go, but errors and values with a String method as they
// describe themselves. A call whose only result is nil, such as an error, shows nothing.
const showFunction = `
//line sandbox-run:1:1
func sandboxRunShowCall(values ...any) {
	if len(values) != 1 || values[0] != nil {
		sandboxRunShow(values...)
	}
}

func sandboxRunShow(values ...any) {
	for i, v := range values {
		if i > 0 {
			sandboxRunFmt.Print(" ")
		}
		format := "%v"
		switch v.(type) {
		case error, sandboxRunFmt.Stringer:
		default:
			switch sandboxRunReflect.ValueOf(v).Kind() {
			case sandboxRunReflect.String, sandboxRunReflect.Struct, sandboxRunReflect.Map, sandboxRunReflect.Slice, sandboxRunReflect.Array,
				sandboxRunReflect.Pointer:
				format = "%#v"
			}
		}
		sandboxRunFmt.Printf(format, v)
	}
	sandboxRunFmt.Println()
}
`

// Patterns are compiled when a cell has failed, and not at every start of the executable.
const (
	noValue      = `(?m)^(?:\./)?cell (\d+):.* \(no value\) used as value$`
	unusedImport = `(?m): ("[^"]*") imported (?:as (\S+) )?and not used`
	compileLine  = `(?m)^(?:\./)?cell (\d+):(\d+)(?::\d+)?: (.*)$`
	undefined    = `^undefined: (\w+)$`
	noMethod     = `^\S+ undefined \(type \*?(\w+) has no field or method (\w+)\b`
	panicLine    = `(?m)^(panic|fatal error): (.*)$`
	frameLine    = `(?m)^\t(?:.*/)?cell (\d+):(\d+)(?: \+0x[0-9a-f]+)?$`
)

// revise returns another program for a cell that the compiler has refused for what only the compiler knows: whether a call has a result,
// and what a package is called.
func (c *composer) revise(own *cellParts, stderr string) (*language.Composition, error) {
	again := false
	m := regexp.MustCompile(noValue).FindStringSubmatch(stderr)
	if m != nil && own.shown() != nil && m[1] == strconv.FormatUint(own.cell, 10) {
		own.quiet, again = true, true
	}
	for _, m := range regexp.MustCompile(unusedImport).FindAllStringSubmatch(stderr, -1) {
		if p, err := strconv.Unquote(m[1]); err == nil {
			name := cmp.Or(m[2], goimports.PackageName(p))
			again = again || c.names[p] != name
			c.names[p] = name
		}
	}
	if !again {
		return nil, nil
	}
	return c.compose(own)
}

// explain reads what a compiler or a program has printed.
func (c *composer) explain(own *cellParts, removed []string, phase, stderr string) (f language.Failure) {
	if phase != language.PhaseCompile {
		m := regexp.MustCompile(panicLine).FindStringSubmatchIndex(stderr)
		if m == nil {
			return f
		}
		f.Name, f.Message = stderr[m[2]:m[3]], strings.TrimSuffix(stderr[m[4]:m[5]], " [recovered]")
		for _, at := range regexp.MustCompile(frameLine).FindAllStringSubmatch(stderr[m[1]:], -1) {
			if at[1] == strconv.FormatUint(own.cell, 10) {
				f.Line, _ = strconv.Atoi(at[2])
				break
			}
		}
		return f
	}
	f.Name = "compile error"
	m := regexp.MustCompile(compileLine).FindStringSubmatch(stderr)
	if m == nil {
		return f
	}
	f.Message = m[3]
	if m[1] == strconv.FormatUint(own.cell, 10) {
		f.Line, _ = strconv.Atoi(m[2])
	} else {
		f.Message = "cell " + m[1] + ":" + m[2] + ": " + m[3]
		f.Hint = language.DoesNotFit(m[1], own.cell)
	}
	if u := regexp.MustCompile(undefined).FindStringSubmatch(m[3]); u != nil && own.locals[u[1]] {
		f.Hint = u[1] + " is a variable of this cell's statements, and functions do not see it; declare it with var, or pass it"
	}
	if u := regexp.MustCompile(noMethod).FindStringSubmatch(m[3]); u != nil {
		name := u[1] + "." + u[2]
		from, ok := c.removed[name]
		if slices.Contains(removed, name) {
			from, ok = own.cell, true
		}
		if ok {
			f.Hint = fmt.Sprintf("cell %d has declared %s again, which removed its earlier methods; declare %s again", from, u[1], name)
		}
	}
	return f
}

// Declared lists the names that kept cells have declared.
func (c *composer) Declared() (all []language.Declaration) {
	for _, name := range slices.Sorted(maps.Keys(c.imports)) {
		i := c.imports[name]
		all = append(all, language.Declaration{Name: c.nameOf(i), Kind: "import", Text: i.path})
	}
	for _, d := range c.kept {
		for _, n := range d.names {
			all = append(all, language.Declaration{Name: n.key(), Kind: n.kind, Text: n.text})
		}
	}
	return all
}
