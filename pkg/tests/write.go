package tests

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// The elements of a report in the form that JUnit's Ant task has, which continuous integration reads.
type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string       `xml:"name,attr"`
	Class   string       `xml:"classname,attr"`
	File    string       `xml:"file,attr,omitempty"`
	Line    int          `xml:"line,attr,omitempty"`
	Time    string       `xml:"time,attr"`
	Failure *junitReason `xml:"failure"`
	Error   *junitReason `xml:"error"`
	Skipped *junitReason `xml:"skipped"`
	Output  string       `xml:"system-out,omitempty"`
}

type junitReason struct {
	Message string `xml:"message,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// runError is the case of a run that failed beside its tests: readers of these formats see tests only.
const runError = "the run of the tests"

// runFailure explains a run that failed, although no test says so; "" if the tests say it.
func runFailure(r *Result) string {
	if r.Success() || r.Summary.FailedTests() > 0 {
		return ""
	}
	switch {
	case r.Summary.Total == 0 && r.Verdict == "ok":
		return "no tests were run"
	case !r.Complete:
		return fmt.Sprintf("verdict %s; the framework did not report its end", r.Verdict)
	}
	return fmt.Sprintf("verdict %s, exit code %d", r.Verdict, r.Exit.Code)
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }

// WriteJUnit writes the tests as JUnit XML. Characters that XML can not have are replaced.
func WriteJUnit(w io.Writer, r *Result) error {
	return WriteJUnitReport(w, r.Framework, r.Tests, runFailure(r))
}

// WriteJUnitReport does the same for tests of a framework. why is the failure of a run that no test explains; "": there is none.
func WriteJUnitReport(w io.Writer, framework string, list []*Test, why string) error {
	all := junitSuites{Name: framework}
	at := map[string]int{}
	times := map[string]float64{}
	add := func(name string, c junitCase, took float64) {
		i, ok := at[name]
		if !ok {
			i = len(all.Suites)
			at[name] = i
			all.Suites = append(all.Suites, junitSuite{Name: name})
		}
		s := &all.Suites[i]
		count := func(reason *junitReason, own, total *int) {
			if reason != nil {
				*own++
				*total++
			}
		}
		s.Tests++
		all.Tests++
		count(c.Failure, &s.Failures, &all.Failures)
		count(c.Error, &s.Errors, &all.Errors)
		count(c.Skipped, &s.Skipped, &all.Skipped)
		times[name] += took
		s.Time = seconds(times[name])
		s.Cases = append(s.Cases, c)
	}
	for _, t := range list {
		suite := t.Suite
		if suite == "" {
			suite = t.File
		}
		c := junitCase{
			Name: xmlText(t.Name), Class: xmlText(suite), File: xmlText(t.File), Line: t.Line, Time: seconds(t.Duration), Output: xmlText(t.Output),
		}
		reason := &junitReason{}
		if t.Failure != nil {
			reason.Text = xmlText(t.Failure.Message)
			reason.Message, _, _ = strings.Cut(reason.Text, "\n")
		}
		switch {
		case t.Status == Failed:
			c.Failure = reason
		case t.Status.Failed():
			c.Error = reason
		case t.Status == Skipped:
			c.Skipped = &junitReason{Message: xmlText(t.Reason)}
		}
		add(c.Class, c, t.Duration)
	}
	if why != "" {
		add(runError, junitCase{Name: runError, Class: framework, Time: seconds(0), Error: &junitReason{Message: why}}, 0)
	}
	out := bufio.NewWriter(w)
	_, _ = out.WriteString(xml.Header) // Flush returns the error
	enc := xml.NewEncoder(out)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return err
	}
	_, _ = out.WriteString("\n")
	return out.Flush()
}

// isControl reports whether a character controls a terminal, ends a line or changes the order of text.
func isControl(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

// xmlText replaces control characters that XML can have.
func xmlText(s string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// WriteTAP writes the tests in the form of the Test Anything Protocol, version 13.
func WriteTAP(w io.Writer, r *Result) error {
	out := bufio.NewWriter(w)
	why := runFailure(r)
	n := len(r.Tests)
	if why != "" {
		n++
	}
	fmt.Fprintf(out, "TAP version 13\n1..%d\n", n) // Flush returns the error
	for i, t := range r.Tests {
		word := "ok"
		if t.Status.Failed() {
			word = "not ok"
		}
		name := t.Name
		if t.Suite != "" {
			name = t.Suite + " " + t.Name
		}
		fmt.Fprintf(out, "%s %d - %s", word, i+1, tapText(name))
		if t.Status == Skipped {
			fmt.Fprintf(out, " # SKIP %s", tapText(t.Reason))
		}
		fmt.Fprintf(out, "\n  ---\n  duration_ms: %.3f\n  status: %s\n", t.Duration*1000, t.Status)
		if t.File != "" {
			fmt.Fprintf(out, "  at: %q\n", fmt.Sprintf("%s:%d", t.File, t.Line))
		}
		if t.Failure != nil {
			fmt.Fprintf(out, "  message: %q\n", t.Failure.Message)
		}
		fmt.Fprint(out, "  ...\n")
	}
	if why != "" {
		fmt.Fprintf(out, "not ok %d - %s\n  ---\n  message: %q\n  ...\n", n, runError, why)
	}
	return out.Flush()
}

// tapText makes a text one line without the characters that TAP gives a meaning.
func tapText(s string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "#", `\#`))
}
