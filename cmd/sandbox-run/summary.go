package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// summarise says on stderr what became of the run. A person gets a block; a file or pipe gets at
// most one line, and only when it was not the program that decided to end.
func (c *cli) summarise(r *sandbox.Result, cause error, midLine bool) {
	if !isTerminal(c.std.err) {
		for _, n := range r.Notes {
			if strings.HasPrefix(n, cleanupNote) { // never to be overlooked
				c.complain(n)
			}
		}
		if why := whyEnded(r, cause); why != "" {
			c.complain(string(r.Verdict) + ": " + why)
		}
		return
	}
	if midLine {
		fmt.Fprintln(c.std.err)
	}
	paint := newPalette(c.std.err)
	fmt.Fprintf(c.std.err, "%s: %s  %s\n", commandName, paint.verdict(r.Verdict), paint.dim(strings.Join(figures(r), "  ")))
	line := func(label, text string) {
		fmt.Fprintf(c.std.err, "  %s %s\n", paint.bold(label+":"), escaped(text))
	}
	if why := whyEnded(r, cause); why != "" {
		line("why", why)
	}
	for _, v := range r.Violations {
		if v.Kind == sandbox.ViolationSyscall || explains(v, r.Verdict) {
			continue // these come together below, and those are the verdict's own story
		}
		text := v.Detail
		if v.Kind == "output_limit" {
			text += "; what was shown is complete"
		}
		if v.Allow != "" {
			text += "; to allow more: " + v.Allow
		}
		line(v.Kind, text)
	}
	if text := refused(r.Violations); text != "" {
		line("refused", text)
	}
	for _, o := range []sandbox.Output{r.Stdout, r.Stderr} {
		if o.File != "" {
			line("kept", "in "+o.File)
		}
	}
	// What would fix it is long, the same every time, and in doctor.
	fixable := false
	for _, g := range together(r.Isolation.Missing) {
		line("weaker", fmt.Sprintf("%s %s: %s", g.controls, g.State, g.Reason))
		fixable = fixable || g.Remedy != ""
	}
	if fixable {
		line("to fix that", "sandbox-run doctor says how")
	}
	for _, n := range r.Notes {
		line("note", n)
	}
}

// explains reports whether a limit that was touched is what the verdict says already.
func explains(v sandbox.Violation, verdict sandbox.Verdict) bool {
	switch verdict {
	case sandbox.VerdictTimeLimit:
		return v.Kind == "timeout"
	case sandbox.VerdictCPULimit:
		return v.Kind == "cpu_time"
	}
	return v.Kind+"_limit" == string(verdict) || v.Kind == string(verdict)
}

// maxRefused is how many kinds of refused calls a person is told of; JSON has all.
const maxRefused = 8

// refused tells in one line which system calls were refused, and how often.
func refused(violations []sandbox.Violation) string {
	var calls []string
	saturated := false
	for _, v := range violations {
		if v.Kind == sandbox.ViolationSyscall {
			calls = append(calls, fmt.Sprintf("%s ×%d", v.Detail, v.Count))
			saturated = saturated || v.Saturated
		}
	}
	text := strings.Join(calls[:min(len(calls), maxRefused)], ", ")
	if more := len(calls) - maxRefused; more > 0 {
		text += fmt.Sprintf(", and %d more kinds", more)
	}
	if saturated {
		text += "; further ones were refused and not counted"
	}
	return text
}

// figures are the numbers of a run, most asked for first.
func figures(r *sandbox.Result) []string {
	end := fmt.Sprintf("exit %d", r.Exit.Code)
	if r.Exit.Signal != 0 {
		end = sandbox.SignalName(r.Exit.Signal)
	}
	m := r.Metrics
	return []string{
		end,
		"wall " + shortTime(time.Duration(m.WallTime)),
		"cpu " + shortTime(time.Duration(m.CPUTime)),
		"memory " + sandbox.Size(m.MemoryPeak).String(),
		fmt.Sprintf("tier %s (%s)", r.Isolation.Tier, r.Isolation.Backend),
	}
}

// whyEnded explains an end that the program did not choose; it is empty otherwise. Where a flag
// would have allowed more, it is named.
func whyEnded(r *sandbox.Result, cause error) string {
	l := r.Limits
	switch r.Verdict {
	case sandbox.VerdictTimeLimit:
		return fmt.Sprintf("the command ran longer than %v; to allow more: --timeout", l.Wall)
	case sandbox.VerdictCPULimit:
		return fmt.Sprintf("the command used more than %v of CPU time; to allow more: --cpu-time", l.CPUTime)
	case sandbox.VerdictMemoryLimit:
		return fmt.Sprintf("the command needed more than %s of memory; to allow more: --memory", l.Memory)
	case sandbox.VerdictDiskLimit:
		return fmt.Sprintf("the command filled its scratch disk of %s and %d files; to allow more: --disk, --inodes", l.Disk, l.Inodes)
	case sandbox.VerdictOutputLimit:
		return fmt.Sprintf("the command printed more than %s; to allow more: --output-limit, or leave out --kill-on-output", l.Output)
	case sandbox.VerdictSignaled:
		return "the command was ended by " + sandbox.SignalName(r.Exit.Signal)
	case sandbox.VerdictCancelled:
		if cause != nil {
			return cause.Error()
		}
		return "cancelled"
	}
	return ""
}

// shortTime keeps three figures: nobody reads more.
func shortTime(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d {
		unit *= 10
	}
	return d.Round(unit).String()
}

// palette colours text for a terminal, unless the user does not want that (no-color.org).
type palette bool

func newPalette(f *os.File) palette {
	return palette(isTerminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

func (p palette) in(code, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p palette) bold(s string) string   { return p.in("1", s) }
func (p palette) dim(s string) string    { return p.in("2", s) }
func (p palette) green(s string) string  { return p.in("32", s) }
func (p palette) yellow(s string) string { return p.in("33", s) }
func (p palette) red(s string) string    { return p.in("31", s) }

func (p palette) verdict(v sandbox.Verdict) string {
	switch v {
	case sandbox.VerdictOK:
		return p.green(string(v))
	case sandbox.VerdictNonzeroExit, sandbox.VerdictCancelled:
		return p.yellow(string(v))
	}
	return p.red(string(v))
}

func (p palette) state(s sandbox.ControlState, width int) string {
	text := fmt.Sprintf("%-*s", width, s)
	switch s {
	case sandbox.Enforced:
		return p.green(text)
	case sandbox.Polled:
		return p.yellow(text)
	}
	return p.red(text)
}
