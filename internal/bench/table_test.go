package bench

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMet(t *testing.T) {
	ratio := func(v float64) *Interval { return &Interval{Value: v} }
	interval := func(low, high float64) *Interval { return &Interval{Value: (low + high) / 2, Low: low, High: high} }
	for name, c := range map[string]struct {
		row  Row
		want bool
	}{
		"no bar":               {Row{Ours: Stat{P50: 9}}, true},
		"at most, met":         {Row{Ours: Stat{P50: 2}, Bar: &Bar{Limit: 2}}, true},
		"at most, missed":      {Row{Ours: Stat{P50: 2.001}, Bar: &Bar{Limit: 2}}, false},
		"at least, met":        {Row{Ours: Stat{P50: 350}, Bar: &Bar{Limit: 350, AtLeast: true}}, true},
		"at least, missed":     {Row{Ours: Stat{P50: 349}, Bar: &Bar{Limit: 350, AtLeast: true}}, false},
		"ratio, met":           {Row{Ours: Stat{P50: 100}, Ratio: ratio(0.9), Bar: &Bar{Limit: 0.9, OfRatio: true}}, true},
		"ratio, missed":        {Row{Ours: Stat{P50: 0.1}, Ratio: ratio(0.91), Bar: &Bar{Limit: 0.9, OfRatio: true}}, false},
		"ratio that is absent": {Row{Bar: &Bar{Limit: 1, OfRatio: true}}, false},
		"interval around it":   {Row{Ratio: interval(1.04, 1.2), Bar: &Bar{Limit: 1.05, OfInterval: true}}, true},
		"interval above it":    {Row{Ratio: interval(1.06, 1.2), Bar: &Bar{Limit: 1.05, OfInterval: true}}, false},
		"interval below it":    {Row{Ratio: interval(0.5, 0.9), Bar: &Bar{Limit: 0.95, OfInterval: true, AtLeast: true}}, false},
		"interval, no number":  {Row{Ratio: interval(math.NaN(), math.NaN()), Bar: &Bar{Limit: 1, OfInterval: true}}, false},
		"no interval":          {Row{Bar: &Bar{Limit: 1, OfInterval: true}}, false},
		"no number":            {Row{Ours: Stat{P50: math.NaN()}, Bar: &Bar{Limit: 1}}, false},
		"infinite":             {Row{Ours: Stat{P50: math.Inf(1)}, Bar: &Bar{Limit: 1, AtLeast: true}}, false},
	} {
		if got := c.row.Met(); got != c.want {
			t.Errorf("%s: met %v, want %v", name, got, c.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.9: "0.9", 0.1234: "0.123", 2: "2", 3.456: "3.46", 12.34: "12.3", 350: "350",
		1234.5: "1234", 100: "100", -0.5: "-0.5"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
	if number(math.NaN()) != "?" {
		t.Error("NaN is written as a number")
	}
}

func report() *Report {
	return &Report{
		Machine:    Machine{Cores: 2, CPU: "Z80", Kernel: "6.18", Go: "go1.26", LoadStart: "0.1", LoadEnd: "0.2", Date: time.Unix(0, 0)},
		References: []string{"bwrap --x true"},
		Notes:      []string{"10 warm-up pairs left out"},
		Rows: []Row{
			Compare("quick | fresh", "bwrap", samples(1, 1, 1), samples(2, 2, 2), 0.9),
			Compare("slow", "bwrap", samples(4, 4, 4), samples(2, 2, 2), 1.6),
			Compare("informed", "bare", samples(4, 4, 4), samples(2, 2, 2), 0),
			{Name: "rate", Unit: "/s", Ours: Stat{P50: 400, N: 9}, Bar: &Bar{Limit: 350, AtLeast: true}, Note: "higher is better"},
		},
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	r := report()
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1970-01-01 00:00 UTC · 2 cores of Z80 · Linux 6.18 · go1.26 · load average 0.1 at start, 0.2 at end",
		"reference: bwrap --x true", "10 warm-up pairs left out", "0.5 [0.5–0.5]", "≤ 0.9 ×", "≥ 350 /s", "met", "rate: higher is better",
		"MISSED: slow\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if !slices.Equal(r.Missed(), []string{"slow"}) {
		t.Errorf("missed %v", r.Missed())
	}
	r.Rows = r.Rows[:1]
	if r.conclusion() != "every bar met" {
		t.Errorf("conclusion %q", r.conclusion())
	}
}

func TestMarkdownAndUpdate(t *testing.T) {
	r := report()
	text, err := r.Update("before\n" + beginMark + "\nold\n" + endMark + "\nafter\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n" + beginMark + "\n", endMark + "\nafter\n", `| quick \| fresh | ms | 1 | 1 | 2 | bwrap 2 |`,
		"Reference: `bwrap --x true`", "- rate: higher is better", "Result: MISSED: slow."} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "old") {
		t.Error("the old section is still there")
	}
	if again, err := r.Update(text); err != nil || again != text {
		t.Errorf("a second update changes the document: %v", err)
	}
	var columns []int
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") {
			columns = append(columns, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"))
		}
	}
	if len(slices.Compact(columns)) != 1 {
		t.Errorf("lines of the table have different numbers of columns: %v", columns)
	}
	for _, bad := range []string{"", beginMark, endMark + beginMark} {
		if _, err := r.Update(bad); err == nil {
			t.Errorf("%q was updated", bad)
		}
	}
}

func TestJSON(t *testing.T) {
	var b strings.Builder
	if err := report().JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != 4 || back.Rows[1].Ratio.Value != 2 || !back.Rows[3].Bar.AtLeast || back.Machine.Cores != 2 {
		t.Errorf("came back as %+v", back)
	}
}
