package tests

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// read parses a report in parts of that size.
func read(t testing.TB, form, text string, part int) *collector {
	t.Helper()
	c := newCollector(nil)
	p, err := newParser(form, c)
	if err != nil {
		t.Fatal(err)
	}
	for b := []byte(text); len(b) > 0; {
		n := min(part, len(b))
		p.write(b[:n])
		b = b[n:]
	}
	p.close()
	c.endAll(0, "ended")
	return c
}

func listed(c *collector) string {
	var list []string
	for _, test := range c.tests {
		list = append(list, test.Name+" "+string(test.Status))
	}
	return strings.Join(list, ", ")
}

var reports = []struct {
	form, text, want string
	complete         bool
	ignored          int
}{
	{language.ReportRecords, `{"type":"start","id":"a","name":"a"}` + "\n" + `{"type":"end","id":"a","status":"passed","duration":1}` + "\n" +
		`{"type":"done"}`, "a passed", true, 0},
	{language.ReportRecords, `{"type":"end","id":"a","name":"a","status":"running"}` + "\n{}\n[]\nnull\n\n{\"type\":\"start\"}\n" +
		`{"type":"end","id":"a","status":"passed","more":1}` + "\n" + `{"type":"done"}{"type":"done"}`, "", false, 8},
	{language.ReportRecords, `{"type":"end","id":"a","name":"a","status":"passed","duration":1e300}`, "a passed", false, 0},
	{language.ReportGo, "\x16=== PACKAGE x\tx\n\x16=== RUN   TestA\n\x16=== PAUSE TestA\n\x16=== RUN   TestB\nloud\x16--- FAIL: TestB (0.10s)\n" +
		"    a_test.go:3: why\n\x16=== CONT  TestA\n\x16--- SKIP: TestA (0.00s)\n\x16=== END\n", "TestA skipped, TestB failed", true, 0},
	{language.ReportGo, "\x16=== PACKAGE x\tx\n\x16=== RUN   TestA\nexit\n\x16=== PACKAGE y\ty\n\x16=== RUN   TestA\n", "TestA error, TestA error", false, 0},
	{language.ReportTAP, "1..3\nsuite /workspace/a.bats\nbegin 1 x in 3ms\nok 1 x in 3ms in 4ms\nbegin 2 y\nbegin 3 z # skip\nnot ok 3 z # skip in 5ms\n# why\n",
		"x in 3ms passed, y error, z # skip failed", true, 0},
	{language.ReportTAP, "1..2\nok 1 plain in 7ms # skip later\nfoo\n", "plain skipped", false, 1},
	{language.ReportLibtest, `{ "type": "suite", "event": "started", "test_count": 1 }` + "\n" + `{ "type": "test", "event": "started", "name": "a" }` + "\n" +
		`raw{ "type": "test", "name": "a", "event": "ok", "exec_time": 0.1 }` + "\n" + `{ "type": "suite", "event": "ok" }` + "\n" +
		"test src/lib.rs - twice (line 2) ... ok\n", "a passed, twice (line 2) passed", true, 0},
	{language.ReportLibtest, `{ "type": "suite", "event": "started" }` + "\n" + `{ "type": "test", "event": "started", "name": "a" }`, "a error", false, 0},
}

func TestParsers(t *testing.T) {
	for _, r := range reports {
		for _, part := range []int{1, 7, 1 << 20} {
			c := read(t, r.form, r.text, part)
			if got := listed(c); got != r.want || c.complete != r.complete || c.ignored != r.ignored {
				t.Errorf("%s in parts of %d: %q, complete %v, %d ignored; want %q %v %d\n%s", r.form, part, got, c.complete, c.ignored, r.want, r.complete,
					r.ignored, r.text)
			}
		}
	}
	if c := read(t, language.ReportGo, reports[3].text, 3); c.tests[1].Failure == nil || c.tests[1].Output != "loud\n    a_test.go:3: why\n" {
		t.Errorf("%+v", c.tests[1])
	}
}

