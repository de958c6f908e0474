package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// connection is the connection to one helper.
type connection struct {
	conn *containerproto.Conn
	raw  io.Closer

	done   chan struct{} // closed when the stream has ended
	closed sync.Once
	over   chan struct{} // closed by close

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]func(kind containerproto.Kind, body []byte) // called by the serving goroutine; must not block or keep body
	stderr  *tail                                                  // the helper's error output
	err     error                                                  // why the stream has ended
}

// serveStream serves a stream that has just been attached.
func serveStream(raw io.ReadWriteCloser, multiplexed io.Reader) *connection {
	s := &connection{
		conn: containerproto.NewConn(raw), raw: raw, done: make(chan struct{}), over: make(chan struct{}),
		waiting: map[uint32]func(containerproto.Kind, []byte){}, stderr: &tail{},
	}
	go func() {
		err := s.conn.Serve(&demux{r: multiplexed, errors: s.stderr}, s.handle)
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(s.done)
		_ = raw.Close()
	}()
	return s
}

func (s *connection) handle(kind containerproto.Kind, id uint32, body []byte) error {
	s.mu.Lock()
	sink := s.waiting[id]
	s.mu.Unlock()
	if sink != nil {
		sink(kind, body)
	}
	return nil // no caller waits any more: the answer is late
}

// register calls sink with the answers of a request.
func (s *connection) register(sink func(kind containerproto.Kind, body []byte)) (id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.next++; ; s.next++ {
		if s.next > containerproto.MaxRequest {
			s.next = 1
		}
		if s.waiting[s.next] == nil {
			break
		}
	}
	s.waiting[s.next] = sink
	return s.next
}

func (s *connection) unregister(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
}

// reply is a copy of one answer.
type reply struct {
	kind containerproto.Kind
	body []byte
}

// newReplySink returns a sink that copies the first answers, as many as the channel has room for.
func newReplySink(most int) (chan reply, func(containerproto.Kind, []byte)) {
	answers := make(chan reply, most)
	return answers, func(kind containerproto.Kind, body []byte) {
		select {
		case answers <- reply{kind, bytes.Clone(body)}:
		default:
		}
	}
}

// request sends a request and waits for its only answer.
func (s *connection) request(ctx context.Context, kind containerproto.Kind, body []byte) (reply, error) {
	answers, sink := newReplySink(1)
	id := s.register(sink)
	defer s.unregister(id)
	if err := s.conn.Send(kind, id, body); err != nil {
		return reply{}, s.explain(err)
	}
	return s.wait(ctx, answers)
}

// wait waits for an answer, the end of the stream, or the end of ctx.
func (s *connection) wait(ctx context.Context, answers <-chan reply) (reply, error) {
	select {
	case r := <-answers:
		return r, nil
	case <-s.done:
		return reply{}, s.explain(nil)
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// explain returns why the stream has ended, with the helper's error output.
func (s *connection) explain(err error) error {
	select {
	case <-s.done:
	case <-time.After(explainTimeout): // a write failed; the reader fails soon after
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = errors.Join(containerproto.ErrClosed, err, s.err)
	if text := s.stderr.text(); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

const explainTimeout = 200 * time.Millisecond

// closeInput closes the helper's input and waits until the helper has closed its output, which it does when no process runs in the
// container any more. It returns false after the timeout.
func (s *connection) closeInput(timeout time.Duration) bool {
	half, ok := s.raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return false
	}
	select {
	case <-s.done:
		s.close()
		return true
	case <-time.After(timeout):
		return false
	}
}

// close ends the stream; the container ends with it. It may be called twice.
func (s *connection) close() {
	s.closed.Do(func() {
		close(s.over)
		_ = s.raw.Close()
	})
}

// For a daemon behind a network: how long a helper waits for a heartbeat, and how often the backend sends one.
const (
	supervisorSilence = 30 * time.Second
	beatInterval      = 5 * time.Second
)

// sendHeartbeats sends heartbeats until the connection ends.
func (s *connection) sendHeartbeats() {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-s.over:
			return
		case <-ticker.C:
			if s.conn.Send(containerproto.KindBeat, 0, nil) != nil {
				return
			}
		}
	}
}

// demux extracts the standard output from the daemon's stream of a container without a terminal: each piece has a header of 8
// bytes, the first of which names the output, the last four the length.
type demux struct {
	r      io.Reader
	errors io.Writer
	left   uint32 // of the piece being read
}

func (d *demux) Read(p []byte) (int, error) {
	for d.left == 0 {
		var header [8]byte
		if _, err := io.ReadFull(d.r, header[:]); err != nil {
			return 0, err
		}
		length := binary.BigEndian.Uint32(header[4:])
		switch header[0] {
		case 1:
			d.left = length
		case 2, 3: // the error output; messages of the daemon itself
			if _, err := io.CopyN(d.errors, d.r, int64(length)); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("the daemon sends no multiplexed stream: %w", containerproto.ErrMalformed)
		}
	}
	n, err := d.r.Read(p[:min(len(p), int(d.left))])
	d.left -= uint32(n)
	return n, err
}

// tail keeps the end of a text.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const maxSaid = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxSaid; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
