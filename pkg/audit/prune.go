package audit

import (
	"errors"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Keep says what of a log's older files stays. A zero field sets no bound.
type Keep struct {
	Size sandbox.Size  // of all files together
	Age  time.Duration // of the newest entry in a file
}

// Pruned says which entries were removed from the beginning of the log, on purpose.
type Pruned struct {
	To   uint64 `json:"to"`   // the last of them
	Hash string `json:"hash"` // its own, which the first entry that is left remembers
}

// Prune removes the oldest of those files that were moved aside, as many as it takes, and returns their names. The current file
// stays. An entry says first what is removed, and by whom: a log that begins later than that has lost more than was pruned.
func (l *Log) Prune(k Keep, door Door) (removed []string, err error) {
	if k == (Keep{}) {
		return nil, l.failed(errors.New("neither a size nor an age is given: everything is kept"))
	}
	err = l.alone(func(w *writer) error {
		names, last, err := w.outdated(k)
		if err != nil || len(names) == 0 {
			return err
		}
		if err := w.append(&Entry{Kind: KindPruned, Who: Me(door), Pruned: &Pruned{To: last.Seq, Hash: last.Hash}}); err != nil {
			return err
		}
		for _, name := range names { // oldest first: whenever we are killed, what is left is one piece
			if err := w.dir.Remove(name); err != nil {
				return err
			}
			removed = append(removed, name)
		}
		return nil
	})
	return removed, err
}

// outdated lists the files that are not to be kept, oldest first, with the last entry in them.
func (w *writer) outdated(k Keep) (outdated []string, last link, err error) {
	names, err := asideNames(w.dir, w.log.name)
	if err != nil {
		return nil, last, err
	}
	type aside struct {
		name string
		size int64
		last link
	}
	var all []aside
	total := w.size
	for _, name := range names {
		f, err := w.dir.Open(name, userdir.Read)
		if err != nil {
			return nil, last, err
		}
		a := aside{name: name}
		info, err := f.Stat()
		if err == nil {
			a.size = info.Size()
			var end ending
			end, err = endOf(f, a.size)
			a.last = end.last
		}
		_ = f.Close()
		if err != nil {
			return nil, last, err
		}
		total += a.size
		all = append(all, a)
	}
	for _, a := range all {
		tooMuch := k.Size > 0 && total > int64(k.Size)
		tooOld := k.Age > 0 && time.Since(a.last.Time) > k.Age
		if a.last.Seq == 0 || !tooMuch && !tooOld { // one without an entry is nothing of ours
			break
		}
		total -= a.size
		outdated, last = append(outdated, a.name), a.last
	}
	return outdated, last, nil
}
