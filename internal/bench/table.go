package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// Bar is the target of a row: for its ratio to the reference, for the excess over it, or for its own value.
type Bar struct {
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least,omitempty"` // else at most
	OfRatio bool    `json:"of_ratio,omitempty"` // else of the value itself
	// OfExcess: of the excess of ours over the reference.
	OfExcess bool `json:"of_excess,omitempty"`
	// OfInterval: of the whole 95 % interval of the ratio. The bar is missed only if both ends are beyond the limit.
	OfInterval bool `json:"of_interval,omitempty"`
}

// Row is one measure.
type Row struct {
	Name      string    `json:"name"`
	Unit      string    `json:"unit"`
	Ours      Stat      `json:"ours"`
	Reference *Stat     `json:"reference,omitempty"`
	Versus    string    `json:"versus,omitempty"` // the reference: "bwrap", "bare"
	Ratio     *Interval `json:"ratio,omitempty"`
	Bar       *Bar      `json:"bar,omitempty"` // nil: for information
	Note      string    `json:"note,omitempty"`
}

// Compare returns a row of pairs, in milliseconds. limit is the largest ratio that meets the bar; 0 is no bar.
func Compare(name, versus string, ours, reference []Sample, limit float64) Row {
	ref, ratio := Summarize(reference), Ratio(ours, reference)
	row := Row{Name: name, Unit: "ms", Ours: Summarize(ours), Reference: &ref, Versus: versus, Ratio: &ratio}
	if limit > 0 {
		row.Bar = &Bar{Limit: limit, OfRatio: true}
	}
	return row
}

// Met reports whether the bar was met. A row without a bar meets it; a row whose value is not a number does not.
func (r Row) Met() bool {
	if r.Bar == nil {
		return true
	}
	v := r.Ours.P50
	if r.Bar.OfRatio || r.Bar.OfInterval {
		if r.Ratio == nil {
			return false
		}
		v = r.Ratio.Value
	}
	if r.Bar.OfInterval {
		if v = r.Ratio.Low; r.Bar.AtLeast {
			v = r.Ratio.High
		}
	}
	if r.Bar.OfExcess {
		if r.Reference == nil {
			return false
		}
		v -= r.Reference.P50
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false
	}
	if r.Bar.AtLeast {
		return v >= r.Bar.Limit
	}
	return v <= r.Bar.Limit
}

func (r Row) verdict() string {
	switch {
	case r.Bar == nil:
		return "–"
	case r.Met():
		return "met"
	}
	return "MISSED"
}

func (b *Bar) text(unit string) string {
	if b == nil {
		return "–"
	}
	sign, end := "≤", "low"
	if b.AtLeast {
		sign, end = "≥", "high"
	}
	if b.OfRatio || b.OfInterval {
		unit = "×"
	}
	if b.OfInterval {
		return fmt.Sprintf("%s end %s %s %s", end, sign, number(b.Limit), unit)
	}
	if b.OfExcess {
		return fmt.Sprintf("%s reference + %s %s", sign, number(b.Limit), unit)
	}
	return fmt.Sprintf("%s %s %s", sign, number(b.Limit), unit)
}

// number formats v with three significant digits, all digits before the point, no exponent and no trailing zeros.
func number(v float64) string {
	digits := 2
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "?"
	case a >= 100:
		digits = 0
	case a >= 10:
		digits = 1
	case a < 1 && a > 0:
		digits = 3
	}
	text := fmt.Sprintf("%.*f", digits, v)
	if strings.Contains(text, ".") {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	return text
}

func (s *Stat) text() (p50, p95, cpu string) {
	if s == nil {
		return "–", "–", "–"
	}
	p95, cpu = "–", "–"
	if s.P95 != 0 {
		p95 = number(s.P95)
	}
	if s.CPU != 0 {
		cpu = number(s.CPU)
	}
	return number(s.P50), p95, cpu
}

// Machine describes the measured machine.
type Machine struct {
	Cores     int       `json:"cores"`
	CPU       string    `json:"cpu,omitempty"`
	Kernel    string    `json:"kernel"`
	Go        string    `json:"go"`
	LoadStart string    `json:"load_start"`
	LoadEnd   string    `json:"load_end"`
	Date      time.Time `json:"date"`
}

