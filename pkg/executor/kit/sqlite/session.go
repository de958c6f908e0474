package sqlite

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Session is a connection that executes cells: each is a script, which stops at its first error.
type Session struct {
	r   *runner
	err io.Writer

	interrupted atomic.Bool
	mu          sync.Mutex // held while a goroutine interrupts the connection
	closed      bool       // guarded by mu
}

var _ session.Interpreter = (*Session)(nil)

// OpenSession opens the database of the options, whose fields Files, In and Tables are not used. Errors of cells are written to stderr. The
// caller closes the Session.
func OpenSession(o Options, stderr io.Writer) (*Session, error) {
	db, err := connect(o.Database)
	if err != nil {
		return nil, err
	}
	s := &Session{err: stderr}
	s.r = &runner{db: db, out: bufio.NewWriterSize(o.Out, 64<<10), data: dataOf(&o), interrupted: &s.interrupted}
	return s, nil
}

// Close closes the connection, which rolls an open transaction back.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.r.db.close()
}

// Execute executes a cell.
func (s *Session) Execute(code string) (done protocol.Done, quit bool) {
	s.r.ran = false
	err := s.r.runText("cell", code)
	if e := s.r.out.Flush(); err == nil {
		err = e
	}
	var failed *ScriptError
	switch {
	case err == nil:
		return protocol.Done{OK: true}, s.r.quit
	case !errors.As(err, &failed):
		failed = &ScriptError{Message: err.Error()}
	}
	fmt.Fprintln(s.err, err)
	done = protocol.Done{Status: 1, Interrupted: failed.Interrupted, Error: &protocol.Error{
		Name: "SQLite error", Message: strings.ToValidUTF8(failed.Message, "?"), Line: failed.Line,
	}}
	if failed.Syntax {
		done.Error.Name = "syntax error"
	}
	return done, false
}

// Interrupt ends the statement that is executed, and the cell with it.
func (s *Session) Interrupt() {
	s.interrupted.Store(true)
	go func() { // SQLite forgets an interrupt when a statement starts
		tls := libc.NewTLS()
		defer tls.Close()
		for s.interruptStatement(tls) {
			time.Sleep(interruptAgain)
		}
	}()
}

// interruptAgain is the time after which a cell that was interrupted, and has not ended, is interrupted again.
const interruptAgain = 10 * time.Millisecond

// interruptStatement returns false if no interrupt is in effect.
func (s *Session) interruptStatement(tls *libc.TLS) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.interrupted.Load() {
		return false
	}
	sqlite3.Xsqlite3_interrupt(tls, s.r.db.handle)
	return true
}

// Resume takes interrupts back.
func (s *Session) Resume() { s.interrupted.Store(false) }

// Check uses SQLite's own rule: a statement ends with a semicolon.
func (s *Session) Check(code string) protocol.Checked {
	rest := &script{text: code, line: 1}
	rest.skip()
	last := code[strings.LastIndexByte(strings.TrimSpace(code), '\n')+1:]
	switch {
	case rest.at == len(code): // comments
		code += "\n;"
	case code[rest.at] == '.' && strings.HasPrefix(strings.TrimSpace(last), "."):
		return protocol.Checked{Status: "complete"}
	}
	p, free, err := s.r.db.text(code)
	if err != nil {
		return protocol.Checked{Status: "complete"}
	}
	defer free()
	if sqlite3.Xsqlite3_complete(s.r.db.tls, p) == 0 {
		return protocol.Checked{Status: "incomplete"}
	}
	return protocol.Checked{Status: "complete"}
}

// The queries of questions. Functions of pragmas see the temporary schema, too.
const (
	namesQuery = `SELECT name FROM pragma_table_list WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'
UNION SELECT c.name FROM pragma_table_list t, pragma_table_info(t.name, t.schema) c WHERE t.name NOT LIKE 'sqlite\_%' ESCAPE '\'
UNION SELECT name FROM pragma_function_list WHERE name GLOB '[a-z]*'`
	tablesQuery = `SELECT t.schema, t.name, t.type, (SELECT group_concat(rtrim(c.name || ' ' || lower(c.type)), ', ')
FROM pragma_table_info(t.name, t.schema) c)
FROM pragma_table_list t WHERE t.name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY t.name, t.schema`
	schemaQuery = `SELECT sql FROM (SELECT 0 AS n, rowid AS r, sql, tbl_name FROM sqlite_temp_schema
UNION ALL SELECT 1, rowid, sql, tbl_name FROM sqlite_schema) WHERE sql IS NOT NULL AND tbl_name = %s COLLATE NOCASE ORDER BY n, r`
)

// Complete completes names of tables, columns and functions, and keywords.
func (s *Session) Complete(code string, cursor int) protocol.Completed {
	var names, keywords []string
	for _, row := range s.rows(namesQuery) {
		names = append(names, row[0])
	}
	tls := s.r.db.tls
	for i := range sqlite3.Xsqlite3_keyword_count(tls) {
		if sqlite3.Xsqlite3_keyword_name(tls, i, s.r.db.slots, s.r.db.slots+pointerSize) == sqlite3.SQLITE_OK {
			size := int(libc.AtomicLoadPInt32(s.r.db.slots + pointerSize))
			keywords = append(keywords, string(libc.GoBytes(libc.AtomicLoadPUintptr(s.r.db.slots), size)))
		}
	}
	return session.CompleteWord(code, cursor, names, keywords)
}

// Inspect returns the statements that have made a table and what belongs to it.
func (s *Session) Inspect(name string) protocol.Inspected {
	name = strings.Trim(strings.TrimSpace(name), `";`)
	var lines []string
	for _, row := range s.rows(fmt.Sprintf(schemaQuery, literal(name))) {
		lines = append(lines, row[0]+";")
	}
	return protocol.Inspected{Found: len(lines) > 0, Text: strings.Join(lines, "\n")}
}

// Variables lists tables and views with their columns.
func (s *Session) Variables() protocol.Variables {
	v := protocol.Variables{Variables: []protocol.Variable{}}
	for _, row := range s.rows(tablesQuery) {
		name := row[1]
		if row[0] != "main" {
			name = row[0] + "." + name
		}
		v.Variables = append(v.Variables, protocol.Variable{Name: name, Type: row[2], Value: row[3]})
	}
	return v
}

// mostRows bounds the answer to a question.
const mostRows = 1000

// rows returns the values of a query of this package as text; none after an error, such as one by an interrupt.
func (s *Session) rows(query string) (rows [][]string) {
	stmt, err := s.r.db.prepareText(query)
	if err != nil {
		return nil
	}
	defer stmt.finalize()
	for len(rows) < mostRows {
		if more, err := stmt.step(); err != nil || !more {
			break
		}
		row := make([]string, stmt.columns)
		for i := range row {
			row[i] = strings.ToValidUTF8(stmt.value(i).text, "?")
		}
		rows = append(rows, row)
	}
	return rows
}

// Version is the version of SQLite.
func Version() string { return sqlite3.SQLITE_VERSION }
