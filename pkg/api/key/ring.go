package key

import (
	"context"
	"crypto/subtle"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// ErrRefused is the one answer to every token that is not good: missing, malformed, unknown, expired, removed. Which of these it
// was is nobody's business who has no key.
var ErrRefused = errors.New("no such key, or it has expired")

// useInterval is how often what was used is written down, at most.
const useInterval = 30 * time.Second

// retryAfter is when keys that could not be read are tried again, though their file is the same: it may have been its directory, or that
// there were no descriptors left.
const retryAfter = time.Second

// Ring is a Store as a server uses it: keys are looked up in memory, and read again when the file has changed.
type Ring struct {
	store *Store
	now   func() time.Time

	mu     sync.Mutex
	keys   map[string]record
	file   fs.FileInfo // which the keys are of; nil is none
	failed error       // why they could not be read; everything is refused then
	tried  time.Time   // when they were last read, or should have been
	loaded bool
	used   map[string]time.Time // since the last time it was written down

	stop    chan struct{}
	stopped sync.WaitGroup
	once    sync.Once
}

// NewRing begins to serve the keys of a store. The caller closes it.
func NewRing(s *Store) *Ring {
	r := &Ring{store: s, now: time.Now, used: map[string]time.Time{}, stop: make(chan struct{})}
	r.stopped.Add(1)
	go r.writeDown(useInterval)
	return r
}

// nobody is compared with where there is no key, so that it takes as long as where there is one.
var nobody = strings.Repeat("0", 64)

// Check says whose token it is. Its error is ErrRefused, or says why no key can be checked.
func (r *Ring) Check(token string) (Key, error) {
	id, formed := idOf(token)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return Key{}, err
	}
	rec, known := r.keys[id]
	want, old := rec.Hash, rec.Old
	now := r.now()
	if !known {
		want = nobody
	}
	if old == "" || !now.Before(rec.Till) {
		old = nobody
	}
	if len(token) > TokenLen {
		token = token[:TokenLen] // it is refused anyhow; its length must not cost us anything
	}
	got := []byte(hashOf(token))
	equal := subtle.ConstantTimeCompare(got, []byte(want)) | subtle.ConstantTimeCompare(got, []byte(old))
	if equal != 1 || !known || !formed || rec.Expired(now) {
		return Key{}, ErrRefused
	}
	r.used[id] = now.UTC().Truncate(time.Second)
	k := rec.Key
	k.Used, k.Secret = r.used[id], which(string(got))
	return k, nil
}

// which tells secrets of a key apart, by the beginning of their hash.
func which(hash string) string { return hash[:min(len(hash), 16)] }

// Len is how many keys there are that are good now.
func (r *Ring) Len() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return 0, err
	}
	n := 0
	for _, rec := range r.keys {
		if !rec.Expired(r.now()) {
			n++
		}
	}
	return n, nil
}

// Good reports whether there is a key of that id which has not expired, and of which that secret is still good; "" is any.
func (r *Ring) Good(id, secret string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return false, err
	}
	rec, known := r.keys[id]
	if !known || rec.Expired(r.now()) {
		return false, nil
	}
	return secret == "" || secret == which(rec.Hash) || secret == which(rec.Old) && r.now().Before(rec.Till), nil
}

// Known is how many keys there are, those that have expired among them.
func (r *Ring) Known() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return 0, err
	}
	return len(r.keys), nil
}

// refresh reads the keys if the file is another than it was. One look at its name costs a microsecond; in return a key that was
// removed is refused from then on, and nothing has to be watched. Keys that can not be read are none: nobody comes in by a key
// that may have been taken away.
func (r *Ring) refresh() error {
	info, err := os.Stat(r.store.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.keys, r.file, r.failed, r.loaded = nil, nil, nil, true
		return nil
	case err != nil:
		return r.store.failed("read", err)
	case r.loaded && same(r.file, info) && (r.failed == nil || r.now().Sub(r.tried).Abs() < retryAfter):
		return r.failed
	}
	r.tried = r.now()
	doc, err := r.store.read(context.Background(), userdir.Trust)
	// The file is looked at before it is read: should it change in between, the next look finds another one.
	r.file, r.failed, r.keys, r.loaded = info, err, nil, true
	if err != nil {
		return err
	}
	r.keys = make(map[string]record, len(doc.Keys))
	for _, rec := range doc.Keys {
		r.keys[rec.ID] = rec
	}
	return nil
}

func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}

// writeDown writes down what was used, now and then.
func (r *Ring) writeDown(every time.Duration) {
	defer r.stopped.Done()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
			_ = r.flush() // a convenience: the next time, or never
		}
	}
}

func (r *Ring) flush() error {
	r.mu.Lock()
	used := r.used
	r.used = map[string]time.Time{}
	r.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return r.store.writeUsed(context.Background(), used)
}

// Close writes down what was used. Twice is fine.
func (r *Ring) Close() (err error) {
	r.once.Do(func() {
		close(r.stop)
		r.stopped.Wait()
		err = r.flush()
	})
	return err
}
