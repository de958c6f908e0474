// Package repl reads cells from a person or a pipe, and executes them in a session.
//
// What. A [REPL] reads a cell, executes it, and shows its output, its value and its figures. On a terminal it has a line editor with the
// language's own rule for a complete cell, highlighting, completion and a history on disk; elsewhere it reads lines. Words that begin with a
// colon are commands of the REPL itself (commands.go).
//
//	editor or lines ─► cell ─► Session.Execute ─► Screen
//	               └─► :command
//
// Place in the flow. internal/cli/full runs it, with a session of this process or of a server. It knows no backend and opens nothing but its
// history and the files that a person names.
//
// Lifecycle. Run returns when the input ends, a person leaves, or the interpreter was left by exit(). The caller closes the session that
// Session returns.
//
// Concurrency. Run belongs to one goroutine. Interrupt may be called from any other.
//
// Limits. A history has the latest 2000 cells, of at most 64 KiB each. One REPL at a time uses a terminal: the editor works on standard
// input and output of the process.
package repl
