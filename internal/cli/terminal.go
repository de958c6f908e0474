package cli

import (
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// IsTerminal reports whether the file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// CanRedraw reports whether the file is a terminal that understands cursor movements.
func CanRedraw(f *os.File) bool { return IsTerminal(f) && os.Getenv("TERM") != "dumb" }

// terminal is the terminal of this process while a program uses it through --tty.
type terminal struct {
	std     Streams
	resized chan sandbox.TTY
	stop    func() // stops watchSize
}

// saved is the state of the terminal before it became raw. It is global because every path that ends this process restores it.
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
		case <-t.resized: // drop an older size
		default:
		}
		t.resized <- *size
	})
	return t
}

// TerminalSize returns the size of the first file that is a terminal, or 24 rows of 80 columns.
func TerminalSize(files ...*os.File) *sandbox.TTY {
	for _, f := range files {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			return &sandbox.TTY{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return &sandbox.TTY{Rows: 24, Cols: 80}
}

// makeRaw makes the terminal raw: every key goes to the program, Ctrl-C included. It reports whether standard input is a terminal.
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

// restore restores the state of the terminal. It may be called twice.
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
		_ = term.Restore(saved.fd, saved.state) // fails only if the terminal is gone
		saved.state = nil
	}
}

// TerminalState is the state of a terminal at some time.
type TerminalState struct {
	fd    int
	state *term.State // nil: it is no terminal
}

// SaveTerminal returns the state of a terminal.
func SaveTerminal(f *os.File) TerminalState {
	t := TerminalState{fd: int(f.Fd())}
	t.state, _ = term.GetState(t.fd)
	return t
}

// Restore gives the terminal its state back.
func (t TerminalState) Restore() {
	if t.state != nil {
		_ = term.Restore(t.fd, t.state) // fails only if the terminal is gone
	}
}
