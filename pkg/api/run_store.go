package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// NewID returns 128 random bits in hexadecimal.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// run is an accepted asynchronous run.
type run struct {
	id       string
	owner    string
	accepted time.Time

	journal *journal
	stop    context.CancelCauseFunc // cancels it; nil once it is over, and for runs of an earlier server
	over    chan struct{}           // closed when the state is done or lost, and on disk
	input   *input                  // nil if clients can not send input
	request *wire.Run               // nil once it is over
	home    *runStore               // that has it
	// unsynced: it is on disk only when it is over.
	unsynced bool
	// Of a cell:
	question *question     // what it asks; nil: it is a run
	started  chan struct{} // closed when it begins, or has failed before
	failure  error         // before it began; read it after started

	mu       sync.Mutex
	record   record
	position int
	expires  time.Time
	size     int64 // on disk
}

// newRun makes a run with its record, which mu guards from now on.
func newRun(c record, j *journal) *run {
	return &run{id: c.ID, owner: c.Principal.ID, accepted: c.Accepted, journal: j, over: make(chan struct{}), record: c}
}

// runStore has the accepted runs, by id and by owner; or the cells of sessions.
type runStore struct {
	store *store // nil: they do not outlive the server
	keep  Keep
	now   func() time.Time

	mu     sync.Mutex
	runs   map[string]*run
	owners map[string]*ownerRuns
	done   []*run // finished, in order of their end
	size   int64  // of finished runs
	open   int    // accepted, and not finished
}

// ownerRuns is the runs of one owner.
type ownerRuns struct {
	runs []*run // in order of acceptance
	done int    // number of finished ones
	size int64  // of finished ones
}

func newRunStore(s *store, k Keep) *runStore {
	return &runStore{store: s, keep: k, now: time.Now, runs: map[string]*run{}, owners: map[string]*ownerRuns{}}
}

// add adds a run, finished or not.
func (g *runStore) add(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.home = g
	g.runs[r.id] = r
	own := g.owners[r.owner]
	if own == nil {
		own = &ownerRuns{}
		g.owners[r.owner] = own
	}
	list := append(own.runs, r)
	// Usually it is the newest.
	for i := len(list) - 1; i > 0 && older(list[i], list[i-1]); i-- {
		list[i], list[i-1] = list[i-1], list[i]
	}
	own.runs = list
	if r.record.State.Over() {
		g.finish(r)
	} else {
		g.open++
	}
}

// finish counts a finished run. mu is held.
func (g *runStore) finish(r *run) {
	g.done = append(g.done, r)
	g.size += r.size
	own := g.owners[r.owner]
	own.done++
	own.size += r.size
}

// older orders runs by acceptance; ids break ties.
func older(a, b *run) bool { return compare(a, b.accepted, b.id) < 0 }

func compare(r *run, at time.Time, id string) int {
	return cmp.Or(r.accepted.Compare(at), strings.Compare(r.id, id))
}

// get returns a run of an owner; nil for runs of other owners.
func (g *runStore) get(owner, id string) *run {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.runs[id]
	if r == nil || r.owner != owner {
		return nil
	}
	return r
}

// unfinished returns the number of accepted runs that are not finished.
func (g *runStore) unfinished() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// list returns a page of an owner's runs, the newest first, from the cursor on.
func (g *runStore) list(owner, cursor string, limit int) (page []*run, next string, err error) {
	at, id, err := readCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []*run
	if own := g.owners[owner]; own != nil {
		list = own.runs
	}
	end := len(list)
	if cursor != "" {
		end, _ = slices.BinarySearchFunc(list, id, func(r *run, id string) int { return compare(r, at, id) })
	}
	for i := end - 1; i >= 0 && len(page) < limit; i-- {
		page = append(page, list[i])
	}
	if end > len(page) {
		last := page[len(page)-1]
		next = base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(last.accepted.UnixNano(), 10) + "." + last.id))
	}
	return page, next, nil
}

