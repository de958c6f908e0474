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

// bars shows the progress of several operations. On a terminal each has a line that is redrawn in place; elsewhere a line is printed for
// each that is finished, or nothing with --quiet. All methods may be called concurrently.
type bars struct {
	to    io.Writer
	size  func() (rows, cols int) // of the terminal; nil without one
	lines bool                    // without a terminal: print finished operations
	stop  chan struct{}           // closed by end
	idle  chan struct{}           // closed after the last redraw

	mu    sync.Mutex
	all   []*bar
	drawn []int // widths of the lines on the screen
}

type bar struct {
	of      *bars
	name    string
	total   int64 // 0 is unknown
	done    int64
	began   time.Time
	resumed int64  // the part of done that an earlier download has left
	text    string // shown in place of numbers
	verdict string // the result; empty until the operation ends
	whole   bool   // the operation is complete
}

const (
	drawEvery  = 100 * time.Millisecond
	barWidth   = 24
	nameWidth  = 14
	spareRows  = 2 // rows that the command line and the line below the bars need
	moveUp     = "\x1b[%dA"
	clearToEnd = "\x1b[K"
	clearBelow = "\x1b[J"
)

// newBars shows progress on standard error. The caller calls end.
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

// add adds an operation. total is 0 if it is unknown.
func (b *bars) add(name string, total int64) *bar {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := &bar{of: b, name: cli.EscapeLine(name), total: total, began: time.Now()}
	b.all = append(b.all, one)
	return one
}

// setProgress sets the progress. The first call sets where a resumed download continues.
func (one *bar) setProgress(done, total int64) {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	if one.done == 0 {
		one.resumed, one.began = done, time.Now()
	}
	one.done, one.total, one.text = done, max(total, one.total), ""
}

// setText shows a text in place of numbers, until the next setProgress.
func (one *bar) setText(what string) {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	one.text = cli.EscapeLine(what)
}

// hasText reports whether the text of setText is shown.
func (one *bar) hasText(what string) bool {
	one.of.mu.Lock()
	defer one.of.mu.Unlock()
	return one.text == what
}

// finish ends a complete operation. Only the first verdict counts.
func (one *bar) finish(verdict string) { one.setVerdict(verdict, true) }

// abandon ends an incomplete operation. Without a terminal nothing is printed for it.
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
		// The error is ignored: writing the result reports it.
		fmt.Fprintln(b.to, strings.TrimRight(one.formatLine(barWidth, time.Now()), " "))
	}
}

// end draws the last state and stops. It may be called twice.
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

// redraw draws all lines over those of the last call. A terminal that became narrower has wrapped long lines: the cursor moves up over
// these additional rows as well.
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
	_, _ = io.WriteString(b.to, out.String()) // writing the result reports a terminal that is gone
}

// selectVisible returns the operations that fit: those that have not ended. The last redraw shows all that were begun, and may scroll.
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
		if utf8.RuneCountInString(line) > width { // the numbers are more useful than the bar
			line = one.formatLine(0, now)
		}
		lines = append(lines, truncate(line, width))
	}
	if hidden := len(b.all) - len(shown); hidden > 0 {
		sized, ended := 0, 0 // an image has no size; its layers do
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

// formatLine formats the line, with a bar of that width; 0 is no bar.
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

// formatSize formats a size with one decimal, so that its width stays the same while it grows.
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

func truncate(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return string([]rune(text)[:width-1]) + "…"
}
