package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Filter selects entries; a zero field matches every entry.
type Filter struct {
	Since      time.Time // from this moment on
	Until      time.Time // before this one
	Language   string
	Verdict    sandbox.Verdict
	User       string // name or uid
	EntryPoint EntryPoint
	Key        string // id of an API key
	Kind       Kind
}

func (f Filter) match(e *Entry) bool {
	return (f.Since.IsZero() || !e.Time.Before(f.Since)) &&
		(f.Until.IsZero() || e.Time.Before(f.Until)) &&
		(f.Language == "" || strings.EqualFold(f.Language, e.Language)) &&
		(f.Verdict == "" || f.Verdict == e.Verdict) &&
		(f.User == "" || f.User == e.Who.User || f.User == strconv.Itoa(e.Who.UID)) &&
		(f.EntryPoint == "" || f.EntryPoint == e.Who.EntryPoint) &&
		(f.Key == "" || f.Key == e.Who.Key) &&
		(f.Kind == "" || f.Kind == e.Kind)
}

// LineError is a line that could not be read as an entry. Reading goes on after it.
type LineError struct {
	File string
	Line int // from 1; 0 when Tail read it
	Err  error
}

func (e *LineError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: a line: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// Query yields the entries that match a filter, oldest first. A *LineError comes without an entry, and more entries may follow; any
// other error is the last value.
func (l *Log) Query(f Filter) iter.Seq2[Entry, error] {
	return l.read(f, func(s *snapshot) (first int, offsets []int64) { return 0, make([]int64, len(s.pieces)) })
}

// Tail yields the newest n entries, oldest of them first; errors as in Query.
func (l *Log) Tail(n int) iter.Seq2[Entry, error] {
	return l.read(Filter{}, func(s *snapshot) (first int, offsets []int64) {
		first, offsets = len(s.pieces), make([]int64, len(s.pieces))
		for left := n; left > 0 && first > 0; {
			first--
			offset, lines := s.fromEnd(s.pieces[first], left)
			offsets[first] = offset
			left -= lines
		}
		return first, offsets
	})
}

// read yields the entries that match f. begin returns the first piece to read, and the offset in each piece.
func (l *Log) read(f Filter, begin func(s *snapshot) (first int, offsets []int64)) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		s, err := l.snapshot()
		if err != nil {
			yield(Entry{}, l.failed(err))
			return
		}
		defer s.close()
		first, offsets := begin(s)
		for i := first; i < len(s.pieces); i++ {
			p := s.pieces[i]
			if !s.each(p, offsets[i], func(no int, text []byte) bool { return s.yieldLine(p, no, text, f, yield) }) {
				return
			}
		}
		if s.err != nil {
			yield(Entry{}, l.failed(s.err))
		}
	}
}

func (s *snapshot) yieldLine(p piece, no int, text []byte, f Filter, yield func(Entry, error) bool) bool {
	e, err := ParseEntry(text)
	if err != nil {
		return yield(Entry{}, &LineError{File: filepath.Join(s.log.dir, p.name), Line: no, Err: err})
	}
	if !f.match(&e) {
		return true
	}
	e.raw = bytes.Clone(text)
	return yield(e, nil)
}

// snapshot is the log at one moment. Rotated files do not change any more; of the current file only its content at that moment
// counts.
type snapshot struct {
	log    *Log
	dir    *userdir.Dir
	pieces []piece
	head   head
	// headErr is set when there is no usable head; err collects the failures to read.
	headErr, err error
}

type piece struct {
	name string
	file *os.File // of the current file; rotated files are opened when they are read
	size int64
}

func (l *Log) snapshot() (*snapshot, error) {
	s, err := l.snapshotOnce()
	if err != nil || !errors.Is(s.headErr, errHeadMissing) {
		return s, err
	}
	// The log's first writer may have made the head after we looked for it.
	if headFile, err := s.dir.Open(l.headName(), userdir.Read); err == nil {
		_ = headFile.Close()
		s.close()
		return l.snapshotOnce()
	}
	return s, nil
}

// errHeadMissing: the head was removed, or there is no log yet.
var errHeadMissing = errors.New("the head file is missing")

