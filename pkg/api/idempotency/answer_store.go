package idempotency

import (
	"cmp"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// HeaderReplayed marks an answer that was given before.
const HeaderReplayed = "Idempotency-Replayed"

// Options configures an AnswerStore. A zero field means the default.
type Options struct {
	For      time.Duration // how long answers are kept; default 1 h
	Keys     int           // how many, in all; default 10,000
	PerOwner int           // by one owner; default a quarter of Keys
	Memory   sandbox.Size  // of all answers; default 64 MiB
	OfOwner  sandbox.Size  // of one owner's answers; default half of Memory
	Answer   sandbox.Size  // of one; default 8 MiB
	Waiting  int           // requests that wait for one answer at a time; default 16
}

// AnswerStore stores answers by idempotency key. Make one with New. It is safe for concurrent use.
type AnswerStore struct {
	o      Options
	server atomic.Pointer[api.Server]

	mu      sync.Mutex
	entries map[id]*entry
	done    *list.List // of *entry, the oldest first
	owners  map[string]*ownerAnswers
	size    int
}

// ownerAnswers are the entries of one owner.
type ownerAnswers struct {
	entries int        // under way, or kept
	done    *list.List // of *entry, the oldest first
	size    int        // of the answers
}

// id identifies a request.
type id struct{ owner, path, key string }

// entry is a request. It is under way until over is closed; then it has an answer, or it has none and is no longer in the table.
type entry struct {
	id      id
	digest  string // of the request
	over    chan struct{}
	waiting int
	answer  *answer
	expires time.Time
	place   *list.Element // in the list of all entries
	own     *list.Element // in the owner's list
}

// New makes an answer store, which needs no closing.
func New(o Options) *AnswerStore {
	o.For = cmp.Or(o.For, time.Hour)
	o.Keys = cmp.Or(o.Keys, 10_000)
	o.PerOwner = cmp.Or(o.PerOwner, max(1, o.Keys/4))
	o.Memory = cmp.Or(o.Memory, 64*sandbox.MiB)
	o.OfOwner = cmp.Or(o.OfOwner, o.Memory/2)
	o.Answer = cmp.Or(o.Answer, 8*sandbox.MiB)
	o.Waiting = cmp.Or(o.Waiting, 16)
	return &AnswerStore{o: o, entries: map[id]*entry{}, done: list.New(), owners: map[string]*ownerAnswers{}}
}

// Attach sets the server whose asynchronous runs are looked up by key. Until then requests pass unchanged.
func (k *AnswerStore) Attach(s *api.Server) { k.server.Store(s) }

// routes are the paths with idempotency keys.
var routes = map[string]bool{wire.PathRun: true, wire.PathRuns: true, wire.PathBatch: true}

// Middleware wraps a route; see api.Options.Middleware.
func (k *AnswerStore) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys, server := r.Header.Values(wire.HeaderIdempotencyKey), k.server.Load()
		p := api.PrincipalFrom(r.Context())
		if len(keys) == 0 || r.Method != http.MethodPost || !routes[r.URL.Path] || p == nil || server == nil {
			next.ServeHTTP(w, r)
			return
		}
		key, problem := readKey(keys)
		if problem != nil {
			server.Fail(w, r, problem)
			return
		}
		body, release, err := server.ReadBody(w, r)
		if err != nil {
			server.Fail(w, r, err)
			return
		}
		defer release()
		r = api.WithBody(r, body)
		r.Header.Set(wire.HeaderIdempotencyKey, key)
		k.serve(w, r, server, id{p.ID, r.URL.Path, key}, body, next)
	})
}

// readKey accepts a key without quotes, or in quotes as in structured fields.
func readKey(values []string) (string, *wire.Problem) {
	key := values[0]
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	ok := len(values) == 1 && key != "" && len(key) <= 255
	for _, c := range []byte(key) {
		ok = ok && c > ' ' && c < 0x7f && c != '"' && c != '\\'
	}
	if !ok {
		return "", problem(wire.CodeMalformed,
			"give the header once, with 1 to 255 visible ASCII characters such as a UUID")
	}
	return key, nil
}

// problem makes a problem about the Idempotency-Key header.
func problem(code, message string) *wire.Problem {
	return wire.WrongField(code, wire.HeaderIdempotencyKey, "%s", message)
}

// serve sends the stored answer, waits for it, or lets the route make it.
func (k *AnswerStore) serve(w http.ResponseWriter, r *http.Request, server *api.Server, at id, body []byte, next http.Handler) {
	sum := sha256.Sum256(body)
	bodyDigest := hex.EncodeToString(sum[:])
	digest := bodyDigest
	if at.path != wire.PathRuns {
		digest += strings.Join(r.Header.Values("Accept"), ",") // another form is another answer
	}
	for {
		e, mine, err := k.enter(at, digest, server, bodyDigest)
		switch {
		case err != nil:
			server.Fail(w, r, err)
			return
		case mine:
			k.serveFirst(w, r, e, next)
			return
		}
		select {
		case <-e.over:
		case <-r.Context().Done():
			k.stopWaiting(e)
			server.Fail(w, r, context.Cause(r.Context()))
			return
		}
		k.stopWaiting(e)
		if e.answer != nil {
			e.answer.replay(w, r, server)
			return
		}
		// The first request left no answer; this one, or another that waits, is now the first.
	}
}

