package repl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock")) // ends by itself
}

// script is a session without an interpreter, for the rules of editors: a line that ends with a colon begins a block, which an empty line ends.
type script struct {
	Session
	ran []string
}

func (s *script) Info() session.Info { return session.Info{Language: "python"} }

func (s *script) Check(_ context.Context, code string) (protocol.Checked, error) {
	lines := strings.Split(code, "\n")
	last := lines[len(lines)-1]
	switch {
	case strings.HasPrefix(lines[0], " "), strings.HasPrefix(lines[0], "else"):
		return protocol.Checked{Status: invalid}, nil
	case strings.HasSuffix(lines[0], ":") && (strings.HasPrefix(last, " ") || strings.HasSuffix(last, ":")):
		return protocol.Checked{Status: incomplete, Indent: "    "}, nil
	}
	return protocol.Checked{Status: "complete"}, nil
}

func (s *script) Execute(_ context.Context, c session.Cell) (*session.Result, error) {
	s.ran = append(s.ran, c.Code)
	r := &session.Result{State: session.StateIdle}
	r.Verdict = sandbox.VerdictOK
	if code, ok := strings.CutPrefix(c.Code, "fail "); ok {
		r.Verdict = sandbox.VerdictNonzeroExit
		_, _ = fmt.Sscan(code, &r.Exit.Code)
	}
	if strings.HasPrefix(c.Code, "exit") {
		r.State = session.StateEnded
	}
	return r, nil
}

// paper is a screen that keeps what it is told.
type paper struct{ messages, printed []string }

func (p *paper) Output(sandbox.Event) {}
func (p *paper) End(*session.Result)  {}
func (p *paper) Print(text string)    { p.printed = append(p.printed, text) }
func (p *paper) Message(text string)  { p.messages = append(p.messages, text) }

func runLines(t *testing.T, text string) (*script, *paper, int) {
	t.Helper()
	s, p := &script{}, &paper{}
	r := New(Options{Session: s, Screen: p})
	code, err := r.Run(t.Context(), r.NewLines(bufio.NewReader(strings.NewReader(text))))
	if err != nil {
		t.Fatal(err)
	}
	return s, p, code
}

// A cell from a pipe is as many lines as the language needs. A block goes on after an empty line if the next line can not stand alone.
func TestLines(t *testing.T) {
	for text, want := range map[string][]string{
		"a\nb\n":                        {"a\n", "b\n"},
		"a":                             {"a"},
		"\n\na\n\n":                     {"a\n"},
		"def f():\n  a\n\n  b\n\nc\n":   {"def f():\n  a\n\n  b\n\n", "c\n"},
		"if x:\n  a\n\nelse:\n  b\n\nc": {"if x:\n  a\n\nelse:\n  b\n\n", "c"},
		"if x:\n  a\nc\n":               {"if x:\n  a\nc\n"},
		"if x:\n  a\n\n\n  b\n":         {"if x:\n  a\n\n", "  b\n"},
		"if x:\n  a":                    {"if x:\n  a"},
		": true\n":                      {": true\n"},
	} {
		if s, _, _ := runLines(t, text); !slices.Equal(s.ran, want) {
			t.Errorf("%q: cells %q, want %q", text, s.ran, want)
		}
	}
}

// The exit code is that of the last cell that failed, and exit() leaves at once.
func TestExitCode(t *testing.T) {
	for text, want := range map[string]struct{ code, cells int }{
		"a\nb\n": {0, 2}, "fail 3\nb\n": {3, 2}, "fail 3\nfail 4\n": {4, 2}, "exit\nb\n": {0, 1}, "a\n:quit\nb\n": {0, 1},
		":nonsense\n": {failureCode, 0},
	} {
		if s, _, code := runLines(t, text); code != want.code || len(s.ran) != want.cells {
			t.Errorf("%q: exit code %d, cells %q", text, code, s.ran)
		}
	}
}

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "in.py")
	if err := os.WriteFile(file, []byte("loaded"), 0o600); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(dir, "out.py")
	s, p, _ := runLines(t, "a\n:load "+file+"\n:save "+saved+"\n:save "+saved+"\n:help\n:load\n:quit now\n:fork\n:allow x\n:deps x\n:lang x\n")
	if want := []string{"a\n", "loaded"}; !slices.Equal(s.ran, want) {
		t.Errorf("cells %q", s.ran)
	}
	if text, err := os.ReadFile(saved); err != nil || string(text) != "a\n\nloaded\n" {
		t.Errorf("saved %q, %v", text, err)
	}
	for i, want := range []string{"wrote ", "file exists", ":load needs an argument", ":quit takes no argument", ":fork is not available",
		":allow is not available", ":deps is not available", "can not be changed"} {
		if i >= len(p.messages) || !strings.Contains(p.messages[i], want) {
			t.Fatalf("message %d is not %q: %q", i, want, p.messages)
		}
	}
	for _, name := range CommandNames() {
		if !strings.Contains(strings.Join(p.printed, ""), name) {
			t.Errorf("help lacks %s", name)
		}
	}
}

