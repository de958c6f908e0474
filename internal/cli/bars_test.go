package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// paper is a terminal as far as bars need one: what is written below its last row scrolls, and what is too wide when it is made
// narrower breaks into rows, as it does in most of them.
type paper struct {
	rows, cols int
	lines      []string // everything ever shown, what has scrolled away first
	at         int      // the row of the cursor, in lines
}

var controls = regexp.MustCompile("^\x1b\\[([0-9]*)([AJK])")

func (p *paper) write(t *testing.T, text string) {
	t.Helper()
	column := 0
	for len(text) > 0 {
		for p.at >= len(p.lines) {
			p.lines = append(p.lines, "")
		}
		if m := controls.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[1])
			switch m[2] {
			case "A":
				p.at = max(p.at-n, len(p.lines)-p.rows, 0)
			case "K":
				p.lines[p.at] = string([]rune(p.lines[p.at])[:column])
			case "J":
				p.lines = p.lines[:p.at]
			}
			text = text[len(m[0]):]
			continue
		}
		switch r := []rune(text)[0]; r {
		case '\r':
			column = 0
		case '\n':
			p.at++
		case '\x1b':
			t.Fatalf("an escape sequence that nobody has planned: %q", text)
		default:
			line := []rune(p.lines[p.at])
			if column >= p.cols {
				t.Fatalf("a line is wider than %d columns: %q", p.cols, p.lines[p.at])
			}
			if column < len(line) {
				line[column] = r
			} else {
				line = append(line, r)
			}
			p.lines[p.at] = string(line)
			column++
		}
		_, size := decode(text)
		text = text[size:]
	}
}

func decode(s string) (rune, int) {
	for i, r := range s {
		if i > 0 {
			return r, i
		}
	}
	return 0, len(s)
}

// narrow breaks lines that have become too long.
func (p *paper) narrow(cols int) {
	var broken []string
	at := 0
	for i, l := range p.lines {
		if i == p.at {
			at = len(broken)
		}
		for r := []rune(l); ; r = r[cols:] {
			if len(r) <= cols {
				broken = append(broken, string(r))
				break
			}
			broken = append(broken, string(r[:cols]))
		}
	}
	if p.at >= len(p.lines) {
		at = len(broken)
	}
	p.lines, p.at, p.cols = broken, at, cols
}

// on makes bars that are drawn only when the test says so.
func (p *paper) on() (*bars, *bytes.Buffer) {
	var out bytes.Buffer
	return &bars{to: &out, size: func() (int, int) { return p.rows, p.cols }}, &out
}

func TestBarsAreDrawnInPlace(t *testing.T) {
	p := &paper{rows: 24, cols: 80}
	p.write(t, "$ sandbox-run image pull x\r\n")
	b, out := p.on()
	draw := func(last bool) string {
		b.redraw(last)
		p.write(t, out.String())
		out.Reset()
		return strings.Join(p.lines, "\n")
	}
	first, second := b.add("aaaaaaaaaaaa", 100<<20), b.add("bbbbbbbbbbbb", 0)
	second.say("waiting")
	if got := draw(false); !strings.Contains(got, "aaaaaaaaaaaa   [........................]   0%        0 B of 100.0 MiB\nbbbbbbbbbbbb   waiting") {
		t.Errorf("at first:\n%s", got)
	}
	first.at(50<<20, 100<<20)
	second.at(5<<10, 0)
	if got := draw(false); !strings.Contains(got, "[############............]  50%   50.0 MiB of 100.0 MiB\nbbbbbbbbbbbb   5.0 KiB") || strings.Count(got, "\n") != 2 {
		t.Errorf("half way:\n%s", got)
	}
	// A narrower window has broken the first line: both halves are drawn over.
	p.narrow(50)
	if got := draw(false); strings.Count(got, "aaaaaaaaaaaa") != 1 || strings.Count(got, "bbbbbbbbbbbb") != 1 || !strings.Contains(got, "aaaaaaaaaaaa    50%   50.0 MiB of 100.0 MiB\n") {
		t.Errorf("made narrow:\n%s", got)
	}
	p.narrow(20)
	draw(false)
	p.cols = 200
	first.end("done")
	first.end("failed")
	second.end("already here")
	const want = "$ sandbox-run image \npull x\naaaaaaaaaaaa   done, 100 MiB\nbbbbbbbbbbbb   already here, 5 KiB"
	if got := draw(true); got != want {
		t.Errorf("in the end:\n%q\nwant\n%q", got, want)
	}
}

// More lines than the terminal has rows can not be climbed: those that are under way are shown, the others counted.
func TestBarsOnASmallTerminal(t *testing.T) {
	p := &paper{rows: 6, cols: 80}
	b, out := p.on()
	var all []*bar
	for i := range 10 {
		all = append(all, b.add(fmt.Sprintf("layer%d", i), 1000))
	}
	for i, one := range all {
		b.redraw(false)
		p.write(t, out.String())
		out.Reset()
		if len(p.lines) > p.rows {
			t.Fatalf("it scrolls:\n%s", strings.Join(p.lines, "\n"))
		}
		if last := p.lines[len(p.lines)-1]; len(all)-i > 3 && last != fmt.Sprintf("… 7 more; %d of 10 finished", i) {
			t.Errorf("%q", p.lines)
		}
		if i < 7 && !strings.HasPrefix(p.lines[0], one.name) {
			t.Errorf("%q, want %s first", p.lines, one.name)
		}
		one.end("done")
	}
	b.redraw(true)
	p.write(t, out.String())
	if got := strings.Join(p.lines, "\n"); strings.Count(got, "done") != 10 || strings.Contains(got, "more") {
		t.Errorf("in the end:\n%s", got)
	}
	for _, rows := range []int{1, 2, 3} { // no room at all is no reason to fall over
		p.rows = rows
		b.redraw(false)
	}
}

func TestBarsElsewhere(t *testing.T) {
	var out bytes.Buffer
	b := &bars{to: &out, lines: true}
	one := b.add("evil\x1b[2J\n", 2048)
	one.at(1024, 2048)
	if out.Len() > 0 {
		t.Errorf("too early: %q", out.String())
	}
	one.end("done")
	b.end()
	if got := out.String(); got != "evil\\x1b[2J\\n  done, 2 KiB\n" {
		t.Errorf("%q", got)
	}
	out.Reset()
	quiet := &bars{to: &out}
	quiet.add("x", 1).end("done")
	quiet.end()
	if out.Len() > 0 {
		t.Errorf("quiet: %q", out.String())
	}
}

// Layers move at the same time, and end twice: nothing is lost, drawn after the end or left running.
func TestBarsFromMany(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	p := &paper{rows: 50, cols: 80}
	b, out := p.on()
	b.stop, b.idle = make(chan struct{}), make(chan struct{})
	go b.draw()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			one := b.add("layer"+strconv.Itoa(i), 100)
			for n := range int64(100) {
				one.at(n+1, 100)
				time.Sleep(time.Millisecond)
			}
			one.end("done")
		})
	}
	all.Wait()
	b.end()
	b.end()
	p.write(t, out.String())
	if got := strings.Join(p.lines, "\n"); strings.Count(got, "done, 100 B") != 20 || len(p.lines) != 20 {
		t.Errorf("%s", got)
	}
}