// enter finds the entry of a request, or makes one that the caller must answer.
func (k *AnswerStore) enter(at id, digest string, server *api.Server, bodyDigest string) (e *entry, mine bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.prune(time.Now())
	if e := k.entries[at]; e != nil {
		if e.digest != digest {
			return nil, false, keyReused()
		}
		if e.waiting >= k.o.Waiting && e.answer == nil {
			p := problem(wire.CodeConflict,
				"the first request with this key is still under way, and too many requests wait for it; try again later")
			p.RetryAfter = 1
			return nil, false, p
		}
		e.waiting++
		return e, false, nil
	}
	if at.path == wire.PathRuns {
		if info, was, ok := server.Keyed(at.owner, at.key); ok {
			if was != bodyDigest {
				return nil, false, keyReused()
			}
			over := make(chan struct{})
			close(over)
			return &entry{over: over, answer: accepted(info)}, false, nil
		}
	}
	own := k.owners[at.owner]
	if own == nil {
		own = &ownerAnswers{done: list.New()}
	}
	if own.entries >= k.o.PerOwner || len(k.entries) >= k.o.Keys {
		if !k.makeRoom(own) {
			return nil, false, &api.Refusal{
				Status: http.StatusTooManyRequests, Reason: "too many requests with idempotency keys are under way", RetryAfter: time.Second,
			}
		}
	}
	e = &entry{id: at, digest: digest, over: make(chan struct{})}
	k.entries[at] = e
	own.entries++
	k.owners[at.owner] = own
	return e, true, nil
}

func keyReused() error {
	return problem(wire.CodeInvalid,
		"this key was used for another request; use a new key for every request that is no repetition")
}

func (k *AnswerStore) stopWaiting(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.waiting--
}

// serveFirst lets the route answer, and stores the answer if it is valid for a repetition.
func (k *AnswerStore) serveFirst(w http.ResponseWriter, r *http.Request, e *entry, next http.Handler) {
	rec := &recorder{ResponseWriter: w, most: int(k.o.Answer)}
	kept := false
	defer func() { // also after a panic
		k.mu.Lock()
		defer k.mu.Unlock()
		defer close(e.over)
		if !kept {
			k.drop(e)
			return
		}
		e.answer = rec.answer()
		e.expires = time.Now().Add(k.o.For)
		own := k.owners[e.id.owner]
		e.place, e.own = k.done.PushBack(e), own.done.PushBack(e)
		k.size += e.answer.size()
		own.size += e.answer.size()
		for own.size > int(k.o.OfOwner) {
			k.drop(own.oldest())
		}
		k.prune(time.Now())
	}()
	next.ServeHTTP(rec, r)
	kept = rec.keep(r.Context().Err() != nil)
}

// prune removes expired answers, and beyond Options.Memory the oldest ones of the owner with the most. mu is held.
func (k *AnswerStore) prune(now time.Time) {
	for el := k.done.Front(); el != nil; el = k.done.Front() {
		e := el.Value.(*entry)
		if e.expires.After(now) {
			break
		}
		k.drop(e)
	}
	for k.size > int(k.o.Memory) {
		k.drop(k.most(func(h *ownerAnswers) int { return h.size }).oldest())
	}
}

// oldest returns the owner's oldest answer; there must be one.
func (h *ownerAnswers) oldest() *entry { return h.done.Front().Value.(*entry) }

// most returns the owner with the largest value, of those with an answer; nil if no owner has one. mu is held.
func (k *AnswerStore) most(of func(*ownerAnswers) int) (most *ownerAnswers) {
	for _, h := range k.owners {
		if h.done.Len() > 0 && (most == nil || of(h) > of(most)) {
			most = h
		}
	}
	return most
}

// makeRoom removes the oldest answer of an owner with too many, or of the owner with the most if the whole table is full. mu is held.
func (k *AnswerStore) makeRoom(own *ownerAnswers) bool {
	from := own
	if own.entries < k.o.PerOwner {
		from = k.most(func(h *ownerAnswers) int { return h.entries })
	}
	if from == nil || from.done.Len() == 0 {
		return false
	}
	k.drop(from.oldest())
	return true
}

// drop removes an entry from the table. Requests that wait for it still get its answer. mu is held.
func (k *AnswerStore) drop(e *entry) {
	delete(k.entries, e.id)
	own := k.owners[e.id.owner]
	if own.entries--; own.entries == 0 {
		delete(k.owners, e.id.owner)
	}
	if e.place != nil {
		k.done.Remove(e.place)
		own.done.Remove(e.own)
		e.place, e.own = nil, nil
		k.size -= e.answer.size()
		own.size -= e.answer.size()
	}
}
