package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// repairLog finds the end of a chain that differs from the head, and appends an entry about the damage.
//
//	a torn last line                       its writer was killed: the line is ended, and the chain continues before it
//	one entry more than the head           its writer was killed before it wrote the head: the head is written now, so that it never
//	                                       lacks two
//	fewer entries than the head            they were removed: the chain continues after them, so that the gap stays
//	anything else                          the head was removed or changed: the chain continues after the log's last entry
func (w *writer) repairLog(known head, spoilt bool) error {
	end, err := endOf(w.file, w.size)
	if err != nil {
		return err
	}
	if !end.found {
		if end.last, end.found, err = w.lastRotated(); err != nil {
			return err
		}
	}
	if end.open {
		w.lead = "\n"
	}
	w.last = end.last

	found := Repaired{Torn: end.torn}
	switch {
	case spoilt:
		found.Head = "it had no valid record"
	case known.Seq == 0 && end.last.Seq > 1:
		found.Head = "it was missing"
	case end.last.Seq < known.Seq:
		found.MissingFrom, found.MissingTo = end.last.Seq+1, known.Seq
		w.last = link{Seq: known.Seq, Hash: known.Hash}
	case end.last.Seq == known.Seq && end.last.Hash != known.Hash:
		found.Head = fmt.Sprintf("its entry %d differs from the log's", known.Seq)
	case end.last.Seq > known.Seq+1, end.last.Seq == known.Seq+1 && known.Seq > 0 && end.last.Prev != known.Hash:
		found.Head = fmt.Sprintf("it lacked entries %d to %d", known.Seq+1, end.last.Seq)
	}
	if len(found.Torn) == 0 && found.MissingTo == 0 && found.Head == "" {
		if end.last.Seq == known.Seq {
			return nil
		}
		size := w.size
		if end.open {
			size = -1 // the next writer must look again: it ends the line
		}
		return writeHead(w.headFile, head{Seq: end.last.Seq, Hash: end.last.Hash, Size: size})
	}
	return w.append(&Entry{Kind: KindRepaired, Who: Me(""), Repaired: &found})
}

// lastRotated returns the last entry of the newest rotated file.
func (w *writer) lastRotated() (last link, found bool, err error) {
	names, err := rotatedNames(w.dir, w.log.name)
	if err != nil || len(names) == 0 {
		return link{}, false, err
	}
	_, end, err := w.endOfRotated(names[len(names)-1])
	return end.last, end.found, err
}

// endOfRotated returns the size and the end of a rotated file.
func (w *writer) endOfRotated(name string) (size int64, end ending, err error) {
	f, err := w.dir.Open(name, userdir.Read)
	if err != nil {
		return 0, end, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, end, err
	}
	end, err = endOf(f, info.Size())
	return info.Size(), end, err
}

// ending describes the end of a file.
type ending struct {
	last  link // its last entry
	found bool
	torn  []Torn // lines after it, newest first
	open  bool   // its last line has no newline
}

// endOf reads backwards until it has found an entry, but no more than three lines of the maximum length.
func endOf(f *os.File, size int64) (ending, error) {
	const enough = 3 * maxLine
	for window := int64(64 << 10); ; window *= 8 {
		window = min(window, size, enough)
		text := make([]byte, window)
		if _, err := f.ReadAt(text, size-window); err != nil && !errors.Is(err, io.EOF) {
			return ending{}, fmt.Errorf("read %s: %w", f.Name(), cause(err))
		}
		e := endOfText(text, window == size)
		if e.found || window == size || window == enough {
			return e, nil
		}
	}
}

// endOfText finds the last entry in the text at the end of a file. Unless whole is set, the text begins within a line.
func endOfText(text []byte, whole bool) (e ending) {
	if len(text) == 0 {
		return e
	}
	e.open = text[len(text)-1] != '\n'
	text = bytes.TrimSuffix(text, []byte("\n"))
	for more := true; more; {
		start := bytes.LastIndexByte(text, '\n') + 1
		if start == 0 && !whole {
			break
		}
		l, err := parseLink(text[start:])
		if err == nil || errors.Is(err, errHash) { // a changed entry still has its place; Verify reports it
			e.last, e.found = l, true
			break
		}
		if len(e.torn) < maxTorn {
			e.torn = append(e.torn, tornLine(text[start:]))
		}
		more = start > 0
		text = text[:max(start-1, 0)]
	}
	return e
}
