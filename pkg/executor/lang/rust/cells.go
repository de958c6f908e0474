package rust

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// The program of a cell includes a file for each cell, so that messages and panics name the cell and the user's line:
//
//	main.rs  include!("cell 1");     cell 1  struct P { x: i32 }                 kept items; all other text became spaces
//	         include!("cell 2");     cell 2  fn twice(p: P) -> i32 { 2 * p.x }
//	         include!("cell 3");     cell 3  fn main() {let p = P { x: 4 };      the cell that runs
//	                                         cell_value!(twice(p))}
//
// An item replaces earlier ones of the same name; a type removes its earlier impl blocks; an impl of a trait replaces the earlier one for
// the type, and the functions of another impl those of the same name. main and const _ belong to their cell alone.

// composer composes the programs of a session's cells.
type composer struct {
	kept    []*keptCell
	uses    map[string]keptUse // by name; globs by path
	head    map[string]bool    // attributes of the crate
	locals  map[string]uint64  // variables, with their last cell, unless a value of that name was declared later
	removed map[string]uint64  // types whose impl blocks a declaration in a cell has removed
}

type keptUse struct{ attributes, path string }

// NewComposer returns the composer of a new session.
func NewComposer() language.Composer {
	c := &composer{}
	c.Reset()
	return c
}

// Reset forgets all cells.
func (c *composer) Reset() {
	*c = composer{uses: map[string]keptUse{}, head: map[string]bool{}, locals: map[string]uint64{}, removed: map[string]uint64{}}
}

// Compose returns the program of a cell.
func (c *composer) Compose(cell uint64, code string) (*language.Composition, error) {
	own, err := readCell(cell, code)
	if err != nil {
		return nil, err
	}
	kept, removed := c.merge(own)
	uses := maps.Clone(c.uses)
	for name := range uses {
		// A function and a module may have the same name.
		module := own.paths[name] || slices.ContainsFunc(kept, func(k *keptCell) bool { return k.paths[name] })
		_, again := own.uses[name]
		if again || own.declared[typeSpace+" "+name] || own.declared[valueSpace+" "+name] && !module {
			delete(uses, name)
		}
	}
	files := []language.File{{Path: Language.Source, Data: []byte(c.root(own, kept, uses))}}
	for _, k := range kept {
		files = append(files, language.File{Path: cellFile(k.cell), Data: k.text})
	}
	files = append(files, language.File{Path: cellFile(cell), Data: []byte(own.text)})
	size := 0
	for _, f := range files {
		size += len(f.Data)
	}
	if size > maxProgram {
		return nil, &language.CellError{Cell: cell, Text: fmt.Sprintf(
			"the program with the items of the earlier cells has %d bytes, the most is %d; restart the session", size, maxProgram)}
	}
	return &language.Composition{
		Files:   files,
		Keep:    func() { c.keep(own, kept, uses, removed) },
		Revise:  func(stderr string) (*language.Composition, error) { return nil, c.foreignVariable(own, stderr) },
		Explain: func(phase, stderr string) language.Failure { return c.explain(own, removed, phase, stderr) },
	}, nil
}

// cellFile is the name of a cell's file.
func cellFile(cell uint64) string { return "cell " + strconv.FormatUint(cell, 10) }

// merge returns the cells that remain beside the items of a cell, and the types whose impl blocks it removes.
func (c *composer) merge(own *cellParts) (kept []*keptCell, removed []string) {
	for _, k := range c.kept {
		left := &keptCell{cell: k.cell, text: slices.Clone(k.text), paths: k.paths}
		for _, i := range k.items {
			if i.impl != nil && own.types[i.impl.of] {
				removed = append(removed, i.impl.of)
			}
			if own.replaces(&i) {
				blank(left.text[i.at:i.end])
				continue
			}
			var inside []keptItem
			for _, f := range i.inside {
				if own.replacesInside(i.impl, &f) {
					blank(left.text[f.at:f.end])
				} else {
					inside = append(inside, f)
				}
			}
			i.inside = inside
			left.items = append(left.items, i)
		}
		if len(left.items) > 0 {
			kept = append(kept, left)
		}
	}
	return kept, removed
}

// keep makes the items of a cell part of later programs.
func (c *composer) keep(own *cellParts, kept []*keptCell, uses map[string]keptUse, removed []string) {
	c.kept, c.uses = kept, uses
	if k := own.kept(); len(k.items) > 0 {
		c.kept = append(c.kept, k)
	}
	maps.Copy(c.uses, own.uses)
	for _, h := range own.head {
		c.head[h] = true
	}
	for _, name := range removed {
		note(c.removed, name, own.cell)
	}
	for _, i := range own.items {
		if i.impl != nil {
			delete(c.removed, i.impl.of)
		}
		for _, n := range i.names {
			if n.space == valueSpace {
				delete(c.locals, n.name)
			}
		}
	}
	for _, name := range own.locals {
		note(c.locals, name, own.cell)
	}
}

// maxNames bounds the names that messages explain.
const maxNames = 10_000

func note(names map[string]uint64, name string, cell uint64) {
	if _, known := names[name]; known || len(names) < maxNames {
		names[name] = cell
	}
}

