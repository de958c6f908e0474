package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// journal keeps the events of one run as lines numbered 1, 2, 3 …: in memory while they are few, then in files; of very many, only the
// newest. Readers start at any line, while it grows and afterwards.
//
//	segment 0 (in memory, then a file) │ segment 1 │ … │ segment n ◄── append
//	  ▲ dropped when there are too many bytes, after all current readers have read it: append waits for them
type journal struct {
	dir     *userdir.Dir
	name    string // segments are called name.e0, name.e1, …
	memory  int    // bytes of segment 0 before it becomes a file
	most    int64  // bytes to keep
	segment int64  // bytes of a segment, but for a longer line

	mu       sync.Mutex
	segments []*segment // oldest first; never empty
	made     int        // segments so far
	next     uint64     // number of the next line
	size     int64
	out      *os.File // the last segment, where it is a file
	closed   bool     // no line will follow
	hidden   uint64   // lines at the end that readers see only after end
	ended    bool     // readers see the end
	broken   error    // why there are no files: the newest lines are kept in memory, up to its bound
	readers  map[*reader]struct{}
	changed  chan struct{} // closed when a line is added or a reader advances, if waiting is set
	waiting  bool
}

// segment is a range of lines: in memory, or in a file from base on. Its content never changes; it only grows.
type segment struct {
	first uint64
	count uint64
	size  int64
	data  []byte // nil: in the file
	file  string
	base  int64
}

func (s *segment) end() uint64 { return s.first + s.count }

// segmentShare is the number of segments: each has an eighth of the bytes to keep, so that an eighth is dropped at a time.
const segmentShare = 8

func newJournal(dir *userdir.Dir, name string, k *Keep) *journal {
	most := int64(k.Events)
	return &journal{
		dir: dir, name: name, memory: int(k.Memory), most: most, segment: max(most/segmentShare, 1),
		segments: []*segment{{first: 1, data: []byte{}}}, made: 1, next: 1, readers: map[*reader]struct{}{}, changed: make(chan struct{}),
	}
}

// openJournal returns the journal of a finished run, with the segments of its record.
func openJournal(dir *userdir.Dir, name string, segments []*segment) *journal {
	j := &journal{
		dir: dir, name: name, segments: segments, made: len(segments), next: 1, closed: true, ended: true,
		readers: map[*reader]struct{}{}, changed: make(chan struct{}),
	}
	if len(segments) == 0 {
		j.segments = []*segment{{first: 1, data: []byte{}}}
	}
	j.next = j.segments[len(j.segments)-1].end()
	for _, s := range segments {
		j.size += s.size
	}
	return j
}

// wake wakes waiting goroutines. mu is held.
func (j *journal) wake() {
	if j.waiting {
		close(j.changed)
		j.changed, j.waiting = make(chan struct{}), false
	}
}

// wait releases mu until something changes or ctx ends. mu is held.
func (j *journal) wait(ctx context.Context) error {
	j.waiting = true
	changed := j.changed
	j.mu.Unlock()
	defer j.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// append adds a line, with its newline. It blocks for readers that would miss lines, until ctx ends: then they get a gap.
func (j *journal) append(ctx context.Context, line []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return // events may arrive after the run was cancelled
	}
	j.add(line)
	j.trim(ctx)
}

// add adds a line. mu is held.
func (j *journal) add(line []byte) {
	last := j.segments[len(j.segments)-1]
	if j.broken == nil {
		if err := j.prepare(last, len(line)); err != nil {
			j.fail(err)
		}
	}
	if j.broken != nil && len(j.segments[len(j.segments)-1].data)+len(line) > j.memory {
		j.restart()
	}
	last = j.segments[len(j.segments)-1]
	if j.out != nil {
		if _, err := j.out.WriteAt(line, last.size); err != nil {
			j.fail(err)
			last = j.segments[0]
		}
	}
	if j.out == nil {
		last.data = append(last.data, line...)
	}
	last.size += int64(len(line))
	last.count++
	j.next++
	j.size += int64(len(line))
	j.wake()
}

