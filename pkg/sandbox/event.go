package sandbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// EventKind is the type of an Event.
type EventKind string

// The kinds of event.
const (
	EventStdout    EventKind = "stdout"
	EventStderr    EventKind = "stderr"
	EventPhase     EventKind = "phase"
	EventMetric    EventKind = "metric"
	EventViolation EventKind = "violation"
	EventPublished EventKind = "published" // ports are reachable on the host's loopback
	EventDisplay   EventKind = "display"   // of a session: a value to show
	EventInput     EventKind = "input"     // of a session: the cell waits for a line
)

// Event is one record of a run. Sequence numbers start at 1 and have no gaps, so a reader that lost its connection knows
// where to continue.
type Event struct {
	Seq       uint64          `json:"seq"`
	Time      time.Time       `json:"time"`
	Kind      EventKind       `json:"kind"`
	Offset    uint64          `json:"offset,omitempty"`  // of Data in its stream
	Data      []byte          `json:"data,omitempty"`    // stdout and stderr: the bytes, exactly
	Dropped   uint64          `json:"dropped,omitempty"` // in a replay: bytes of this event no longer kept
	Phase     string          `json:"phase,omitempty"`
	Metric    *monitor.Sample `json:"metric,omitempty"`
	Violation *Violation      `json:"violation,omitempty"`
	Published []network.Port  `json:"published,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"` // display, input: what a session's interpreter said, as data; test_started, test: a test
}

// EventDocument is an event as JSON: output is text if it is UTF-8, otherwise base64 with Encoding set. Larger documents
// embed it.
type EventDocument struct {
	Event
	Data     *string `json:"data,omitempty"`
	Encoding string  `json:"encoding,omitempty"` // "base64"; text without
}

// Document converts the event. A character that is split between two events makes both of them base64.
func (e Event) Document() EventDocument {
	d := EventDocument{Event: e}
	if e.Kind == EventStdout || e.Kind == EventStderr {
		var text string
		text, d.Encoding = EncodeText(e.Data)
		d.Data = &text
	}
	return d
}

// Violation is a refused operation, or a limit that was reached.
type Violation struct {
	Kind   string `json:"kind"`           // the limit or control: "syscall", "network", "memory", "pids", "disk", "timeout", …
	Name   string `json:"name,omitempty"` // of the system call, for that kind
	Detail string `json:"detail"`
	Count  uint64 `json:"count,omitempty"`
	// Saturated: counting stopped, to keep its cost bounded; Count is a lower bound.
	Saturated bool   `json:"saturated"`
	Allow     string `json:"allow,omitempty"` // the flag that would allow it
}

// Spill writes the whole of a stream to disk once it exceeds the memory.
type Spill struct {
	Dir   string // files "stdout" and "stderr" are made in it when needed
	Limit Size   // per stream; 0 is 1 GiB
}

// Output is the kept part of one stream at the end of a run: all of it, or its head and its tail. With an OutputSpace,
// and with more kept output than OutputMemory, Head is only the beginning of the head and Tail is empty: WriteTo writes
// everything, and Close returns the space.
type Output struct {
	Head    []byte
	Tail    []byte // what came after the dropped middle
	Dropped uint64 // bytes between Head and Tail
	Total   uint64
	File    string // where the whole was spilled, if it was asked for and needed
	kept    *kept  // has a spill file; nil: Head and Tail are everything
}

// Bytes is the kept output, head and tail joined, in memory. After Close it is the content of Head.
func (o Output) Bytes() []byte {
	if o.kept != nil {
		b := bytes.NewBuffer(make([]byte, 0, o.Len()))
		if o.writeTo(b, 0) != nil {
			return o.Head
		}
		return b.Bytes()
	}
	if len(o.Tail) == 0 {
		return o.Head
	}
	return append(o.Head[:len(o.Head):len(o.Head)], o.Tail...)
}

// Truncated reports whether output was dropped.
func (o Output) Truncated() bool { return o.Dropped > 0 }

// recorder numbers the events of a run, hands them to a live reader one by one, and keeps the head and tail of each
// stream. The live reader gets every event and may block: the program then waits. The kept part is bounded.
//
// emitting is held while the live reader is called, and orders all events. mu guards the kept state and is only held for
// a moment, so that a result can be read while a reader blocks.
type recorder struct {
	live  func(Event)
	spill *Spill
	// The directory is opened before the program starts: a program that can reach it could replace it with a link.
	spillDir    *os.Root
	spillDirErr error
	full        func() // called once, at the first dropped byte

	emitting sync.Mutex

	mu      sync.Mutex
	seq     uint64
	streams [2]stream
	keep    Size // per stream
	dropped bool
	sealed  bool // no more output is recorded
	closed  bool
}

// stream is one of stdout and stderr.
type stream struct {
	kept
	whole    *os.File // Spill's
	spilled  uint64
	spillErr error
}

var streamKinds = [2]EventKind{EventStdout, EventStderr}

