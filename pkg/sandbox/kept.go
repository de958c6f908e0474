package sandbox

import (
	"bytes"
	"errors"
	"io"
)

// OutputMemory is the most bytes in memory for one stream of a run that has an OutputSpace.
const OutputMemory = MiB

// Bytes for the spill file are collected up to spillBuffer, and its space is reserved in steps of spillStep.
const (
	spillBuffer = 64 << 10
	spillStep   = uint64(MiB)
)

// kept is the kept part of one stream: its first bytes (the head) and its last (the tail). Every kept byte has an
// address: in the head its position in the stream, after the head a place in a ring. Addresses below most are in memory,
// the others in a spill file.
//
//	address  0 ───────── most ───── head ────────────── head+tail
//	         memory      │ spill file │ ring for the tail
//
// Until the ring is full, address and position are equal. Therefore the layout can still be cut to a smaller one when no
// more space is available: the present bytes become a head and a full ring.
type kept struct {
	head, tail uint64 // sizes of the two parts
	most       uint64
	total      uint64 // bytes that were written
	memory     []byte
	space      *OutputSpace // nil: most is head+tail
	file       *spillFile   // nil: everything is in memory
	buffer     []byte       // the next bytes of the file, at address bufferAt
	bufferAt   uint64
	short      bool // less is kept than was asked for
}

func (k *kept) init(keep Size, space *OutputSpace) {
	k.resize(uint64(keep))
	k.most = uint64(keep)
	if space != nil {
		k.space, k.most = space, min(k.most, uint64(OutputMemory-spillBuffer))
	}
}

// resize divides this number of bytes into head and tail.
func (k *kept) resize(keep uint64) {
	k.head = (keep + 1) / 2
	k.tail = keep - k.head
}

// linear reports whether the ring is not full yet: address and position are equal.
func (k *kept) linear() bool { return k.total <= k.head+k.tail }

// dropped counts the bytes between head and tail.
func (k *kept) dropped() uint64 { return k.total - min(k.total, k.head+k.tail) }

func (k *kept) write(data []byte) {
	for len(data) > 0 {
		at, room := k.total, k.head-min(k.total, k.head)
		if room == 0 {
			if k.tail == 0 {
				k.total += uint64(len(data))
				return
			}
			if skip := len(data) - int(k.tail); skip > 0 && k.file == nil && !k.linear() {
				k.total += uint64(skip) // the following bytes would overwrite these
				data = data[skip:]
			}
			at = k.head + (k.total-k.head)%k.tail
			room = k.head + k.tail - at
		}
		part := data[:min(room, uint64(len(data)))]
		if at < k.most {
			part = part[:min(k.most-at, uint64(len(part)))]
			k.remember(at, part)
		} else if part = k.spill(at, part); part == nil {
			continue // the layout has changed
		}
		k.total += uint64(len(part))
		data = data[len(part):]
	}
}

func (k *kept) remember(at uint64, data []byte) {
	n := copy(k.memory[at:], data)
	if data = data[n:]; len(data) == 0 {
		return
	}
	if need := len(k.memory) + len(data); need > cap(k.memory) {
		size := min(max(uint64(2*cap(k.memory)), uint64(need), 512), max(k.most, uint64(need)))
		k.memory = append(make([]byte, 0, size), k.memory...)
	}
	k.memory = append(k.memory, data...)
}

// spill puts data, or the part of it that it returns, into the file. It returns nil after a change of the layout.
func (k *kept) spill(at uint64, data []byte) []byte {
	if k.file == nil {
		if k.file = k.space.open(); k.file == nil {
			k.shrink(at)
			return nil
		}
		k.buffer = make([]byte, 0, spillBuffer)
	}
	room := k.most + k.file.size - min(k.most+k.file.size, at)
	if room == 0 {
		if !k.file.grow(min(spillStep, k.head+k.tail-at)) {
			if k.flush() {
				k.shrink(at)
			}
			return nil
		}
		return nil
	}
	if at != k.bufferAt+uint64(len(k.buffer)) || len(k.buffer) == cap(k.buffer) {
		if !k.flush() {
			return nil
		}
		k.bufferAt = at
	}
	data = data[:min(room, uint64(len(data)), uint64(cap(k.buffer)-len(k.buffer)))]
	k.buffer = append(k.buffer, data...)
	return data
}

// flush writes the buffer to the file. If that fails, it keeps less and returns false.
func (k *kept) flush() bool {
	if len(k.buffer) == 0 {
		return true
	}
	_, err := k.file.WriteAt(k.buffer, int64(k.bufferAt-k.most))
	if err == nil {
		k.buffer = k.buffer[:0]
		return true
	}
	lost, at := bytes.Clone(k.buffer), k.bufferAt
	k.buffer, k.short = k.buffer[:0], true
	if k.linear() {
		k.shrink(at)
		k.total = at
		k.write(lost)
		return false
	}
	// The file's part of head and tail is not reliable any more.
	k.head, k.tail = min(k.head, k.most), 0
	k.close()
	return false
}

