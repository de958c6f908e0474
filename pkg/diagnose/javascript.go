package diagnose

import (
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// parseNode reads what Node.js prints about an uncaught error, and what the TypeScript compiler prints.
//
//	/workspace/a.js:2
//	function f(){ return a.b.c }
//	                         ^
//
//	TypeError: Cannot read properties of undefined (reading 'c')
//	    at f (/workspace/a.js:2:26)
func parseNode(c *inquiry) {
	if c.Result.Verdict == sandbox.VerdictCompileError && c.parseTSC() {
		return
	}
	lines := c.stderr
	for i, line := range lines {
		if rest, ok := strings.CutPrefix(line, "✘ [ERROR] "); ok && len(c.thrown) == 0 {
			t := thrown{class: "SyntaxError", text: rest}
			if i+2 < len(lines) {
				t.at, _ = place(strings.TrimSuffix(strings.TrimSpace(lines[i+2]), ":"))
				t.at.Column++
			}
			c.thrown = append(c.thrown, t)
		}
	}
	if len(c.thrown) > 0 && c.thrown[0].at.File != "" {
		return
	}
	c.thrown = nil
	// The last trace counts: its first line is not indented, and its frames are.
	for i := 0; i < len(lines); i++ {
		cause := strings.HasPrefix(strings.TrimSpace(lines[i]), "[cause]: ")
		class, text, ok := nodeError(strings.TrimPrefix(strings.TrimSpace(lines[i]), "[cause]: "))
		if !ok || !cause && strings.HasPrefix(lines[i], " ") || cause && len(c.thrown) == 0 {
			continue
		}
		t := thrown{class: class, text: text}
		j := i + 1
		for ; j < len(lines) && j < i+200; j++ {
			if f, ok := nodeFrame(strings.TrimSpace(lines[j])); ok {
				t.frames = append(t.frames, f)
			} else if len(t.frames) > 0 {
				break
			} else if next, ok := strings.CutPrefix(lines[j], "- "); ok { // the require stack
				t.detail = append(t.detail, next)
			} else if _, _, another := nodeError(lines[j]); another || strings.TrimSpace(lines[j]) == "" {
				break
			}
		}
		if len(t.frames) == 0 && !cause && !isHeader(lines, i) {
			continue
		}
		if !cause {
			c.thrown = nil
			if at, ok := nodeHeader(lines, i); ok {
				if _, of := c.resolve(at.File); of {
					t.at = at
				}
			}
		}
		c.thrown = append(c.thrown, t)
		i = j - 1
	}
	if len(c.thrown) > 0 {
		t := &c.thrown[0]
		for _, f := range t.frames { // a frame has a column, and the header has none
			if file, ok := c.resolve(f.File); ok && t.at.File != "" && t.at.Line == f.Line && strings.HasSuffix(t.at.File, file) {
				t.at.Column = f.Column
				break
			}
		}
	}
}

// parseTSC reads the first error that the checker of types has printed to standard output:
//
//	main.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.
func (c *inquiry) parseTSC() bool {
	for _, line := range c.stdout {
		before, said, found := strings.Cut(line, "): error TS")
		code, text, complete := strings.Cut(said, ": ")
		i := strings.LastIndexByte(before, '(')
		if !found || !complete || i <= 0 || atoi(code) == 0 {
			continue
		}
		n, column, _ := strings.Cut(before[i+1:], ",")
		c.thrown = []thrown{{class: "TS" + code, text: text, at: Location{before[:i], atoi(n), atoi(column)}}}
		return true
	}
	return false
}

// isHeader reports whether the line follows the source of an error: two lines above stands a caret.
func isHeader(lines []string, i int) bool {
	_, ok := nodeHeader(lines, i)
	return ok
}

// nodeHeader finds FILE:LINE, a source line and a caret above an error.
func nodeHeader(lines []string, i int) (at Location, ok bool) {
	for j := i - 1; j >= 2 && j >= i-4; j-- {
		if marks := strings.TrimSpace(lines[j]); marks != "" && strings.Trim(marks, "^") == "" {
			if at, ok = place(lines[j-2]); ok {
				at.Line, at.Column = lineOnly(lines[j-2]), strings.IndexByte(lines[j], '^')+1
			}
			return at, ok
		}
	}
	for j := i - 1; j >= 0 && j >= i-6; j-- { // of an error at the end of a file, there is no source line
		if at, ok = place(lines[j]); ok && strings.HasPrefix(lines[j], "/") {
			return at, true
		}
	}
	return at, false
}

func lineOnly(s string) int {
	_, n, _ := cutLast(s)
	return n
}

// nodeError reads `TypeError: x is not a function`, `Error [ERR_X]: text` and `Uncaught 'text'`.
func nodeError(line string) (class, text string, ok bool) {
	line = strings.TrimPrefix(line, "Uncaught ")
	class, text, ok = strings.Cut(line, ": ")
	if !ok {
		class, text = strings.TrimSuffix(line, ":"), ""
	}
	name, code, _ := strings.Cut(class, " [")
	if name == "" || strings.ContainsFunc(name,
		func(r rune) bool { return !isLetter(r) && (r < '0' || r > '9') && r != '$' && r != '.' }) {
		return "", "", false
	}
	if strings.HasPrefix(code, "ERR_") {
		name = strings.TrimSuffix(code, "]")
	}
	if !ok && !strings.HasSuffix(name, "Error") && !strings.HasSuffix(name, "Exception") {
		return "", "", false
	}
	return name, strings.TrimSuffix(text, " {"), true
}

// nodeFrame reads `at f (/workspace/a.js:2:26)`.
func nodeFrame(line string) (f Frame, ok bool) {
	rest, ok := strings.CutPrefix(line, "at ")
	if !ok {
		return f, false
	}
	rest = strings.TrimSuffix(rest, " {")
	if i := strings.LastIndex(rest, " ("); i >= 0 && strings.HasSuffix(rest, ")") {
		f.Function, rest = strings.TrimPrefix(rest[:i], "async "), rest[i+2:len(rest)-1]
	}
	at, ok := place(strings.TrimPrefix(strings.TrimPrefix(rest, "async "), "file://"))
	f.File, f.Line, f.Column = at.File, at.Line, at.Column
	if f.Function == "Object.<anonymous>" || f.Function == "<anonymous>" {
		f.Function = ""
	}
	return f, ok
}
