package tests

import (
	"bytes"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// goParser reads the output of Go's test programs with -test.v=test2json. The testing package writes the byte 0x16 before its own lines:
//
//	\x16=== PACKAGE example.org/calc	calc     (of the script that starts the programs: import path and directory)
//	\x16=== RUN   TestTwice
//	\x16=== NAME  TestTwice                   (the lines that follow are this test's)
//	    calc_test.go:9: got 3
//	\x16--- FAIL: TestTwice (0.00s)
//	\x16=== END                               (of the script)
//
// A test prints to the same stream, and the lines of tests that run in parallel can be those of another one.
type goParser struct {
	c       *collector
	suite   string
	dir     string
	current string // id of the test whose lines follow
	ended   *Test  // the last one that has ended
	more    []byte // what was printed since then
}

const goMark = 0x16

func (p *goParser) line(line []byte) {
	// A test that prints a part of a line leaves the mark behind it.
	text, said, marked := bytes.Cut(line, []byte{goMark})
	if len(text) > 0 || !marked {
		if r := p.c.get(p.current); r != nil {
			p.c.print(r, string(text)+"\n")
		} else if p.ended != nil && p.ended.ID == cutName(p.current) {
			p.after(text) // the testing package prints why a test failed after its result
		}
	}
	if marked {
		p.marked(string(said))
	}
}

// after keeps a line behind the result of a test that failed.
func (p *goParser) after(line []byte) {
	if p.ended.Failure != nil && len(p.more)+len(line) < maxTestText {
		p.more = append(append(p.more, line...), '\n')
	}
}

// closeEnded adds the lines behind the result of the last test to its output.
func (p *goParser) closeEnded() {
	if t := p.ended; t != nil && len(p.more) > 0 && p.c.totalText+len(p.more) <= maxTotalText {
		p.c.totalText += len(p.more)
		t.Output += strings.ToValidUTF8(string(p.more), "\uFFFD")
	}
	p.ended, p.more = nil, nil
}

func (p *goParser) close() { p.closeEnded() }

func (p *goParser) id(name string) string { return p.suite + " " + name }

func (p *goParser) test(name string) Test { return Test{Name: name, Suite: p.suite, File: p.dir} }

func (p *goParser) marked(said string) {
	verb, rest, _ := strings.Cut(strings.TrimPrefix(said, "=== "), " ")
	name := strings.TrimSpace(rest)
	switch {
	case !strings.HasPrefix(said, "=== "):
		p.result(said)
		return
	case verb == "PACKAGE":
		p.endPackage()
		p.suite, p.dir, _ = strings.Cut(name, "\t")
		p.suite, p.dir, p.current = cutName(p.suite), path.Clean(cutName(p.dir)), ""
		return
	case verb == "END":
		p.endPackage()
		p.c.complete = true
		return
	case name == "" && verb == "NAME":
		p.current = ""
		return
	case name == "":
		p.c.ignored++
		return
	}
	id := p.id(name)
	switch verb {
	case "RUN":
		p.c.start(id, p.test(name))
	case "PAUSE", "CONT":
		if r := p.c.get(id); r != nil {
			r.since = time.Time{}
			if verb == "CONT" {
				r.since = p.c.now()
			}
		}
	case "NAME":
	default: // attributes, benchmarks
		return
	}
	p.current = id
}

var goStatus = map[string]Status{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}

// result reads the line of a test that has ended: "--- PASS: TestTwice (0.00s)".
func (p *goParser) result(said string) {
	said = strings.TrimPrefix(strings.TrimLeft(said, " "), "--- ")
	word, rest, _ := strings.Cut(said, ": ")
	status := goStatus[word]
	if status == "" {
		return // "PASS" of the whole package
	}
	name, took, _ := strings.Cut(rest, " (")
	if name == "" {
		p.c.ignored++
		return
	}
	seconds, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(took), "s)"), 64)
	t := p.test(name)
	t.Status, t.Duration = status, seconds
	message := ""
	r := p.c.get(p.id(name))
	if r == nil {
		if r = p.c.start(p.id(name), t); r == nil {
			return
		}
	}
	if status != Passed {
		out, _ := r.output.text()
		message = goMessage(out)
	}
	p.c.end(p.id(name), t, message)
	p.closeEnded()
	p.current, p.ended = p.id(name), r.Test
}

// endPackage ends the tests of a program that has ended before it reported their results.
func (p *goParser) endPackage() {
	if p.suite != "" {
		p.c.endAll(0, "the process of the test ended before the test did")
	}
}

// goPlace finds what a test has logged; the text before it is what the test printed without a newline.
var goPlace = regexp.MustCompile(`(?:^|    )[\w./-]+\.go:\d+: `)

// goMessage returns the lines that explain a failure: those that the test has logged, and a panic.
func goMessage(output string) string {
	var said []string
	logged := false
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		place := goPlace.FindStringIndex(line)
		switch {
		case place != nil:
			line, logged = line[place[0]:], true
		case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
			logged = true
		case !strings.HasPrefix(line, "        "): // further lines of a logged text are indented
			logged = false
		}
		if logged {
			said = append(said, strings.TrimPrefix(line, "    "))
		}
	}
	return strings.Join(said, "\n")
}
