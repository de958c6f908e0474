package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// explanation is the part of a diagnosis that the program's own output does not show.
type explanation struct {
	at, excerpt string
	cause       string
	steps       []string
}

// explain selects from a diagnosis what the user has not seen. It is nil if that is nothing.
func (s *outcome) explain(r *sandbox.Result) *explanation {
	d := s.diagnosis
	if d == nil {
		return nil
	}
	e := &explanation{}
	if s.whyEnded(r) == "" || r.Verdict == sandbox.VerdictCompileError { // the limit has its line
		e.cause, e.steps = d.Cause, slices.Clone(d.Suggestions)
	} else if at := d.Location; at != nil && (d.Kind == diagnose.KindTime || d.Kind == diagnose.KindCPU) {
		e.cause = fmt.Sprintf("the %s was at %s:%d", s.noun, at.File, at.Line)
	}
	if d.IsVague() { // the violation has its line
		e.cause, e.steps = "", nil
	}
	hinted := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.HasPrefix(n, hintNote) })
	if hinted && d.Kind.IsMissing() { // the hint knows this machine
		e.cause, e.steps = "", nil
	}
	said := r.Stderr.Edges(sandbox.OutputMemory)
	e.steps = slices.DeleteFunc(e.steps, func(step string) bool {
		_, own, ok := strings.Cut(step, ": ") // rustc's help
		own, _, _ = strings.Cut(own, ": `")
		return ok && bytes.Contains(said, []byte(own))
	})
	if at := d.Location; at != nil {
		if line := diagnose.MarkedLine(d.Excerpt); line != "" && !bytes.Contains(said, []byte(line)) {
			e.at, e.excerpt = fmt.Sprintf("%s:%d", at.File, at.Line), d.Excerpt
		}
	}
	if e.excerpt == "" && e.cause == "" && len(e.steps) == 0 {
		return nil
	}
	return e
}

// isExplained reports whether the diagnosis says of a violation what it means, and names the flag that allows more.
func (s *outcome) isExplained(v sandbox.Violation) bool {
	d := s.diagnosis
	switch {
	case d == nil || v.Name != "" || len(d.Suggestions) == 0:
		return false
	case v.Kind == sandbox.ViolationNetwork:
		return d.Kind == diagnose.KindNetwork && !d.IsVague()
	}
	return v.Kind == sandbox.ViolationPids && d.Kind == diagnose.KindProcesses
}

// hint is the explanation as one line of a log; "" if there is no cause and no step.
func (e *explanation) hint() string {
	text := e.cause
	for i, step := range e.steps {
		switch {
		case text == "":
		case i == 0:
			text += "; try: "
		default:
			text += "; or "
		}
		text += step
	}
	return text
}

// printExplanation prints an explanation as lines of a summary.
func (c *Invocation) printExplanation(e *explanation, line func(label, text string), paint Palette) {
	if e.excerpt != "" {
		line("at", e.at)
		for text := range strings.Lines(EscapeText(e.excerpt)) {
			text = strings.TrimRight(text, "\n")
			switch {
			case strings.HasPrefix(text, diagnose.Mark):
				text = paint.bold(text)
			case strings.HasSuffix(text, "^"):
				text = paint.Red(text)
			}
			fmt.Fprintf(c.Std.Err, "    %s\n", text)
		}
	}
	if e.cause != "" {
		line("cause", e.cause)
	}
	for _, step := range e.steps {
		line("try", step)
	}
}
