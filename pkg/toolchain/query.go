package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The bounds of a query: time and bytes.
const (
	queryTimeout = 10 * time.Second
	maxAnswer    = 64 << 10
)

// Answer is the output of a queried program. On the host, a program that fails is an error and Exit is 0.
type Answer struct {
	Stdout, Stderr string
	Exit           int
}

// Query runs a program to learn what it is. A program of the host runs outside any sandbox, without input, in /, with the environment of
// plainEnv; a program of an image runs in a sandbox. The error of a program that fails has the first line of its output.
func (s *Search) Query(program string, args ...string) (Answer, error) {
	if s.image != nil {
		return s.image.query(s.ctx, program, args)
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	cmd := exec.Command(program, args...) // RunAlone ends it with its children
	cmd.Dir, cmd.Env = rootOf(program), s.plain
	stdout, stderr := &bounded{}, &bounded{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = time.Second // do not wait for a process that left the group and keeps the pipes open
	err := RunAlone(ctx, cmd)
	answer := Answer{Stdout: stdout.kept.String(), Stderr: stderr.kept.String()}
	switch {
	case s.ctx.Err() != nil:
		return answer, s.ctx.Err()
	case ctx.Err() != nil:
		return answer, fmt.Errorf("%s did not answer within %s", commandLine(program, args), s.timeout)
	case stdout.over || stderr.over:
		return answer, fmt.Errorf("%s answered with more than %d KiB", commandLine(program, args), maxAnswer>>10)
	case err != nil:
		return answer, answer.failure(program, args, err)
	}
	return answer, nil
}

// failure adds the command and the first line of its output to the error of a query.
func (a Answer) failure(program string, args []string, err error) error {
	if line := FirstLine(a.Stderr, a.Stdout); line != "" {
		return fmt.Errorf("%s: %w: %s", commandLine(program, args), err, line)
	}
	return fmt.Errorf("%s: %w", commandLine(program, args), err)
}

// commandLine names a query in an error, without the text of a script.
func commandLine(program string, args []string) string {
	if len(args) > 0 && len(args[0]) <= 32 {
		return filepath.Base(program) + " " + args[0]
	}
	return filepath.Base(program)
}

// FirstLine returns the first line that is not blank, shortened and without control characters.
func FirstLine(texts ...string) string {
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

// bounded keeps the first bytes and refuses the others, so that the program gets a closed pipe.
type bounded struct {
	kept bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which has no bound
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

// Mark is the prefix of lines that query scripts print: programs and their start-up files may print others.
const Mark = "sandbox-run."

// Facts returns the values of marked lines such as "sandbox-run.version=3.11.7". The first line of a name counts.
func Facts(stdout string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(stdout) {
		rest, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), Mark)
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

// Version returns the first part of a text that has the form of a version, or "": digits, then dots and digits, and the letters that
// follow them ("1.26.0", "3.13.0rc1", "17.0.15").
func Version(text string) string {
	isDigit := func(c byte) bool { return c >= '0' && c <= '9' }
	isPart := func(c byte) bool {
		return isDigit(c) || c == '.' || c >= 'a' && c <= 'z' || c == '+' || c == '-' || c == '_'
	}
	const longest = 64
	for i := 0; i < len(text); i++ {
		if !isDigit(text[i]) {
			continue
		}
		end := i
		for end < len(text) && isDigit(text[end]) {
			end++
		}
		if end+1 < len(text) && end-i < longest-1 && text[end] == '.' && isDigit(text[end+1]) {
			for end < len(text) && isPart(text[end]) && end-i < longest {
				end++
			}
			return strings.TrimRight(text[i:end], ".-+_")
		}
		i = end
	}
	return ""
}

// OlderThan compares the first two numbers of a version.
func OlderThan(version string, major, minor int) (bool, error) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false, errors.New("it names no version")
	}
	a, err := strconv.Atoi(parts[0])
	if err != nil {
		return false, err
	}
	b, err := strconv.Atoi(parts[1])
	if err != nil {
		return false, err
	}
	return a < major || a == major && b < minor, nil
}
