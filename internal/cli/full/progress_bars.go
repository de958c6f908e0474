package full

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// bars shows how far several things have come: on a terminal a line for each, drawn over and over in the same place; elsewhere
// a line for each that is finished; for those who want quiet, nothing. They may be moved from many goroutines at once.
type bars struct {
	to    io.Writer
	size  func() (rows, cols int) // of the terminal; nil where there is none
	lines bool                    // elsewhere: say what is finished
	stop  chan struct{}           // closed by end
	idle  chan struct{}           // closed when nothing is drawn any more

	mu    sync.Mutex
	all   []*bar
	drawn []int // widths of the lines on the screen
}

// bar is one of them.
type bar struct {
	of      *bars
	name    string
	total   int64 // 0 is unknown
	done    int64
	began   time.Time
	resumed int64  // of done: what was there before it began
	text    string // in place of figures
	verdict string // what became of it; empty while it is under way
	whole   bool   // that it is all here
}

const (
	drawEvery  = 100 * time.Millisecond
	barWidth   = 24
	nameWidth  = 14
	spareRows  = 2 // of the terminal, for the line of the command and the one below the bars
	moveUp     = "\x1b[%dA"
	clearToEnd = "\x1b[K"
	clearBelow = "\x1b[J"
)

// newBars shows progress on stderr. The caller ends them.
func (c *commands) newBars(quiet bool) *bars {
	b := &bars{to: c.Std.Err, lines: !quiet && !c.JSON}
	if cli.CanRedraw(c.Std.Err) && !quiet {
		b.size = func() (rows, cols int) {
			size := cli.TerminalSize(c.Std.Err)
			return int(size.Rows), int(size.Cols)
		}
		b.stop, b.idle = make(chan struct{}), make(chan struct{})
		go b.draw()
	}
	return b
}

// add begins another one. total is 0 if it is unknown.
func (b *bars) add(name string, total int64) *bar {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := &bar{of: b, name: cli.EscapeLine(name), total: total, began: time.Now()}
	b.all = append(b.all, one)
	return one
}

// at says how far it has come. The first word on it is where it goes on from.
func (one *bar) setProgress(done, total int64) {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	if one.done == 0 {
		one.resumed, one.began = done, time.Now()
	}
	one.done, one.total, one.text = done, max(total, one.total), ""
}

// say shows a word in place of figures, until there are new ones.
func (one *bar) setText(what string) {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	one.text = cli.EscapeLine(what)
}

// says reports whether that is what it says.
func (one *bar) hasText(what string) bool {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	return one.text == what
}

// end says that it is all here, and how; only the first word on what became of it counts.
func (one *bar) finish(verdict string) { one.setVerdict(verdict, true) }

// drop ends what has come no further; a reader who only hears of what is finished does not hear of it.
func (one *bar) abandon(verdict string) { one.setVerdict(verdict, false) }

func (one *bar) setVerdict(verdict string, whole bool) {
	b := one.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if one.verdict != "" {
		return
	}
	one.verdict, one.whole = verdict, whole
	if b.size == nil && b.lines && whole {
		// A reader that is gone is noticed when the result is written.
		fmt.Fprintln(b.to, strings.TrimRight(one.formatLine(barWidth, time.Now()), " "))
	}
}

// end leaves what is on the screen as it is now. Twice is fine.
func (b *bars) end() {
	b.mu.Lock()
	stop := b.stop
	b.stop = nil
	b.mu.Unlock()
	if stop != nil {
		close(stop)
		<-b.idle
	}
}

func (b *bars) draw() {
	defer close(b.idle)
	stop := b.stop
	ticker := time.NewTicker(drawEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			b.redraw(true)
			return
		case <-ticker.C:
			b.redraw(false)
		}
	}
}

// redraw draws over what is there. A terminal that was made narrower has broken the lines that are too long for it now: they
// take more rows, which have to be climbed.
func (b *bars) redraw(last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows, cols := b.size()
	var out strings.Builder
	up := 0
	for _, width := range b.drawn {
		up += max(1, (width+cols-1)/cols)
	}
	if up > 0 {
		fmt.Fprintf(&out, moveUp, min(up, rows-1))
	}
	shown := b.selectVisible(rows-spareRows, last)
	b.drawn = b.drawn[:0]
	for _, line := range b.render(shown, cols-1) {
		b.drawn = append(b.drawn, utf8.RuneCountInString(line))
		out.WriteString("\r" + line + clearToEnd + "\n")
	}
	out.WriteString(clearBelow)
	_, _ = io.WriteString(b.to, out.String()) // that the terminal is gone, the next write of a result reports
}

// visible picks what there is room for: what is under way comes first. The last time everything is shown that was begun; it may
// scroll.
func (b *bars) selectVisible(room int, last bool) []*bar {
	if len(b.all) <= room {
		return b.all
	}
	var shown []*bar
	for _, one := range b.all {
		switch {
		case last && (one.whole || one.done > 0 || one.total == 0),
			!last && one.verdict == "" && len(shown) < max(room-1, 1): // a row for the rest
			shown = append(shown, one)
		}
	}
	return shown
}

func (b *bars) render(shown []*bar, width int) []string {
	now := time.Now()
	lines := make([]string, 0, len(shown)+1)
	for _, one := range shown {
		line := one.formatLine(barWidth, now)
		if utf8.RuneCountInString(line) > width { // a bar says less than the figures
			line = one.formatLine(0, now)
		}
		lines = append(lines, truncate(line, width))
	}
	if hidden := len(b.all) - len(shown); hidden > 0 {
		sized, ended := 0, 0 // what has no size is what the others are parts of
		for _, one := range b.all {
			if one.total > 0 {
				sized++
				if one.whole {
					ended++
				}
			}
		}
		lines = append(lines, truncate(fmt.Sprintf("… %d more; %d of %d finished", hidden, ended, sized), width))
	}
	return lines
}

// text is a line of its own, with a bar so wide.
func (one *bar) formatLine(width int, now time.Time) string {
	name := fmt.Sprintf("%-*s ", nameWidth, one.name)
	if one.verdict != "" {
		text := name + one.verdict
		switch size := sandbox.Size(max(one.done, one.total)); {
		case size == 0:
		case one.whole:
			text += ", " + size.String()
		default:
			text += ", " + formatSize(one.done) + " of " + formatSize(int64(size))
		}
		return text
	}
	switch {
	case one.text != "":
		return name + one.text
	case one.total <= 0:
		return name + formatSize(one.done)
	}
	done := min(one.done, one.total)
	if width > 0 {
		full := int(int64(width) * done / one.total)
		name += "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "] "
	}
	text := fmt.Sprintf("%s%3d%%  %9s of %-9s", name, 100*done/one.total, formatSize(done), formatSize(one.total))
	if took := now.Sub(one.began); took > time.Second && one.done > one.resumed {
		text += "  " + formatSize(int64(float64(one.done-one.resumed)/took.Seconds())) + "/s"
	}
	return strings.TrimRight(text, " ")
}

// figure is a size that does not jump about while it grows: always one digit after the point.
func formatSize(n int64) string {
	for _, u := range []struct {
		unit sandbox.Size
		name string
	}{{sandbox.GiB, "GiB"}, {sandbox.MiB, "MiB"}, {sandbox.KiB, "KiB"}} {
		if sandbox.Size(n) >= u.unit {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.unit), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// cut shortens text to so many characters.
func truncate(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return string([]rune(text)[:width-1]) + "…"
}