// close adds the last line, if there is one. Readers see neither it nor the end before end is called, so that a result is stored before a
// client sees it. The error means that the line could not be kept.
func (j *journal) close(last func(seq uint64) *resultLine) (err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	if last != nil {
		if err = j.addLast(last(j.next)); err == nil {
			j.hidden = 1
		}
	}
	j.closed = true
	if j.out != nil {
		_ = j.out.Close()
		j.out = nil
	}
	return err
}

// addLast adds a line that may be large: a large one is encoded directly to a file, or not kept. mu is held.
func (j *journal) addLast(line *resultLine) error {
	size := line.size()
	if size <= max(int64(j.memory), chunk) {
		var b bytes.Buffer
		if _, err := line.WriteTo(&b); err != nil {
			return err
		}
		j.add(b.Bytes())
		return nil
	}
	if j.broken == nil {
		if err := j.prepare(j.segments[len(j.segments)-1], int(size)); err != nil {
			j.fail(err)
		}
	}
	if j.broken != nil {
		return j.broken
	}
	last := j.segments[len(j.segments)-1]
	if _, err := line.WriteTo(io.NewOffsetWriter(j.out, last.size)); err != nil {
		_ = j.out.Truncate(last.size)
		return err
	}
	last.size += size
	last.count++
	j.next++
	j.size += size
	return nil
}

// prepare makes room for a line: segment 0 becomes a file when it exceeds the memory, and a full segment is followed by another.
func (j *journal) prepare(last *segment, length int) error {
	switch {
	case j.out == nil && len(last.data)+length > j.memory:
		out, err := j.create(last)
		if err != nil {
			return err
		}
		if _, err := out.WriteAt(last.data, 0); err != nil {
			_ = out.Close()
			return err
		}
		j.out, last.data = out, nil
	case j.out != nil && last.size > 0 && last.size+int64(length) > j.segment:
		next := &segment{first: j.next}
		out, err := j.create(next)
		if err != nil {
			return err
		}
		_ = j.out.Close() // finish syncs the file by its name
		j.out = out
		j.segments = append(j.segments, next)
		j.made++
	}
	return nil
}

func (j *journal) create(s *segment) (*os.File, error) {
	number := j.made
	if s == j.segments[0] {
		number = 0
	}
	s.file = segmentName(j.name, number)
	return j.dir.Open(s.file, userdir.Write)
}

func segmentName(name string, n int) string { return fmt.Sprintf("%s.e%d", name, n) }

// fail continues without files. Their lines are lost, and readers get a gap.
func (j *journal) fail(err error) {
	j.broken = err
	if j.out != nil {
		_ = j.out.Close()
		j.out = nil
	}
	j.removeFiles()
	if j.segments[0].data != nil && len(j.segments) == 1 {
		j.segments[0].file = "" // its lines are still in memory
		return
	}
	j.restart()
}

func (j *journal) removeFiles() {
	for _, s := range j.segments {
		if s.file != "" {
			_ = j.dir.Remove(s.file)
		}
	}
}

// restart drops all lines so far.
func (j *journal) restart() {
	j.segments, j.size = []*segment{{first: j.next, data: []byte{}}}, 0
}

// trim drops the oldest segments beyond the bound.
func (j *journal) trim(ctx context.Context) {
	for j.size > j.most && len(j.segments) > 1 {
		oldest := j.segments[0]
		for j.behind(oldest.end()) && len(j.segments) > 0 && j.segments[0] == oldest {
			if j.wait(ctx) != nil {
				break
			}
		}
		if len(j.segments) < 2 || j.segments[0] != oldest {
			return // another goroutine dropped it meanwhile
		}
		j.segments = j.segments[1:]
		j.size -= oldest.size
		_ = j.dir.Remove(oldest.file) // a file that stays is removed with the run
	}
}

// behind reports whether a reader has not read all lines before that one.
func (j *journal) behind(line uint64) bool {
	for r := range j.readers {
		if r.next < line {
			return true
		}
	}
	return false
}

