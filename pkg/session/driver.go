package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// driver is the supervisor's side of a running driver. One goroutine reads its frames.
type driver struct {
	live  *sandbox.Live
	conn  *protocol.Conn
	ready protocol.Ready
	gone  chan struct{} // closed when nothing can be asked of it any more
	over  chan struct{} // closed when its frames are no longer read

	mu      sync.Mutex
	next    uint64
	replies map[uint64]chan *protocol.Frame
	cell    *cell  // that runs; or nil
	why     string // it is gone
}

// startDriver starts the driver of a session and waits until it is ready.
func startDriver(ctx context.Context, s *executor.Session) (*driver, error) {
	live, err := s.Start(ctx)
	if err != nil {
		return nil, err
	}
	return awaitDriver(ctx, live)
}

// awaitDriver waits until the driver of a process is ready. A process that does not get there is ended.
func awaitDriver(ctx context.Context, live *sandbox.Live) (_ *driver, err error) {
	d := &driver{live: live, conn: protocol.NewConn(live.Driver()), gone: make(chan struct{}), over: make(chan struct{})}
	d.replies = map[uint64]chan *protocol.Frame{}
	first := make(chan error, 1)
	go func() {
		defer close(d.over)
		err := d.readReady()
		first <- err
		if err == nil {
			d.fail(d.read())
		}
	}()
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case err = <-first:
	case <-live.Ended():
		how, _ := live.Exit()
		err = fmt.Errorf("it ended before it was ready (exit code %d, signal %d)", how.Code, how.Signal)
	case <-timer.C:
		err = fmt.Errorf("not ready after %v", startTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		d.fail(err)
		d.close()
		if said := live.IdleOutput(); len(said) > 0 {
			err = fmt.Errorf("%w; it printed: %s", err, said)
		}
		return nil, &sandbox.Error{Op: "start the session's interpreter", Err: err}
	}
	return d, nil
}

// Bounds of what a driver says of itself, which stays in memory, and of an answer, whose lists may take ten times its size.
const (
	maxReady = 4 << 10
	maxReply = 2 << 20
)

func (d *driver) readReady() error {
	f, err := d.conn.Read()
	if err != nil {
		return fmt.Errorf("it ended before it was ready: %w", err)
	}
	if f.Kind != protocol.KindReady || len(f.Body) > maxReady {
		return fmt.Errorf("%w: %.20q in place of ready", protocol.ErrMalformed, f.Kind)
	}
	if err := f.Decode(&d.ready); err != nil {
		return err
	}
	if d.ready.Protocol != protocol.Version {
		return fmt.Errorf("it speaks version %d of the protocol, not %d", d.ready.Protocol, protocol.Version)
	}
	return nil
}

// read handles the driver's frames until it breaks off or breaks the protocol.
func (d *driver) read() error {
	for {
		f, err := d.conn.Read()
		if err != nil {
			return err
		}
		if f.Kind == protocol.KindReply {
			if len(f.Body) > maxReply {
				return fmt.Errorf("%w: reply with %d bytes", protocol.ErrMalformed, len(f.Body))
			}
			d.mu.Lock()
			reply := d.replies[f.ID]
			delete(d.replies, f.ID)
			d.mu.Unlock()
			if reply != nil {
				reply <- f
				continue
			}
		}
		d.mu.Lock()
		c := d.cell
		d.mu.Unlock()
		if c == nil || c.id != f.ID || f.Kind == protocol.KindReply {
			// Of a cell that has ended, such as from one of its threads. They take little of this process's time.
			time.Sleep(strayPause * time.Duration(1+len(f.Body)>>12))
			continue
		}
		if err := c.handle(f); err != nil {
			return err
		}
	}
}

// fail ends the driver: it is gone, or must not be trusted to continue.
func (d *driver) fail(why error) {
	d.mu.Lock()
	first := d.why == ""
	if first {
		d.why = "its driver broke off: " + why.Error()
	}
	d.mu.Unlock()
	if !first {
		return
	}
	close(d.gone)
	if errors.Is(why, io.EOF) { // it may be on its way out
		go d.live.EndSoon()
		return
	}
	d.live.Kill()
}

// strayPause is the pause after a frame of no cell, for each 4 KiB.
const strayPause = 50 * time.Microsecond

func (d *driver) isGone() bool {
	select {
	case <-d.gone:
		return true
	case <-d.live.Ended():
		return true
	default:
		return false
	}
}

// close ends the driver and its process. It may be called twice.
func (d *driver) close() {
	d.fail(errors.New("it was ended"))
	_ = d.live.Close() // Destroy reports what could not be removed
	<-d.over           // the reader may be about to kill it
}

// send writes a frame without waiting for the driver to read it: a driver that reads nothing is ended by the limits of the cell.
func (d *driver) send(kind protocol.Kind, id uint64, body string, arg ...string) {
	go d.write(kind, id, body, arg...)
}

// write writes a frame. It returns at the latest at the end of the driver.
func (d *driver) write(kind protocol.Kind, id uint64, body string, arg ...string) {
	if err := d.conn.Write(kind, id, body, arg...); err != nil {
		d.fail(err)
	}
}

// firstQuestion is above the numbers of cells, and exact in every language's numbers.
const firstQuestion = 1 << 40

// askTimeout bounds a question other than a cell. Foreign code answers it, such as the properties of an object.
const askTimeout = 10 * time.Second

// ask sends a question and decodes the answer. A driver that does not answer is interrupted, and then ended.
func (d *driver) ask(ctx context.Context, kind protocol.Kind, body string, reply any, arg ...string) error {
	answer := make(chan *protocol.Frame, 1)
	d.mu.Lock()
	d.next++
	id := firstQuestion + d.next
	d.replies[id] = answer
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.replies, id)
		d.mu.Unlock()
	}()
	d.send(kind, id, body, arg...)
	patience := time.NewTimer(askTimeout)
	defer patience.Stop()
	interrupted := false
	for done := ctx.Done(); ; {
		select {
		case f := <-answer:
			if err := f.Decode(reply); err != nil {
				d.fail(err)
				return err
			}
			return nil
		case <-d.gone:
			return ErrEnded
		case <-done:
			if !interrupted {
				interrupted, done = true, nil
				d.interrupt(id)
				patience.Reset(askTimeout)
			}
		case <-patience.C:
			if interrupted {
				d.fail(fmt.Errorf("no answer to %s", kind))
				return ErrEnded
			}
			interrupted = true
			d.interrupt(id)
			patience.Reset(askTimeout)
		}
	}
}

// interrupt interrupts a cell or a question. A signal has reached the driver when interrupt returns.
func (d *driver) interrupt(id uint64) {
	if d.ready.How == "message" {
		d.send(protocol.KindInterrupt, id, "")
		return
	}
	_ = d.live.Signal(syscall.SIGINT) // a process that is gone needs none
}

// has reports whether the driver says that it answers such frames.
func (d *driver) has(kind protocol.Kind) bool {
	for _, f := range d.ready.Features {
		if f == kind {
			return true
		}
	}
	return false
}

// encode is a frame's body as an event has it.
func encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return text
}
