package docker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// session is the conversation with one helper.
type session struct {
	conn *wire.Conn
	raw  io.Closer

	done   chan struct{} // closed when the stream has ended
	closed sync.Once
	over   chan struct{} // closed by close

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]func(kind wire.Kind, body []byte) // called by whoever serves; must not block or keep body
	said    *tail                                        // by the helper, on its error output
	err     error                                        // what ended it
}

// converse serves a stream that has just been attached.
func converse(raw io.ReadWriteCloser, multiplexed io.Reader) *session {
	s := &session{
		conn: wire.NewConn(raw), raw: raw, done: make(chan struct{}), over: make(chan struct{}),
		waiting: map[uint32]func(wire.Kind, []byte){}, said: &tail{},
	}
	go func() {
		err := s.conn.Serve(&demux{r: multiplexed, errors: s.said}, s.handle)
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(s.done)
		_ = raw.Close()
	}()
	return s
}

func (s *session) handle(kind wire.Kind, id uint32, body []byte) error {
	s.mu.Lock()
	sink := s.waiting[id]
	s.mu.Unlock()
	if sink != nil {
		sink(kind, body)
	}
	return nil // one that nobody waits for is late
}

// open registers who is to hear the answers of a request.
func (s *session) open(sink func(kind wire.Kind, body []byte)) (id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.next++; ; s.next++ {
		if s.next > wire.MaxRequest {
			s.next = 1
		}
		if s.waiting[s.next] == nil {
			break
		}
	}
	s.waiting[s.next] = sink
	return s.next
}

func (s *session) forget(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
}

// reply is one answer, kept.
type reply struct {
	kind wire.Kind
	body []byte
}

// ask sends a request and waits for its only answer.
func (s *session) ask(ctx context.Context, kind wire.Kind, body []byte) (reply, error) {
	answers := make(chan reply, 1)
	id := s.open(func(kind wire.Kind, body []byte) {
		select {
		case answers <- reply{kind, append([]byte(nil), body...)}:
		default:
		}
	})
	defer s.forget(id)
	if err := s.conn.Send(kind, id, body); err != nil {
		return reply{}, s.explain(err)
	}
	select {
	case r := <-answers:
		return r, nil
	case <-s.done:
		return reply{}, s.explain(nil)
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// explain says why the stream has ended: the helper's own words are the best there are.
func (s *session) explain(err error) error {
	select {
	case <-s.done:
	case <-time.After(explainPatience): // a write failed; the reader hears of it soon
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = errors.Join(wire.ErrClosed, err, s.err)
	if said := s.said.text(); said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

const explainPatience = 200 * time.Millisecond

// hangUp ends our side of the stream and waits until the helper has ended its own, which it does when nothing lives in the container
// any more. False: it has not, in time.
func (s *session) hangUp(patience time.Duration) bool {
	half, ok := s.raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return false
	}
	select {
	case <-s.done:
		s.close()
		return true
	case <-time.After(patience):
		return false
	}
}

// close ends the stream; the container ends with it. Twice is fine.
func (s *session) close() {
	s.closed.Do(func() {
		close(s.over)
		_ = s.raw.Close()
	})
}

// Of a daemon behind a network: how long a helper waits for a sign of life, and how often there is one.
const (
	supervisorSilence = 30 * time.Second
	beatInterval      = 5 * time.Second
)

// beat gives signs of life until the session ends.
func (s *session) beat() {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-s.over:
			return
		case <-ticker.C:
			if s.conn.Send(wire.KindBeat, 0, nil) != nil {
				return
			}
		}
	}
}

// demux takes the standard output out of what a daemon sends of a container without a terminal: each piece has a header of 8
// bytes, the first of which says which output it is, the last four how long it is.
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
		case 2, 3: // the error output; the daemon's own trouble
			if _, err := io.CopyN(d.errors, d.r, int64(length)); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("the daemon sends no multiplexed stream: %w", wire.ErrMalformed)
		}
	}
	n, err := d.r.Read(p[:min(len(p), int(d.left))])
	d.left -= uint32(n)
	return n, err
}

// tail keeps the last of what was said.
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