// A history survives, is private, belongs to one language, and does not repeat a cell.
func TestHistory(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	write := func(language string, cells ...string) {
		t.Helper()
		h, err := OpenHistory(language)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		for _, c := range cells {
			if _, err := h.Write(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("python", "a\nb\n", "a\nb", "é", " ", strings.Repeat("x", maxPast+1))
	write("shell", "ls")
	write("python", "c")
	file := filepath.Join(state, "sandbox-run", "history", "python")
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`"cut`)
	f.Close()
	h, err := OpenHistory("python")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if want := []string{"a\nb", "é", "c"}; !slices.Equal(h.cells, want) || h.Len() != 3 {
		t.Errorf("%q, want %q", h.cells, want)
	}
	if last, err := h.GetLine(2); err != nil || last != "c" {
		t.Errorf("%q, %v", last, err)
	}
	if _, err := h.GetLine(3); err == nil {
		t.Error("there is a cell after the last")
	}
}

// Highlighting changes colours and nothing else.
func TestHighlight(t *testing.T) {
	const code = "def f(a):\n    return 'x' + \"\"\"y\nz\"\"\" # é\n"
	got := Highlight("python", code)
	if !strings.Contains(got, "\x1b[35mdef\x1b[0m") {
		t.Errorf("%q", got)
	}
	plain := got
	for {
		before, rest, found := strings.Cut(plain, "\x1b[")
		if !found {
			break
		}
		_, after, _ := strings.Cut(rest, "m")
		plain = before + after
	}
	if plain != code {
		t.Errorf("%q", plain)
	}
	for _, language := range []string{"python", "javascript", "typescript", "go", "rust", "java", "shell", "sql", "postgres"} {
		if lexer(language) == nil {
			t.Errorf("%s has no lexer", language)
		}
	}
	if got := Highlight("none", code); got != code {
		t.Errorf("%q", got)
	}
}

// A terminal's line is read until its end; at the end of the context it stays for the next reader.
func TestReadLine(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	tty := &TTY{In: r, Ask: func(protocol.Input) {}, Answered: func(protocol.Input) {}}
	ended, cancel := context.WithCancelCause(t.Context())
	asked := make(chan bool)
	go func() {
		_, ok := tty.ReadLine(ended, protocol.Input{})
		asked <- ok
	}()
	cancel(errors.New("the cell has ended"))
	if <-asked {
		t.Error("a line without input")
	}
	_, _ = w.WriteString("é\n")
	if line, ok := tty.ReadLine(t.Context(), protocol.Input{}); line != "é" || !ok {
		t.Errorf("%q %v", line, ok)
	}
	w.Close()
	if _, ok := tty.ReadLine(t.Context(), protocol.Input{}); ok {
		t.Error("a line after the end")
	}
}

// The editor edits a password as a person expects.
func TestReadPassword(t *testing.T) {
	for keys, want := range map[string]string{
		"abc\r": "abc", "axé\x7f\x7fbc\n": "abc", "zzz\x15abc\r": "abc",
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.WriteString(keys)
		line, ok := (&TTY{In: r}).readPassword(t.Context())
		if line != want || !ok {
			t.Errorf("%q: %q %v", keys, line, ok)
		}
		r.Close()
		w.Close()
	}
}

// The rows of a line are never fewer than the terminal needs: prompt, tabs and wide runes count.
func TestCountRows(t *testing.T) {
	for line, want := range map[string]int{
		"": 1, "abc": 1, "a\nb": 2, strings.Repeat("x", 12): 1, strings.Repeat("x", 13): 2, "\t\t\t": 2, strings.Repeat("語", 6): 1, strings.Repeat("語", 7): 2,
		"\n\n": 3, strings.Repeat("x", 40) + "\ny": 4,
	} {
		if got := countRows(line, 7, 20); got != want {
			t.Errorf("%q: %d rows, want %d", line, got, want)
		}
	}
	if got := makeSpace("a\nb", 7, 20, 2); got != "\v\x1b[1A" { // never more than the terminal has
		t.Errorf("%q", got)
	}
	if got := makeSpace("a", 7, 20, 1); got != "" {
		t.Errorf("%q", got)
	}
}

// forger is a session whose interpreter foreign code answers for.
type forger struct {
	script
	indent string
}

func (f *forger) Check(context.Context, string) (protocol.Checked, error) {
	return protocol.Checked{Status: incomplete, Indent: f.indent}, nil
}

// What an interpreter says of the next line is an indent, and nothing that a person would have to type.
func TestForgedIndent(t *testing.T) {
	for indent, want := range map[string]string{
		"    ": "    ", "\t": "\t", "x": "", "  \x1b[2J": "", "\n:save x": "", strings.Repeat(" ", 1<<20): "",
	} {
		r := New(Options{Session: &forger{indent: indent}, Screen: &paper{}})
		if complete, got := r.isComplete(t.Context(), "if x:"); complete || got != want {
			t.Errorf("%.20q: %v, %.20q", indent, complete, got)
		}
	}
}
