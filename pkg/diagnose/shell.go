package diagnose

import "strings"

// parseShell reads the last error of bash: `/workspace/a.sh: line 3: foo: command not found`. A script goes on after an error, so only
// the last one can be its end.
func parseShell(c *inquiry) {
	for _, line := range c.stderr {
		file, rest, ok := strings.Cut(line, ": line ")
		if !ok || file == "" || strings.Contains(file, " ") {
			continue
		}
		n, text, ok := strings.Cut(rest, ": ")
		if !ok || atoi(n) == 0 {
			continue
		}
		if strings.HasPrefix(text, "`") && len(c.thrown) > 0 { // the source of a syntax error
			continue
		}
		c.thrown = []thrown{{text: text, at: Location{File: file, Line: atoi(n)}}}
	}
	if n := len(c.stderr); n > 0 && !strings.Contains(c.stderr[n-1], ": line ") { // of a command: cat: /nope: No such file or directory
		c.thrown = append([]thrown{{text: c.stderr[n-1]}}, c.thrown...)
	}
}
