package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Values of --format.
const (
	FormatText   = "text"
	FormatJSON   = "json"
	FormatNDJSON = "ndjson"
)

// ReadOneOf returns a parser that accepts only the given words.
func ReadOneOf[T ~string](words ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		if slices.Contains(words, T(s)) {
			return T(s), nil
		}
		var all []string
		for _, w := range words {
			all = append(all, string(w))
		}
		return "", errors.New("unknown value; use one of " + strings.Join(all, ", "))
	}
}

// chooseFormat combines --json and --format. A flag on the command line takes precedence over a variable; two that contradict each other
// from the same source are an error.
func (c *Invocation) chooseFormat(flags *pflag.FlagSet) error {
	if c.JSON && c.format != "" && c.format != FormatJSON {
		switch {
		case isOnCommandLine(flags, "json") == isOnCommandLine(flags, "format"):
			return sandbox.Invalid("format", "--json and --format %s contradict each other", c.format)
		case isOnCommandLine(flags, "format"):
			c.JSON = false
		default:
			c.format = FormatJSON
		}
	}
	switch {
	case c.JSON:
		c.format = FormatJSON
	case c.format == "":
		c.format = FormatText
	}
	c.JSON = c.format == FormatJSON
	return nil
}

// guessFormat finds the format for the error of a command line that could not be parsed: the flag may stand behind the wrong argument,
// or its variable may be set.
func (c *Invocation) guessFormat() {
	args := beforeDashes(c.Args)
	for i, a := range args {
		value, ok := strings.CutPrefix(a, "--format=")
		if a == "--format" && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if ok {
			c.format = value
		}
		c.JSON = c.JSON || a == "--json"
	}
	if c.format == "" {
		c.format = os.Getenv(EnvironmentName("format"))
	}
	if on, _ := strconv.ParseBool(os.Getenv(EnvironmentName("json"))); on && c.format == "" {
		c.JSON = true
	}
}

// writeResult writes a result as a JSON document or, with NDJSON, as the last line.
func (c *Invocation) writeResult(doc any) error {
	if large, err := encodeResult(doc); large != nil && !IsTerminal(c.Std.Out) {
		return c.writeLarge(large)
	} else if err != nil {
		return err
	}
	if c.format == FormatNDJSON {
		return c.writeLine(lastLine{Seq: c.seq + 1, Time: time.Now(), Kind: executor.EventResult, Result: doc})
	}
	return c.WriteJSON(doc)
}

// encodeResult encodes the result of a run, whose output may be large. It returns nil for other documents.
func encodeResult(doc any) (*sandbox.JSON, error) {
	switch r := doc.(type) {
	case *executor.Result:
		return r.Encode()
	case *sandbox.Result:
		return r.Encode(func(d sandbox.Document) any { return d })
	}
	return nil, nil
}

// writeLarge writes a result as writeLine and WriteJSON do, without its output in memory.
func (c *Invocation) writeLarge(result *sandbox.JSON) error {
	before, after := "", "\n"
	if c.format == FormatNDJSON {
		const mark = `"result"`
		line, err := json.Marshal(lastLine{Seq: c.seq + 1, Time: time.Now(), Kind: executor.EventResult, Result: json.RawMessage(mark)})
		if err != nil {
			return err
		}
		before, after = strings.TrimSuffix(string(line), mark+"}"), "}\n"
	}
	out := bufio.NewWriterSize(c.Std.Out, 64<<10) // a short result takes one write
	_, _ = out.WriteString(before)                // Flush returns the error
	if _, err := result.WriteTo(out); err != nil {
		return err
	}
	_, _ = out.WriteString(after)
	return out.Flush()
}

// lastLine is the last line of a stream of events.
type lastLine struct {
	Seq    uint64            `json:"seq"`
	Time   time.Time         `json:"time"`
	Kind   sandbox.EventKind `json:"kind"`
	Result any               `json:"result"`
}

// writeLine writes one event of a stream as one line, unbuffered.
func (c *Invocation) writeLine(doc any) error { return c.encode(doc, "") }

// WriteJSON writes one document to standard output: indented on a terminal, otherwise as one line.
func (c *Invocation) WriteJSON(doc any) error {
	if IsTerminal(c.Std.Out) {
		return c.encode(doc, "  ")
	}
	return c.encode(doc, "")
}

// encode writes JSON. encoding/json does not escape C1 controls and characters of text direction; on a terminal they are written as
// \u escapes, which mean the same.
func (c *Invocation) encode(doc any, indent string) error {
	var out io.Writer = c.Std.Out
	if IsTerminal(c.Std.Out) {
		out = newEscaper(out)
	}
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(doc); err != nil {
		return err
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// Table prints rows with aligned columns. It prints in batches, so a long table takes little memory; the columns of a later batch can be
// wider than those of an earlier one, never narrower.
type Table struct {
	to     io.Writer
	paint  Palette
	titles []string
	right  []bool
	widths []int
	rows   [][]string
	headed bool
}

const tableBatch = 500

// NewTable makes a table that is written to a file. A title that begins with > aligns its column to the right.
func (c *Invocation) NewTable(to *os.File, titles ...string) *Table {
	t := &Table{to: to, paint: c.Palette(to)}
	for _, title := range titles {
		name, right := strings.CutPrefix(title, ">")
		t.titles, t.right, t.widths = append(t.titles, name), append(t.right, right), append(t.widths, len(name))
	}
	return t
}

// Add adds a row, which may have fewer cells than the table has columns. It escapes control characters in the cells.
func (t *Table) Add(row ...string) error {
	for i := range row {
		row[i] = EscapeLine(row[i])
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
	}
	if t.rows = append(t.rows, row); len(t.rows) >= tableBatch {
		return t.Flush()
	}
	return nil
}

// Flush prints the rows that are not printed yet. A table without rows has no heading. Call it after the last Add.
func (t *Table) Flush() error {
	if len(t.rows) == 0 {
		return nil
	}
	var b strings.Builder
	if !t.headed {
		t.headed = true
		b.WriteString(t.paint.bold(t.line(t.titles)) + "\n")
	}
	for _, row := range t.rows {
		b.WriteString(t.line(row) + "\n")
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.to, b.String())
	return err
}

func (t *Table) line(row []string) string {
	var b strings.Builder
	for i, text := range row {
		width := t.widths[i]
		if !t.right[i] {
			width = -width
		}
		fmt.Fprintf(&b, "%*s  ", width, text)
	}
	return strings.TrimRight(b.String(), " ")
}

// EscapeLine returns the text with control characters, newlines and tabs escaped.
func EscapeLine(s string) string {
	return strings.NewReplacer("\r\n", `\r\n`, "\n", `\n`, "\t", `\t`).Replace(EscapeText(s))
}
