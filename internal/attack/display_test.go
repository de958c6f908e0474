package attack

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Every case has its line, and no text of a program's steers a terminal. Where the report is JSON, no line is written.
func TestDisplay(t *testing.T) {
	for _, text := range []bool{false, true} {
		out, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		d := Display{Out: out, Err: out, Text: text, Escape: func(s string) string { return strings.ReplaceAll(s, "\x1b", "?") }}
		r := &Report{Backend: "native", Tier: sandbox.TierContainer, Grade: GradeF, Counts: Counts{Held: 1, Known: 1}}
		for i, o := range []Outcome{Held, Breached, NotApplicable, Error} {
			res := Result{ID: "F" + string(rune('1'+i)), Title: "a title", Outcome: o, Detail: "a \x1b detail", Health: Health{Lateness: 3}}
			r.Results = append(r.Results, res)
			d.Started(res.ID, res.Title)
			d.Ended(res)
		}
		if text {
			if err := d.Conclude(r, "missing: swap: x\n"); err != nil {
				t.Fatal(err)
			}
		}
		out.Close()
		got, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		if !text {
			if len(got) > 0 {
				t.Errorf("beside JSON: %q", got)
			}
			continue
		}
		for _, want := range []string{
			"F1   held            a title (0s; host 3 ms late)\n     a ? detail\n", "F2   breached ", "F3   not applicable  a title\n",
			"F4   error ",
			"native, tier container: 1 held, 0 breached, 1 known to be open, 0 not applicable, 0 errors, in 0.0 s\nthe host: at most 3 ms late, " +
				"0 things left behind\n" +
				"missing: swap: x\ngrade F: an attack succeeded\n",
		} {
			if !bytes.Contains(got, []byte(want)) {
				t.Errorf("%q is not in %q", want, got)
			}
		}
		if bytes.ContainsRune(got, 0x1b) {
			t.Errorf("a control character: %q", got)
		}
	}
}
