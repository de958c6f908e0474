package cli

import (
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// CanRedraw reports whether something can be drawn over itself there.
func CanRedraw(f *os.File) bool { return IsTerminal(f) && os.Getenv("TERM") != "dumb" }

// terminal is ours, lent to a program with a terminal of its own.
type terminal struct {
	std     Streams
	resized chan sandbox.TTY
	stop    func() // ends the watch for new sizes
}

// saved is the state of the terminal before it was made raw, with the way back. It is global
// because the terminal is: every way to end this process has to restore it.
var saved struct {
	sync.Mutex
	fd    int
	state *term.State
}

func newTerminal(std Streams) *terminal {
	t := &terminal{std: std, resized: make(chan sandbox.TTY, 1)}
	t.stop = watchSize(func() {
		size := TerminalSize(std.In, std.Out, std.Err)
		select {
		case <-t.resized: // an older size that was not read yet
		default:
		}
		t.resized <- *size
	})
	return t
}

// TerminalSize is the size of the first file that is a terminal, or 24 rows of 80 columns.
func TerminalSize(files ...*os.File) *sandbox.TTY {
	for _, f := range files {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return &sandbox.TTY{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return &sandbox.TTY{Rows: 24, Cols: 80}
}

// raw hands every key to the program, Ctrl-C included. It reports whether there was a terminal.
func (t *terminal) makeRaw() bool {
	fd := int(t.std.In.Fd())
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
		_ = term.Restore(saved.fd, saved.state) // it fails only if the terminal is gone
		saved.state = nil
	}
}
