package tests

import (
	"bytes"
	"encoding/json"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// libtestParser reads what Rust's test programs write with --format=json, and the lines of the script that starts them:
//
//	{"type":"binary","path":"/tmp/build/debug/deps/calc-0123456789abcdef","package":"calc"}
//	{ "type": "suite", "event": "started", "test_count": 1 }
//	{ "type": "test", "event": "started", "name": "t::good" }
//	{ "type": "test", "name": "t::good", "event": "ok", "exec_time": 0.1, "stdout": "…" }
//	{ "type": "suite", "event": "ok", "passed": 1, … }
//
// Tests of the documentation have lines for people, which stable versions of Rust offer:
//
//	test src/lib.rs - twice (line 2) ... ok
//
// Processes that tests start print to the same stream; other lines are theirs.
type libtestParser struct {
	c     *collector
	suite string
	open  bool // a binary has started, and its suite has not ended
	some  bool // a suite, or a documentation test, has ended
}

type libtestRecord struct {
	Type    string  `json:"type"`
	Event   string  `json:"event"`
	Name    string  `json:"name"`
	Time    float64 `json:"exec_time"`
	Stdout  string  `json:"stdout"`
	Message string  `json:"message"`
	Reason  string  `json:"reason"`
	Path    string  `json:"path"`
	Package string  `json:"package"`
}

var (
	docTest     = regexp.MustCompile(`^test (\S+\.rs) - (.*)\(line (\d{1,9})\)(?: - .*)? \.\.\. (ok|FAILED|ignored)$`)
	rustPanic   = regexp.MustCompile(`panicked at ([^\s:]+\.rs):(\d{1,9}):\d+`)
	libtestJSON = []byte(`{ "type": "`)
)

func (p *libtestParser) line(line []byte) {
	if i := bytes.LastIndex(line, libtestJSON); i > 0 {
		line = line[i:] // behind what a process has printed without a newline
	}
	if m := docTest.FindSubmatch(line); m != nil {
		p.documentation(string(m[1]), strings.TrimSpace(string(m[2])), string(m[3]), string(m[4]))
		return
	}
	var r libtestRecord
	if len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &r) != nil {
		return
	}
	switch {
	case r.Type == "binary":
		p.endBinary()
		p.suite, p.open = binaryName(r.Package, r.Path), true
	case r.Type == "suite" && r.Event == "started":
		p.open = true
	case r.Type == "suite":
		p.endBinary()
		p.open, p.some = false, true
	case r.Type == "test" && r.Name != "":
		p.test(&r)
	default:
		p.c.ignored++
	}
}

// endBinary ends the tests of a program that has ended before it reported their results.
func (p *libtestParser) endBinary() {
	p.c.endAll(0, "the process of the test ended before the test did")
}

// binaryName is the name of a test program without the digest that cargo adds, behind that of its package.
func binaryName(pkg, file string) string {
	name := path.Base(file)
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		name = name[:i]
	}
	if strings.ReplaceAll(pkg, "-", "_") == name {
		return pkg
	}
	return pkg + "::" + name
}

func (p *libtestParser) test(r *libtestRecord) {
	id := p.suite + " " + r.Name
	t := Test{Name: r.Name, Suite: p.suite, Duration: r.Time}
	switch r.Event {
	case "started":
		p.c.start(id, t)
		return
	case "ok":
		t.Status = Passed
	case "failed":
		t.Status = Failed
	case "ignored":
		t.Status = Skipped
		p.c.end(id, t, r.Message)
		return
	default: // timeout: a warning that a test is slow
		return
	}
	output, panicked, _ := strings.Cut(r.Stdout, "\nthread '")
	message := r.Message
	if panicked != "" {
		panicked, _, _ = strings.Cut("thread '"+panicked, "\nstack backtrace:")
		panicked, _, _ = strings.Cut(panicked, "\nnote: run with `RUST_BACKTRACE")
		message = panicked
		t.Trace = r.Stdout
	}
	if m := rustPanic.FindStringSubmatch(message); m != nil {
		t.File = m[1]
		t.Line, _ = strconv.Atoi(m[2])
	}
	if t.Output = output; t.Output != "" && panicked != "" {
		t.Output += "\n"
	}
	if t.Status == Failed && message == "" {
		message = r.Reason
	}
	p.c.end(id, t, message)
}

func (p *libtestParser) documentation(file, item, line, word string) {
	p.some = true
	t := Test{Name: item + " (line " + line + ")", Suite: "documentation", File: file, Status: Passed}
	t.Line, _ = strconv.Atoi(line)
	message := ""
	switch word {
	case "FAILED":
		t.Status, message = Failed, "the example of the documentation failed"
	case "ignored":
		t.Status = Skipped
	}
	p.c.end("documentation "+file+" "+t.Name, t, message)
}

func (p *libtestParser) close() { p.c.complete = p.some && !p.open }
