package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// table aligns columns for people. It prints in batches, so that a long one costs no memory; a later batch can be
// wider than an earlier one, never narrower. A title that begins with > is of a column of numbers.
type table struct {
	to     io.Writer
	paint  palette
	titles []string
	right  []bool
	widths []int
	rows   [][]string
	headed bool
}

const tableBatch = 500

func (c *cli) newTable(to *os.File, titles ...string) *table {
	t := &table{to: to, paint: c.palette(to)}
	for _, title := range titles {
		name, right := strings.CutPrefix(title, ">")
		t.titles, t.right, t.widths = append(t.titles, name), append(t.right, right), append(t.widths, len(name))
	}
	return t
}

// add takes a row, which may be shorter than the table is wide. What is in it may come from anywhere.
func (t *table) add(row ...string) error {
	for i := range row {
		row[i] = cell(row[i])
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
	}
	if t.rows = append(t.rows, row); len(t.rows) >= tableBatch {
		return t.flush()
	}
	return nil
}

// flush prints what waits. Without rows there is no heading either.
func (t *table) flush() error {
	if len(t.rows) == 0 {
		return nil
	}
	var b strings.Builder
	if !t.headed {
		t.headed = true
		b.WriteString(t.paint.bold(t.line(t.titles)) + "\n")
	}
	for _, row := range t.rows {
		b.WriteString(t.line(row) + "\n")
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.to, b.String())
	return err
}

func (t *table) line(row []string) string {
	var b strings.Builder
	for i, text := range row {
		width := t.widths[i]
		if !t.right[i] {
			width = -width
		}
		fmt.Fprintf(&b, "%*s  ", width, text)
	}
	return strings.TrimRight(b.String(), " ")
}

// cell is foreign text on one line.
func cell(s string) string {
	return strings.NewReplacer("\r\n", `\r\n`, "\n", `\n`, "\t", `\t`).Replace(escaped(s))
}