// Report is a whole measurement.
type Report struct {
	Machine    Machine  `json:"machine"`
	References []string `json:"references"` // the commands compared with, in full
	Notes      []string `json:"notes,omitempty"`
	Rows       []Row    `json:"rows"`
}

// Missed returns the names of the rows whose bar was not met.
func (r *Report) Missed() []string {
	var names []string
	for _, row := range r.Rows {
		if !row.Met() {
			names = append(names, row.Name)
		}
	}
	return names
}

var header = []string{"measure", "unit", "ours p50", "p95", "CPU/run", "reference p50", "p95", "CPU/run", "ratio [95 %]", "bar", "n", ""}

func (r Row) cells() []string {
	op50, op95, ocpu := r.Ours.text()
	rp50, rp95, rcpu := r.Reference.text()
	if r.Versus != "" {
		rp50 = r.Versus + " " + rp50
	}
	ratio := "–"
	if r.Ratio != nil {
		ratio = fmt.Sprintf("%s [%s–%s]", number(r.Ratio.Value), number(r.Ratio.Low), number(r.Ratio.High))
	}
	return []string{r.Name, r.Unit, op50, op95, ocpu, rp50, rp95, rcpu, ratio, r.Bar.text(r.Unit), fmt.Sprint(r.Ours.N), r.verdict()}
}

func (r *Report) facts() []string {
	m := r.Machine
	lines := []string{
		fmt.Sprintf("%s · %d cores%s · Linux %s · %s · load average %s at start, %s at end",
			m.Date.UTC().Format("2006-01-02 15:04 UTC"), m.Cores, prefixed(" of ", m.CPU), m.Kernel, m.Go, m.LoadStart, m.LoadEnd),
	}
	for _, ref := range r.References {
		lines = append(lines, "reference: "+ref)
	}
	return append(lines, r.Notes...)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func (r *Report) rowNotes() []string {
	var notes []string
	for _, row := range r.Rows {
		if row.Note != "" {
			notes = append(notes, row.Name+": "+row.Note)
		}
	}
	return notes
}

func (r *Report) conclusion() string {
	if missed := r.Missed(); len(missed) > 0 {
		return "MISSED: " + strings.Join(missed, "; ")
	}
	return "every bar met"
}

// Text writes the report for a terminal.
func (r *Report) Text(w io.Writer) error {
	var table bytes.Buffer
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	rule := make([]string, len(header))
	for i, h := range header {
		rule[i] = strings.Repeat("─", utf8.RuneCountInString(h))
	}
	fmt.Fprintln(tw, strings.Join(rule, "\t"))
	for _, row := range r.Rows {
		fmt.Fprintln(tw, strings.Join(row.cells(), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	text := strings.Join(r.facts(), "\n") + "\n\n" + table.String() + "\n"
	for _, n := range r.rowNotes() {
		text += n + "\n"
	}
	_, err := io.WriteString(w, text+r.conclusion()+"\n")
	return err
}

// Markdown writes the report for a document.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.facts() {
		if command, is := strings.CutPrefix(f, "reference: "); is {
			f = "Reference: `" + command + "`"
		}
		b.WriteString(f + "\n\n")
	}
	row := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	row(append([]string{}, header...))
	b.WriteString("|---" + strings.Repeat("|---:", len(header)-2) + "|---|\n")
	for _, r := range r.Rows {
		row(r.cells())
	}
	b.WriteString("\n")
	for _, n := range r.rowNotes() {
		b.WriteString("- " + n + "\n")
	}
	b.WriteString("\nResult: " + r.conclusion() + ".\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// JSON writes the report as JSON. It fails on figures that are not numbers, which JSON can not represent.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// The marks around the part of a document that Update replaces.
const (
	beginMark = "<!-- bench:begin -->"
	endMark   = "<!-- bench:end -->"
)

// Update returns a document with the report between its marks.
func (r *Report) Update(document string) (string, error) {
	before, rest, found := strings.Cut(document, beginMark)
	_, after, closed := strings.Cut(rest, endMark)
	if !found || !closed {
		return "", errors.New("the document has no " + beginMark + " followed by " + endMark)
	}
	var b strings.Builder
	if err := r.Markdown(&b); err != nil {
		return "", err
	}
	return before + beginMark + "\n" + b.String() + endMark + after, nil
}
