package api

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// input is what is said to a run while it is under way: bytes for its standard input, signals, sizes of its terminal. Whoever speaks may come late, leave and
// come back; when nobody is there for a while, the input ends.
type input struct {
	signals  chan syscall.Signal
	resize   chan sandbox.TTY
	over     chan struct{} // closed by close
	patience time.Duration // without anybody

	mu      sync.Mutex
	buf     []byte
	taken   uint64 // bytes in all
	ended   bool   // no more bytes will come
	gone    bool   // nobody reads any more
	open    bool   // bytes can be sent at all
	changed chan struct{}
	clients int
	alone   *time.Timer
}

// maxTyped is how much waits for a program that does not read.
const maxTyped = 1 << 20

var (
	errNotInteractive = errors.New(`standard input was given with the request; ask with "interactive": true to send it later`)
	errInputEnded     = errors.New("standard input has ended")
	errNoTerminal     = errors.New("the program has no terminal; ask for one with tty")
)

// attach gives a job what it needs to be spoken to, and its terminal's input an end that does not hang up. The caller closes it when the run is over.
func attach(ctx context.Context, j *job) *input {
	in := &input{over: make(chan struct{}), changed: make(chan struct{}), open: j.run.Interactive, ended: !j.run.Interactive}
	if j.Way == WayAsync || j.Way == WayTalk {
		in.signals = make(chan syscall.Signal, 16)
		j.req.Signals = in.signals
		if j.req.TTY != nil {
			in.resize = make(chan sandbox.TTY, 1)
			j.req.Resize = in.resize
		}
	}
	if j.run.Interactive {
		from := io.Reader(in)
		if j.req.Stdin != nil {
			from = io.MultiReader(j.req.Stdin, in)
		}
		j.req.Stdin = from
	}
	if j.req.TTY != nil {
		if j.req.Stdin == nil {
			j.req.Stdin = eof{}
		}
		j.req.Stdin = sandbox.TypedInput(j.req.Stdin, false, in.over)
	}
	return in
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// close is for when the run is over: nobody reads or writes any more. Twice is fine.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.gone {
		return
	}
	in.gone, in.ended, in.buf = true, true, nil
	if in.alone != nil {
		in.alone.Stop()
	}
	close(in.over)
	in.tell()
}

// tell is called with mu held.
func (in *input) tell() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// Read is the program's side.
func (in *input) Read(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.buf) == 0 {
		if in.ended {
			return 0, io.EOF
		}
		changed := in.changed
		in.mu.Unlock()
		<-changed
		in.mu.Lock()
	}
	n := copy(p, in.buf)
	in.buf = in.buf[n:]
	in.taken += uint64(n)
	in.tell()
	return n, nil
}

// write takes bytes for the program, and waits while too many wait already.
func (in *input) write(ctx context.Context, p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		switch {
		case !in.open:
			return errNotInteractive
		case in.ended:
			return errInputEnded
		case len(in.buf) == 0 || len(in.buf)+len(p) <= maxTyped:
			in.buf = append(in.buf, p...)
			in.tell()
			return nil
		}
		changed := in.changed
		in.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			in.mu.Lock()
			return context.Cause(ctx)
		}
		in.mu.Lock()
	}
}

// end is the end of the input; what was written before is still read.
func (in *input) end() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.open {
		return errNotInteractive
	}
	in.ended = true
	in.tell()
	return nil
}

// bytesTaken is how much the program's side has taken, with a channel that closes when that changes.
func (in *input) bytesTaken() (uint64, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken, in.changed
}

// signal passes a signal on. More than a few that nobody has taken are dropped, as the kernel does it.
func (in *input) signal(s syscall.Signal) {
	select {
	case in.signals <- s:
	default:
	}
}

// resized passes on the newest size.
func (in *input) resized(size sandbox.TTY) error {
	if in.resize == nil {
		return errNoTerminal
	}
	for {
		select {
		case in.resize <- size:
			return nil
		default:
		}
		select {
		case <-in.resize: // an older one that nobody has taken
		default:
		}
	}
}

// come counts a client in; leave counts it out. Without any for a while, the input ends.
func (in *input) come() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.clients++
	if in.alone != nil {
		in.alone.Stop()
	}
}

func (in *input) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.clients--; in.clients == 0 {
		in.waitLocked()
	}
}

// wait begins to wait for the first client.
func (in *input) wait(patience time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.patience = patience; in.clients == 0 {
		in.waitLocked()
	}
}

func (in *input) waitLocked() {
	if in.ended || in.gone {
		return
	}
	in.alone = time.AfterFunc(in.patience, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.clients == 0 && !in.gone {
			in.ended = true
			in.tell()
		}
	})
}
