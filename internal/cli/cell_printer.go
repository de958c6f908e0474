package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// CellPrinter prints what cells of a session print, and what they have used. Its methods belong to one goroutine at a time.
type CellPrinter struct {
	c       *Invocation
	show    *outputPrinter
	figures bool // after each cell
	quiet   bool
	noted   map[string]bool // notes that were printed: of a cell, they often hold for all that follow
}

// NewCellPrinter makes a printer. stop is called if the output can not be written any more.
func (c *Invocation) NewCellPrinter(o *SessionOptions, stop context.CancelCauseFunc) *CellPrinter {
	p := &CellPrinter{
		c: c, show: &outputPrinter{c: c, cancelRun: stop}, quiet: o.run.quiet, figures: IsTerminal(c.Std.Err) && !o.run.quiet,
		noted: map[string]bool{},
	}
	p.show.out, p.show.err = c.newSinks(&o.run.boxOptions)
	return p
}

// Output prints an event of a cell; values and questions are the caller's.
func (p *CellPrinter) Output(e sandbox.Event) { p.show.printEvent(e) }

// Text prints text of a program to standard output, as its output.
func (p *CellPrinter) Text(text string) {
	p.Output(sandbox.Event{Kind: sandbox.EventStdout, Data: []byte(text)})
}

// Styled prints text that is safe for a terminal to standard output, on lines of its own.
func (p *CellPrinter) Styled(text string) {
	p.show.mu.Lock()
	defer p.show.mu.Unlock()
	p.show.flushSinks()
	p.show.beginLine()
	if _, err := io.WriteString(p.c.Std.Out, strings.TrimSuffix(text, "\n")+"\n"); err != nil {
		p.show.keepFailure(err)
	}
}

// EndOutput ends the output of a cell: a line that follows begins a line.
func (p *CellPrinter) EndOutput() {
	p.show.mu.Lock()
	defer p.show.mu.Unlock()
	p.show.flushSinks()
	p.show.beginLine()
}

// AfterInput says that a person has typed the end of a line.
func (p *CellPrinter) AfterInput() {
	p.show.mu.Lock()
	defer p.show.mu.Unlock()
	p.show.midLine = false
}

// Echoed says that the terminal has shown a key, such as ^C.
func (p *CellPrinter) Echoed() {
	if !p.show.tryLock() {
		return
	}
	defer p.show.mu.Unlock()
	p.show.midLine = true
}

// Figures prints what a cell has used and why it has ended, and of a diagnosis what its output has not shown; d may be nil. Without a
// terminal it prints what the exit code does not show.
func (p *CellPrinter) Figures(r *sandbox.Result, d *diagnose.Diagnosis) {
	end := &outcome{noun: "cell", whole: true, machine: sandbox.ThisMachine(), diagnosis: d}
	if !p.figures {
		if !p.quiet {
			p.c.printWarnings(r, end)
		}
		return
	}
	paint, m := p.c.Palette(p.c.Std.Err), r.Metrics
	var words []string
	if r.Verdict != sandbox.VerdictOK {
		words = append(words, paint.verdict(r.Verdict))
	}
	figures := ShortTime(time.Duration(m.WallTime))
	if m.MemoryPeak > 0 { // 0: not known
		figures += "  memory " + sandbox.Size(m.MemoryPeak).String()
	}
	fmt.Fprintln(p.c.Std.Err, strings.Join(append(words, paint.Dim(figures)), "  "))
	line := func(label, text string) {
		fmt.Fprintf(p.c.Std.Err, "  %s %s\n", paint.bold(label+":"), indentText(text))
	}
	if why := end.whyEnded(r); why != "" && r.Verdict != sandbox.VerdictCancelled {
		line("why", why)
	}
	if e := end.explain(r); e != nil {
		p.c.printExplanation(e, line, paint)
	}
	for _, v := range r.Violations {
		if v.Kind != sandbox.ViolationSyscall && !repeatsVerdict(v, r.Verdict) && !end.isExplained(v) {
			line(v.Kind, end.describeViolation(v))
		}
	}
	if text := describeRefused(r.Violations); text != "" {
		line("refused", text)
	}
	for _, n := range r.Notes {
		if p.noted[n] {
			continue
		}
		if len(p.noted) < maxNoted {
			p.noted[n] = true
		}
		line("note", n)
	}
}

// maxNoted bounds the notes that are remembered.
const maxNoted = 1000

// Failure is the error of output that could not be written; nil if the reader of the output has left.
func (p *CellPrinter) Failure() error {
	err := p.show.writeError()
	if errors.Is(err, syscall.EPIPE) {
		p.c.Code = CodeBrokenPipe
		return nil
	}
	return err
}