// newRecorder keeps up to keep bytes per stream. Bytes beyond OutputMemory go to space; nil: everything is in memory.
// live, spill and full may be nil.
func newRecorder(keep Size, live func(Event), spill *Spill, space *OutputSpace, full func()) *recorder {
	r := &recorder{live: live, keep: keep, spill: spill, full: full}
	for i := range r.streams {
		r.streams[i].init(keep, space)
	}
	if spill != nil {
		r.spillDir, r.spillDirErr = os.OpenRoot(spill.Dir)
	}
	return r
}

// Write records bytes of a stream (0 stdout, 1 stderr) and hands them to the live reader, which
// may keep the event but not the slice behind Data.
func (r *recorder) Write(stream int, data []byte) {
	r.emitting.Lock()
	defer r.emitting.Unlock()
	r.mu.Lock()
	if r.closed || r.sealed {
		r.mu.Unlock()
		return
	}
	r.seq++
	s := &r.streams[stream]
	ev := Event{Seq: r.seq, Time: time.Now(), Kind: streamKinds[stream], Offset: s.total, Data: data}
	firstDrop := r.keepLocked(stream, data)
	r.mu.Unlock()
	if firstDrop && r.full != nil {
		r.full()
	}
	if r.live != nil {
		r.live(ev)
	}
}

// Emit hands an event that is not output to the live reader. If the reader is busy with an earlier event and wait is
// false, Emit drops the event: a sample is not worth waiting for.
func (r *recorder) Emit(ev Event, wait bool) {
	if r.live == nil {
		return
	}
	if wait {
		r.emitting.Lock()
	} else if !r.emitting.TryLock() {
		return
	}
	defer r.emitting.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.seq++
	ev.Seq, ev.Time = r.seq, time.Now()
	r.mu.Unlock()
	r.live(ev)
}

// keepLocked reports whether these bytes are the first beyond the limit. Bytes that are dropped for want of space do not
// count: the program did not exceed its limit.
func (r *recorder) keepLocked(i int, data []byte) bool {
	s := &r.streams[i]
	overflows := s.total+uint64(len(data)) > uint64(r.keep)
	if overflows && r.spill != nil {
		s.spillOver(r, string(streamKinds[i]), data)
	}
	s.write(data)
	first := overflows && !r.dropped
	r.dropped = r.dropped || overflows
	return first
}

// spillOver appends data to the stream's file. It makes the file on first use from the kept bytes: until the first
// overflow these are all bytes.
func (s *stream) spillOver(r *recorder, name string, data []byte) {
	limit := uint64(cmp.Or(r.spill.Limit, GiB))
	if s.whole == nil && s.spillErr == nil {
		if s.spillErr = r.spillDirErr; s.spillErr == nil {
			s.whole, s.spillErr = r.spillDir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		}
		if s.spillErr == nil {
			for !s.flush() {
			}
			err := s.kept.writeTo(writerFunc(func(b []byte) (int, error) { s.appendFile(b, limit); return len(b), nil }), 0)
			if s.dropped() > 0 {
				err = errors.New("there was no space for what was to be kept")
			}
			s.spillErr = cmp.Or(s.spillErr, err)
		}
	}
	s.appendFile(data, limit)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (s *stream) appendFile(data []byte, limit uint64) {
	if s.whole == nil || s.spillErr != nil {
		return
	}
	room := limit - s.spilled
	n, err := s.whole.Write(data[:min(uint64(len(data)), room)])
	s.spilled += uint64(n)
	if s.spillErr = err; err == nil && uint64(len(data)) > room {
		s.spillErr = fmt.Errorf("%s: only the first %s are kept", s.whole.Name(), Size(limit))
	}
}

// handOver ends the recording of both streams and returns their kept parts, uncopied. Events other than output may still
// be emitted.
func (r *recorder) handOver() (stdout, stderr Output) { return r.output(0, true), r.output(1, true) }

func (r *recorder) output(i int, handOver bool) Output {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.streams[i]
	r.sealed = r.sealed || handOver
	out := s.output(handOver)
	if s.whole != nil {
		out.File = s.whole.Name()
	}
	return out
}

// short reports whether space was missing for output within the limit.
func (r *recorder) short() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[0].kept.short || r.streams[1].kept.short
}

// busy reports whether the live reader handles an event.
func (r *recorder) busy() bool {
	if r.emitting.TryLock() {
		r.emitting.Unlock()
		return false
	}
	return true
}

// written is the number of bytes that both streams have had so far.
func (r *recorder) written() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[0].total + r.streams[1].total
}

// Close ends the recording: later writes are ignored. It closes the spill files and returns the first error that left
// one incomplete. Close may be called twice.
func (r *recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.spillDir != nil {
		_ = r.spillDir.Close()
	}
	var errs []error
	for i := range r.streams {
		s := &r.streams[i]
		if !r.sealed {
			s.kept.close()
		}
		if s.whole != nil {
			if err := s.whole.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
				errs = append(errs, err)
			}
		}
		if s.spillErr != nil {
			errs = append(errs, s.spillErr)
			s.spillErr = nil
		}
	}
	return errors.Join(errs...)
}
