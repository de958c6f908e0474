package tests

import (
	"bytes"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Bounds of what is kept of a report.
const (
	maxTests     = 100_000
	maxLine      = 1 << 20  // a longer line is ignored
	maxName      = 1000     // bytes of a name, of a path
	maxTestText  = 64 << 10 // bytes of one test's output, and of its message
	maxTotalText = 32 << 20 // of all tests that have ended; and of all that run
	maxNames     = 64 << 20 // bytes of all names and paths
	maxSeconds   = 1e9      // of a duration
	maxRunning   = 10_000   // tests that run at the same time
)

// collector keeps the tests of one report. Parsers call its methods in the order of the report.
type collector struct {
	tests   []*Test
	running map[string]*runningTest // by id
	on      func(kind sandbox.EventKind, t *Test)
	now     func() time.Time

	complete    bool
	missing     string // a framework that the reporter has not found
	ignored     int    // lines that are not understood, and tests beyond the bounds
	totalText   int    // of the tests that have ended
	runningText int    // of those that run
	names       int
}

type runningTest struct {
	*Test
	number int       // of its start
	since  time.Time // zero: it waits for its turn
	output textBuffer

	counted int // of output, in the collector's runningText
}

// print adds to the output of a test that runs.
func (c *collector) print(r *runningTest, s string) {
	if c.runningText >= maxTotalText {
		r.output.dropped += len(s)
		return
	}
	r.output.add(s)
	c.runningText += r.output.size() - r.counted
	r.counted = r.output.size()
}

// forget ends the time in which a test runs.
func (c *collector) forget(r *runningTest) {
	delete(c.running, r.ID)
	c.runningText -= r.counted
}

func newCollector(on func(kind sandbox.EventKind, t *Test)) *collector {
	return &collector{running: map[string]*runningTest{}, on: on, now: time.Now}
}

func (c *collector) emit(kind sandbox.EventKind, t *Test) {
	if c.on != nil {
		copied := *t
		c.on(kind, &copied)
	}
}

// start begins a test. id is unique among the tests that run.
func (c *collector) start(id string, t Test) *runningTest {
	id = cutName(id)
	if r := c.running[id]; r != nil {
		return r
	}
	if len(c.tests) >= maxTests || len(c.running) >= maxRunning {
		c.ignored++
		return nil
	}
	// Clones: a name may be a part of a long line.
	t.ID, t.Name, t.Suite, t.File = strings.Clone(id), strings.Clone(cutName(t.Name)), strings.Clone(cutName(t.Suite)), strings.Clone(cutName(t.File))
	size := len(t.ID) + len(t.Name) + len(t.Suite) + len(t.File)
	if c.names+size > maxNames {
		c.ignored++
		return nil
	}
	c.names += size
	t.Trace, t.Output = "", ""
	t.Status = report.Running
	r := &runningTest{Test: &t, number: len(c.tests), since: c.now()}
	c.tests, c.running[t.ID] = append(c.tests, r.Test), r
	c.emit(report.EventStarted, r.Test)
	return r
}

// get returns a test that runs; nil: there is none.
func (c *collector) get(id string) *runningTest { return c.running[cutName(id)] }

// end ends a test. It begins one that has not begun.
func (c *collector) end(id string, t Test, message string) {
	id = cutName(id)
	r := c.running[id]
	if r == nil {
		if r = c.start(id, t); r == nil {
			return
		}
	}
	c.print(r, t.Output)
	c.forget(r)
	r.Status, r.Duration = t.Status, 0
	if t.Duration > 0 && t.Duration < maxSeconds { // no infinity, and no NaN: JSON has neither
		r.Duration = t.Duration
	}
	if r.File == "" {
		r.File, r.Line = strings.Clone(cutName(t.File)), max(0, t.Line)
	}
	r.Output, r.Truncated = c.keep(&r.output)
	message = c.keepText(message)
	switch {
	case r.Status.Failed():
		r.Trace = c.keepText(t.Trace)
		r.Failure = &Failure{Message: message}
	case r.Status == Skipped:
		r.Reason = message
	}
	c.emit(report.EventEnded, r.Test)
}

// drop forgets a test that has started: it is a group of tests, or is not selected.
func (c *collector) drop(id string) {
	if r := c.get(id); r != nil {
		c.forget(r)
		r.Status = dropped
	}
}

func (c *collector) keep(b *textBuffer) (text string, truncated bool) {
	text, truncated = b.text()
	if c.totalText+len(text) > maxTotalText {
		return "", true
	}
	c.totalText += len(text)
	return text, truncated
}

func (c *collector) keepText(s string) string {
	var b textBuffer
	b.add(s)
	s, _ = c.keep(&b)
	return s
}

// endAll ends the tests that still run: they are not reported any more. status is for those that run longer than limit (0: none does).
func (c *collector) endAll(limit time.Duration, message string) {
	if len(c.running) == 0 {
		return
	}
	for _, r := range c.overdue(0) {
		t := Test{Status: Errored, Duration: c.now().Sub(r.since).Seconds()}
		if r.since.IsZero() {
			t.Duration = 0
		}
		why := message
		if limit > 0 && !r.since.IsZero() && c.now().Sub(r.since) >= limit {
			t.Status, why = TimedOut, timeoutMessage(limit)
		}
		c.end(r.ID, t, why)
	}
	c.running = map[string]*runningTest{} // an empty map that was large takes long to look through
}

func timeoutMessage(limit time.Duration) string { return "the test took longer than " + limit.String() }

// overdue returns the tests that run at least that long, in the order of their starts.
func (c *collector) overdue(limit time.Duration) (list []*runningTest) {
	for _, r := range c.running {
		if limit == 0 || !r.since.IsZero() && c.now().Sub(r.since) >= limit {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *runningTest) int { return a.number - b.number })
	return list
}

// cutName bounds a name of a report.
func cutName(s string) string {
	if len(s) > maxName {
		s = s[:maxName]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// textBuffer keeps the beginning and the end of a text. Its zero value is empty.
type textBuffer struct {
	head, tail []byte
	dropped    int
}

func (b *textBuffer) add(s string) {
	const half = maxTestText / 2
	n := min(len(s), half-len(b.head))
	b.head, s = append(b.head, s[:n]...), s[n:]
	b.tail = append(b.tail, s...)
	if len(b.tail) > 2*half {
		over := len(b.tail) - half
		b.dropped += over
		b.tail = slices.Clone(b.tail[over:])
	}
}

func (b *textBuffer) size() int { return len(b.head) + len(b.tail) }

func (b *textBuffer) text() (text string, truncated bool) {
	const half = maxTestText / 2
	if over := len(b.tail) - half; over > 0 {
		b.dropped += over
		b.tail = b.tail[over:]
	}
	middle := ""
	if b.dropped > 0 {
		middle = "\n…\n"
	}
	text = string(b.head) + middle + string(b.tail)
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text, b.dropped > 0
}

// lines cuts a stream into lines, and gives each to a parser without its newline. A line beyond maxLine is dropped.
type lines struct {
	to      func(line []byte)
	dropped func()
	part    []byte
	skip    bool
}

func (l *lines) write(data []byte) {
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n')
		end := i
		if i < 0 {
			end = len(data)
		}
		if !l.skip {
			l.part = append(l.part, data[:end]...)
		}
		if len(l.part) > maxLine {
			l.part, l.skip = nil, true
			l.dropped()
		}
		if i < 0 {
			return
		}
		l.flush()
		data = data[i+1:]
	}
}

// flush ends the current line.
func (l *lines) flush() {
	if !l.skip {
		l.to(l.part)
	}
	l.part, l.skip = l.part[:0], false
}
