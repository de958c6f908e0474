package full

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// testPrinter prints tests while they run, and the result at the end. Names and messages are untrusted: it escapes them.
type testPrinter struct {
	c       *commands
	verbose bool
	wait    *cli.Progress // on a terminal; nil: none
	paint   cli.Palette
	stop    context.CancelCauseFunc
	done    report.TestSummary
	failed  error
	last    uint64 // number of the last event
}

func (c *commands) newTestPrinter(verbose bool) *testPrinter {
	p := &testPrinter{c: c, verbose: verbose, paint: c.Palette(c.Std.Out)}
	if c.Format() == cli.FormatText && cli.CanRedraw(c.Std.Err) {
		p.wait = &cli.Progress{To: c.Std.Err}
	}
	return p
}

func (p *testPrinter) begin() { p.wait.Start("preparing") }

func (p *testPrinter) end() { p.wait.End() }

func (p *testPrinter) prepare(what string) func() {
	p.wait.Start(what)
	return p.wait.End
}

// write prints to standard output. A reader that is gone ends the run.
func (p *testPrinter) write(text string) {
	if p.failed != nil {
		return
	}
	if _, p.failed = io.WriteString(p.c.Std.Out, text); p.failed != nil && p.stop != nil {
		p.stop(p.failed)
	}
}

// output prints what the tests and compilers print.
func (p *testPrinter) output(ev sandbox.Event) {
	switch {
	case p.c.Format() == cli.FormatNDJSON:
		p.last = ev.Seq
		p.writeJSON(ev.Document())
	case p.c.Format() != cli.FormatText:
	case ev.Kind == sandbox.EventPhase && ev.Phase == executor.PhaseCompile:
		p.wait.Start("compiling")
	case ev.Kind == sandbox.EventPhase && ev.Phase == executor.PhaseInstall:
		p.wait.Start("installing packages")
	case p.verbose && ev.Phase == executor.PhaseRun && ev.Kind == sandbox.EventStderr:
		p.wait.End()
		_, _ = p.c.EscapedStderr().Write(ev.Data) // the result is written to standard output, which reports a reader that is gone
	}
}

func (p *testPrinter) writeJSON(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		p.failed = errors.Join(p.failed, err)
		return
	}
	p.write(string(text) + "\n")
}

// test prints a test that starts or ends.
func (p *testPrinter) test(kind sandbox.EventKind, t *tests.Test) {
	if p.c.Format() != cli.FormatText {
		return
	}
	if kind == report.EventStarted {
		p.wait.Start(fmt.Sprintf("%d passed, %d failed; %s", p.done.Passed, p.done.Failed, testName(t)))
		return
	}
	p.wait.End()
	if t.Status.Failed() {
		p.done.Failed++
	} else {
		p.done.Passed++
	}
	if t.Status == tests.Passed && !p.verbose && !cli.IsTerminal(p.c.Std.Out) {
		return
	}
	p.write(p.line(t) + "\n")
}

func testName(t *tests.Test) string {
	if t.Suite == "" {
		return t.Name
	}
	return t.Suite + " " + t.Name
}

func (p *testPrinter) line(t *tests.Test) string {
	word := fmt.Sprintf("%-7s", t.Status)
	switch {
	case t.Status == tests.Passed:
		word = p.paint.Green(word)
	case t.Status.Failed():
		word = p.paint.Red(word)
	default:
		word = p.paint.Dim(word)
	}
	text := word + " " + cli.EscapeLine(testName(t)) + " " + p.paint.Dim("("+cli.ShortTime(time.Duration(t.Duration*float64(time.Second)))+")")
	if t.Reason != "" {
		text += " " + cli.EscapeLine(t.Reason)
	}
	return text
}

// conclude prints the result in the format that is asked for.
func (p *testPrinter) conclude(r *tests.Result) error {
	if p.failed == nil {
		switch p.c.Format() {
		case cli.FormatJSON:
			p.failed = p.c.WriteJSON(r)
		case cli.FormatNDJSON:
			p.writeJSON(struct {
				Seq    uint64            `json:"seq"`
				Time   time.Time         `json:"time"`
				Kind   sandbox.EventKind `json:"kind"`
				Result *tests.Result     `json:"result"`
			}{p.last + 1, time.Now(), executor.EventResult, r})
		case formatJUnit:
			p.failed = tests.WriteJUnit(p.c.Std.Out, r)
		case formatTAP:
			p.failed = tests.WriteTAP(p.c.Std.Out, r)
		default:
			p.write(p.text(r))
		}
	}
	return p.passedOn()
}

