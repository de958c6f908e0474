package attack

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Display shows cases when they end, and on a terminal the running one. Its methods are called one at a time.
type Display struct {
	Out, Err *os.File
	Text     bool                // results are lines of text on Out; else Out is for a JSON document
	Live     bool                // Err is a terminal that can show the running case
	Colour   bool                // Out shows colours
	Escape   func(string) string // makes a text safe for terminals
}

// Started shows the case that starts.
func (d *Display) Started(id, title string) {
	if !d.Live {
		return
	}
	line := []rune(fmt.Sprintf("%-4s %s …", id, title))
	if cols, _, err := term.GetSize(int(d.Err.Fd())); err == nil && cols > 0 && len(line) >= cols {
		line = line[:cols-1] // a line that wraps could not be cleared
	}
	fmt.Fprintf(d.Err, "\r\x1b[K%s", string(line))
}

// Clear removes the line of the running case.
func (d *Display) Clear() {
	if d.Live {
		fmt.Fprint(d.Err, "\r\x1b[K")
	}
}

// Ended shows the result of a case.
func (d *Display) Ended(r Result) {
	d.Clear()
	if d.Text {
		fmt.Fprint(d.Out, d.resultLine(r))
	}
}

// Conclude writes the last lines of the text. missing are the lines about missing controls of the backend.
func (d *Display) Conclude(r *Report, missing string) error {
	late := 0.0
	residue := 0
	for _, res := range r.Results {
		late = max(late, res.Health.Lateness)
		residue += len(res.Health.Residue)
	}
	n := r.Counts
	known := ""
	if n.Known > 0 {
		known = fmt.Sprintf("%d known to be open, ", n.Known)
	}
	grade := d.green
	if !r.OK {
		grade = d.red
	}
	_, err := fmt.Fprintf(d.Out, "\n%s, tier %s: %d held, %d breached, %s%d not applicable, %d errors, in %.1f s\n"+
		"the host: at most %.0f ms late, %d things left behind\n%s%s", r.Backend, r.Tier, n.Held, n.Breached, known, n.NotApplicable, n.Error,
		r.Seconds,
		late, residue, missing, grade(fmt.Sprintf("grade %s: %s\n", r.Grade, r.Grade.Meaning())))
	return err
}

// resultWidth is that of "not applicable".
const resultWidth = 14

// resultLine is one case, with its successful attempts.
func (d *Display) resultLine(r Result) string {
	var b strings.Builder
	word := fmt.Sprintf("%-*s", resultWidth, strings.ReplaceAll(string(r.Outcome), "_", " "))
	switch r.Outcome {
	case Held:
		word = d.green(word)
	case Breached, Error:
		word = d.red(word)
	}
	fmt.Fprintf(&b, "%-4s %s  %s", r.ID, word, r.Title)
	if r.Outcome != NotApplicable {
		fmt.Fprintf(&b, " (%s; host %.0f ms late)", time.Duration(r.Seconds*float64(time.Second)).Round(10*time.Millisecond), r.Health.Lateness)
	}
	b.WriteByte('\n')
	if r.Detail != "" {
		fmt.Fprintf(&b, "     %s\n", d.Escape(r.Detail))
	}
	return b.String()
}

func (d *Display) green(s string) string { return d.in("32", s) }
func (d *Display) red(s string) string   { return d.in("31", s) }

func (d *Display) in(colour, text string) string {
	if !d.Colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
