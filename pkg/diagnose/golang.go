package diagnose

import "strings"

// parseGo reads the errors of go build and of vet, and panics.
//
//	./main.go:3:3: undefined: fmt            panic: runtime error: index out of range [5] with length 0
//
//	                                         goroutine 1 [running]:
//	                                         main.main()
//	                                         	/workspace/main.go:6 +0x9
func parseGo(c *inquiry) {
	for i, line := range c.stderr {
		class, text, ok := strings.Cut(line, ": ")
		switch {
		case ok && (class == "panic" || class == "fatal error") && !strings.HasPrefix(text, "goroutine"):
			text, _, _ = strings.Cut(text, " [recovered")
			c.thrown = []thrown{{class: class, text: text, frames: goFrames(c.stderr[i+1:])}}
			return
		case strings.HasPrefix(line, "runtime: goroutine stack exceeds"):
			c.thrown = []thrown{{class: "fatal error", text: "stack overflow", frames: goFrames(c.stderr[i+1:])}}
			return
		}
	}
	if len(c.thrown) > 0 {
		return
	}
	for i, line := range c.stderr {
		if strings.HasSuffix(line, " is not a main package") {
			c.thrown = append(c.thrown, thrown{text: line})
			return
		}
		where, text, ok := strings.Cut(strings.TrimPrefix(line, "vet: "), ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if at, ok := place(where); ok && strings.Contains(at.File, ".") {
			t := thrown{text: text, at: at}
			for _, more := range c.stderr[i+1:] {
				if !strings.HasPrefix(more, "\t") || len(t.detail) == 5 {
					break
				}
				t.detail = append(t.detail, strings.TrimSpace(more))
			}
			c.thrown = append(c.thrown, t)
			return // others often follow from the first
		}
		if where == "go" || strings.HasPrefix(where, "go.mod") || strings.HasPrefix(line, "runtime.main_main") {
			c.thrown = append(c.thrown, thrown{text: strings.TrimPrefix(line, "go: ")})
			return
		}
	}
}

// goFrames reads the frames of the first goroutine in a trace: a function, and a line with its place.
func goFrames(lines []string) (frames []Frame) {
	started := false
	for i := 0; i < len(lines) && len(frames) < 200; i++ {
		line := lines[i]
		if strings.HasPrefix(line, "goroutine ") {
			started = true
			continue
		}
		if started && line == "" {
			break
		}
		if !started || i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "\t") {
			continue
		}
		where, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " ")
		if at, ok := place(where); ok {
			function := line
			if j := strings.LastIndexByte(line, '('); j > 0 {
				function = line[:j]
			}
			frames = append(frames, Frame{Function: function, File: at.File, Line: at.Line})
			i++
		}
	}
	return frames
}