// passedOn reports output that could not be passed on; a reader that is gone sets the exit code alone.
func (p *testPrinter) passedOn() error {
	switch {
	case errors.Is(p.failed, syscall.EPIPE):
		p.c.Code = cli.CodeBrokenPipe
	case p.failed != nil:
		return &sandbox.Error{Op: "pass on output", Err: p.failed}
	}
	return nil
}

// maxShown bounds what is printed of a failure; JSON has more.
const maxShown = 4 << 10

func (p *testPrinter) text(r *tests.Result) string {
	var b strings.Builder
	for _, t := range r.Tests {
		if t.Status.Failed() {
			p.failure(&b, t)
		}
	}
	for _, t := range r.Tests {
		if t.Flaky {
			fmt.Fprintf(&b, "flaky: %s: %v\n", cli.EscapeLine(testName(t)), t.Attempts)
		}
	}
	if !r.Complete || r.Summary.Total == 0 {
		b.WriteString(shown(string(r.Stdout.Edges(maxShown)) + string(r.Stderr.Edges(maxShown))))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", cli.EscapeLine(n))
	}
	s := r.Summary
	result := p.paint.Green("passed")
	if !r.Success() {
		result = p.paint.Red("failed")
	}
	fmt.Fprintf(&b, "%s: %d tests of %s: %d passed, %d failed", result, s.Total, r.Framework, s.Passed, s.FailedTests())
	if s.Skipped > 0 {
		fmt.Fprintf(&b, ", %d skipped", s.Skipped)
	}
	if s.Flaky > 0 {
		fmt.Fprintf(&b, ", %d flaky", s.Flaky)
	}
	if why := whyNot(r); why != "" {
		b.WriteString("; " + why)
	}
	return b.String() + "\n"
}

// whyNot explains a result that the tests alone do not explain.
func whyNot(r *tests.Result) string {
	switch {
	case r.Stopped == tests.StoppedFailFast:
		return "ended at the first failure"
	case r.Stopped == tests.StoppedTimeout:
		return "ended at a test that took too long; those after it were not run"
	case r.Verdict != sandbox.VerdictOK && r.Verdict != sandbox.VerdictNonzeroExit:
		return "the run ended with " + string(r.Verdict)
	case r.Summary.Total == 0:
		return "no tests were run"
	case !r.Complete:
		return "the framework did not report its end"
	case r.Verdict == sandbox.VerdictNonzeroExit && r.Summary.FailedTests() == 0:
		return fmt.Sprintf("the framework ended with exit code %d", r.Exit.Code)
	}
	return ""
}

func (p *testPrinter) failure(b *strings.Builder, t *tests.Test) {
	place := ""
	if at := fmt.Sprintf("%s:%d", t.File, t.Line); t.File != "" && at != t.Name {
		place = fmt.Sprintf(" (%s:%d)", t.File, t.Line)
	}
	fmt.Fprintf(b, "\n%s %s%s\n", p.paint.Red(string(t.Status)), cli.EscapeLine(testName(t)), cli.EscapeLine(place))
	if t.Failure == nil {
		return
	}
	b.WriteString(shown(t.Failure.Message))
	if d := t.Failure.Diagnosis; d != nil {
		if d.Excerpt != "" {
			b.WriteString(shown(d.Excerpt))
		}
		if d.Cause != "" {
			fmt.Fprintf(b, "  cause: %s\n", cli.EscapeLine(d.Cause))
		}
		for _, step := range d.Suggestions {
			fmt.Fprintf(b, "  try: %s\n", cli.EscapeLine(step))
		}
	}
	if t.Output != "" && !strings.Contains(t.Output, t.Failure.Message) {
		b.WriteString("  printed:\n" + shown(t.Output))
	}
}

// shown indents a text, and bounds and escapes it.
func shown(text string) string {
	if len(text) > maxShown {
		text = text[:maxShown/2] + "\n…\n" + text[len(text)-maxShown/2:]
	}
	var b strings.Builder
	for line := range strings.Lines(cli.EscapeText(strings.ToValidUTF8(text, "\uFFFD"))) {
		b.WriteString("    " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
