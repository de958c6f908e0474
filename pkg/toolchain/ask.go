package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A program that is asked what it is has this long to say it, in this many bytes.
const (
	askPatience = 10 * time.Second
	maxAnswer   = 64 << 10
)

// answer is what a program said.
type answer struct{ stdout, stderr string }

// ask runs a program of the user's, outside any sandbox: with arguments of ours, no input, the plain environment, in /.
func (h *hunt) ask(program string, args ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(h.ctx, h.patience)
	defer cancel()
	cmd := exec.Command(program, args...) // ended by RunAlone, with all it started
	cmd.Dir, cmd.Env = rootOf(program), h.plain
	stdout, stderr := &bounded{}, &bounded{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = time.Second // who fled with our pipes is not waited for
	err := RunAlone(ctx, cmd)
	said := answer{stdout.kept.String(), stderr.kept.String()}
	switch {
	case h.ctx.Err() != nil:
		return said, h.ctx.Err()
	case ctx.Err() != nil:
		return said, fmt.Errorf("%s did not answer within %s", commandLine(program, args), h.patience)
	case stdout.over || stderr.over:
		return said, fmt.Errorf("%s answered with more than %d KiB", commandLine(program, args), maxAnswer>>10)
	case err != nil:
		if line := firstLine(said.stderr, said.stdout); line != "" {
			return said, fmt.Errorf("%s: %w: %s", commandLine(program, args), err, line)
		}
		return said, fmt.Errorf("%s: %w", commandLine(program, args), err)
	}
	return said, nil
}

// commandLine names a question without quoting all of it: a script is not for the reader.
func commandLine(program string, args []string) string {
	if len(args) > 0 && len(args[0]) <= 32 {
		return filepath.Base(program) + " " + args[0]
	}
	return filepath.Base(program)
}

// firstLine is the first that is not blank, shortened and without what a terminal would act upon.
func firstLine(texts ...string) string {
	for _, text := range texts {
		for line := range strings.Lines(text) {
			if line = printable(strings.TrimSpace(line)); line != "" {
				if r := []rune(line); len(r) > 200 {
					line = string(r[:200]) + "…"
				}
				return line
			}
		}
	}
	return ""
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// bounded keeps the first bytes it is given and refuses the others, so that the program meets a closed pipe.
type bounded struct {
	kept bytes.Buffer // not embedded: its ReadFrom would be used instead of Write, and has no bound
	over bool
}

var errTooMuch = errors.New("too much output")

func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > maxAnswer {
		b.over = true
		return 0, errTooMuch
	}
	return b.kept.Write(p)
}

// mark begins the lines that our scripts print: programs and their start-up files may print others.
const mark = "sandbox-run."

// told collects marked lines: "sandbox-run.version=3.11.7". The first of a name counts.
func told(stdout string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(stdout) {
		rest, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), mark)
		if !ok {
			continue
		}
		if k, v, ok := strings.Cut(rest, "="); ok {
			if _, again := facts[k]; !again {
				facts[k] = v
			}
		}
	}
	return facts
}

// versionIn is the first thing in a text that looks like a version: digits, then dots and digits, and what clings to them
// ("1.26.0", "3.13.0rc1", "17.0.15").
func versionIn(text string) string {
	isDigit := func(c byte) bool { return c >= '0' && c <= '9' }
	isPart := func(c byte) bool {
		return isDigit(c) || c == '.' || c >= 'a' && c <= 'z' || c == '+' || c == '-' || c == '_'
	}
	for i := 0; i < len(text); i++ {
		if !isDigit(text[i]) {
			continue
		}
		end := i
		for end < len(text) && isDigit(text[end]) {
			end++
		}
		if end+1 < len(text) && text[end] == '.' && isDigit(text[end+1]) {
			for end < len(text) && isPart(text[end]) && end-i < 64 {
				end++
			}
			return strings.TrimRight(text[i:end], ".-+_")
		}
		i = end
	}
	return ""
}
