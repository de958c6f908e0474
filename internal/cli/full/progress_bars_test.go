package full

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"go.uber.org/goleak"
)

// newTestBars makes bars that are drawn only when the test calls redraw.
func newTestBars(p *testenv.Paper) (*bars, *bytes.Buffer) {
	var out bytes.Buffer
	return &bars{to: &out, size: func() (int, int) { return p.Rows, p.Cols }}, &out
}

func TestBarsAreDrawnInPlace(t *testing.T) {
	p := &testenv.Paper{Rows: 24, Cols: 80}
	p.Write(t, "$ sandbox-run image pull x\r\n")
	b, out := newTestBars(p)
	draw := func(last bool) string {
		b.redraw(last)
		p.Write(t, out.String())
		out.Reset()
		return strings.Join(p.Lines, "\n")
	}
	first, second := b.add("aaaaaaaaaaaa", 100<<20), b.add("bbbbbbbbbbbb", 0)
	second.setText("waiting")
	const begun = "aaaaaaaaaaaa   [........................]   0%        0 B of 100.0 MiB\nbbbbbbbbbbbb   waiting"
	if got := draw(false); !strings.Contains(got, begun) {
		t.Errorf("at first:\n%s", got)
	}
	first.setProgress(50<<20, 100<<20)
	second.setProgress(5<<10, 0)
	const half = "[############............]  50%   50.0 MiB of 100.0 MiB\nbbbbbbbbbbbb   5.0 KiB"
	if got := draw(false); !strings.Contains(got, half) || strings.Count(got, "\n") != 2 {
		t.Errorf("half way:\n%s", got)
	}
	// A narrower window has wrapped the first line: both halves are drawn over.
	p.Narrow(50)
	const narrow = "aaaaaaaaaaaa    50%   50.0 MiB of 100.0 MiB\n"
	got := draw(false)
	if strings.Count(got, "aaaaaaaaaaaa") != 1 || strings.Count(got, "bbbbbbbbbbbb") != 1 || !strings.Contains(got, narrow) {
		t.Errorf("made narrow:\n%s", got)
	}
	p.Narrow(20)
	draw(false)
	p.Cols = 200
	first.finish("done")
	first.finish("failed")
	second.finish("already here")
	const want = "$ sandbox-run image \npull x\naaaaaaaaaaaa   done, 100 MiB\nbbbbbbbbbbbb   already here, 5 KiB"
	if got := draw(true); got != want {
		t.Errorf("in the end:\n%q\nwant\n%q", got, want)
	}
}

// If the terminal has too few rows, the bars that have not ended are shown, and the others are counted.
func TestBarsOnASmallTerminal(t *testing.T) {
	p := &testenv.Paper{Rows: 6, Cols: 80}
	b, out := newTestBars(p)
	var all []*bar
	for i := range 10 {
		all = append(all, b.add(fmt.Sprintf("layer%d", i), 1000))
	}
	for i, one := range all {
		b.redraw(false)
		p.Write(t, out.String())
		out.Reset()
		if len(p.Lines) > p.Rows {
			t.Fatalf("it scrolls:\n%s", strings.Join(p.Lines, "\n"))
		}
		if last := p.Lines[len(p.Lines)-1]; len(all)-i > 3 && last != fmt.Sprintf("… 7 more; %d of 10 finished", i) {
			t.Errorf("%q", p.Lines)
		}
		if i < 7 && !strings.HasPrefix(p.Lines[0], one.name) {
			t.Errorf("%q, want %s first", p.Lines, one.name)
		}
		one.finish("done")
	}
	b.redraw(true)
	p.Write(t, out.String())
	if got := strings.Join(p.Lines, "\n"); strings.Count(got, "done") != 10 || strings.Contains(got, "more") {
		t.Errorf("in the end:\n%s", got)
	}
	for _, rows := range []int{1, 2, 3} { // without any room, redraw does not panic
		p.Rows = rows
		b.redraw(false)
	}
}

func TestBarsElsewhere(t *testing.T) {
	var out bytes.Buffer
	b := &bars{to: &out, lines: true}
	one := b.add("evil\x1b[2J\n", 2048)
	one.setProgress(1024, 2048)
	if out.Len() > 0 {
		t.Errorf("too early: %q", out.String())
	}
	one.finish("done")
	b.end()
	if got := out.String(); got != "evil\\x1b[2J\\n  done, 2 KiB\n" {
		t.Errorf("%q", got)
	}
	out.Reset()
	quiet := &bars{to: &out}
	quiet.add("x", 1).finish("done")
	quiet.end()
	if out.Len() > 0 {
		t.Errorf("quiet: %q", out.String())
	}
}

// Many goroutines update bars, and end is called twice: no update is lost, and no goroutine is left.
func TestBarsFromMany(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	p := &testenv.Paper{Rows: 50, Cols: 80}
	b, out := newTestBars(p)
	b.stop, b.idle = make(chan struct{}), make(chan struct{})
	go b.draw()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			one := b.add("layer"+strconv.Itoa(i), 100)
			for n := range int64(100) {
				one.setProgress(n+1, 100)
				time.Sleep(time.Millisecond)
			}
			one.finish("done")
		})
	}
	all.Wait()
	b.end()
	b.end()
	p.Write(t, out.String())
	if got := strings.Join(p.Lines, "\n"); strings.Count(got, "done, 100 B") != 20 || len(p.Lines) != 20 {
		t.Errorf("%s", got)
	}
}
