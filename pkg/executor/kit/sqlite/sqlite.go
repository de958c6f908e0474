// Package sqlite runs SQL scripts on a built-in SQLite, and prints results as psql does.
//
// What. Run executes the statements of one or more scripts in order. A result is printed as an aligned table and may be collected as JSON
// as well. Files *.csv and *.tsv of a directory are tables: one is imported when a statement first needs it.
//
// Place in the flow. `sandbox-kit sqlite` calls Run inside the sandbox; sql.go of the executor plans it. `sandbox-kit sqlite-session`
// serves a [Session], which executes one script after the other on one connection.
//
// Lifecycle. One Run per process in practice. A database without a name is a temporary one, which is stored in an unnamed file in $TMPDIR
// once it has outgrown its cache.
//
// Concurrency. A Run uses one goroutine; only Interrupt of a Session may be called from another one. Several may run at a time, each with
// its own database.
//
// Limits. SQLite's own parser splits the statements. Statements that return no columns print nothing, as in the sqlite3 shell. NULL is
// shown as nothing, a BLOB as \x and hexadecimal digits, control characters escaped. Columns are as wide as the first thousand rows (or
// MiB) need; later rows are printed immediately. Of the shell's own commands, .tables, .schema, .mode list and .quit are executed, and
// those that request the default output (.headers on, .mode column) are accepted.
//
// The C interface is used instead of database/sql, because it reports where in the text an error is. A file x.csv becomes the table x
// when SQLite first reports that there is no such table: tables of the script come first, and unused files are never read. Types are
// found by reading the file once before; 007 stays text, an empty field is NULL.
package sqlite

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/tables"
)

// Options are the arguments of Run.
type Options struct {
	Database string    // a file, ":memory:", or "" for a temporary one
	Files    []string  // scripts, in order; none means In
	In       io.Reader // a script, called <stdin> in messages
	Out      io.Writer // the tables
	Tables   string    // file for the results as JSON; "" means none
	Data     string    // directory of *.csv and *.tsv; "" means none
}

// ScriptError is an error in a script, or of the database while it runs one.
type ScriptError struct {
	File    string
	Line    int // from 1; 0 if no line is the reason
	Message string
	Text    string // the line, shortened if it is very long
	Column  int    // from 0, in Text; -1 if the whole line is the reason
	Syntax  bool   // the text is no SQL, and no statement before it was executed
	// Interrupted says that Session.Interrupt has ended the statement. SQLite has taken it back, and perhaps its transaction.
	Interrupted bool
	NoDisk      bool // the disk was full. SQLite has taken the statement back, so that it may have room again
}

func (e *ScriptError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": " + e.Message)
	if e.Text != "" {
		b.WriteString("\n  " + e.Text)
		if e.Column >= 0 {
			b.WriteString("\n  " + strings.Repeat(" ", width(e.Text[:e.Column])) + "^")
		}
	}
	return b.String()
}

// Run executes the scripts and stops at the first error, which is a *ScriptError unless the kit itself failed.
func Run(o Options) (err error) {
	var results *tables.Set
	if o.Tables != "" {
		results = &tables.Set{}
		defer func() { // after the end of a temporary database, which may fill the disk
			if e := results.WriteFile(o.Tables); e != nil && err == nil {
				err = e
			}
		}()
	}
	db, err := connect(o.Database)
	if err != nil {
		return err
	}
	defer db.close()
	r := &runner{db: db, out: bufio.NewWriterSize(o.Out, 64<<10), data: dataOf(&o), tables: results}
	defer func() {
		if e := r.out.Flush(); e != nil && err == nil {
			err = e
		}
	}()
	if len(o.Files) == 0 {
		return r.read("<stdin>", o.In)
	}
	for _, name := range o.Files {
		if err := r.readFile(name); err != nil || r.quit {
			return err
		}
	}
	return nil
}

// connect opens a database. The error is a *ScriptError.
func connect(name string) (*database, error) {
	db, err := open(name)
	if err != nil {
		return nil, &ScriptError{File: name, Message: err.Error()}
	}
	// The database is not read after a crash.
	if err := db.execute("PRAGMA synchronous=OFF"); err != nil {
		db.close()
		return nil, &ScriptError{File: name, Message: err.Error()}
	}
	return db, nil
}

func dataOf(o *Options) *data { return newData(o.Data, o.Database != "" && o.Database != ":memory:") }

func (r *runner) readFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return &ScriptError{File: name, Message: reason(err)}
	}
	defer f.Close()
	return r.read(name, f)
}

func (r *runner) read(name string, from io.Reader) error {
	var text strings.Builder
	if _, err := io.Copy(&text, from); err != nil {
		return &ScriptError{File: name, Message: reason(err)}
	}
	return r.runText(name, text.String())
}

func (r *runner) runText(name, text string) error {
	s := &script{name: name, text: strings.TrimPrefix(text, "\ufeff"), line: 1}
	if i := strings.IndexByte(s.text, 0); i >= 0 {
		e := s.fail(i, "the file is not text: it holds a zero byte (SQL is read as UTF-8)", true)
		e.Syntax = true
		return e
	}
	return r.run(s)
}

// brief shortens a message with a long quotation.
func brief(message string) string {
	const most = 400
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most/2], "") + " … " + strings.ToValidUTF8(message[len(message)-most/2:], "")
}

// script is a text and the position up to which it was executed.
type script struct {
	name string
	text string
	at   int // where the next statement starts
	line int // the line of at
}

// advance moves to a later position.
func (s *script) advance(to int) {
	s.line += strings.Count(s.text[s.at:to], "\n")
	s.at = to
}

// skip moves over white space and comments.
func (s *script) skip() {
	i := s.at
	for i < len(s.text) {
		switch rest := s.text[i:]; {
		case strings.HasPrefix(rest, "--"):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			i += end
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest[2:], "*/")
			if end < 0 {
				i = len(s.text)
			} else {
				i += end + 4
			}
		case strings.IndexByte(" \t\r\n\f;", rest[0]) >= 0:
			i++
		default:
			s.advance(i)
			return
		}
	}
	s.advance(i)
}

// fail returns an error at a position that is not before the current one.
func (s *script) fail(at int, message string, exact bool) *ScriptError {
	line := s.line + strings.Count(s.text[s.at:at], "\n")
	start := strings.LastIndexByte(s.text[:at], '\n') + 1
	text := s.text[start:]
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		text = text[:end]
	}
	e := &ScriptError{File: s.name, Line: line, Message: brief(escape(message)), Column: -1}
	// A part of a long line is shown, with escapes.
	const most = 160
	from, to := 0, len(text)
	if to > most {
		from = max(0, min(at-start-most/2, to-most))
		to = from + most
		for from > 0 && !utf8.RuneStart(text[from]) {
			from--
		}
		for to < len(text) && !utf8.RuneStart(text[to]) {
			to++
		}
	}
	e.Text = escape(strings.TrimRight(text[from:to], "\r"))
	if exact && at-start >= from && at-start <= to {
		e.Column = min(len(escape(text[from:at-start])), len(e.Text))
	}
	return e
}