// readCursor decodes a cursor: the page begins before the run with that time and id.
func readCursor(cursor string) (at time.Time, id string, err error) {
	if cursor == "" {
		return at, "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	nanos, id, ok := strings.Cut(string(text), ".")
	n, numberErr := strconv.ParseInt(nanos, 10, 64)
	if err != nil || !ok || numberErr != nil {
		return at, "", fmt.Errorf("not a cursor of this server; use the value of next")
	}
	return time.Unix(0, n), id, nil
}

// ended counts a run as finished, and removes runs beyond the bounds.
func (g *runStore) ended(r *run) {
	g.mu.Lock()
	g.open--
	if _, still := g.runs[r.id]; still {
		g.finish(r)
	}
	g.mu.Unlock()
	g.prune()
}

// prune removes expired runs, and beyond the bounds the oldest runs of the owner with the most, so that no owner evicts the runs of
// another.
func (g *runStore) prune() {
	now := g.now()
	for {
		g.mu.Lock()
		var victim *run
		switch {
		case len(g.done) == 0:
		case g.done[0].expires.Before(now):
			victim = g.done[0]
		default:
			victim = g.evictable()
		}
		g.mu.Unlock()
		if victim == nil {
			return
		}
		g.forget(victim)
	}
}

// evictable returns the run to remove because there are too many, or they are too large, in total or of one owner; nil for none. mu is
// held.
func (g *runStore) evictable() *run {
	many, large := len(g.done) > g.keep.Runs, g.size > int64(g.keep.Total)
	var largest string
	most := &ownerRuns{}
	for owner, own := range g.owners {
		switch {
		case own.done > g.keep.RunsPerKey, own.size > int64(g.keep.TotalPerKey):
			return g.oldest(owner)
		case large && own.size > most.size, many && !large && own.done > most.done:
			largest, most = owner, own
		}
	}
	if largest == "" {
		return nil
	}
	return g.oldest(largest)
}

// oldest returns the run of an owner that ended first. mu is held.
func (g *runStore) oldest(owner string) *run {
	for _, r := range g.done {
		if r.owner == owner {
			return r
		}
	}
	return nil
}

// forget removes a finished run. It may be called twice.
func (g *runStore) forget(r *run) {
	g.mu.Lock()
	id, owner := r.id, r.owner
	if g.runs[id] != r {
		g.mu.Unlock()
		return
	}
	delete(g.runs, id)
	own := g.owners[owner]
	if i := slices.Index(own.runs, r); i >= 0 {
		own.runs = slices.Delete(own.runs, i, i+1)
	}
	if i := slices.Index(g.done, r); i >= 0 {
		g.done = slices.Delete(g.done, i, i+1)
		g.size -= r.size
		own.done--
		own.size -= r.size
	}
	if len(own.runs) == 0 {
		delete(g.owners, owner)
	}
	g.mu.Unlock()
	if g.store != nil {
		g.store.forget(id)
	}
	r.journal.forget()
}

// failed returns why a cell has not begun; nil for one that has. It is called after started.
func (r *run) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// forgetGroup removes the finished runs of an owner whose ids begin so.
func (g *runStore) forgetGroup(owner, prefix string) {
	g.mu.Lock()
	var group []*run
	if own := g.owners[owner]; own != nil {
		for _, r := range own.runs {
			if strings.HasPrefix(r.id, prefix) && r.isOver() {
				group = append(group, r)
			}
		}
	}
	g.mu.Unlock()
	for _, r := range group {
		g.forget(r)
	}
}

// info returns a run as its owner sees it, or as lists show it, without its result.
func (r *run) info(whole bool) wire.RunInfo {
	r.mu.Lock()
	info := r.record.info()
	info.Position = r.position
	if info.State.Over() {
		info.Expires = new(r.expires)
	}
	r.mu.Unlock()
	if !whole {
		info.Receipt = nil
		return info
	}
	first, next := r.journal.kept()
	info.Events = &wire.Kept{First: first, Last: next - 1, Dropped: first - 1}
	return info
}

// result opens the document of a finished run; nil if it has none. The caller calls leave to close it.
func (r *run) result() (document *io.SectionReader, leave func(), err error) {
	if c := r.current(); c.State != wire.StateDone || c.Problem != nil {
		return nil, func() {}, nil
	}
	line, err := r.journal.last()
	if err != nil {
		return nil, nil, err
	}
	at := -1
	if line != nil {
		head := make([]byte, min(line.size, 256))
		if _, err := line.ReadAt(head, 0); err == nil || errors.Is(err, io.EOF) {
			at = resultAt(head)
		}
	}
	if at < 0 {
		if line != nil {
			line.reader.close()
		}
		return nil, nil, fmt.Errorf("run %s: the last event is no result", r.id)
	}
	return io.NewSectionReader(line, int64(at), line.size-int64(at+len(resultEnd))), line.reader.close, nil
}
