package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// settle finds the end of a chain that is not where the head says, and writes down what was amiss.
//
//	a torn last line                       its writer was killed: it is ended, and the chain goes on before it
//	one entry more than the head knows     its writer was killed a moment later: nothing is lost
//	fewer entries than the head knows      they were removed: the chain goes on after them, so that the gap stays
//	anything else                          the head was removed or changed: the chain goes on after the log's last
func (w *writer) settle(known head, spoilt bool) error {
	end, err := endOf(w.file, w.size)
	if err != nil {
		return err
	}
	if !end.found {
		if end.last, end.found, err = w.lastAside(); err != nil {
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
		found.Head = "it held nothing of ours"
	case known.Seq == 0 && end.last.Seq > 1:
		found.Head = "it was missing"
	case end.last.Seq < known.Seq:
		found.MissingFrom, found.MissingTo = end.last.Seq+1, known.Seq
		w.last = link{Seq: known.Seq, Hash: known.Hash}
	case end.last.Seq == known.Seq && end.last.Hash != known.Hash:
		found.Head = fmt.Sprintf("it knew another entry %d than the log has", known.Seq)
	case end.last.Seq > known.Seq+1, end.last.Seq == known.Seq+1 && known.Seq > 0 && end.last.Prev != known.Hash:
		found.Head = fmt.Sprintf("it knew nothing of entries %d to %d", known.Seq+1, end.last.Seq)
	}
	if len(found.Torn) == 0 && found.MissingTo == 0 && found.Head == "" {
		return nil
	}
	return w.append(&Entry{Kind: KindRepaired, Who: Me(""), Repaired: &found})
}

// lastAside is the last entry of the newest file that was moved aside.
func (w *writer) lastAside() (last link, found bool, err error) {
	names, err := asideNames(w.dir, w.log.name)
	if err != nil || len(names) == 0 {
		return link{}, false, err
	}
	f, err := w.dir.Open(names[len(names)-1], userdir.Read)
	if err != nil {
		return link{}, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return link{}, false, err
	}
	end, err := endOf(f, info.Size())
	return end.last, end.found, err
}

// ending is how a file ends.
type ending struct {
	last  link // its last entry
	found bool
	torn  []Torn // lines after it, newest first
	open  bool   // its last line has no newline
}

// endOf reads backwards until it has seen an entry.
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

// endOfText looks at the end of a file; unless that is the whole of it, it begins somewhere in a line.
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
		if err == nil || errors.Is(err, errHash) { // one that was changed still has its place; Verify tells
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
