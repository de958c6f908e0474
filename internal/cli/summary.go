package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// outcome has the parts of a summary that are not in the sandbox's result.
type outcome struct {
	noun      string // "command" or "program"
	cause     error  // why the run was cancelled; nil if it was not
	phases    []executor.PhaseResult
	machine   sandbox.Machine
	headed    bool                // the header has shown the tier
	asked     bool                // by --summary
	whole     bool                // the output was printed while the program ran
	wrote     []string            // files that were copied out
	diagnosis *diagnose.Diagnosis // nil: none
	lost      []string            // files that were not copied out, with the reason
}

// cleanupNote is the beginning of the note about leftovers.
const cleanupNote = executor.CleanupNote

// printSummary prints the summary of a run to standard error. On a terminal, and with --summary, it is a block; otherwise printWarnings
// prints a line for each important fact.
func (c *Invocation) printSummary(r *sandbox.Result, s *outcome, midLine bool) {
	terminal := IsTerminal(c.Std.Err)
	if !terminal && !s.asked {
		c.printWarnings(r, s)
		c.printNeeded(r)
		return
	}
	defer c.printNeeded(r)
	if terminal && midLine {
		fmt.Fprintln(c.Std.Err)
	}
	paint := c.Palette(c.Std.Err)
	fmt.Fprintf(c.Std.Err, "%s: %s  %s\n", CommandName, paint.verdict(r.Verdict), paint.Dim(strings.Join(listFigures(r, s), "  ")))
	line := func(label, text string) {
		fmt.Fprintf(c.Std.Err, "  %s %s\n", paint.bold(label+":"), indentText(text))
	}
	if why := s.whyEnded(r); why != "" {
		line("why", why)
	}
	if e := s.explain(r); e != nil {
		c.printExplanation(e, line, paint)
	}
	for _, v := range r.Violations {
		if v.Kind == sandbox.ViolationSyscall || repeatsVerdict(v, r.Verdict) || s.isExplained(v) {
			continue // describeRefused lists system calls, and whyEnded explains the verdict
		}
		line(v.Kind, s.describeViolation(v))
	}
	if text := describeRefused(r.Violations); text != "" {
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
	// Remedies are long and the same in every run: doctor prints them.
	fixable := false
	for _, g := range groupGaps(r.Isolation.Missing) {
		line("weaker", fmt.Sprintf("%s %s: %s", g.controls, g.State, g.Reason))
		fixable = fixable || g.Remedy != ""
	}
	if fixable {
		line("to fix that", "sandbox-run doctor says how")
	}
	for _, n := range r.Notes {
		if hint, ok := strings.CutPrefix(n, hintNote); ok {
			line("hint", hint)
			continue
		}
		line("note", n)
	}
}

// printNeeded prints the policy that a run with the network mode learn needs: as flags, and as a request has it.
func (c *Invocation) printNeeded(r *sandbox.Result) {
	if r.Needed == nil {
		return
	}
	if len(r.Needed.Allow) == 0 {
		c.PrintMessage("network: the run needs none")
		return
	}
	document, err := json.Marshal(map[string]any{"network": r.Needed})
	if err != nil {
		return
	}
	flags := ""
	for _, rule := range r.Needed.Allow {
		flags += " --allow " + sandbox.ShellQuote(rule)
	}
	c.PrintMessage("network: the run needs" + flags)
	c.PrintMessage("network: as JSON: " + string(document))
}

// describeViolation explains a violation, and names the flag that allows more.
func (s *outcome) describeViolation(v sandbox.Violation) string {
	switch {
	case v.Kind == sandbox.ViolationOutput && s.whole:
		return v.Detail + "; what was shown is complete; to keep more: " + v.Allow
	case v.Kind == sandbox.ViolationOutput:
		return v.Detail + toSeeTheRest
	case v.Kind == sandbox.ViolationNetwork && v.Name == "" && v.Allow != "":
		return v.Detail + "; to allow a host: " + strings.Replace(v.Allow, "network localhost", "allow HOST", 1) +
			"; for a loopback of its own: " + v.Allow
	case v.Kind == sandbox.ViolationNetwork && v.Allow != "":
		return v.Detail + "; to allow it: " + v.Allow
	case v.Allow != "":
		return v.Detail + "; to allow more: " + v.Allow
	}
	return v.Detail
}

const toSeeTheRest = "; to see the rest: --output-limit, --spill, or leave out --no-stream"

// printWarnings prints to a log what the exit code does not show.
func (c *Invocation) printWarnings(r *sandbox.Result, s *outcome) {
	for _, n := range r.Notes {
		if slices.ContainsFunc(importantNotes, func(prefix string) bool { return strings.HasPrefix(n, prefix) }) {
			c.PrintMessage(n)
		}
	}
	for _, v := range r.Violations {
		told := v.Kind == sandbox.ViolationOutput && !s.whole || v.Kind == sandbox.ViolationPids ||
			v.Kind == sandbox.ViolationNetwork && r.Verdict != sandbox.VerdictOK // else the program did without
		if told && !repeatsVerdict(v, r.Verdict) && !s.isExplained(v) {
			c.PrintMessage(v.Kind + ": " + s.describeViolation(v))
		}
	}
	for _, f := range s.lost {
		c.PrintMessage("not taken: " + f)
	}
	if e := s.explain(r); e != nil {
		if hint := e.hint(); hint != "" {
			c.PrintMessage(hintNote + hint)
		}
	}
	if why := s.whyEnded(r); why != "" {
		c.PrintMessage(string(r.Verdict) + ": " + why)
	}
}

// importantNotes are the prefixes of notes that are printed to a log, too.
var importantNotes = []string{cleanupNote, executor.RegistryNote, sandbox.NetworkNote, executor.AuditNote, language.UnusedNote, hintNote}

// repeatsVerdict reports whether the violation is the one that the verdict names.
func repeatsVerdict(v sandbox.Violation, verdict sandbox.Verdict) bool {
	return v.Kind == verdict.Info().Violation
}

// maxRefused is how many refused system calls a summary lists; JSON has all.
const maxRefused = 8

// describeRefused lists the refused system calls and how often each was refused.
func describeRefused(violations []sandbox.Violation) string {
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

// listFigures returns the numbers of a run for the first line of the summary.
func listFigures(r *sandbox.Result, s *outcome) []string {
	end := fmt.Sprintf("exit %d", r.Exit.Code)
	if r.Exit.Signal != 0 {
		end = sandbox.SignalName(r.Exit.Signal)
	}
	m := r.Metrics
	all := []string{
		end,
		"wall " + ShortTime(time.Duration(m.WallTime)),
		"cpu " + ShortTime(time.Duration(m.CPUTime)),
	}
	if m.MemoryPeak > 0 { // 0: not known
		all = append(all, "memory "+sandbox.Size(m.MemoryPeak).String())
	}
	for i, p := range s.phases {
		first := slices.IndexFunc(s.phases, func(q executor.PhaseResult) bool { return q.Name == p.Name })
		switch {
		case p.Name == r.Phase || first < i: // an installation has several steps, and one figure
		case p.Cached:
			all = append(all, p.Name+" cached")
		default:
			var wall time.Duration
			for _, q := range s.phases[first:] {
				if q.Name == p.Name {
					wall += time.Duration(q.Metrics.WallTime)
				}
			}
			all = append(all, p.Name+" "+ShortTime(wall))
		}
	}
	if !s.headed {
		all = append(all, tierText(r.Isolation))
	}
	return all
}

// tierText names the tier and the backend of a sandbox.
func tierText(i sandbox.Isolation) string { return fmt.Sprintf("tier %s (%s)", i.Tier, i.Backend) }

// whyEnded explains an end that the program did not choose, and names the flag that allows more. It is empty for other ends.
func (s *outcome) whyEnded(r *sandbox.Result) string {
	subject, flags := s.noun, "--"
	switch {
	case r.Phase == executor.PhaseInstall && r.Verdict != sandbox.VerdictInstallError && r.Verdict != sandbox.VerdictCancelled:
		return "the installation of the packages ended with " + string(r.Verdict) + "; fewer packages, or an operator who allows more"
	case r.Phase == executor.PhaseCompile && r.Verdict != sandbox.VerdictCompileError:
		subject, flags = "compiler", "--compile-"
	}
	info := r.Verdict.Info()
	why := info.Explain(r, subject, flags)
	switch r.Verdict {
	case sandbox.VerdictMemoryLimit:
		return why + s.suggestMemory(r.Limits.Memory)
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

// suggestMemory suggests the next power of two as the memory limit, because the program's real need is unknown. It is empty if the
// machine has less memory.
func (s *outcome) suggestMemory(limit sandbox.Size) string {
	next := sandbox.MiB
	for next <= limit {
		next *= 2
	}
	if next > s.machine.Memory {
		return ""
	}
	return " " + BriefSize(next)
}

// ShortTime formats a duration with three significant digits.
func ShortTime(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d {
		unit *= 10
	}
	return d.Round(unit).String()
}

// Palette colours text if it is true.
type Palette bool

const colourRed = "31"

// Values of --color.
const (
	ColourAuto   = "auto"
	ColourAlways = "always"
	ColourNever  = "never"
)

// Palette returns the palette for a file: --color decides or, with auto, whether the file is a terminal and NO_COLOR (no-color.org) is
// not set.
func (c *Invocation) Palette(f *os.File) Palette {
	switch c.colour {
	case ColourAlways:
		return true
	case ColourNever:
		return false
	}
	return Palette(IsTerminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

// resetColours ends all colours of a terminal.
const resetColours = "\x1b[0m"

func (p Palette) in(code, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + code + "m" + text + resetColours
}

func (p Palette) bold(s string) string   { return p.in("1", s) }
func (p Palette) Dim(s string) string    { return p.in("2", s) }
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
