package diagnose

import (
	"slices"
	"strings"
)

// Lines between the errors of a chain.
const (
	directCause = "The above exception was the direct cause of the following exception:"
	during      = "During handling of the above exception, another exception occurred:"
)

// parsePython reads the tracebacks of Python. The last chain of errors counts: a program may print others that it caught. The members of a
// group are its causes.
func parsePython(c *inquiry) {
	var (
		chain   []thrown // the earliest first
		members []thrown // of the group that is the last of the chain
		now     thrown
		open    bool // in a traceback
		linked  bool // the next traceback belongs to the chain
		outer   = -1 // column of the bar of the outermost group
	)
	for i, raw := range c.stderr {
		line, bar := cutBar(raw)
		member := outer >= 0 && bar > outer
		switch line {
		case directCause, during:
			linked = linked || !member
			continue
		case "Traceback (most recent call last):", "Exception Group Traceback (most recent call last):":
			if !member {
				outer = bar
			}
			open, now = true, thrown{}
			continue
		}
		if file, n, function, ok := pythonFrame(line); ok {
			if !open && function == "" { // a syntax error has no traceback of its own
				open, outer, now = true, bar, thrown{}
			}
			f := Frame{Function: function, File: file, Line: n}
			f.Column = c.pythonColumn(f, i)
			if function == "" {
				now.at = Location{file, n, f.Column}
			} else {
				now.frames = append(now.frames, f)
			}
			continue
		}
		class, text, ok := pythonError(line)
		if !ok || !open && !member {
			if parts, found := capture(" in file * on line *,", line); found && class == "SyntaxError" { // before Python could read the file
				chain = []thrown{{class: class, text: text, at: Location{File: parts[0], Line: atoi(parts[1])}}}
			}
			continue
		}
		now.class, now.text = class, text
		slices.Reverse(now.frames)
		if member {
			if len(members) < maxMembers {
				members = append(members, now)
			}
		} else {
			if !linked {
				chain = nil
			}
			chain, members, linked = append(chain, now), nil, false
		}
		open, now = false, thrown{}
	}
	slices.Reverse(chain)
	c.thrown = chain
	if len(chain) > 0 && len(members) > 0 {
		for _, m := range members {
			chain[0].text += "; " + m.message()
		}
		c.thrown = slices.Insert(chain, 1, members...)
	}
	c.thrown = c.thrown[:min(len(c.thrown), maxThrown)]
}

// Bounds of the errors in a chain, and in a group.
const (
	maxThrown  = 10
	maxMembers = 5
)

// cutBar removes the frame that is drawn around groups of errors, and returns its column; -1: there is none.
func cutBar(line string) (string, int) {
	trimmed := strings.TrimLeft(line, " ")
	if !strings.HasPrefix(trimmed, "| ") && !strings.HasPrefix(trimmed, "+ ") {
		return line, -1
	}
	return trimmed[2:], len(line) - len(trimmed)
}

// pythonFrame reads `  File "main.py", line 3, in f`; a syntax error has no function.
func pythonFrame(line string) (file string, n int, function string, ok bool) {
	rest, ok := strings.CutPrefix(line, `  File "`)
	if !ok {
		return "", 0, "", false
	}
	file, rest, ok = strings.Cut(rest, `", line `)
	if !ok || file == "" {
		return "", 0, "", false
	}
	_, function, _ = strings.Cut(rest, ", in ")
	if function == "" && strings.Contains(rest, " in ") { // of stacks at a limit
		return "", 0, "", false
	}
	return file, atoi(rest), function, atoi(rest) > 0
}

// pythonColumn reads the column from the line of carets below a frame: they stand below the source without its indentation.
func (c *inquiry) pythonColumn(f Frame, i int) int {
	if i+2 >= len(c.stderr) {
		return 0
	}
	shown, _ := cutBar(c.stderr[i+1])
	marks, _ := cutBar(c.stderr[i+2])
	if !strings.HasPrefix(shown, "    ") || strings.Trim(marks, " ~^") != "" || !strings.Contains(marks, "^") {
		return 0
	}
	file, _ := c.resolve(f.File)
	source := c.sourceLine(Location{File: file, Line: f.Line})
	indent := strings.Index(source, strings.TrimSpace(shown))
	at := strings.IndexByte(marks, '^') - 4
	if indent < 0 || at < 0 {
		return 0
	}
	return len([]rune(source[:indent])) + at + 1
}

// pythonError reads `KeyError: 'x'`, or `KeyboardInterrupt`.
func pythonError(line string) (class, text string, ok bool) {
	class, text, _ = strings.Cut(line, ":")
	if class == "" || strings.ContainsFunc(class,
		func(r rune) bool { return !isLetter(r) && (r < '0' || r > '9') && r != '.' && r != '<' && r != '>' }) ||
		class[0] >= '0' && class[0] <= '9' || class[0] == '.' {
		return "", "", false
	}
	return class, strings.TrimSpace(text), true
}
