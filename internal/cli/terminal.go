package cli

import (
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// drawsOn reports whether something can be drawn over itself there.
func drawsOn(f *os.File) bool { return isTerminal(f) && os.Getenv("TERM") != "dumb" }

// terminal is ours, lent to a program with a terminal of its own.
type terminal struct {
	std     streams
	resized chan sandbox.TTY
	stop    func() // ends the watch for new sizes
}

// saved is the state of the terminal before it was made raw, with the way back. It is global
// because the terminal is: whoever ends this process has to put it back.
var saved struct {
	sync.Mutex
	fd    int
	state *term.State
}

func newTerminal(std streams) *terminal {
	t := &terminal{std: std, resized: make(chan sandbox.TTY, 1)}
	t.stop = watchSize(func() {
		size := t.size()
		select {
		case <-t.resized: // an older size nobody has looked at yet
		default:
		}
		t.resized <- *size
	})
	return t
}

// size is that of whichever stream is a terminal, or the customary one.
func (t *terminal) size() *sandbox.TTY {
	for _, f := range []*os.File{t.std.in, t.std.out, t.std.err} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return &sandbox.TTY{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return &sandbox.TTY{Rows: 24, Cols: 80}
}

// raw hands every key to the program, Ctrl-C included. It reports whether there was a terminal.
func (t *terminal) raw() bool {
	fd := int(t.std.in.Fd())
	if !term.IsTerminal(fd) {
		return false
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return true
	}
	saved.Lock()
	defer saved.Unlock()
	saved.fd, saved.state = fd, state
	return true
}

// restore gives the terminal back. Twice is fine.
func (t *terminal) restore() {
	t.stop()
	restoreTerminal()
}

func (t *terminal) restoreOnPanic() {
	if p := recover(); p != nil {
		restoreTerminal()
		panic(p)
	}
}

func restoreTerminal() {
	saved.Lock()
	defer saved.Unlock()
	if saved.state != nil {
		_ = term.Restore(saved.fd, saved.state) // the terminal is gone: nobody left to mind
		saved.state = nil
	}
}
