package tests

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// tapParser reads TAP with the lines that bats adds for formatters:
//
//	1..2
//	suite /workspace/a.bats
//	begin 1 good
//	ok 1 good in 4ms
//	not ok 2 bad in 3ms
//	# (in test file a.bats, line 3)
//	ok 3 later in 0ms # skip a reason
//
// The lines with # belong to the test before them.
type tapParser struct {
	c       *collector
	file    string
	planned int
	seen    int
	begun   map[string]string // names of tests that run, by number
	number  string            // of the test that has ended, and is not reported yet
	ended   Test
	said    textBuffer
}

var (
	tapResult = regexp.MustCompile(`^(not )?ok (\d{1,9}) ?(.*)$`)
	tapTime   = regexp.MustCompile(` in (\d{1,12})ms$`)
	tapPlace  = regexp.MustCompile(`\(.*in test file ([^,]+), line (\d{1,9})\)`)
)

func (p *tapParser) line(raw []byte) {
	line := string(raw)
	if said, ok := strings.CutPrefix(line, "# "); ok || line == "#" {
		if p.number != "" {
			p.said.add(said + "\n")
		}
		return
	}
	verb, rest, _ := strings.Cut(line, " ")
	switch {
	case strings.HasPrefix(line, "1.."):
		p.planned, _ = strconv.Atoi(strings.TrimPrefix(line, "1.."))
	case verb == "suite":
		p.report()
		p.file = cutName(strings.TrimPrefix(path.Clean(rest), sandbox.WorkspaceDir+"/"))
	case verb == "begin":
		p.report()
		number, name, _ := strings.Cut(rest, " ")
		if len(p.begun) < maxRunning {
			number, name = strings.Clone(cutName(number)), strings.Clone(cutName(name))
			p.begun[number] = name
			p.c.start(p.id(name), Test{Name: name, File: p.file})
		}
	default:
		m := tapResult.FindStringSubmatch(line)
		if m == nil {
			p.c.ignored++
			return
		}
		p.report()
		p.result(m[1] == "", m[2], m[3])
	}
}

func (p *tapParser) id(name string) string { return p.file + " > " + name }

func (p *tapParser) result(ok bool, number, text string) {
	p.seen++
	name, begun := p.begun[number]
	rest := strings.TrimPrefix(text, name)
	if !begun || len(rest) == len(text) && name != "" {
		name, rest = text, ""
		if i := strings.LastIndex(text, " # skip"); i >= 0 {
			name, rest = text[:i], text[i:]
		}
		if m := tapTime.FindStringIndex(name); m != nil {
			name, rest = name[:m[0]], name[m[0]:]+rest
		}
	}
	delete(p.begun, number)
	t := Test{Name: name, File: p.file, Status: Passed}
	took, reason, skipped := strings.Cut(rest, " # skip")
	if m := tapTime.FindStringSubmatch(took); m != nil {
		ms, _ := strconv.ParseFloat(m[1], 64)
		t.Duration = ms / 1000
	}
	switch {
	case !ok:
		t.Status = Failed
	case skipped:
		t.Status = Skipped
		p.said.add(strings.TrimSpace(reason))
	}
	p.number, p.ended = number, t
}

// report ends the test whose lines are complete.
func (p *tapParser) report() {
	if p.number == "" {
		return
	}
	message, _ := p.said.text()
	t := p.ended
	if t.Status == Passed {
		message = ""
	}
	if m := tapPlace.FindStringSubmatch(message); m != nil {
		t.Line, _ = strconv.Atoi(m[2])
	}
	if r := p.c.get(p.id(t.Name)); r != nil {
		r.Line = t.Line
	}
	p.c.end(p.id(t.Name), t, message)
	p.number, p.said = "", textBuffer{}
}

func (p *tapParser) close() {
	p.report()
	p.c.complete = p.planned > 0 && p.seen+len(p.begun) >= p.planned
}
