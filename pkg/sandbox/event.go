package sandbox

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// EventKind says what an Event carries.
type EventKind string

// The kinds of event.
const (
	EventStdout    EventKind = "stdout"
	EventStderr    EventKind = "stderr"
	EventPhase     EventKind = "phase"
	EventMetric    EventKind = "metric"
	EventViolation EventKind = "violation"
)

// Event is one thing that happened in a run. Sequence numbers start at 1 and have no gaps, so a
// reader that lost its connection knows what to ask for.
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
}

// EventDocument is an event as JSON: output is text where it is UTF-8, and says so where it is not. What has more to say
// embeds it.
type EventDocument struct {
	Event
	Data     *string `json:"data,omitempty"`
	Encoding string  `json:"encoding,omitempty"` // "base64"; text without
}

// Document gives the event's names. A character that two events share makes both of them base64.
func (e Event) Document() EventDocument {
	d := EventDocument{Event: e}
	if e.Kind == EventStdout || e.Kind == EventStderr {
		var text string
		text, d.Encoding = EncodeText(e.Data)
		d.Data = &text
	}
	return d
}

// Violation is something that was refused, or a limit that was touched.
type Violation struct {
	Kind   string `json:"kind"`           // the limit or wall: "syscall", "memory", "pids", "disk", "output_limit", "timeout", "cpu_time"
	Name   string `json:"name,omitempty"` // of the system call, for that kind
	Detail string `json:"detail"`
	Count  uint64 `json:"count,omitempty"`
	// Saturated: counting stopped, to keep its cost bounded; Count is a lower bound.
	Saturated bool   `json:"saturated"`
	Allow     string `json:"allow,omitempty"` // the flag that would allow it
}

// Spill keeps the whole of a stream on disk once it outgrows memory.
type Spill struct {
	Dir   string // files "stdout" and "stderr" are made in it when needed
	Limit Size   // per stream; 0 is 1 GiB
}

// Output is what is left of one stream at the end of a run: all of it, or its head and its tail.
type Output struct {
	Head    []byte
	Tail    []byte // what came after the dropped middle
	Dropped uint64 // bytes between Head and Tail
	Total   uint64
	File    string // where the whole was spilled, if it was asked for and needed
}

// Bytes is the kept output, head and tail joined.
func (o Output) Bytes() []byte {
	if len(o.Tail) == 0 {
		return o.Head
	}
	return append(o.Head[:len(o.Head):len(o.Head)], o.Tail...)
}

// Truncated reports whether something was dropped.
func (o Output) Truncated() bool { return o.Dropped > 0 }

// Recorder numbers the events of a run, hands them to a live reader one by one, and keeps the head
// and tail of each stream. The live reader is exact and may block: the program then waits. What
// is kept is bounded.
//
// emitting is held while the live reader is called and orders everything; mu guards the kept
// state and is only ever held for a moment, so that a result can be read while a reader blocks.
type Recorder struct {
	live  func(Event)
	keep  Size // per stream
	spill *Spill
	// The directory is opened before the program starts: one that can reach it may put a link in its place.
	spillDir    *os.Root
	spillDirErr error
	full        func() // called once, when something is first dropped

	emitting sync.Mutex

	mu      sync.Mutex
	seq     uint64
	streams [2]stream
	index   []mark // in order of Seq
	dropped bool
	closed  bool
}

// mark remembers where the bytes of an event are. Neighbours are merged when there are too many,
// which costs a replay some granularity and never a byte.
type mark struct {
	first, last uint64 // sequence numbers
	at          time.Time
	stream      uint8
	offset      uint64
	length      uint64
}

const maxMarks = 1 << 16

// stream is one of stdout and stderr. Tail grows to twice its cap before it is cut, so that
// keeping the last bytes costs a copy per cap, not per write.
type stream struct {
	head, tail []byte
	headCap    int
	tailCap    int
	total      uint64
	file       *os.File
	spilled    uint64
	spillErr   error
}

var streamKinds = [2]EventKind{EventStdout, EventStderr}

// NewRecorder keeps up to keep bytes per stream. live, spill and full may be nil.
func NewRecorder(keep Size, live func(Event), spill *Spill, full func()) *Recorder {
	r := &Recorder{live: live, keep: keep, spill: spill, full: full}
	for i := range r.streams {
		r.streams[i].headCap = int(keep+1) / 2
		r.streams[i].tailCap = int(keep) - r.streams[i].headCap
	}
	if spill != nil {
		r.spillDir, r.spillDirErr = os.OpenRoot(spill.Dir)
	}
	return r
}

// Write records bytes of a stream (0 stdout, 1 stderr) and hands them to the live reader, which
// may keep the event but not the slice behind Data.
func (r *Recorder) Write(stream int, data []byte) {
	r.emitting.Lock()
	defer r.emitting.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.seq++
	s := &r.streams[stream]
	ev := Event{Seq: r.seq, Time: time.Now(), Kind: streamKinds[stream], Offset: s.total, Data: data}
	r.noteLocked(mark{first: r.seq, last: r.seq, at: ev.Time, stream: uint8(stream), offset: s.total, length: uint64(len(data))})
	firstDrop := r.keepLocked(stream, data)
	r.mu.Unlock()
	if firstDrop && r.full != nil {
		r.full()
	}
	if r.live != nil {
		r.live(ev)
	}
}

