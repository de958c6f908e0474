package repl

import (
	"bufio"
	"context"
	"io"
	"strings"
)

// Lines reads cells from a pipe or a file: a cell is as many lines as the language needs for a complete one.
//
// A block that an empty line has completed, such as a function of Python, goes on if the next line can not stand alone, so that functions may
// have empty lines. A second empty line ends it without the next line, for a writer that waits for the output.
type Lines struct {
	repl  *REPL
	in    *bufio.Reader
	ahead string // a line that was read and belongs to the next cell
	ended bool
	// Before is called before each line is read, with whether it continues a cell. May be nil.
	Before func(continues bool)
}

// NewLines returns an editor that reads from a file without editing.
func (r *REPL) NewLines(in *bufio.Reader) *Lines { return &Lines{repl: r, in: in} }

// Read returns the next cell.
func (l *Lines) Read(ctx context.Context) (string, error) {
	text, block := "", false
	for {
		line, err := l.line(text != "")
		if err != nil && line == "" {
			if strings.TrimSpace(text) == "" {
				return "", err
			}
			return text, nil
		}
		blank := strings.TrimSpace(line) == ""
		switch {
		case text == "" && blank:
			continue
		case block && blank:
			return text, nil
		case block && !l.continues(ctx, text, line):
			l.ahead = line
			return text, nil
		}
		whole := text + line
		complete, _ := l.repl.isComplete(ctx, strings.TrimSuffix(whole, "\n"))
		if complete && !blank {
			return whole, nil
		}
		text, block = whole, complete
	}
}

// continues reports whether a line belongs to the block before it: it can not stand alone, and can stand there.
func (l *Lines) continues(ctx context.Context, block, line string) bool {
	s := l.repl.Session()
	alone, err := s.Check(ctx, strings.TrimSuffix(line, "\n"))
	if err != nil || alone.Status != invalid {
		return false
	}
	both, err := s.Check(ctx, strings.TrimSuffix(block+line, "\n"))
	return err == nil && both.Status != invalid
}

func (l *Lines) line(continues bool) (string, error) {
	if line := l.ahead; line != "" {
		l.ahead = ""
		return line, nil
	}
	if l.ended {
		return "", io.EOF
	}
	if l.Before != nil {
		l.Before(continues)
	}
	line, err := l.in.ReadString('\n')
	l.ended = err != nil
	return line, err
}
