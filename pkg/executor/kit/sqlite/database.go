package sqlite

import (
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
	"syscall"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/tables"
)

// database is a connection. It uses SQLite's own interface, not database/sql, because only that one splits a script and
// reports where in it an error is.
type database struct {
	tls    *libc.TLS
	handle uintptr
	slots  uintptr // room for two pointers that functions return through their arguments
}

const pointerSize = 8

var errMemory = errors.New("out of memory")

func open(name string) (*database, error) {
	d := &database{tls: libc.NewTLS()}
	d.slots = libc.Xmalloc(d.tls, types.Size_t(2*pointerSize))
	path, err := libc.CString(name)
	if d.slots == 0 || err != nil {
		d.close()
		return nil, errMemory
	}
	defer libc.Xfree(d.tls, path)
	const flags = sqlite3.SQLITE_OPEN_READWRITE | sqlite3.SQLITE_OPEN_CREATE | sqlite3.SQLITE_OPEN_NOMUTEX
	rc := sqlite3.Xsqlite3_open_v2(d.tls, path, d.slots, flags, 0)
	d.handle = libc.AtomicLoadPUintptr(d.slots)
	if rc != sqlite3.SQLITE_OK {
		err := d.err(rc)
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *database) close() {
	if d.handle != 0 {
		sqlite3.Xsqlite3_close_v2(d.tls, d.handle)
	}
	if d.slots != 0 {
		libc.Xfree(d.tls, d.slots)
	}
	d.tls.Close()
}

// failure is SQLite's error of the last call.
type failure struct {
	code   int32
	text   string
	offset int // in the statement's text; -1 if unknown
	noDisk bool
}

func (f *failure) Error() string { return f.text }

// syntax distinguishes text that is no SQL from statements that fail.
func (f *failure) syntax() bool {
	return f.code == sqlite3.SQLITE_ERROR &&
		(strings.HasSuffix(f.text, "syntax error") || strings.HasPrefix(f.text, "unrecognized token") || f.text == "incomplete input")
}

func (d *database) err(rc int32) *failure {
	if d.handle == 0 {
		return &failure{code: rc, text: errMemory.Error(), offset: -1}
	}
	return &failure{
		code: rc & 0xff, text: libc.GoString(sqlite3.Xsqlite3_errmsg(d.tls, d.handle)),
		offset: int(sqlite3.Xsqlite3_error_offset(d.tls, d.handle)),
		noDisk: rc&0xff == sqlite3.SQLITE_FULL && d.refusedWrite(),
	}
}

// refusedWrite reports whether the last system call that failed was refused for lack of disk. SQLITE_FULL alone also means that a table
// has no further rowid, or that PRAGMA max_page_count was reached.
func (d *database) refusedWrite() bool {
	switch errno := syscall.Errno(libc.AtomicLoadPInt32(libc.X__errno_location(d.tls))); errno {
	case syscall.ENOSPC, syscall.EDQUOT:
		return true
	default:
		return false
	}
}

// text returns a zero-terminated copy for SQLite. The caller calls free.
func (d *database) text(s string) (p uintptr, free func(), err error) {
	if p, err = libc.CString(s); err != nil {
		return 0, nil, errMemory
	}
	return p, func() { libc.Xfree(d.tls, p) }, nil
}

// prepare compiles the first statement of a text of n bytes and returns its length in bytes. Without a statement
// (white space, comments) the handle is 0.
func (d *database) prepare(sql uintptr, n int) (s *statement, used int, err error) {
	// With the final zero counted, SQLite does not copy the rest for each statement.
	if n >= math.MaxInt32 {
		return nil, 0, &failure{text: "the script is longer than 2 GiB", offset: -1}
	}
	if rc := sqlite3.Xsqlite3_prepare_v2(d.tls, d.handle, sql, int32(n+1), d.slots, d.slots+pointerSize); rc != sqlite3.SQLITE_OK {
		return nil, 0, d.err(rc)
	}
	s = &statement{db: d, handle: libc.AtomicLoadPUintptr(d.slots)}
	used = min(n, int(libc.AtomicLoadPUintptr(d.slots+pointerSize)-sql))
	if s.handle != 0 {
		s.columns = int(sqlite3.Xsqlite3_column_count(d.tls, s.handle))
	}
	return s, used, nil
}

// prepareText is prepare for a statement of this package.
func (d *database) prepareText(sql string) (*statement, error) {
	p, free, err := d.text(sql)
	if err != nil {
		return nil, err
	}
	defer free()
	s, _, err := d.prepare(p, len(sql))
	return s, err
}

// execute runs a statement of this package.
func (d *database) execute(sql string) error {
	s, err := d.prepareText(sql)
	if err != nil {
		return err
	}
	defer s.finalize()
	for {
		if more, err := s.step(); err != nil || !more {
			return err
		}
	}
}

// statement is a compiled statement.
type statement struct {
	db      *database
	handle  uintptr
	columns int
	bound   []uintptr
}

func (s *statement) finalize() {
	if s.handle != 0 {
		sqlite3.Xsqlite3_finalize(s.db.tls, s.handle)
	}
	s.release()
}

func (s *statement) release() {
	for _, p := range s.bound {
		libc.Xfree(s.db.tls, p)
	}
	s.bound = s.bound[:0]
}

// step executes the next step and reports whether there is a row.
func (s *statement) step() (row bool, err error) {
	libc.AtomicStorePInt32(libc.X__errno_location(s.db.tls), 0)
	switch rc := sqlite3.Xsqlite3_step(s.db.tls, s.handle); rc {
	case sqlite3.SQLITE_ROW:
		return true, nil
	case sqlite3.SQLITE_DONE:
		return false, nil
	default:
		return false, s.db.err(rc)
	}
}

// bind sets a parameter, from 1 on, until the next reset.
func (s *statement) bind(i int, text string) error {
	p, err := libc.CString(text)
	if err != nil {
		return errMemory
	}
	s.bound = append(s.bound, p)
	if rc := sqlite3.Xsqlite3_bind_text(s.db.tls, s.handle, int32(i), p, int32(len(text)), 0); rc != sqlite3.SQLITE_OK {
		return s.db.err(rc)
	}
	return nil
}

func (s *statement) bindNull(i int) { sqlite3.Xsqlite3_bind_null(s.db.tls, s.handle, int32(i)) }

func (s *statement) reset() {
	sqlite3.Xsqlite3_reset(s.db.tls, s.handle)
	s.release()
}

func (s *statement) name(column int) string {
	return libc.GoString(sqlite3.Xsqlite3_column_name(s.db.tls, s.handle, int32(column)))
}

// declared is the type in the table's definition, in lower case; "" for expressions.
func (s *statement) declared(column int) string {
	p := sqlite3.Xsqlite3_column_decltype(s.db.tls, s.handle, int32(column))
	if p == 0 {
		return ""
	}
	return strings.ToLower(libc.GoString(p))
}

// kind is the type of a single value.
type kind int32

const (
	kindInteger kind = sqlite3.SQLITE_INTEGER
	kindReal    kind = sqlite3.SQLITE_FLOAT
	kindText    kind = sqlite3.SQLITE_TEXT
	kindBlob    kind = sqlite3.SQLITE_BLOB
	kindNull    kind = sqlite3.SQLITE_NULL
)

func (k kind) String() string {
	return map[kind]string{kindInteger: "integer", kindReal: "real", kindText: "text", kindBlob: "blob"}[k]
}

// value is a value of a row. Text is SQLite's form of it; for a blob, the bytes.
type value struct {
	kind kind
	text string
	real float64
}

func (s *statement) value(column int) value {
	tls, i := s.db.tls, int32(column)
	v := value{kind: kind(sqlite3.Xsqlite3_column_type(tls, s.handle, i))}
	var p uintptr
	switch v.kind {
	case kindNull:
		return v
	case kindBlob:
		p = sqlite3.Xsqlite3_column_blob(tls, s.handle, i)
	case kindReal:
		v.real = sqlite3.Xsqlite3_column_double(tls, s.handle, i)
		p = sqlite3.Xsqlite3_column_text(tls, s.handle, i)
	default:
		p = sqlite3.Xsqlite3_column_text(tls, s.handle, i)
	}
	if n := int(sqlite3.Xsqlite3_column_bytes(tls, s.handle, i)); p != 0 && n > 0 {
		v.text = string(libc.GoBytes(p, n))
	}
	return v
}

// cell is the value in a result as JSON: NULL is null, a BLOB the same text as in a table, an infinity the text Inf or -Inf.
func (v value) cell() tables.Cell {
	c := tables.Cell{Type: v.kind.String(), Text: v.text}
	switch v.kind {
	case kindNull:
		c.Text, c.IsRaw = "null", true
	case kindInteger:
		c.IsRaw = true
	case kindReal:
		switch {
		case math.IsInf(v.real, 1):
			c.Text = "Inf"
		case math.IsInf(v.real, -1):
			c.Text = "-Inf"
		default:
			c.Text, c.IsRaw = strconv.FormatFloat(v.real, 'g', -1, 64), true
		}
	case kindBlob:
		if len(v.text) > tables.MostBytes {
			break // is not kept
		}
		c.Text = `\x` + hex.EncodeToString([]byte(v.text))
	}
	return c
}
