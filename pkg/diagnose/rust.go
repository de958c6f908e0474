package diagnose

import "strings"

// parseRust reads the errors of rustc, with the help in them, and panics.
//
//	error[E0425]: cannot find value `y` in this scope      thread 'main' (5) panicked at main.rs:4:19:
//	 --> main.rs:3:18                                      index out of bounds: the len is 2 but the index is 5
func parseRust(c *inquiry) {
	for i, line := range c.stderr {
		if strings.HasPrefix(line, "thread '") {
			if _, where, ok := strings.Cut(line, " panicked at "); ok && i+1 < len(c.stderr) {
				t := thrown{class: "panic", text: c.stderr[i+1]}
				t.at, _ = place(strings.TrimSuffix(where, ":"))
				t.frames = rustFrames(c.stderr[i+1:])
				if _, ok := c.resolve(t.at.File); !ok { // in the standard library: the backtrace, if there is one, has the user's place
					t.at = Location{}
				}
				c.thrown = []thrown{t}
				continue
			}
			if strings.Contains(line, "has overflowed its stack") {
				c.thrown = []thrown{{class: "fatal error", text: "stack overflow"}}
			}
			continue
		}
		if !strings.HasPrefix(line, "error") || len(c.thrown) > 0 {
			continue
		}
		class, text, ok := strings.Cut(line, ": ")
		code, isCode := strings.CutPrefix(class, "error[")
		if !ok || class != "error" && !isCode || strings.HasPrefix(text, "aborting due to") || strings.HasPrefix(text, "could not compile") {
			continue
		}
		t := thrown{class: strings.TrimSuffix(code, "]"), text: text}
		for j, more := range c.stderr[i+1:] {
			trimmed := strings.TrimSpace(more)
			if n, code, ok := strings.Cut(trimmed, " | "); ok && atoi(n) > 0 && i+2+j < len(c.stderr) && len(c.help) > 0 &&
				strings.Trim(c.stderr[i+2+j], " |+~") == "" && strings.Contains(c.stderr[i+2+j],
				"+") && !strings.Contains(c.help[len(c.help)-1], ": `") {
				c.help[len(c.help)-1] += ": `" + cut(strings.TrimSpace(code), 200) + "`"
			}
			if n, code, ok := strings.Cut(trimmed, " "); ok && atoi(n) > 0 && len(c.help) > 0 && !strings.Contains(c.help[len(c.help)-1],
				": `") {
				if code, ok = strings.CutPrefix(code, "+ "); ok { // the line that rustc would write
					c.help[len(c.help)-1] += ": `" + cut(strings.TrimSpace(code), 200) + "`"
				}
			}
			if trimmed == "" || strings.HasPrefix(more, "error") {
				break
			}
			if where, ok := strings.CutPrefix(trimmed, "--> "); ok && t.at.File == "" {
				t.at, _ = place(where)
			}
			for _, prefix := range []string{"= help: ", "help: ", "= note: "} {
				if help, ok := strings.CutPrefix(trimmed, prefix); ok && len(c.help) < maxSuggestions {
					c.help = append(c.help, "rustc: "+cut(strings.TrimSuffix(help, ":"), 300))
				}
			}
		}
		c.thrown = append(c.thrown, t)
	}
}

// rustFrames reads a backtrace: `   2: main::f`, and `             at ./main.rs:4:19`.
func rustFrames(lines []string) (frames []Frame) {
	function := ""
	for _, line := range lines {
		trimmed := strings.TrimSpace(line)
		if where, ok := strings.CutPrefix(trimmed, "at "); ok && function != "" {
			if at, ok := place(where); ok {
				frames = append(frames, Frame{Function: function, File: at.File, Line: at.Line, Column: at.Column})
			}
			function = ""
		} else if n, name, ok := strings.Cut(trimmed, ": "); ok && atoi(n) >= 0 && len(n) < 4 && line != trimmed {
			function = name
		}
		if len(frames) == 200 {
			break
		}
	}
	return frames
}
