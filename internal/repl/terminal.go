package repl

import (
	"context"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// TTY reads lines for cells from a terminal that is in its ordinary mode.
type TTY struct {
	In *os.File
	// Ask shows the question; Answered is called after the line was typed, whose end the terminal has shown unless it is a password.
	Ask, Answered func(protocol.Input)
	// Interrupt is called when Ctrl-C is typed into a password. Elsewhere it is a signal.
	Interrupt func()
}

// ReadLine reads a line, without echo if it is a password.
func (t *TTY) ReadLine(ctx context.Context, question protocol.Input) (line string, ok bool) {
	t.Ask(question)
	defer t.Answered(question)
	if !question.Password {
		return t.readLine(ctx)
	}
	state, err := term.MakeRaw(int(t.In.Fd()))
	if err != nil {
		return "", false
	}
	defer func() { _ = term.Restore(int(t.In.Fd()), state) }() // a terminal that is gone needs nothing
	return t.readPassword(ctx)
}

// maxLine bounds a line; terminals have less.
const maxLine = 64 << 10

// readLine reads what the terminal hands out: a line, or a part of one before Ctrl-D.
func (t *TTY) readLine(ctx context.Context) (string, bool) {
	var line []byte
	for buf := make([]byte, 4096); len(line) < maxLine; {
		if !awaitInput(ctx, t.In) {
			return "", false
		}
		n, err := t.In.Read(buf)
		line = append(line, buf[:n]...)
		if text, found := strings.CutSuffix(string(line), "\n"); found {
			return text, true
		}
		if n == 0 || err != nil {
			break
		}
	}
	return string(line), len(line) > 0
}

// Keys of a raw terminal.
const (
	ctrlC     = 3
	ctrlD     = 4
	backspace = 8
	ctrlU     = 21
	erase     = 127
)

// readPassword reads keys.
func (t *TTY) readPassword(ctx context.Context) (string, bool) {
	var line []byte
	for key := make([]byte, 1); len(line) < maxLine; {
		if !awaitInput(ctx, t.In) {
			return "", false
		}
		if n, err := t.In.Read(key); n == 0 || err != nil {
			return "", false
		}
		switch key[0] {
		case '\r', '\n':
			return string(line), true
		case ctrlC:
			t.Interrupt()
			return "", false
		case ctrlD:
			if len(line) == 0 {
				return "", false
			}
		case ctrlU:
			line = line[:0]
		case backspace, erase:
			_, size := utf8.DecodeLastRune(line)
			line = line[:len(line)-size]
		default:
			line = append(line, key[0])
		}
	}
	return string(line), true
}
