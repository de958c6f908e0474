package sqlite

import (
	"bufio"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/tables"
)

// runner executes scripts on one database.
type runner struct {
	db     *database
	out    *bufio.Writer
	tables *tables.Set // nil if they are not requested
	data   *data
	quit   bool // .quit was executed
	plain  bool // results are lists: .mode list was executed
	ran    bool // a statement was executed

	interrupted *atomic.Bool // nil if nothing interrupts
}

func (r *runner) run(s *script) error {
	base, free, err := r.db.text(s.text)
	if err != nil {
		return err
	}
	defer free()
	for {
		s.skip()
		if s.at == len(s.text) {
			return nil
		}
		if r.interrupted != nil && r.interrupted.Load() {
			return r.failed(s, &failure{code: sqlite3.SQLITE_INTERRUPT, text: "interrupted", offset: -1})
		}
		if s.text[s.at] == '.' {
			if err := r.shellCommand(s); err != nil || r.quit {
				return err
			}
			continue
		}
		used, err := r.statement(s, base)
		if err != nil {
			return err
		}
		s.advance(s.at + used)
		// The rows so far are printed before the next statement, which may take an hour.
		if err := r.out.Flush(); err != nil {
			return err
		}
	}
}

// statement executes the statement at the script's position and returns its length.
func (r *runner) statement(s *script, base uintptr) (used int, err error) {
	var stmt *statement
	for {
		stmt, used, err = r.db.prepare(base+uintptr(s.at), len(s.text)-s.at)
		if err == nil {
			break
		}
		loaded, dataErr := r.data.load(r.db, err)
		if dataErr != nil {
			return 0, s.fail(s.at, dataErr.Error(), false)
		}
		if !loaded {
			return 0, r.failed(s, err)
		}
	}
	defer stmt.finalize()
	if stmt.handle == 0 {
		return max(used, 1), nil
	}
	if err := r.results(stmt); err != nil {
		var f *failure
		if errors.As(err, &f) {
			return 0, r.failed(s, err)
		}
		return 0, err
	}
	r.ran = true
	return used, nil
}

// failed adds the position in the script to an error of SQLite. After a statement that was executed, a syntax error is one of a program
// that ran.
func (r *runner) failed(s *script, err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	at, exact := s.at, false
	if f.offset >= 0 && s.at+f.offset <= len(s.text) {
		at, exact = s.at+f.offset, true
	}
	e := s.fail(at, f.text, exact)
	e.Syntax, e.NoDisk, e.Interrupted = f.syntax() && !r.ran, f.noDisk, f.code == sqlite3.SQLITE_INTERRUPT
	return e
}

// results executes a statement and prints its rows, if it has any.
func (r *runner) results(stmt *statement) error {
	if stmt.columns == 0 {
		_, err := stmt.step()
		return err
	}
	names := make([]string, stmt.columns)
	for i := range names {
		names[i] = stmt.name(i)
	}
	t := newTable(r.out, names)
	t.plain = r.plain
	var j *tables.Table
	if r.tables != nil {
		types := make([]string, stmt.columns)
		for i := range types {
			types[i] = stmt.declared(i)
		}
		j = r.tables.Start(names, types)
	}
	row, cells := make([]value, stmt.columns), make([]tables.Cell, stmt.columns)
	for {
		more, err := stmt.step()
		if err != nil || !more {
			// The rows before an error are printed, without a count.
			return errors.Join(t.end(err == nil), err)
		}
		for i := range row {
			row[i] = stmt.value(i)
		}
		if j != nil {
			for i, v := range row {
				cells[i] = v.cell()
			}
			j.Add(cells)
		}
		if err := t.add(row); err != nil {
			return err
		}
	}
}

// shellCommand executes a line that starts with a dot.
func (r *runner) shellCommand(s *script) error {
	line := s.text[s.at:]
	if end := strings.IndexByte(line, '\n'); end >= 0 {
		line = line[:end]
	}
	words := strings.Fields(strings.TrimRight(line, "; \t\r"))
	var err error
	switch command := strings.Join(words, " "); {
	case command == ".quit" || command == ".exit":
		r.quit = true
	case command == ".tables":
		err = r.list(`SELECT name FROM sqlite_schema WHERE type IN ('table','view') AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY 1`)
	case command == ".schema":
		err = r.list(`SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY rowid`)
	case words[0] == ".schema" && len(words) == 2:
		err = r.list(`SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL AND tbl_name = ` + literal(words[1]) +
			` COLLATE NOCASE ORDER BY rowid`)
	case command == ".mode column", command == ".mode columns", command == ".mode table", command == ".mode box":
		r.plain = false
	case command == ".headers on", command == ".header on", command == ".headers off", command == ".header off":
		// tables have names, and lists have none
	case command == ".mode list":
		r.plain = true
	default:
		e := s.fail(s.at, escape(words[0])+" is a command of the sqlite3 shell, not SQL; of those, .tables, .schema, .mode list, .mode column "+
			"and .quit are understood here", true)
		e.Syntax = !r.ran
		return e
	}
	if err != nil {
		return r.failed(s, err)
	}
	s.advance(s.at + len(line))
	return nil
}

// list prints the only column of a query of this package.
func (r *runner) list(query string) error {
	stmt, err := r.db.prepareText(query)
	if err != nil {
		return err
	}
	defer stmt.finalize()
	for {
		more, err := stmt.step()
		if err != nil || !more {
			return err
		}
		for line := range strings.SplitSeq(stmt.value(0).text, "\n") {
			if _, err := r.out.WriteString(escape(line) + "\n"); err != nil {
				return err
			}
		}
	}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func identifier(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// reason is an error of the file system without the path, which the message has already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