// valueMacro shows the value of an expression, if it has one.
const valueMacro = `macro_rules! cell_value {
    ($e:expr) => {
        match &($e) {
            value => {
                #[allow(unused_imports)]
                use $crate::sandbox_run::{ByDebug as _, ByName as _};
                (&$crate::sandbox_run::Shown(value)).sandbox_run_show()
            }
        }
    };
}
mod sandbox_run {
    pub struct Shown<'a, T: ?Sized>(pub &'a T);
    pub trait ByDebug {
        fn sandbox_run_show(&self);
    }
    impl<T: ?Sized + std::fmt::Debug> ByDebug for Shown<'_, T> {
        fn sandbox_run_show(&self) {
            if std::any::type_name::<T>() != "()" {
                println!("{:?}", self.0);
            }
        }
    }
    pub trait ByName {
        fn sandbox_run_show(&self);
    }
    impl<T: ?Sized> ByName for &Shown<'_, T> {
        fn sandbox_run_show(&self) {
            println!("a {}, which has no Debug", std::any::type_name::<T>());
        }
    }
}
`

// root writes the file of the program that includes the cells.
func (c *composer) root(own *cellParts, kept []*keptCell, uses map[string]keptUse) string {
	var b strings.Builder
	b.WriteString("#![allow(unused)]\n#![warn(unused_must_use)]\n")
	head := maps.Clone(c.head)
	for _, h := range own.head {
		head[h] = true
	}
	for _, h := range slices.Sorted(maps.Keys(head)) {
		b.WriteString(h + "\n")
	}
	if own.shows {
		b.WriteString(valueMacro)
	}
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		b.WriteString(uses[name].attributes + "use " + uses[name].path + ";\n")
	}
	for _, k := range kept {
		fmt.Fprintf(&b, "include!(%q);\n", cellFile(k.cell))
	}
	fmt.Fprintf(&b, "include!(%q);\n", cellFile(own.cell))
	if !own.hasMain && !own.runs {
		b.WriteString("fn main() {}\n")
	}
	return b.String()
}

// cellsDir is the directory of a project in which cells are compiled.
const cellsDir = "src/bin/sandbox-run-cell"

// withoutDir removes the directory from the names of cells.
func withoutDir(stderr string) string { return strings.ReplaceAll(stderr, cellsDir+"/cell ", "cell ") }

// Patterns are compiled when a cell has failed, and not at every start of the executable.
const (
	unknownName = "(?m)^error\\[E0425\\]: cannot find (?:value|function) `(\\w+)` in this scope\n\\s*--> cell (\\d+):(\\d+):(\\d+)$"
	firstError  = `(?m)^error(?:\[E\d+\])?: (.*)\n\s*--> (.*):(\d+):\d+$`
	quotedName  = "`&*(\\w+)[`:<]"
	panicLine   = `(?m)^thread '[^'\n]*' (?:\(\d+\) )?panicked at (?:'(.*)', )?(.*?):(\d+):\d+:?$\n?(.*)`
)

// foreignVariable is the error of a cell that uses a variable of an earlier cell, as the compiler has found; nil otherwise.
func (c *composer) foreignVariable(own *cellParts, stderr string) error {
	for _, m := range regexp.MustCompile(unknownName).FindAllStringSubmatch(withoutDir(stderr), -1) {
		from, ok := c.locals[m[1]]
		if !ok || m[2] != strconv.FormatUint(own.cell, 10) {
			continue
		}
		line, _ := strconv.Atoi(m[3])
		column, _ := strconv.Atoi(m[4])
		next := fmt.Sprintf("declare it in this cell, too (let %s = …), or in cell %d with const, static or fn, which later cells see",
			m[1], from)
		return &language.CellError{
			Cell: own.cell, Line: line, Column: own.columnOf(line, column), Text: language.VariableOfAnotherCell(m[1], from, next),
		}
	}
	return nil
}

// explain reads what the compiler or a program has printed.
func (c *composer) explain(own *cellParts, removed []string, phase, stderr string) (f language.Failure) {
	name, stderr := cellFile(own.cell), withoutDir(stderr)
	if phase != language.PhaseCompile {
		m := regexp.MustCompile(panicLine).FindStringSubmatch(stderr)
		if m == nil {
			return f
		}
		f.Name, f.Message = "panic", cmp.Or(m[1], m[4])
		if m[2] == name {
			f.Line, _ = strconv.Atoi(m[3])
		}
		return f
	}
	f.Name = "compile error"
	m := regexp.MustCompile(firstError).FindStringSubmatch(stderr)
	if m == nil {
		return f
	}
	f.Message = m[1]
	switch from, ok := strings.CutPrefix(m[2], "cell "); {
	case m[2] == name:
		f.Line, _ = strconv.Atoi(m[3])
	case ok:
		f.Message = m[2] + ":" + m[3] + ": " + m[1]
		f.Hint = language.DoesNotFit(from, own.cell)
	}
	for _, q := range regexp.MustCompile(quotedName).FindAllStringSubmatch(m[1], -1) {
		from, ok := c.removed[q[1]]
		if slices.Contains(removed, q[1]) {
			from, ok = own.cell, true
		}
		if ok {
			f.Hint = fmt.Sprintf("cell %d has declared %s again, which removed the impl blocks of earlier cells; write them again", from, q[1])
		}
	}
	return f
}

// Declared lists the names that kept cells have declared.
func (c *composer) Declared() (all []language.Declaration) {
	for _, name := range slices.Sorted(maps.Keys(c.uses)) {
		all = append(all, language.Declaration{Name: name, Kind: "use", Text: c.uses[name].path})
	}
	for _, k := range c.kept {
		for _, i := range k.items {
			for _, n := range i.names {
				all = append(all, language.Declaration{Name: n.name, Kind: n.kind, Text: i.text})
			}
			if i.impl != nil {
				all = append(all, language.Declaration{Name: i.impl.of, Kind: "impl", Text: i.text})
			}
		}
	}
	return all
}
