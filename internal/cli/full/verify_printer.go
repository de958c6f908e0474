package full

import (
	"fmt"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
	"github.com/sandbox-run/sandbox-run/pkg/verify"
)

// Values of --format that only this command has.
const (
	formatSARIF  = "sarif"
	formatGitHub = "github"
)

// verifyPrinter prints checks as tests are printed, and their report at the end.
type verifyPrinter struct{ *testPrinter }

func (c *commands) newVerifyPrinter(verbose bool) verifyPrinter {
	return verifyPrinter{c.newTestPrinter(verbose)}
}

// check prints a check that has ended.
func (p verifyPrinter) check(k *verify.Check) { p.test(report.EventEnded, k) }

// checkUnless is check, or nothing if checks may yet become others.
func (p verifyPrinter) checkUnless(update bool) func(*verify.Check) {
	if update {
		return nil
	}
	return p.check
}

// conclude prints the report in the format that is asked for.
func (p verifyPrinter) conclude(r *verify.Report) error {
	if p.failed == nil {
		switch p.c.Format() {
		case cli.FormatJSON:
			p.failed = p.c.WriteJSON(r)
		case formatJUnit:
			p.failed = r.WriteJUnit(p.c.Std.Out)
		case formatSARIF:
			p.failed = r.WriteSARIF(p.c.Std.Out)
		case formatGitHub:
			p.failed = r.WriteGitHub(p.c.Std.Out)
		default:
			p.write(p.text(r))
		}
	}
	return p.passedOn()
}

func (p verifyPrinter) text(r *verify.Report) string {
	var b strings.Builder
	for _, k := range r.Checks {
		if k.Status.Failed() {
			p.failure(&b, k)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", cli.EscapeLine(n))
	}
	for _, name := range r.Updated {
		fmt.Fprintf(&b, "updated: %s\n", cli.EscapeLine(name))
	}
	d := r.Document()
	result := p.paint.Green("passed")
	if !d.Success {
		result = p.paint.Red("failed")
	}
	fmt.Fprintf(&b, "%s: %d checks: %d passed, %d failed", result, d.Summary.Total, d.Summary.Passed, d.Summary.FailedTests())
	if d.Summary.Skipped > 0 {
		fmt.Fprintf(&b, ", %d skipped", d.Summary.Skipped)
	}
	return b.String() + "\n"
}