// shrink keeps only the bytes below an address; all of them are present.
func (k *kept) shrink(at uint64) {
	k.short = true
	k.resize(at)
}

// close releases the file.
func (k *kept) close() {
	if k.file != nil {
		k.file.release()
		k.file, k.buffer = nil, nil
	}
}

// ranges are the addresses of the kept bytes in order of the stream; the first is the head.
func (k *kept) ranges() [][2]uint64 {
	head := [2]uint64{0, min(k.total, k.head)}
	if k.linear() {
		return [][2]uint64{head, {head[1], k.total}}
	}
	if k.tail == 0 {
		return [][2]uint64{head}
	}
	start := k.head + (k.total-k.head)%k.tail
	return [][2]uint64{head, {start, k.head + k.tail}, {k.head, start}}
}

// length counts the kept bytes.
func (k *kept) length() uint64 { return k.total - k.dropped() }

// writeTo writes the kept bytes from number skip on. The buffer must have been flushed.
func (k *kept) writeTo(w io.Writer, skip uint64) error {
	for _, r := range k.ranges() {
		at, end := r[0], r[1]
		jump := min(skip, end-at)
		skip -= jump
		if at += jump; at < end && at < k.most {
			upTo := min(end, k.most)
			if _, err := w.Write(k.memory[at:upTo]); err != nil {
				return err
			}
			at = upTo
		}
		if at < end {
			in := io.NewSectionReader(k.file, int64(at-k.most), int64(end-at))
			if n, err := io.CopyBuffer(struct{ io.Writer }{w}, in, make([]byte, min(end-at, 32<<10))); err != nil {
				return err
			} else if uint64(n) < end-at {
				return io.ErrUnexpectedEOF
			}
		}
	}
	return nil
}

// output returns the kept part. With handOver, the caller writes nothing more, and memory and file belong to the output;
// otherwise output copies everything.
func (k *kept) output(handOver bool) Output {
	for !k.flush() {
	}
	o := Output{Total: k.total, Dropped: k.dropped()}
	switch {
	case k.file == nil || !handOver:
		var whole bytes.Buffer
		text := k.memory[:min(uint64(len(k.memory)), k.length())]
		if !handOver || len(k.ranges()) > 2 {
			_ = k.writeTo(&whole, 0) // bytes of an unreadable file are left out
			text = whole.Bytes()
		}
		n := min(k.head, uint64(len(text)))
		if o.Head = text[:n:n]; len(text) > int(n) {
			o.Tail = text[n:]
		}
	default:
		own := *k // so that the output does not keep the recorder in memory
		own.buffer = nil
		o.Head, o.kept = k.memory[:min(k.most, k.head)], &own
	}
	return o
}

// Len is the number of kept bytes, in memory and in a spill file.
func (o Output) Len() int64 { return int64(o.Total - o.Dropped) }

// HeadLen is the number of kept bytes before the dropped ones.
func (o Output) HeadLen() int64 {
	if o.kept != nil {
		return int64(min(o.kept.head, o.kept.total))
	}
	return int64(len(o.Head))
}

// WriteTo writes the kept output, head and tail joined, without holding it in memory.
func (o Output) WriteTo(w io.Writer) (int64, error) {
	counted := &countingWriter{to: w}
	err := o.writeTo(counted, 0)
	return counted.n, err
}

func (o Output) writeTo(w io.Writer, skip uint64) error {
	if o.kept == nil {
		for _, part := range [][]byte{o.Head, o.Tail} {
			n := min(skip, uint64(len(part)))
			skip -= n
			if part = part[n:]; len(part) > 0 {
				if _, err := w.Write(part); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if o.kept.file == nil {
		return &Error{Op: "output", Kind: ErrState, Err: errors.New("it was closed")}
	}
	return o.kept.writeTo(w, skip)
}

// Edges returns at most this many bytes of the kept output: its first and its last, or all of it.
func (o Output) Edges(most Size) []byte {
	if o.Len() <= int64(most) {
		return o.Bytes()
	}
	half := min(uint64(most)/2, uint64(len(o.Head)))
	b := bytes.NewBuffer(append(make([]byte, 0, most), o.Head[:half]...))
	_ = o.writeTo(b, uint64(o.Len())-(uint64(most)-half)) // unreadable bytes are left out
	return b.Bytes()
}

// Close removes the spill file, if there is one, and returns its space. The output can not be read afterwards or
// concurrently: the caller orders the calls. Close may be called twice.
func (o Output) Close() {
	if o.kept != nil {
		o.kept.close()
	}
}

type countingWriter struct {
	to io.Writer
	n  int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}