// TestBounds: a report beyond the bounds is cut, and takes bounded memory.
func TestBounds(t *testing.T) {
	var b strings.Builder
	for i := range maxTests + 10 {
		fmt.Fprintf(&b, `{"type":"end","id":"%d","name":"%d","status":"passed"}`+"\n", i, i)
	}
	if c := read(t, language.ReportRecords, b.String(), 1<<16); len(c.tests) != maxTests || c.ignored != 10 {
		t.Errorf("%d tests, %d ignored", len(c.tests), c.ignored)
	}
	long := strings.Repeat("x", maxTestText*3)
	line := `{"type":"end","id":"a","name":"` + long[:2*maxName] + `","status":"failed","message":"` + long + `","output":"` + long + `"}` + "\n"
	c := read(t, language.ReportRecords, line+strings.Repeat("y", 3*maxLine)+"\n", 1<<16)
	if len(c.tests) != 1 || c.ignored != 1 || len(c.tests[0].Name) > maxName || len(c.tests[0].Output) > maxTestText+10 || !c.tests[0].Truncated ||
		len(c.tests[0].Failure.Message) > maxTestText+10 {
		t.Errorf("%d tests, %d ignored", len(c.tests), c.ignored)
	}
	if c := read(t, language.ReportRecords, `{"type":"start","id":"`+long[:2*maxName]+`","name":"a"}`, 1<<16); len(c.tests) != 1 ||
		c.tests[0].Status != Errored {
		t.Errorf("%+v", c.tests)
	}
	// Each line takes little time, whatever came before: quadratic time would take hours.
	read(t, language.ReportGo, "\x16=== PACKAGE x\tx\n"+strings.Repeat("\x16=== RUN   T\n\x16--- FAIL: T (0s)\n", maxTests)+
		strings.Repeat("\x16=== PACKAGE x\tx\ny\n", 1<<18)+strings.Repeat("y\n", 1<<20), 1<<16)
	many := newCollector(nil)
	for i := range 2 * maxTotalText / maxTestText {
		many.end(fmt.Sprint(i), Test{Name: "a", Status: Failed, Output: long}, long)
	}
	if many.totalText > maxTotalText {
		t.Errorf("%d bytes are kept", many.totalText)
	}
}

// TestBoundsOfAll: what all tests of a report have together is bounded, while they run and afterwards.
func TestBoundsOfAll(t *testing.T) {
	kept := func(c *collector) (n int) {
		n = sizeOf(c.tests)
		for _, r := range c.running {
			n += r.output.size()
		}
		return n
	}
	long := strings.Repeat("x", maxTestText)
	record := `{"type":"end","id":"%d","name":"` + long + `","status":"failed","trace":"` + long + `"}` + "\n"
	forms := map[string]string{ // what is repeated
		language.ReportRecords: record,
		language.ReportGo:      "\x16=== RUN   T%d\n" + strings.Repeat(long[:1000]+"\n", 60),
		language.ReportLibtest: `{ "type": "test", "event": "failed", "name": "%d", "stdout": "` + long + `" }` + "\n",
		language.ReportTAP:     "begin %d " + long + "\n",
	}
	for form, text := range forms {
		c := newCollector(nil)
		p, err := newParser(form, c)
		if err != nil {
			t.Fatal(err)
		}
		before := heap()
		for i := range 3000 {
			p.write(fmt.Appendf(nil, text, i))
		}
		// The heap also has what a name was cut from, if it is kept with it.
		if n, grown := kept(c), heap()-before; n > maxTotalText+maxNames || grown > 2*(maxTotalText+maxNames) {
			t.Errorf("%s: %d bytes in texts, the heap has grown by %d", form, n, grown)
		}
		p.close()
		c.endAll(0, "ended")
		if n := kept(c); n > maxTotalText+maxNames || c.runningText != 0 {
			t.Errorf("%s: %d bytes in texts, %d counted of running tests", form, n, c.runningText)
		}
		runtime.KeepAlive(p)
	}

	// A name does not keep the line from which it is cut, and names are bounded together.
	before := heap()
	c := newCollector(nil)
	p, err := newParser(language.ReportGo, c)
	if err != nil {
		t.Fatal(err)
	}
	line := "\x16=== RUN   %d" + strings.Repeat(" ", maxLine-100) + "\n"
	for i := range 500 {
		p.write(fmt.Appendf(nil, line, i))
	}
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("names of 500 tests: the heap has grown by %d", grown)
	}
	runtime.KeepAlive(c)
	names := newCollector(nil)
	for i := range maxTests {
		names.end(fmt.Sprint(i), Test{Name: long, Suite: long, File: long, Status: Passed}, "")
	}
	if n := sizeOf(names.tests); n > maxNames || names.ignored == 0 {
		t.Errorf("%d bytes of names", n)
	}
	// Of a test that ends, nothing counts as running.
	ended := newCollector(nil)
	read := &goParser{c: ended}
	for range 3 * maxTotalText / maxTestText {
		read.line([]byte("\x16=== RUN   T"))
		read.line([]byte(long))
		read.line([]byte(long))
		read.line([]byte("\x16--- FAIL: T (0s)"))
	}
	if ended.runningText != 0 {
		t.Errorf("%d bytes are counted", ended.runningText)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMergeBounds: repetitions with other tests each time do not add up, and what is left out is no success.
func TestMergeBounds(t *testing.T) {
	var all *Result
	for i := range 3 {
		one := &Result{&executor.Result{Result: sandbox.Result{Verdict: sandbox.VerdictOK}}, report.Report{Complete: true}}
		for k := range maxTests/2 + 1 {
			one.Tests = append(one.Tests, &Test{ID: fmt.Sprint(i, " ", k), Name: "a", Status: Passed})
		}
		all = merge(all, one)
	}
	all.Summary = report.Count(all.Tests)
	if len(all.Tests) > maxTests || all.Complete || all.Success() || len(all.Notes) == 0 {
		t.Errorf("%d tests, complete %v, %v", len(all.Tests), all.Complete, all.Notes)
	}
	cancelled := &Result{&executor.Result{Result: sandbox.Result{Verdict: sandbox.VerdictCancelled}}, report.Report{}}
	failed := &Result{&executor.Result{Result: sandbox.Result{Verdict: sandbox.VerdictNonzeroExit}}, report.Report{Complete: true}}
	if r := merge(failed, cancelled); r.Verdict != sandbox.VerdictCancelled {
		t.Errorf("a repetition was cancelled, and the verdict is %s", r.Verdict)
	}
}

// FuzzParsers: no report breaks a parser, or makes what can not be printed.
func FuzzParsers(f *testing.F) {
	f.Add(0, `{"type":"end","id":"a","name":"\u009b31m\u202e","suite":"\u2028","file":"\u009b","status":"failed","message":"\u009b\r","output":"\u202e"}`)
	forms := []string{language.ReportRecords, language.ReportGo, language.ReportLibtest, language.ReportTAP}
	for _, r := range reports {
		f.Add(slices.Index(forms, r.form), r.text)
	}
	f.Fuzz(func(t *testing.T, form int, text string) {
		c := read(t, forms[uint(form)%uint(len(forms))], text, 13)
		r := &Result{&executor.Result{}, report.Report{Framework: "x", Tests: c.tests, Summary: report.Count(c.tests)}}
		if _, err := json.Marshal(r.Tests); err != nil {
			t.Errorf("%v", err)
		}
		var b bytes.Buffer
		if err := WriteJUnit(&b, r); err != nil {
			t.Error(err)
		}
		if err := xml.Unmarshal(b.Bytes(), new(junitSuites)); err != nil {
			t.Errorf("%v: %s", err, &b)
		}
		plain := func() {
			if i := strings.IndexFunc(b.String(), func(r rune) bool { return isControl(r) && r != '\n' }); i >= 0 {
				t.Errorf("a control character: %q", b.String()[i:])
			}
		}
		plain()
		b.Reset()
		if err := WriteTAP(&b, r); err != nil {
			t.Error(err)
		}
		plain()
		for line := range strings.Lines(b.String()) {
			if !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "not ok ") && !strings.HasPrefix(line, "  ") &&
				!strings.HasPrefix(line, "1..") && line != "TAP version 13\n" {
				t.Errorf("line %q of TAP", line)
			}
		}
	})
}

