package repl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/reeflective/readline"
	"github.com/reeflective/readline/inputrc"
	"golang.org/x/term"
)

// LineEditor reads cells from a person at a terminal.
type LineEditor struct {
	repl    *REPL
	shell   *readline.Shell
	colour  bool
	history *History
	// discarding: the line that is returned is not a cell, and no history has it.
	discarding bool
	ctx        context.Context //nolint:containedctx // of the Read that runs, for the editor's callbacks
}

// NewLineEditor returns an editor on the terminal of this process.
func (r *REPL) NewLineEditor(colour bool) *LineEditor {
	e := &LineEditor{repl: r, shell: readline.NewShell(inputrc.WithApp("sandbox-run")), colour: colour, ctx: context.Background()}
	s := e.shell
	s.Prompt.Primary(e.prompt)
	s.Prompt.Secondary(func() string { return "" })
	// Prompts begin in the first column, so that the terminal need not be asked where the cursor is.
	for name, value := range map[string]any{"cursor-position-probe": false, "multiline-column": false, "comment-begin": "\x00",
		"completion-ignore-case": false, "enable-bracketed-paste": true, "history-autosuggest": false, "autopairs": false,
		"menu-complete-display-prefix": true, "convert-meta": false, "input-meta": true, "output-meta": true} {
		s.Config.Vars[name] = value
	}
	if colour {
		s.SyntaxHighlighter = func(line []rune) string { return e.highlight(string(line)) }
	}
	s.Completer = e.complete
	s.AcceptMultiline = func(line []rune) bool {
		complete, _ := e.isComplete(string(line))
		return complete || e.discarding
	}
	s.Keymap.Register(map[string]func(){"cell-enter": e.enter, "cell-new-line": func() { e.insert("\n") }, "cell-discard": e.discard})
	for keymap := range s.Config.Binds { // of menus and searches, too
		_ = s.Config.Bind(keymap, inputrc.Unescape(`\C-C`), "cell-discard", false) // never fails
	}
	for _, keymap := range []string{"emacs", "emacs-standard", "vi-insert"} {
		for key, command := range map[string]string{
			`\C-J`: "accept-line", `\C-M`: "cell-enter", `\e\C-M`: "cell-new-line", `\C-I`: "menu-complete",
		} {
			_ = s.Config.Bind(keymap, inputrc.Unescape(key), command, false)
		}
	}
	return e
}

// Close closes the history.
func (e *LineEditor) Close() {
	if e.history != nil {
		e.history.Close()
	}
}

func (e *LineEditor) prompt() string {
	text := e.repl.Session().Info().Language + "> "
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	space := ""
	if err == nil {
		space = makeSpace(string(*e.shell.Line()), len(text), width, height)
	}
	if e.colour {
		return space + "\x1b[1m" + text + "\x1b[0m"
	}
	return space + text
}

// makeSpace is a sequence that scrolls a terminal until there is a row below the line that is edited, and returns to where it was. The
// editor clears that row each time it draws; in the last row of a terminal it would clear the prompt instead. The sequence has no width and
// no newline, because it is part of the prompt: terminals take a vertical tab for a line feed.
func makeSpace(line string, indent, width, height int) string {
	rows := min(countRows(line, indent, max(width, 1)), height-1)
	if rows < 1 {
		return ""
	}
	return fmt.Sprintf("%s\x1b[%dA", strings.Repeat("\v", rows), rows)
}

// countRows is at least the number of rows of a line. All its parts are indented as the first one is by the prompt.
func countRows(line string, indent, width int) (rows int) {
	for part := range strings.SplitSeq(line, "\n") {
		columns := indent
		for _, r := range part {
			switch {
			case r == '\t':
				columns += tabWidth
			case r >= firstWide:
				columns += 2
			default:
				columns++
			}
		}
		rows += columns/width + 1
	}
	return rows
}

const (
	tabWidth  = 5      // as the editor shows one
	firstWide = 0x1100 // runes below have at most one column
)

// Read returns the next cell.
func (e *LineEditor) Read(ctx context.Context) (string, error) {
	e.ctx = ctx
	if language := e.repl.Session().Info().Language; e.history == nil || e.history.file != language {
		e.useHistory(language)
	}
	e.discarding = false
	text, err := e.shell.Readline()
	switch {
	case e.discarding:
		return "", ErrCleared
	case errors.Is(err, readline.ErrInterrupt):
		return "", ErrCleared
	case errors.Is(err, os.ErrClosed):
		return "", io.EOF
	}
	return text, err
}

