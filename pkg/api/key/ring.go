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
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/interval"
)

// ErrRefused is the one answer to every invalid token: missing, malformed, unknown, expired or removed. A client without a key
// does not learn which of these it is.
var ErrRefused = errors.New("no such key, or it has expired")

// useInterval is the shortest time between two writes of the last uses.
const useInterval = 30 * time.Second

// retryAfter is the time after which a ring reads an unreadable file again, although the file is the same: the directory, or a
// lack of descriptors, may have been the cause.
const retryAfter = time.Second

// Ring is the key set of a running server. It finds keys in memory and reads the file again when it has changed. Its methods may
// be called concurrently.
type Ring struct {
	store *Store
	now   func() time.Time

	mu     sync.Mutex
	keys   map[string]record
	file   fs.FileInfo // the file of the keys; nil without a file
	failed error       // why the file could not be read; the ring then refuses every token
	tried  time.Time   // the last attempt to read the file
	loaded bool
	used   map[string]time.Time // last uses that are not yet written

	stop func() // ends the writes of last uses
	once sync.Once
}

// NewRing returns a ring with the keys of a store. The caller closes it.
func NewRing(s *Store) *Ring {
	r := &Ring{store: s, now: time.Now, used: map[string]time.Time{}}
	r.stop = interval.Start(useInterval, func() { _ = r.flush() }) // last uses may be lost; the next flush tries again
	return r
}

// noHash takes the place of the hash of a missing key, so that the comparison takes as long as for a key that exists.
var noHash = strings.Repeat("0", 64)

// Check returns the key of a token. The error is ErrRefused, or the reason why the ring can check no key.
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
		want = noHash
	}
	if old == "" || !now.Before(rec.Till) {
		old = noHash
	}
	if len(token) > TokenLen {
		token = token[:TokenLen] // the comparison fails anyway; a long token must not cost time
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

// which identifies a secret of a key by the first digits of its hash.
func which(hash string) string { return hash[:min(len(hash), 16)] }

// Len returns the number of keys that are valid now.
func (r *Ring) Len() (int, error) {
	keys, err := r.current()
	n := 0
	for _, rec := range keys {
		if !rec.Expired(r.now()) {
			n++
		}
	}
	return n, err
}

// current returns the keys of the file as it is now. The map is not changed any more.
func (r *Ring) current() (map[string]record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.refresh()
	return r.keys, err
}

// Good reports whether the key with that id exists, has not expired, and still accepts that secret; an empty secret matches any.
func (r *Ring) Good(id, secret string) (bool, error) {
	keys, err := r.current()
	rec, known := keys[id]
	if err != nil || !known || rec.Expired(r.now()) {
		return false, err
	}
	return secret == "" || secret == which(rec.Hash) || secret == which(rec.Old) && r.now().Before(rec.Till), nil
}

// Known returns the number of keys, expired ones included.
func (r *Ring) Known() (int, error) {
	keys, err := r.current()
	return len(keys), err
}

// refresh reads the keys again if the file has changed. One stat per request takes a microsecond; in return the ring refuses a
// removed key at once, without a file watcher. If the file can not be read, the ring has no keys: a key that may have been
// removed admits no request.
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
	// The stat comes before the read: if the file changes in between, the next stat finds a difference.
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

// Close writes the last uses and stops the ring. A second call does nothing.
func (r *Ring) Close() (err error) {
	r.once.Do(func() {
		r.stop()
		err = r.flush()
	})
	return err
}
