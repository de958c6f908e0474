package diagnose

import (
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// stack is what a thread did when the program printed its stacks.
type stack struct {
	main, running bool
	frames        []Frame
}

// Bounds of what is read of the stacks.
const (
	maxStacks      = 1000
	maxStackFrames = 200
)

// dumps are the readers of stacks, by language. They return those that were printed last.
var dumps = [...]struct {
	language string
	read     func(c *inquiry, lines []string) []stack
}{
	{"go", (*inquiry).goStacks},
	{"java", (*inquiry).javaStacks},
	{"python", (*inquiry).pythonStacks},
}

// stackAtLimit returns the frames of the thread that tells most about where the program was; nil if it printed no stacks.
func (c *inquiry) stackAtLimit() []Frame {
	if phase := c.Result.Phase; phase != "" && phase != sandbox.DefaultPhase {
		return nil
	}
	for _, d := range dumps {
		if d.language != c.Language {
			continue
		}
		best, most := []Frame(nil), -1
		for _, s := range d.read(c, c.stderr) {
			for i := range s.frames {
				c.resolveFrame(&s.frames[i])
			}
			if weight := s.weight(); len(s.frames) > 0 && weight > most {
				best, most = s.frames, weight
			}
		}
		return best
	}
	return nil
}

// weight orders stacks: those of the user's code, then those that compute, then that of the main thread.
func (s *stack) weight() (n int) {
	if slices.ContainsFunc(s.frames, func(f Frame) bool { return f.User }) {
		n += 4
	}
	if s.running || len(s.frames) > 0 && s.frames[0].User {
		n += 2
	}
	if s.main {
		n++
	}
	return n
}

// whereabouts says where a thread was whose innermost frame of the user's code is f.
func whereabouts(f Frame) string {
	at := f.File
	if f.Line > 0 {
		at += ":" + number(f.Line)
	}
	switch {
	case strings.HasPrefix(f.Function, goCreated):
		return "in a goroutine that was started at " + at
	case f.Function == "" || f.Function == "<module>":
		return "at " + at
	}
	return "at " + at + ", in " + f.Function
}

// goCreated begins the last frame of a goroutine, which is that of its go statement.
const goCreated = "created by "

// goStacks reads what the runtime prints at SIGQUIT. A goroutine that another thread runs has only the frame that made it.
//
//	SIGQUIT: quit
//	PC=0x47a7c1 m=0 sigcode=0
//
//	goroutine 1 gp=0xc000002380 m=0 mp=0x5256a0 [running]:
//	main.main()
//		/workspace/main.go:6 +0x9 fp=0xc000…
func (c *inquiry) goStacks(lines []string) (all []stack) {
	lines = afterLast(lines, func(line string) bool { return line == "SIGQUIT: quit" })
	for i, line := range lines {
		rest, ok := strings.CutPrefix(line, "goroutine ")
		number, state, named := strings.Cut(rest, " ")
		if !ok || !named || len(all) == maxStacks {
			continue
		}
		state = state[strings.LastIndexByte(state, '[')+1:]
		s := stack{main: number == "1", running: strings.HasPrefix(state, "run"), frames: goFrames(lines[i:])}
		for i := range s.frames {
			if s.frames[i].Line == 1 { // of a loop that the compiler has emptied: its instructions have no place
				s.frames[i].Line = 0
			}
		}
		all = append(all, s)
	}
	return all
}

// javaStacks reads what the virtual machine prints at SIGQUIT.
//
//	Full thread dump OpenJDK 64-Bit Server VM (17.0.15+6 mixed mode, sharing):
//
//	"main" #1 prio=5 os_prio=0 cpu=23.06ms elapsed=2.01s tid=0x… nid=0x70df runnable  [0x…]
//	   java.lang.Thread.State: RUNNABLE
//		at Main.main(Main.java:5)
func (c *inquiry) javaStacks(lines []string) (all []stack) {
	lines = afterLast(lines, func(line string) bool { return strings.HasPrefix(line, "Full thread dump ") })
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, `"`) && len(all) < maxStacks:
			all = append(all, stack{main: strings.HasPrefix(line, `"main" `)})
		case len(all) == 0:
		case strings.HasPrefix(line, "   java.lang.Thread.State: "):
			all[len(all)-1].running = strings.HasSuffix(line, " RUNNABLE")
		case strings.HasPrefix(line, "\tat "):
			s := &all[len(all)-1]
			if module, rest, ok := strings.Cut(line, "@"); ok { // (java.base@17.0.15/Thread.java:1313)
				_, rest, _ = strings.Cut(rest, "/")
				line = module[:strings.LastIndexByte(module, '(')+1] + rest
			}
			if f, ok := c.javaFrame(strings.TrimSpace(line)); ok && f.File != "Unknown Source" && len(s.frames) < maxStackFrames {
				s.frames = append(s.frames, f)
			}
		}
	}
	return all
}

// pythonStacks reads what faulthandler prints.
//
//	Thread 0x00007f34e27076c0 (most recent call first):
//	  File "/workspace/main.py", line 4 in busy
//	  File "/usr/lib/python3.11/threading.py", line 975 in run
//
//	Current thread 0x00007f34e29c6040 (most recent call first):
//	  File "/workspace/main.py", line 9 in <module>
func (c *inquiry) pythonStacks(lines []string) (all []stack) {
	var threads []string
	open := false
	for _, line := range lines {
		head, ok := strings.CutSuffix(line, "(most recent call first):")
		name, current := strings.CutPrefix(head, "Current thread 0x")
		if !current {
			name, current = strings.CutPrefix(head, "Thread 0x")
			ok = ok && current
			current = false
		}
		if ok {
			if slices.Contains(threads, name) { // of the next time that it printed them
				threads, all = nil, nil
			}
			if open = len(all) < maxStacks; open {
				threads, all = append(threads, name), append(all, stack{main: current})
			}
			continue
		}
		rest, ok := strings.CutPrefix(line, `  File "`)
		file, rest, found := strings.Cut(rest, `", line `)
		if open = open && ok && found; !open {
			continue
		}
		_, function, _ := strings.Cut(rest, " in ")
		if s := &all[len(all)-1]; len(s.frames) < maxStackFrames {
			s.frames = append(s.frames, Frame{Function: function, File: file, Line: atoi(rest)})
		}
	}
	return all
}

// afterLast returns the lines after the last one that is found; nil if none is.
func afterLast(lines []string, isIt func(string) bool) []string {
	for i := len(lines) - 1; i >= 0; i-- {
		if isIt(lines[i]) {
			return lines[i+1:]
		}
	}
	return nil
}
