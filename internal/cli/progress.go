package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress says on a terminal what takes so long, once it has taken a second, in a line that is gone before anything
// else is shown. The nil one is for everywhere else.
type Progress struct {
	To io.Writer

	mu   sync.Mutex
	stop chan struct{} // of the line under way; nil when there is none
	idle chan struct{} // closed when that line is gone
}

const (
	progressDelay = time.Second
	spinEvery     = 120 * time.Millisecond
	spinner       = `|/-\`
	clearLine     = "\r\x1b[K"
)

// Start begins a line; one that is under way ends.
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

// End removes the line. It may be called at any time, and twice.
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
		// A terminal that is gone is noticed when the result is written.
		fmt.Fprintf(p.To, "%s%c %s, %ds", clearLine, spinner[i%len(spinner)], what, int(time.Since(began).Seconds()))
		select {
		case <-stop:
			fmt.Fprint(p.To, clearLine)
			return
		case <-ticker.C:
		}
	}
}