// useHistory opens the history of a language. One that can not be kept on disk is kept in memory.
func (e *LineEditor) useHistory(language string) {
	if e.history != nil {
		e.history.Close()
	}
	h, err := OpenHistory(language)
	if err != nil {
		e.repl.o.Screen.Message("the history is not kept: " + err.Error())
	}
	e.history = h
	e.shell.History.Delete()
	e.shell.History.Add(language, kept{h, &e.discarding})
}

// enter executes a complete cell, and otherwise begins a new line with the indent of the language.
func (e *LineEditor) enter() {
	s := e.shell
	if s.Keymap.Local() != "" { // in a search or a menu: the editor's own command
		s.Keys.Feed(true, '\n')
		return
	}
	line, at := string(*s.Line()), s.Cursor().Pos()
	if strings.Contains(string((*s.Line())[min(at, s.Line().Len()):]), "\n") {
		e.insert("\n")
		return
	}
	complete, indent := e.isComplete(line)
	if !complete {
		e.insert("\n" + indent)
		return
	}
	s.Display.AcceptLine()
	s.History.Accept(false, false, nil)
}

// discard discards what is typed: the editor's own command leaves a menu or a search, too, and returns the line.
func (e *LineEditor) discard() {
	e.discarding = true
	e.shell.Keys.Feed(true, '\n')
}

// insert inserts text at the cursor.
func (e *LineEditor) insert(text string) {
	runes := []rune(text)
	e.shell.History.Save()
	e.shell.Cursor().InsertAt(runes...)
}

func (e *LineEditor) highlight(text string) string {
	if _, _, ok := parseCommand(text); ok {
		return text
	}
	return Highlight(e.repl.Session().Info().Language, text)
}

// How long a person waits for an answer about what is typed. Foreign code may give it, and other clients' cells may run before.
const (
	checkTimeout    = 10 * time.Second // then the code is executed as it is
	completeTimeout = 3 * time.Second
)

// isComplete is that of the REPL, within checkTimeout.
func (e *LineEditor) isComplete(text string) (complete bool, indent string) {
	ctx, cancel := context.WithTimeout(e.ctx, checkTimeout)
	defer cancel()
	return e.repl.isComplete(ctx, text)
}

// maxMatches bounds a menu.
const maxMatches = 500

// complete lists how the word before the cursor may go on.
func (e *LineEditor) complete(line []rune, cursor int) readline.Completions {
	text := string(line)
	before := string(line[:min(cursor, len(line))])
	if strings.HasPrefix(text, ":") && !strings.Contains(before, " ") {
		return completions(before, CommandNames())
	}
	if indent := before[strings.LastIndexByte(before, '\n')+1:]; strings.TrimSpace(indent) == "" {
		e.insert("    "[:4-utf8.RuneCountInString(indent)%4])
		return readline.CompleteMessage("")
	}
	ctx, cancel := context.WithTimeout(e.ctx, completeTimeout)
	defer cancel()
	found, err := e.repl.Session().Complete(ctx, text, len(before))
	if err != nil {
		return readline.CompleteMessage("%s", strings.Map(printable, err.Error()))
	}
	if found.Start > len(before) {
		return readline.CompleteMessage("")
	}
	prefix := before[found.Start:]
	matches := found.Matches[:min(len(found.Matches), maxMatches)]
	if prefix != "" {
		return completions(prefix, matches)
	}
	// The editor replaces the whole word before the cursor.
	word := before[strings.LastIndexAny(before, " \t\n")+1:]
	whole := make([]string, len(matches))
	for i, m := range matches {
		whole[i] = word + m
	}
	return completions(word, whole)
}

// completions is a menu of the matches that begin with a prefix. Matches are foreign text: those with characters that can not be printed
// are left out.
func completions(prefix string, matches []string) readline.Completions {
	matches = slices.DeleteFunc(slices.Clone(matches), func(m string) bool { return strings.ContainsFunc(m, unprintable) })
	c := readline.CompleteValues(matches...).NoSpace()
	c.PREFIX = prefix
	return c
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func printable(r rune) rune {
	if unprintable(r) {
		return ' '
	}
	return r
}

// kept is a history without the lines that are discarded.
type kept struct {
	*History
	discarding *bool
}

func (k kept) Write(cell string) (int, error) {
	if *k.discarding {
		return k.Len(), nil
	}
	return k.History.Write(cell)
}
