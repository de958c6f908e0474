package tests

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
)

// junitParser reads JUnit XML documents, one after the other, at the end of the stream: the launcher of JUnit writes them when all tests
// are over. A process that ends before leaves no report.
type junitParser struct {
	c    *collector
	text []byte
}

// maxJUnit bounds a report in XML.
const maxJUnit = 32 << 20

func (p *junitParser) write(data []byte) {
	if len(p.text)+len(data) > maxJUnit {
		p.c.ignored++
		return
	}
	p.text = append(p.text, data...)
}

// junitTest is a testcase as it is read.
type junitTest struct {
	Name    string       `xml:"name,attr"`
	Class   string       `xml:"classname,attr"`
	Time    string       `xml:"time,attr"`
	Failure *junitReason `xml:"failure"`
	Error   *junitReason `xml:"error"`
	Skipped *junitReason `xml:"skipped"`
	Output  []string     `xml:"system-out"`
}

func (p *junitParser) close() {
	for document := range bytes.SplitSeq(p.text, []byte("<?xml ")) {
		if len(bytes.TrimSpace(document)) > 0 {
			p.document(append([]byte("<?xml "), document...))
		}
	}
}

func (p *junitParser) document(text []byte) {
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.c.ignored++
			return
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local != "testcase" {
				continue
			}
			var t junitTest
			if err := d.DecodeElement(&t, &e); err != nil {
				p.c.ignored++
				return
			}
			p.test(&t)
		case xml.EndElement:
			p.c.complete = p.c.complete || e.Name.Local == "testsuite"
		}
	}
}

func (p *junitParser) test(j *junitTest) {
	t := Test{Name: strings.TrimSuffix(j.Name, "()"), Suite: j.Class, Status: Passed}
	t.Duration, _ = strconv.ParseFloat(j.Time, 64)
	for _, out := range j.Output {
		if !strings.HasPrefix(strings.TrimSpace(out), "unique-id: ") { // names for tools
			t.Output += out
		}
	}
	message := ""
	for _, r := range []struct {
		reason *junitReason
		status Status
	}{{j.Skipped, Skipped}, {j.Failure, Failed}, {j.Error, Errored}} {
		if r.reason == nil {
			continue
		}
		t.Status, message = r.status, cmp.Or(strings.TrimSpace(r.reason.Text), r.reason.Message)
	}
	if t.Name == "" {
		p.c.ignored++
		return
	}
	p.c.end(j.Class+"#"+j.Name, t, message)
}
