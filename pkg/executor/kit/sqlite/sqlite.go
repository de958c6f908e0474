// Package sqlite runs SQL scripts on an SQLite that is part of the program, and prints what they return as psql would.
//
// What. Run executes the statements of one or more scripts in order. A result is printed as an aligned table and may be
// collected as JSON as well. Files *.csv and *.tsv of a directory are tables: one is read in when a statement first misses it.
//
// Place in the flow. `sandbox-kit sqlite` calls Run inside the sandbox; sql.go of the executor is who asks for it.
//
// Lifecycle. One Run per process in practice. A database without a name is a temporary one, which goes to an unnamed file in
// $TMPDIR once it has outgrown its cache.
//
// Concurrency. A Run uses one goroutine. Several may run at a time, each with its own database.
//
// Limits. Statements are split by SQLite's own parser, so what it takes for a statement is one. Statements that return no
// columns print nothing, as in the sqlite3 shell. NULL is shown as nothing, a BLOB as \x and hexadecimal digits, control characters escaped.
// Columns are as wide as the first thousand rows (or MiB) want them; later rows are printed as they come. Of the shell's own
// commands, .tables, .schema and .quit are understood, and what only asks for such output (.headers on, .mode column).
package sqlite

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// Options say what to run and where the results go.
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
	Line    int // from 1; 0 if it is not a line's fault
	Message string
	Text    string // the line, shortened if it is very long
	Column  int    // from 0, in Text; -1 if it is the line as a whole
	Syntax  bool   // the text is no SQL; otherwise, it failed
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

// Run executes the scripts and stops at the first error, which is a *ScriptError unless it is ours.
func Run(o Options) (err error) {
	db, err := open(o.Database)
	if err != nil {
		return &ScriptError{File: o.Database, Message: err.Error()}
	}
	defer db.close()
	// Nobody reads this after a crash.
	if err := db.execute("PRAGMA synchronous=OFF"); err != nil {
		return &ScriptError{File: o.Database, Message: err.Error()}
	}
	r := &runner{db: db, out: bufio.NewWriterSize(o.Out, 64<<10), data: newData(o.Data, o.Database != "" && o.Database != ":memory:")}
	if o.Tables != "" {
		r.tables = &tables{}
		defer func() {
			if e := os.WriteFile(o.Tables, r.tables.encode(), 0o644); e != nil && err == nil {
				err = e
			}
		}()
	}
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
	s := &script{name: name, text: strings.TrimPrefix(text.String(), "\ufeff"), line: 1}
	if i := strings.IndexByte(s.text, 0); i >= 0 {
		e := s.fail(i, "the file is not text: it holds a zero byte (SQL is read as UTF-8)", true)
		e.Syntax = true
		return e
	}
	return r.run(s)
}

// brief shortens a message that quotes too much.
func brief(message string) string {
	const most = 400
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most/2], "") + " … " + strings.ToValidUTF8(message[len(message)-most/2:], "")
}

// script is a text and how far it has been executed.
type script struct {
	name string
	text string
	at   int // where the next statement starts
	line int // the line of at
}

// advance moves to a later place.
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

// fail is an error at a place of the text that is not before the current one.
func (s *script) fail(at int, message string, exact bool) *ScriptError {
	line := s.line + strings.Count(s.text[s.at:at], "\n")
	start := strings.LastIndexByte(s.text[:at], '\n') + 1
	text := s.text[start:]
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		text = text[:end]
	}
	e := &ScriptError{File: s.name, Line: line, Message: brief(escape(message)), Column: -1}
	// What is shown is a window of a long line, and safe to print.
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
