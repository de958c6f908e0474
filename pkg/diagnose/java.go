package diagnose

import (
	"path"
	"strings"
)

// parseJava reads the errors of javac, and traces with their causes.
//
//	Main.java:4: error: cannot find symbol        Exception in thread "main" java.lang.RuntimeException: bad
//	    System.out.println(y);                    	at Main.main(Main.java:4)
//	                       ^                      Caused by: java.lang.ArrayIndexOutOfBoundsException: Index 5 …
//	  symbol:   variable y                        	at Main.f(Main.java:2)
func parseJava(c *inquiry) {
	lines := c.stderr
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		rest, ok := strings.CutPrefix(line, "Exception in thread ")
		if ok {
			_, rest, _ = strings.Cut(strings.TrimPrefix(rest, `"`), `" `)
			c.thrown = nil // the last counts
		} else if rest, ok = strings.CutPrefix(line, "Caused by: "); ok && len(c.thrown) == 0 || !ok && strings.HasPrefix(line, "\t") {
			continue
		} else if !ok {
			if len(c.thrown) == 0 || strings.HasPrefix(c.thrown[0].class, "error") {
				c.parseJavac(i)
			}
			continue
		}
		class, text, _ := strings.Cut(rest, ": ")
		t := thrown{class: class, text: text}
		for i+1 < len(lines) && (strings.HasPrefix(lines[i+1], "\t") || len(t.frames) == 0 && !strings.HasPrefix(lines[i+1], "Caused by: ")) {
			i++
			if f, ok := c.javaFrame(strings.TrimSpace(lines[i])); ok && len(t.frames) < 200 {
				t.frames = append(t.frames, f)
			} else if !strings.HasPrefix(lines[i], "\t") {
				t.detail = append(t.detail, lines[i])
			}
		}
		c.thrown = append(c.thrown, t)
	}
}

// parseJavac reads an error of javac at a line, unless there is one already.
func (c *inquiry) parseJavac(i int) {
	line := c.stderr[i]
	if len(c.thrown) > 0 {
		return
	}
	where, text, ok := strings.Cut(line, ": error: ")
	if !ok {
		if text, ok = strings.CutPrefix(line, "error: "); !ok {
			if text, ok = strings.CutPrefix(line, "Error: "); !ok {
				return
			}
		}
		where = ""
	}
	t := thrown{class: "error", text: text}
	t.at, _ = place(where)
	for j := i + 1; j < len(c.stderr) && j < i+8; j++ {
		next := c.stderr[j]
		if strings.Contains(next, ": error: ") {
			break
		}
		if strings.TrimSpace(next) == "^" && t.at.Column == 0 {
			t.at.Column = strings.IndexByte(next, '^') + 1
		} else if t.at.Column > 0 || where == "" {
			t.detail = append(t.detail, strings.TrimSpace(next))
		}
	}
	c.thrown = append(c.thrown, t)
}

// javaFrame reads `at com.acme.Main.f(Main.java:2)`. The package tells the directory of the file.
func (c *inquiry) javaFrame(line string) (f Frame, ok bool) {
	rest, ok := strings.CutPrefix(line, "at ")
	if !ok {
		return f, false
	}
	function, where, ok := strings.Cut(strings.TrimSuffix(rest, ")"), "(")
	if !ok {
		return f, false
	}
	f.Function = function[strings.LastIndexByte(function, '/')+1:]
	at, ok := place(where)
	if !ok {
		f.File = where
		return f, true
	}
	f.File, f.Line = at.File, at.Line
	if i := strings.LastIndexByte(f.Function, '.'); i > 0 {
		if j := strings.LastIndexByte(f.Function[:i], '.'); j > 0 {
			f.File = path.Join(strings.ReplaceAll(f.Function[:j], ".", "/"), at.File)
		}
	}
	if _, ok := c.resolve(f.File); ok {
		return f, true
	}
	if strings.Contains(function, "/") || strings.HasPrefix(function, "java.") {
		return f, true
	}
	if _, ok := c.resolve(at.File); ok && !strings.Contains(f.File, "/") {
		f.File = at.File
	}
	return f, true
}
