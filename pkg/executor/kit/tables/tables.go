// Package tables collects results of queries as JSON, for clients that do not parse aligned text:
//
//	[{"columns": […], "types": […], "rows": [[…], …], "rows_total": 3, "truncated": false}, …]
//
// Place in the flow. The tools sqlite and postgres of the kit fill a [Set] inside the sandbox and write it to a file, which the executor
// reads.
//
// Lifecycle, concurrency. A Set belongs to one goroutine, for one run.
//
// Limits. All results together keep at most 10,000 rows and 4 MiB. Further rows are counted.
package tables

import (
	"bytes"
	"encoding/json"
	"os"
)

// The bounds of a Set.
const (
	MostRows  = 10_000
	MostBytes = 4 << 20
)

// Set is the results of one run.
type Set struct {
	done []*Table
	rows int // kept, of all results
	size int
}

// Table is one result.
type Table struct {
	Columns   []string        `json:"columns"`
	Types     []string        `json:"types"`
	Rows      json.RawMessage `json:"rows"`
	RowsTotal int             `json:"rows_total"`
	Truncated bool            `json:"truncated"`

	all  *Set
	text bytes.Buffer
}

// Cell is one value. Its type is that of the column, if the result has none for that.
type Cell struct {
	Type  string
	Text  string
	IsRaw bool // Text is JSON: a number, true, false or null
}

// Start begins a result. A result that begins beyond the limit is not listed.
func (s *Set) Start(columns, types []string) *Table {
	t := &Table{Columns: columns, Types: types, all: s}
	for i := range columns {
		s.size += len(columns[i]) + len(types[i]) + 8
	}
	if s.size < MostBytes {
		s.done = append(s.done, t)
	}
	return t
}

// Add adds a row.
func (t *Table) Add(row []Cell) {
	t.RowsTotal++
	size := 0
	for i, c := range row {
		if t.Types[i] == "" {
			t.Types[i] = c.Type
		}
		size += len(c.Text)
	}
	if t.Truncated || t.all.rows >= MostRows || t.all.size+size > MostBytes {
		t.Truncated = true
		return
	}
	before := t.text.Len()
	separator := byte('[')
	if before > 0 {
		t.text.WriteByte(',')
	}
	for _, c := range row {
		t.text.WriteByte(separator)
		t.text.Write(c.encode())
		separator = ','
	}
	if len(row) == 0 {
		t.text.WriteByte('[')
	}
	t.text.WriteByte(']')
	t.all.rows++
	t.all.size += t.text.Len() - before
}

// Skip counts a row without its values.
func (t *Table) Skip() {
	t.RowsTotal++
	t.Truncated = true
}

func (c *Cell) encode() []byte {
	if c.IsRaw {
		return []byte(c.Text)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(c.Text) // into memory; a string can always be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// WriteFile writes all results to a file.
func (s *Set) WriteFile(name string) error {
	for _, t := range s.done {
		t.Rows = append(append([]byte("["), t.text.Bytes()...), ']')
	}
	all := s.done
	if all == nil {
		all = []*Table{}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(all); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
