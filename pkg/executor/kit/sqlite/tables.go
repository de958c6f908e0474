package sqlite

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
)

// tables collects results as JSON, for clients that do not parse aligned text:
//
//	[{"columns": […], "types": […], "rows": [[…], …], "rows_total": 3, "truncated": false}, …]
//
// A type is the declared one of the column, or that of its first value that is not NULL, or "". NULL is null, a BLOB the same
// text as in a table, an infinity the text Inf or -Inf.
type tables struct {
	done []*jsonTable
	rows int // kept, of all results
	size int
}

// Bounds of all results together.
const (
	mostTableRows  = 10_000
	mostTableBytes = 4 << 20
)

type jsonTable struct {
	Columns   []string        `json:"columns"`
	Types     []string        `json:"types"`
	Rows      json.RawMessage `json:"rows"`
	RowsTotal int             `json:"rows_total"`
	Truncated bool            `json:"truncated"`

	all  *tables
	text bytes.Buffer
}

// start begins a result. Results beyond the limit are counted, and only the first thousand of those are listed.
func (t *tables) start(stmt *statement, names []string) *jsonTable {
	j := &jsonTable{Columns: names, Types: make([]string, len(names)), all: t}
	for i := range names {
		j.Types[i] = stmt.declared(i)
		t.size += len(names[i]) + len(j.Types[i]) + 8
	}
	if t.size < mostTableBytes {
		t.done = append(t.done, j)
	}
	return j
}

func (j *jsonTable) add(row []value) {
	j.RowsTotal++
	for i, v := range row {
		if j.Types[i] == "" {
			j.Types[i] = v.kind.String()
		}
	}
	if j.Truncated || j.all.rows >= mostTableRows || j.all.size >= mostTableBytes {
		j.Truncated = true
		return
	}
	size := 0
	for _, v := range row {
		size += len(v.text)
	}
	if j.all.size+size > mostTableBytes {
		j.Truncated = true
		return
	}
	before := j.text.Len()
	separator := byte('[')
	if before > 0 {
		j.text.WriteByte(',')
	}
	for _, v := range row {
		j.text.WriteByte(separator)
		j.text.Write(encodeValue(v))
		separator = ','
	}
	j.text.WriteByte(']')
	j.all.rows++
	j.all.size += j.text.Len() - before
}

func (j *jsonTable) end() {
	j.Rows = append(append([]byte("["), j.text.Bytes()...), ']')
	j.text = bytes.Buffer{}
}

func (t *tables) encode() []byte {
	if len(t.done) == 0 {
		return []byte("[]\n")
	}
	for _, j := range t.done {
		if j.Rows == nil {
			j.end() // the query failed in the middle
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(t.done) // into memory, and all of it is known to be encodable
	return b.Bytes()
}

func encodeValue(v value) []byte {
	switch v.kind {
	case kindNull:
		return []byte("null")
	case kindInteger:
		return []byte(v.text)
	case kindReal:
		switch {
		case math.IsInf(v.real, 1):
			return []byte(`"Inf"`)
		case math.IsInf(v.real, -1):
			return []byte(`"-Inf"`)
		}
		return strconv.AppendFloat(nil, v.real, 'g', -1, 64)
	case kindBlob:
		v.text = `\x` + hex.EncodeToString([]byte(v.text))
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v.text)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
