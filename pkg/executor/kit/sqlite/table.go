package sqlite

import (
	"bufio"
	"encoding/hex"
	"strconv"
	"strings"
)

// table prints one result the way psql does:
//
//	 id | name
//	----+------
//	  1 | Ann
//	(1 row)
//
// or, in the mode that the sqlite3 shell calls list, nothing but the values with bars between.
//
// Rows are kept until the widths of the columns are known, or until there are too many.
type table struct {
	out     *bufio.Writer
	names   []string
	widths  []int
	numeric []bool // all values so far are numbers
	seen    []bool // some value is not NULL
	held    [][]string
	bytes   int
	started bool
	rows    int
	plain   bool // a list
}

const (
	heldRows  = 1000
	heldBytes = 1 << 20
	// widest is the most a column is padded to. Longer values exceed it: one of them must not make every row as long.
	widest = 1000
)

func newTable(out *bufio.Writer, names []string) *table {
	t := &table{out: out, names: make([]string, len(names)), widths: make([]int, len(names)), numeric: make([]bool, len(names)),
		seen: make([]bool, len(names))}
	for i, name := range names {
		t.names[i] = escape(name)
		t.widths[i] = min(width(t.names[i]), widest)
		t.numeric[i] = true
	}
	return t
}

func (t *table) add(row []value) error {
	if t.plain {
		return t.list(row)
	}
	cells := make([]string, len(row))
	for i, v := range row {
		cells[i] = display(v)
		t.bytes += len(cells[i])
		if t.started || v.kind == kindNull {
			continue
		}
		t.seen[i] = true
		t.numeric[i] = t.numeric[i] && (v.kind == kindInteger || v.kind == kindReal)
		t.widths[i] = max(t.widths[i], min(width(cells[i]), widest))
	}
	t.rows++
	if t.started {
		return t.print(cells)
	}
	t.held = append(t.held, cells)
	if len(t.held) >= heldRows || t.bytes >= heldBytes {
		return t.start()
	}
	return nil
}

// list prints a row as it is, with the line breaks that its values have.
func (t *table) list(row []value) error {
	for i, v := range row {
		if i > 0 {
			t.put("|")
		}
		if v.kind != kindText {
			t.put(display(v))
			continue
		}
		for j, line := range strings.Split(v.text, "\n") {
			if j > 0 {
				t.put("\n")
			}
			t.put(escape(line))
		}
	}
	return t.line()
}

// start prints the header and the kept rows.
func (t *table) start() error {
	t.started = true
	for i, name := range t.names {
		if i > 0 {
			t.put("|")
		}
		space := t.widths[i] - min(width(name), t.widths[i])
		t.pad(1 + space/2)
		t.put(name)
		t.pad(1 + space - space/2)
	}
	t.put("\n")
	for i, w := range t.widths {
		if i > 0 {
			t.put("+")
		}
		t.put(strings.Repeat("-", w+2))
	}
	t.put("\n")
	for _, cells := range t.held {
		if err := t.print(cells); err != nil {
			return err
		}
	}
	t.held = nil
	return nil
}

func (t *table) print(cells []string) error {
	for i, cell := range cells {
		if i > 0 {
			t.put("|")
		}
		space := t.widths[i] - min(width(cell), t.widths[i])
		t.put(" ")
		if t.numeric[i] && t.seen[i] {
			t.pad(space)
			space = 0
		}
		t.put(cell)
		if i < len(cells)-1 {
			t.pad(space + 1)
		}
	}
	return t.line()
}

// put writes a part of a line. A bufio.Writer keeps its first error, which line returns.
func (t *table) put(s string) { _, _ = t.out.WriteString(s) }

func (t *table) line() error { return t.out.WriteByte('\n') }

func (t *table) pad(n int) {
	for range n {
		t.put(" ")
	}
}

// end prints the remaining rows, and the count if the result is complete.
func (t *table) end(whole bool) error {
	if t.plain {
		return nil
	}
	if !t.started {
		if t.rows == 0 && !whole {
			return nil
		}
		if err := t.start(); err != nil {
			return err
		}
	}
	if whole {
		rows := " rows)\n"
		if t.rows == 1 {
			rows = " row)\n"
		}
		t.put("(" + strconv.Itoa(t.rows) + rows)
	}
	return t.line()
}

// display is a value in a table. NULL is empty, as in psql.
func display(v value) string {
	switch v.kind {
	case kindNull:
		return ""
	case kindBlob:
		return `\x` + hex.EncodeToString([]byte(v.text))
	}
	return escape(v.text)
}
