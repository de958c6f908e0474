// Package stream writes answers that last as long as runs do: events, and the items of a batch.
//
// What. A [Stream] flushes each part of an answer, gives each part a time limit, and sends comments on idle server-sent events, because
// proxies and clients close silent connections.
//
// Place in the flow. Between the handlers of pkg/api and pkg/api/batch, which encode the parts, and net/http.
//
// Lifecycle. A Stream lives as long as its request. The handler calls stop of KeepAlive and then ClearDeadline before it returns.
//
// Concurrency. The handler locks a Stream while it writes; the lock excludes the goroutine of KeepAlive.
//
// Limits. A write that fails makes all later ones fail.
package stream

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/interval"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// Timeouts of streams.
const (
	KeepAliveInterval = 15 * time.Second // between two keep-alive comments, so that proxies keep the connection
	StallTimeout      = 2 * time.Minute  // how long a client may read nothing
	FarewellTimeout   = 2 * time.Second  // for the last message to a client whose connection is closed
)

// Stream is an answer with status 200 in parts. Its lock guards the exported fields, and is held during Head, Write and Send.
type Stream struct {
	sync.Mutex
	Kind   string // media type
	Begun  bool   // the head was sent; later problems are part of the stream
	Err    error  // of the first write that failed
	Failed func() // called after a failed Send; may be nil

	w        http.ResponseWriter
	control  *http.ResponseController
	deadline sync.Mutex // for ShortenDeadline, while a writer holds the lock
	leaving  bool
}

// New makes a stream of that media type. It sends nothing yet.
func New(w http.ResponseWriter, kind string) *Stream {
	return &Stream{Kind: kind, w: w, control: http.NewResponseController(w)}
}

// Started reports whether the head was sent.
func (s *Stream) Started() bool {
	s.Lock()
	defer s.Unlock()
	return s.Begun
}

// Head sends status and headers, unless they were sent before.
func (s *Stream) Head() {
	if s.Begun {
		return
	}
	s.Begun = true
	h := s.w.Header()
	h.Set("Content-Type", s.Kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // tells proxies not to buffer
	s.w.WriteHeader(http.StatusOK)
}

// Write writes unless an earlier write failed.
func (s *Stream) Write(b []byte) (n int, err error) {
	if s.Err == nil && len(b) > 0 {
		s.setDeadline()
		n, s.Err = s.w.Write(b)
	}
	return n, s.Err
}

// Send sends the head, writes and flushes.
func (s *Stream) Send(b []byte) error {
	s.Head()
	if _, err := s.Write(b); err == nil {
		if err := s.control.Flush(); !errors.Is(err, http.ErrNotSupported) {
			s.Err = err
		}
	}
	if s.Err != nil && s.Failed != nil {
		s.Failed()
	}
	return s.Err
}

// setDeadline sets the deadline of the next write.
func (s *Stream) setDeadline() {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	timeout := StallTimeout
	if s.leaving {
		timeout = FarewellTimeout
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(timeout)) // fails without a connection, as in some tests
}

// ShortenDeadline shortens the write deadline of a client whose key was revoked. The lock is not needed.
func (s *Stream) ShortenDeadline() {
	s.deadline.Lock()
	s.leaving = true
	s.deadline.Unlock()
	s.setDeadline()
}

// ClearDeadline removes the deadline: the connection may serve other requests.
func (s *Stream) ClearDeadline() { _ = s.control.SetWriteDeadline(time.Time{}) }

// KeepAlive sends comments in server-sent events that have begun, when between returns true; it is called with the lock held. stop waits
// until the last comment is sent.
func (s *Stream) KeepAlive(between func() bool) (stop func()) {
	if s.Kind != wire.TypeSSE {
		return func() {}
	}
	return interval.Start(KeepAliveInterval, func() {
		s.Lock()
		defer s.Unlock()
		if s.Begun && between() {
			_ = s.Send([]byte(":\n\n")) // the next part returns the error
		}
	})
}