// Emit hands an event that is not output to the live reader. When the reader is busy with an
// earlier event and wait is false, the event is left out: samples are not worth waiting for.
func (r *Recorder) Emit(ev Event, wait bool) {
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

func (r *Recorder) noteLocked(m mark) {
	if len(r.index) >= maxMarks {
		r.index = halve(r.index)
	}
	r.index = append(r.index, m)
}

// halve merges each mark with the one before it in the same stream. The order, by last, stays.
func halve(index []mark) []mark {
	var open [2]*mark // a mark that can take in the one before it
	kept := len(index)
	for i := len(index) - 1; i >= 0; i-- {
		m := index[i]
		if later := open[m.stream]; later != nil {
			later.first, later.at, later.offset, later.length = m.first, m.at, m.offset, later.length+m.length
			open[m.stream] = nil
			continue
		}
		kept--
		index[kept] = m
		open[m.stream] = &index[kept]
	}
	return index[:copy(index, index[kept:])]
}

// keepLocked reports whether these bytes were the first to be dropped.
func (r *Recorder) keepLocked(i int, data []byte) bool {
	s := &r.streams[i]
	before := s.total
	s.total += uint64(len(data))
	overflows := s.total > uint64(s.headCap+s.tailCap)
	if overflows && r.spill != nil {
		s.spillOver(r, string(streamKinds[i]), before, data)
	}
	if room := s.headCap - len(s.head); room > 0 {
		n := min(room, len(data))
		s.head = append(s.head, data[:n]...)
		data = data[n:]
	}
	if len(data) > s.tailCap {
		s.tail = append(s.tail[:0], data[len(data)-s.tailCap:]...)
	} else {
		s.tail = append(s.tail, data...)
		if len(s.tail) > 2*s.tailCap {
			s.tail = append(s.tail[:0], s.tail[len(s.tail)-s.tailCap:]...)
		}
	}
	first := overflows && !r.dropped
	r.dropped = r.dropped || overflows
	return first
}

// spillOver appends data to the stream's file, which it makes on first use from all that was kept
// so far: until something overflows, that is everything.
func (s *stream) spillOver(r *Recorder, name string, before uint64, data []byte) {
	limit := uint64(r.spill.Limit)
	if limit == 0 {
		limit = uint64(GiB)
	}
	if s.file == nil && s.spillErr == nil {
		if s.spillErr = r.spillDirErr; s.spillErr == nil {
			s.file, s.spillErr = r.spillDir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		}
		if s.spillErr == nil && before > 0 {
			s.appendFile(s.head, limit)
			s.appendFile(s.tail, limit)
		}
	}
	s.appendFile(data, limit)
}

func (s *stream) appendFile(data []byte, limit uint64) {
	if s.file == nil || s.spillErr != nil {
		return
	}
	room := limit - s.spilled
	n, err := s.file.Write(data[:min(uint64(len(data)), room)])
	s.spilled += uint64(n)
	if s.spillErr = err; err == nil && uint64(len(data)) > room {
		s.spillErr = fmt.Errorf("%s: only the first %s are kept", s.file.Name(), Size(limit))
	}
}

// Output returns what is kept of a stream.
func (r *Recorder) Output(i int) Output {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.streams[i]
	tail := s.tail[max(0, len(s.tail)-s.tailCap):]
	out := Output{
		Head:  append([]byte(nil), s.head...),
		Tail:  append([]byte(nil), tail...),
		Total: s.total,
	}
	out.Dropped = s.total - uint64(len(out.Head)+len(out.Tail))
	if s.file != nil {
		out.File = s.file.Name()
	}
	return out
}

// busy reports whether the live reader is at work.
func (r *Recorder) busy() bool {
	if r.emitting.TryLock() {
		r.emitting.Unlock()
		return false
	}
	return true
}

// written is how many bytes both streams have had so far.
func (r *Recorder) written() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[0].total + r.streams[1].total
}

// Since returns the output events after seq that are still kept, in order. Bytes that were dropped
// are counted in the event they belonged to. Of very many events neighbours come back as one, which
// may then begin with bytes the reader has had already: Offset tells.
func (r *Recorder) Since(seq uint64) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var events []Event
	for _, m := range r.index {
		if m.last <= seq {
			continue
		}
		data := r.streams[m.stream].bytes(m.offset, m.length)
		events = append(events, Event{
			Seq: m.last, Time: m.at, Kind: streamKinds[m.stream],
			Offset: m.offset, Data: data, Dropped: m.length - uint64(len(data)),
		})
	}
	return events
}

// bytes copies what is kept of a stretch of the stream.
func (s *stream) bytes(offset, length uint64) []byte {
	var data []byte
	if offset < uint64(len(s.head)) {
		data = append(data, s.head[offset:min(uint64(len(s.head)), offset+length)]...)
	}
	tail := s.tail[max(0, len(s.tail)-s.tailCap):]
	tailStart := s.total - uint64(len(tail))
	if end := offset + length; end > tailStart {
		from := max(offset, tailStart)
		data = append(data, tail[from-tailStart:end-tailStart]...)
	}
	return data
}

// Close ends the recording: what is written later is ignored. It closes the spill files and
// returns the first error that kept one from being whole. Twice is fine.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.spillDir != nil {
		_ = r.spillDir.Close()
	}
	var errs []error
	for i := range r.streams {
		s := &r.streams[i]
		if s.file != nil {
			if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
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
