package api

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// input is what clients send to a run while it is under way: bytes for its standard input, signals, sizes of its terminal. Clients may
// connect late, disconnect and return; without a client for a while, the input ends.
type input struct {
	signals chan syscall.Signal
	resize  chan sandbox.TTY
	over    chan struct{} // closed by close
	timeout time.Duration // without a client

	mu      sync.Mutex
	buf     []byte
	taken   uint64 // bytes that the program has read
	ended   bool   // no more bytes are accepted
	gone    bool   // the run is over
	open    bool   // the run accepts bytes
	changed chan struct{}
	clients int
	alone   *time.Timer
}

// maxBuffered bounds the bytes that wait for a program that does not read.
const maxBuffered = 1 << 20

var (
	errNotInteractive = errors.New(`standard input was given with the request; set "interactive": true to send it later`)
	errInputEnded     = errors.New("standard input has ended")
	errNoTerminal     = errors.New("the program has no terminal; set tty in the request")
)

// attach connects an input to a run. On a terminal, the end of the input does not hang up. The caller closes the input when the run is
// over.
func attach(j *job) *input {
	in := &input{over: make(chan struct{}), changed: make(chan struct{}), open: j.run.Interactive, ended: !j.run.Interactive}
	if j.Way == WayAsync || j.Way == WayInteractive {
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
			j.req.Stdin = strings.NewReader("")
		}
		j.req.Stdin = sandbox.TypedInput(j.req.Stdin, false, in.over)
	}
	return in
}

// close ends the input after the run. It may be called twice.
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
	in.wake()
}

// wake wakes readers and writers. mu is held.
func (in *input) wake() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// Read reads bytes for the program. It blocks until there are some.
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
	in.wake()
	return n, nil
}

// write buffers bytes for the program, and blocks while the buffer is full.
func (in *input) write(ctx context.Context, p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		switch {
		case !in.open:
			return errNotInteractive
		case in.ended:
			return errInputEnded
		case len(in.buf) == 0 || len(in.buf)+len(p) <= maxBuffered:
			in.buf = append(in.buf, p...)
			in.wake()
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

// end ends the input; the program still reads buffered bytes.
func (in *input) end() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.open {
		return errNotInteractive
	}
	in.ended = true
	in.wake()
	return nil
}

// bytesTaken returns how many bytes the program has read, and a channel that is closed when that changes.
func (in *input) bytesTaken() (uint64, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken, in.changed
}

// signal passes a signal on. Signals beyond the channel's capacity are dropped, as in the kernel.
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
		case <-in.resize: // drop the older size
		default:
		}
	}
}

// addClient counts a client, removeClient removes one. Without clients for a while, the input ends.
func (in *input) addClient() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.clients++
	if in.alone != nil {
		in.alone.Stop()
	}
}

func (in *input) removeClient() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.clients--; in.clients == 0 {
		in.waitLocked()
	}
}

// waitForClient starts the timer for the first client.
func (in *input) waitForClient(timeout time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.timeout = timeout; in.clients == 0 {
		in.waitLocked()
	}
}

func (in *input) waitLocked() {
	if in.ended || in.gone {
		return
	}
	in.alone = time.AfterFunc(in.timeout, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.clients == 0 && !in.gone {
			in.ended = true
			in.wake()
		}
	})
}