func (l *Log) snapshotOnce() (_ *snapshot, err error) {
	s := &snapshot{log: l}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = userdir.OpenDir(l.dir, userdir.Read); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return s, nil
		}
		return nil, err
	}
	// Without a head there is no lock to take; read the files as they are.
	headFile, err := s.dir.Open(l.headName(), userdir.Read)
	switch {
	case err == nil:
		defer headFile.Close()
		if err := userdir.Lock(headFile, true, l.options.Wait); err != nil {
			return nil, err
		}
		s.head, s.headErr = readHead(headFile)
		if s.headErr != nil && !errors.Is(s.headErr, errHeadSpoilt) {
			return nil, s.headErr
		}
	case errors.Is(err, fs.ErrNotExist):
		s.headErr = errHeadMissing
	default:
		return nil, err
	}
	names, err := rotatedNames(s.dir, l.name)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		s.pieces = append(s.pieces, piece{name: name})
	}
	current, err := s.dir.Open(l.name, userdir.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.pieces = append(s.pieces, piece{name: l.name, file: current})
	info, err := current.Stat()
	if err != nil {
		return nil, err
	}
	s.pieces[len(s.pieces)-1].size = info.Size()
	return s, nil
}

func (s *snapshot) close() {
	for _, p := range s.pieces {
		if p.file != nil {
			_ = p.file.Close()
		}
	}
	if s.dir != nil {
		_ = s.dir.Close()
	}
}

// rotatedNames returns the names of the rotated files, oldest first.
func rotatedNames(dir *userdir.Dir, name string) ([]string, error) {
	names, err := dir.Names()
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		number, ok := strings.CutPrefix(n, name+".")
		return !ok || len(number) != rotatedDigits || strings.Trim(number, "0123456789") != ""
	})
	slices.Sort(names)
	return names, nil
}

// with calls use with a piece's open file.
func (s *snapshot) with(p piece, use func(f *os.File, size int64)) {
	if p.file != nil {
		use(p.file, p.size)
		return
	}
	f, err := s.dir.Open(p.name, userdir.Read)
	if err != nil {
		s.err = errors.Join(s.err, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		s.err = errors.Join(s.err, err)
		return
	}
	use(f, info.Size())
}

// each calls handle for every line from an offset on, without its newline; a line longer than maxLine is cut. Lines are numbered only
// when reading starts at the beginning of the file. It returns false when handle does.
func (s *snapshot) each(p piece, offset int64, handle func(no int, text []byte) bool) (more bool) {
	more = true
	s.with(p, func(f *os.File, size int64) {
		r := bufio.NewReaderSize(io.NewSectionReader(f, offset, size-offset), 64<<10)
		for no := 1; more; no++ {
			text, err := readLine(r)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					s.err = errors.Join(s.err, fmt.Errorf("read %s: %w", f.Name(), cause(err)))
				}
				return
			}
			count := no
			if offset > 0 {
				count = 0
			}
			more = handle(count, text)
		}
	})
	return more
}

// readLine reads one line and keeps at most maxLine+1 bytes of it. io.EOF means that there is no line.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if room := maxLine + 1 - len(line); room > 0 {
			line = append(line, part[:min(len(part), room)]...)
		}
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		default:
			return nil, err
		}
	}
}

// fromEnd returns the offset at which the last n lines of a piece begin, and how many lines there are from it on.
func (s *snapshot) fromEnd(p piece, n int) (offset int64, lines int) {
	s.with(p, func(f *os.File, size int64) {
		buf := make([]byte, 64<<10)
		for at := size; at > 0; {
			step := min(at, int64(len(buf)))
			at -= step
			if _, err := f.ReadAt(buf[:step], at); err != nil && !errors.Is(err, io.EOF) {
				s.err = errors.Join(s.err, fmt.Errorf("read %s: %w", f.Name(), cause(err)))
				return
			}
			for i := step - 1; i >= 0; i-- {
				if buf[i] != '\n' || at+i == size-1 {
					continue
				}
				if lines++; lines == n {
					offset = at + i + 1
					return
				}
			}
		}
		if size > 0 {
			lines++
		}
	})
	return offset, lines
}
