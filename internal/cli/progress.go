package cli

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// Progress shows a line on a terminal about an operation that takes longer than a second. The line is removed before other output. A nil
// Progress shows nothing. Its methods may be called concurrently.
type Progress struct {
	To *os.File

	mu   sync.Mutex
	stop chan struct{} // closed to remove the current line; nil without one
	idle chan struct{} // closed when the line is removed
}

const (
	progressDelay = time.Second
	spinEvery     = 120 * time.Millisecond
	spinner       = `|/-\`
	clearLine     = "\r\x1b[K"
)

// Start begins a line, and ends the current one.
func (p *Progress) Start(what string) {
	if p == nil {
		return
	}
	p.End()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop, p.idle = make(chan struct{}), make(chan struct{})
	go p.spin(what, p.stop, p.idle)
}

// End removes the line, and returns when it is removed. Without a line it does nothing.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		close(p.stop)
		<-p.idle
		p.stop = nil
	}
}

func (p *Progress) spin(what string, stop, idle chan struct{}) {
	defer close(idle)
	began := time.Now()
	select {
	case <-stop:
		return
	case <-time.After(progressDelay):
	}
	ticker := time.NewTicker(spinEvery)
	defer ticker.Stop()
	for i := 0; ; i++ {
		// The error is ignored: writing the result reports a terminal that is gone.
		line := []rune(fmt.Sprintf("%c %s, %ds", spinner[i%len(spinner)], EscapeLine(what), int(time.Since(began).Seconds())))
		// clearLine removes one line of the terminal: a text that is wrapped would stay. A text in the last column can wrap, too.
		line = line[:min(len(line), int(TerminalSize(p.To).Cols)-1)]
		fmt.Fprint(p.To, clearLine+string(line))
		select {
		case <-stop:
			fmt.Fprint(p.To, clearLine)
			return
		case <-ticker.C:
		}
	}
}
