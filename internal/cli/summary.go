package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// outcome is what a summary tells besides a sandbox's result.
type outcome struct {
	noun    string // what was run: a command, a program
	cause   error  // why it was cancelled, if it was
	phases  []executor.PhaseResult
	machine sandbox.Machine
	headed  bool     // a header has told of the walls
	whole   bool     // everything was shown while it ran
	wrote   []string // files that were brought back
	lost    []string // files that were not, and why
}

// cleanupNote begins the note on what could not be removed.
const cleanupNote = executor.CleanupNote

// summarise says on stderr what became of the run. A person gets a block; a file or pipe gets at
// most a line for each thing that must not be overlooked.
func (c *Invocation) summarise(r *sandbox.Result, s *outcome, midLine bool) {
	if !IsTerminal(c.Std.Err) {
		c.warn(r, s)
		return
	}
	var signal SignalCause
	if midLine || errors.As(s.cause, &signal) { // which was typed, as ^C
		fmt.Fprintln(c.Std.Err)
	}
	paint := c.Palette(c.Std.Err)
	fmt.Fprintf(c.Std.Err, "%s: %s  %s\n", CommandName, paint.verdict(r.Verdict), paint.dim(strings.Join(figures(r, s), "  ")))
	line := func(label, text string) {
		fmt.Fprintf(c.Std.Err, "  %s %s\n", paint.bold(label+":"), indented(text))
	}
	if why := s.whyEnded(r); why != "" {
		line("why", why)
	}
	for _, v := range r.Violations {
		if v.Kind == sandbox.ViolationSyscall || explains(v, r.Verdict) {
			continue // these come together below, and those are the verdict's own story
		}
		text := v.Detail
		switch {
		case v.Kind == sandbox.ViolationOutput && s.whole:
			text += "; what was shown is complete; to keep more: " + v.Allow
		case v.Kind == sandbox.ViolationOutput:
			text += toSeeTheRest
		case v.Allow != "":
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
	if len(s.wrote) > 0 {
		line("wrote", strings.Join(s.wrote, ", "))
	}
	for _, f := range s.lost {
		line("not taken", f)
	}
	// What would fix it is long, the same every time, and in doctor.
	fixable := false
	for _, g := range groupGaps(r.Isolation.Missing) {
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

const toSeeTheRest = "; to see the rest: --output-limit, --spill, or leave out --no-stream"

// warn says to whoever reads a log what the exit code alone does not.
func (c *Invocation) warn(r *sandbox.Result, s *outcome) {
	for _, n := range r.Notes {
		if strings.HasPrefix(n, cleanupNote) || strings.HasPrefix(n, executor.AuditNote) { // never to be overlooked
			c.Complain(n)
		}
	}
	for _, v := range r.Violations {
		if v.Kind == sandbox.ViolationOutput && !s.whole && !explains(v, r.Verdict) {
			c.Complain(v.Kind + ": " + v.Detail + toSeeTheRest)
		}
	}
	for _, f := range s.lost {
		c.Complain("not taken: " + f)
	}
	if why := s.whyEnded(r); why != "" {
		c.Complain(string(r.Verdict) + ": " + why)
	}
}

// explains reports whether a limit that was reached is what the verdict says already.
func explains(v sandbox.Violation, verdict sandbox.Verdict) bool {
	return v.Kind == verdict.Info().Violation
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
func figures(r *sandbox.Result, s *outcome) []string {
	end := fmt.Sprintf("exit %d", r.Exit.Code)
	if r.Exit.Signal != 0 {
		end = sandbox.SignalName(r.Exit.Signal)
	}
	m := r.Metrics
	all := []string{
		end,
		"wall " + ShortTime(time.Duration(m.WallTime)),
		"cpu " + ShortTime(time.Duration(m.CPUTime)),
		"memory " + sandbox.Size(m.MemoryPeak).String(),
	}
	for _, p := range s.phases {
		switch {
		case p.Name == r.Phase:
		case p.Cached:
			all = append(all, p.Name+" cached")
		default:
			all = append(all, p.Name+" "+ShortTime(time.Duration(p.Metrics.WallTime)))
		}
	}
	if !s.headed {
		all = append(all, tierText(r.Isolation))
	}
	return all
}

// tierText says how strong a sandbox is, and who made it.
func tierText(i sandbox.Isolation) string { return fmt.Sprintf("tier %s (%s)", i.Tier, i.Backend) }

// whyEnded explains an end that the program did not choose; it is empty otherwise. Where a flag
// would have allowed more, it is named.
func (s *outcome) whyEnded(r *sandbox.Result) string {
	who, flags := s.noun, "--"
	if r.Phase == executor.PhaseCompile && r.Verdict != sandbox.VerdictCompileError {
		who, flags = "compiler", "--compile-"
	}
	info := r.Verdict.Info()
	why := info.Explain(r, who, flags)
	switch r.Verdict {
	case sandbox.VerdictMemoryLimit:
		return why + s.more(r.Limits.Memory)
	case sandbox.VerdictDiskLimit:
		if full := new(sandbox.DiskFullError); errors.As(s.cause, &full) {
			return full.Error()
		}
		for _, v := range r.Violations {
			// A server names fields.
			if v.Kind == "disk" && strings.HasPrefix(strings.ReplaceAll(strings.TrimPrefix(v.Allow, "--"), "_", "-"), "workspace-cap") {
				return v.Detail + "; to allow more: " + sandbox.WorkspaceFlags
			}
		}
	case sandbox.VerdictCompileError:
		if bytes.Contains(r.Stderr.Edges(sandbox.OutputMemory), []byte(": lint: import of ")) {
			return "the program imports what --forbid-imports names, and was not run"
		}
	case sandbox.VerdictCancelled:
		if s.cause != nil {
			return s.cause.Error()
		}
	}
	return why
}

// more is a limit that would do where this one did not: the next power of two. How much a program wanted when it was ended nobody
// knows; beyond what the machine has, no limit is of use.
func (s *outcome) more(limit sandbox.Size) string {
	next := sandbox.MiB
	for next <= limit {
		next *= 2
	}
	if next > s.machine.Memory {
		return ""
	}
	return " " + BriefSize(next)
}

// ShortTime keeps three figures: nobody reads more.
func ShortTime(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d {
		unit *= 10
	}
	return d.Round(unit).String()
}

// Palette colours text for a terminal, unless the user does not want that (no-color.org).
type Palette bool

const colourRed = "31"

// When to use colour.
const (
	ColourAuto   = "auto"
	ColourAlways = "always"
	ColourNever  = "never"
)

func (c *Invocation) Palette(f *os.File) Palette {
	switch c.colour {
	case ColourAlways:
		return true
	case ColourNever:
		return false
	}
	return Palette(IsTerminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

func (p Palette) in(code, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p Palette) bold(s string) string   { return p.in("1", s) }
func (p Palette) dim(s string) string    { return p.in("2", s) }
func (p Palette) Green(s string) string  { return p.in("32", s) }
func (p Palette) yellow(s string) string { return p.in("33", s) }
func (p Palette) Red(s string) string    { return p.in(colourRed, s) }

func (p Palette) verdict(v sandbox.Verdict) string {
	switch {
	case v == sandbox.VerdictOK:
		return p.Green(string(v))
	case v.Info().Chosen:
		return p.yellow(string(v))
	}
	return p.Red(string(v))
}

func (p Palette) state(s sandbox.ControlState, width int) string {
	text := fmt.Sprintf("%-*s", width, s)
	switch s {
	case sandbox.Enforced:
		return p.Green(text)
	case sandbox.Declared, sandbox.Polled:
		return p.yellow(text)
	}
	return p.Red(text)
}