// end shows all lines and the end to readers, after close. It may be called twice.
func (j *journal) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended, j.hidden = true, 0
	j.wake()
}

// kept returns the range of lines: from first up to, not including, next.
func (j *journal) kept() (first, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.segments[0].first, j.next - j.hidden
}

// finalSegments returns the segments after close. memory is the content of a journal without files, which the caller writes to the record;
// otherwise it is nil, and with sync set the files are synced.
func (j *journal) finalSegments(sync bool) (memory []byte, segments []*segment, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.segments[0].data != nil {
		return j.segments[0].data, slices.Clone(j.segments), nil
	}
	if sync {
		for _, s := range j.segments {
			if err := syncFile(j.dir, s.file); err != nil {
				return nil, nil, err
			}
		}
	}
	return nil, slices.Clone(j.segments), nil
}

func syncFile(dir *userdir.Dir, name string) error {
	f, err := dir.Open(name, userdir.Read)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// setFile records that the lines in memory are now in a file, from base on.
func (j *journal) setFile(file string, base int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := *j.segments[0]
	s.data, s.file, s.base = nil, file, base
	j.segments[0] = &s // readers keep the old one with its data
}

// bytes returns the size of all lines.
func (j *journal) bytes() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// forget removes the files. Current readers have theirs open, or get a gap.
func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.removeFiles()
	j.restart()
	j.closed, j.ended, j.hidden = true, true, 0
	j.wake()
}

// gap reports lines that are no longer kept.
type gap struct{ from, to uint64 }

func (g *gap) Error() string {
	return fmt.Sprintf("events %d to %d are no longer kept", g.from, g.to)
}

// reader is a position in a journal. One goroutine uses it and closes it.
type reader struct {
	j    *journal
	next uint64 // guarded by j.mu: append reads it

	seg    *segment
	off    int64
	size   int64 // of seg, as far as it is known
	file   *os.File
	buf    []byte
	within bool // a line was read in part
}

// portion is the result of a read: whole lines, or a part of one.
type portion struct {
	first     uint64 // number of the first line
	data      []byte // valid until the next call
	continued bool   // it begins within a line
	open      bool   // it ends within one
}

// newReader returns a reader at the line of that number; 0 and 1 mean the first.
func (j *journal) newReader(line uint64) *reader {
	r := &reader{j: j, next: max(line, 1)}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.ended {
		j.readers[r] = struct{}{}
	}
	return r
}

func (r *reader) close() {
	r.j.mu.Lock()
	delete(r.j.readers, r)
	r.j.wake()
	r.j.mu.Unlock()
	r.closeSegment()
}

// closeSegment closes the segment's file.
func (r *reader) closeSegment() {
	if r.file != nil {
		_ = r.file.Close()
	}
	r.seg, r.file, r.off = nil, nil, 0
}

// chunk is the size of one read, except for longer lines in memory.
const chunk = 64 << 10

// readMore blocks for the next lines and returns them. A line longer than a chunk comes in consecutive parts. The error is io.EOF at the
// end, a *gap where lines are missing (the next call returns those after them), or that of ctx.
func (r *reader) readMore(ctx context.Context) (p portion, err error) {
	for {
		var seg *segment
		var pass uint64
		if !r.within { // the rest of a line is in the open file, even if the segment was dropped meanwhile
			if seg, r.size, pass, err = r.nextSegment(ctx); err != nil {
				return p, err
			}
		} else {
			seg = r.seg
		}
		p = portion{first: r.next, continued: r.within}
		p.data, err = r.read(seg, pass)
		if errors.Is(err, os.ErrNotExist) {
			r.closeSegment() // the segment was dropped meanwhile
			continue
		}
		if err != nil {
			return p, err
		}
		p.open = p.data[len(p.data)-1] != '\n'
		r.within = p.open
		r.j.mu.Lock()
		r.next += uint64(bytes.Count(p.data, []byte("\n")))
		r.j.wake()
		r.j.mu.Unlock()
		return p, nil
	}
}

