package audit

import (
	"errors"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Keep bounds the rotated files of a log. A zero field sets no bound.
type Keep struct {
	Size sandbox.Size  // of all files together
	Age  time.Duration // of the newest entry in a file
}

// Pruned identifies the entries that were removed from the beginning of the log on purpose.
type Pruned struct {
	To   uint64 `json:"to"`   // the last removed entry
	Hash string `json:"hash"` // hash of that entry, which the first remaining entry has as Prev
}

// Prune removes the oldest rotated files until the bounds hold, and returns their names. The current file stays. Before it removes
// files, Prune appends an entry with the removed range and the user: a log that begins after that range has lost more than was pruned.
func (l *Log) Prune(k Keep, entry EntryPoint) (removed []string, err error) {
	if k == (Keep{}) {
		return nil, l.failed(errors.New("prune: neither a size nor an age is given; give at least one"))
	}
	err = l.withLock(func(w *writer) error {
		names, last, err := w.outdated(k)
		if err != nil || len(names) == 0 {
			return err
		}
		if err := w.append(&Entry{Kind: KindPruned, Who: Me(entry), Pruned: &Pruned{To: last.Seq, Hash: last.Hash}}); err != nil {
			return err
		}
		for _, name := range names { // oldest first, so that a kill in between leaves one unbroken chain
			if err := w.dir.Remove(name); err != nil {
				return err
			}
			removed = append(removed, name)
		}
		return nil
	})
	return removed, err
}

// outdated returns the rotated files beyond the bounds, oldest first, and the last entry in them.
func (w *writer) outdated(k Keep) (outdated []string, last link, err error) {
	names, err := rotatedNames(w.dir, w.log.name)
	if err != nil {
		return nil, last, err
	}
	type rotated struct {
		name string
		size int64
		last link
	}
	var all []rotated
	total := w.size
	for _, name := range names {
		size, end, err := w.endOfRotated(name)
		if err != nil {
			return nil, last, err
		}
		total += size
		all = append(all, rotated{name, size, end.last})
	}
	for _, a := range all {
		tooMuch := k.Size > 0 && total > int64(k.Size)
		tooOld := k.Age > 0 && time.Since(a.last.Time) > k.Age
		if a.last.Seq == 0 || !tooMuch && !tooOld { // a file without an entry is none of ours
			break
		}
		total -= a.size
		outdated, last = append(outdated, a.name), a.last
	}
	return outdated, last, nil
}