func TestWrite(t *testing.T) {
	r := &Result{&executor.Result{Result: sandbox.Result{Verdict: sandbox.VerdictNonzeroExit, Exit: sandbox.Exit{Code: 1}}}, report.Report{
		Framework: "pytest", Complete: true, Tests: []*Test{
			{Name: "a # b\n", File: "t.py", Line: 3, Status: Passed, Duration: 1.5},
			{Name: "c", Suite: "S", Status: Failed, Failure: &Failure{Message: "first\n]]>\x1b"}, Output: "<out>"},
			{Name: "d", Suite: "S", Status: Skipped, Reason: "why"}, {Name: "e", Suite: "S", Status: TimedOut, Failure: &Failure{Message: "slow"}},
		}}}
	r.Summary = report.Count(r.Tests)
	var b bytes.Buffer
	if err := WriteJUnit(&b, r); err != nil {
		t.Fatal(err)
	}
	var all junitSuites
	if err := xml.Unmarshal(b.Bytes(), &all); err != nil || all.Tests != 4 || all.Failures != 1 || all.Errors != 1 || all.Skipped != 1 ||
		len(all.Suites) != 2 || all.Suites[1].Cases[0].Failure.Message != "first" || all.Suites[1].Cases[0].Output != "<out>" {
		t.Errorf("%v: %s", err, &b)
	}
	b.Reset()
	if err := WriteTAP(&b, r); err != nil || !strings.Contains(b.String(), "1..4\nok 1 - a \\# b \n") ||
		!strings.Contains(b.String(), "not ok 2 - S c\n") || !strings.Contains(b.String(), "ok 3 - S d # SKIP why\n") {
		t.Errorf("%v: %s", err, &b)
	}
	// A run that failed beside its tests is a failed test.
	r.Tests, r.Complete = r.Tests[:1], false
	r.Summary = report.Count(r.Tests)
	for _, write := range []func(*bytes.Buffer) error{func(b *bytes.Buffer) error { return WriteJUnit(b, r) },
		func(b *bytes.Buffer) error { return WriteTAP(b, r) }} {
		b.Reset()
		if err := write(&b); err != nil || !strings.Contains(b.String(), runError) {
			t.Errorf("%v: %s", err, &b)
		}
	}
}