// nextSegment finds the segment of the next line and its size. It blocks until there is one.
func (r *reader) nextSegment(ctx context.Context) (seg *segment, size int64, count uint64, err error) {
	j := r.j
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		if oldest := j.segments[0]; r.next < oldest.first {
			g := &gap{r.next, oldest.first - 1}
			r.next = oldest.first
			r.closeSegment()
			return nil, 0, 0, g
		}
		if r.next < j.next-j.hidden {
			break
		}
		if j.ended {
			return nil, 0, 0, io.EOF
		}
		if err := j.wait(ctx); err != nil {
			return nil, 0, 0, err
		}
	}
	i := len(j.segments) - 1
	for j.segments[i].first > r.next {
		i--
	}
	seg = j.segments[i]
	if r.seg != nil && r.seg.first == seg.first {
		// After the move from memory to a file, lines have the same offset from base on.
		if r.seg != seg {
			at := r.off
			r.closeSegment()
			r.seg, r.off = seg, at
		}
		return seg, seg.size, 0, nil
	}
	r.closeSegment()
	r.seg = seg
	return seg, seg.size, r.next - seg.first, nil
}

// read returns whole lines of a segment, or a part of a long one, after skipping pass lines.
func (r *reader) read(seg *segment, pass uint64) ([]byte, error) {
	r.j.mu.Lock()
	data := seg.data
	r.j.mu.Unlock()
	if data == nil && r.file == nil {
		var err error
		if r.file, err = r.j.dir.Open(seg.file, userdir.Read); err != nil {
			return nil, err
		}
	}
	for {
		window, err := r.window(data, seg.base)
		if err != nil {
			return nil, err
		}
		for pass > 0 && len(window) > 0 {
			at := bytes.IndexByte(window, '\n')
			if at < 0 {
				r.off += int64(len(window))
				window = nil
				break
			}
			window = window[at+1:]
			r.off += int64(at + 1)
			pass--
		}
		if pass == 0 && len(window) > 0 {
			r.off += int64(len(window))
			return window, nil
		}
		if r.off >= r.size {
			return nil, fmt.Errorf("journal %s: fewer lines than its record says", seg.file)
		}
	}
}

// window returns the next bytes of the segment: whole lines from memory; from a file at most a chunk, up to the end of a line if it has
// one.
func (r *reader) window(data []byte, base int64) ([]byte, error) {
	if data != nil {
		rest := data[r.off:min(r.size, int64(len(data)))]
		if len(rest) <= chunk {
			return rest, nil
		}
		if at := bytes.LastIndexByte(rest[:chunk], '\n'); at >= 0 {
			return rest[:at+1], nil
		}
		return rest[:bytes.IndexByte(rest, '\n')+1], nil
	}
	if r.buf == nil {
		r.buf = make([]byte, chunk)
	}
	buf := r.buf[:min(chunk, r.size-r.off)]
	if _, err := r.file.ReadAt(buf, base+r.off); err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte
	if r.within {
		end = bytes.IndexByte // return the rest of a line alone: a message or a server-sent event ends with it
	}
	if at := end(buf, '\n'); at >= 0 {
		return buf[:at+1], nil
	}
	if r.off+int64(len(buf)) == r.size {
		return nil, io.ErrUnexpectedEOF // the last line must be complete
	}
	return buf, nil
}

// last opens the last line; nil if there is none. The caller closes its reader.
func (j *journal) last() (line *lastLine, err error) {
	first, next := j.kept()
	if next == first {
		return nil, nil
	}
	r := j.newReader(next - 1)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	p, err := r.readMore(over)
	if err != nil {
		r.close()
		return nil, err
	}
	if r.file == nil { // data in memory does not change
		return &lastLine{bytes.NewReader(p.data), int64(len(p.data)), r}, nil
	}
	start := r.off - int64(len(p.data))
	return &lastLine{io.NewSectionReader(r.file, r.seg.base+start, r.size-start), r.size - start, r}, nil
}

// lastLine is the last line of a journal, with its newline.
type lastLine struct {
	io.ReaderAt
	size   int64
	reader *reader
}
