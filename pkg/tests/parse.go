package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

// parser reads a report while it is written. What it does not understand it counts as ignored.
type parser interface {
	write(data []byte)
	// close reads what is left at the end of the stream.
	close()
}

// newParser returns the parser of a form.
func newParser(form string, c *collector) (parser, error) {
	var to lineReader
	switch form {
	case language.ReportRecords:
		to = &recordParser{c}
	case language.ReportGo:
		to = &goParser{c: c}
	case language.ReportLibtest:
		to = &libtestParser{c: c}
	case language.ReportTAP:
		to = &tapParser{c: c, begun: map[string]string{}}
	case language.ReportJUnit:
		return &junitParser{c: c}, nil
	default:
		return nil, fmt.Errorf("there is no parser of reports in the form %q", form)
	}
	return &lineParser{lines{to: to.line, dropped: func() { c.ignored++ }}, to}, nil
}

// lineReader reads a report line by line.
type lineReader interface{ line(line []byte) }

type lineParser struct {
	lines
	to lineReader
}

func (p *lineParser) close() {
	if len(p.part) > 0 {
		p.flush()
	}
	if c, ok := p.to.(interface{ close() }); ok {
		c.close()
	}
}

// recordParser reads the lines of the reporters of sandbox-run:
//
//	{"type":"start","id":"tests/test_a.py::test_x","name":"test_x","suite":"","file":"tests/test_a.py","line":3}
//	{"type":"end","id":"tests/test_a.py::test_x","status":"passed","duration":0.01,"message":"","output":""}
//	{"type":"drop","id":"tests/test_a.py::test_x"}     (a group, or a test that is not selected)
//	{"type":"missing","name":"pytest"}
//	{"type":"done"}
type recordParser struct{ c *collector }

type record struct {
	Type     string  `json:"type"`
	ID       string  `json:"id"`
	Name     string  `json:"name"`
	Suite    string  `json:"suite"`
	File     string  `json:"file"`
	Line     int     `json:"line"`
	Status   Status  `json:"status"`
	Duration float64 `json:"duration"`
	Message  string  `json:"message"`
	Output   string  `json:"output"`
	Trace    string  `json:"trace"` // of a message in another form than that of the language
}

func (p *recordParser) line(line []byte) {
	var r record
	if err := decodeStrict(line, &r); err != nil {
		p.c.ignored++
		return
	}
	t := Test{Name: r.Name, Suite: r.Suite, File: r.File, Line: max(0, r.Line), Duration: r.Duration, Output: r.Output, Status: r.Status, Trace: r.Trace}
	switch {
	case r.Type == "start" && r.ID != "":
		p.c.start(r.ID, t)
	case r.Type == "end" && r.ID != "" && isStatus(r.Status):
		p.c.end(r.ID, t, r.Message)
	case r.Type == "drop" && r.ID != "":
		p.c.drop(r.ID)
	case r.Type == "missing":
		p.c.missing = cutName(r.Name)
	case r.Type == "done":
		p.c.complete = true
	default:
		p.c.ignored++
	}
}

func isStatus(s Status) bool { return s == Passed || s == Skipped || s.Failed() }

// decodeStrict decodes a line of one JSON value without unknown members.
func decodeStrict(line []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more than one value")
	}
	return nil
}
