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

// HeaderReplayed is of an answer that was given before.
const HeaderReplayed = "Idempotency-Replayed"

// Options of a Keeper. What is zero is the default.
type Options struct {
	For      time.Duration // how long answers are kept; default 1 h
	Keys     int           // how many, in all; default 10,000
	PerOwner int           // by one owner; default a quarter of Keys
	Memory   sandbox.Size  // of all answers; default 64 MiB
	OfOwner  sandbox.Size  // of one owner's answers; default half of Memory
	Answer   sandbox.Size  // of one; default 8 MiB
	Waiting  int           // requests that wait for one answer at a time; default 16
}

// Keeper remembers answers. New makes one.
type Keeper struct {
	o      Options
	server atomic.Pointer[api.Server]

	mu      sync.Mutex
	entries map[id]*entry
	done    *list.List // of *entry, the oldest first
	owners  map[string]*holding
	size    int
}

// holding is what one owner has here.
type holding struct {
	entries int        // under way, or kept
	done    *list.List // of *entry, the oldest first
	size    int        // of the answers
}

// id is what a key stands for.
type id struct{ owner, path, key string }

// entry is a request: under way until over is closed, then with an answer or, in nobody's table any more, without.
type entry struct {
	id      id
	print   string // of what was asked
	over    chan struct{}
	waiting int
	answer  *answer
	expires time.Time
	place   *list.Element // among all,
	own     *list.Element // and among the owner's
}

// New makes a keeper.
func New(o Options) *Keeper {
	o.For = cmp.Or(o.For, time.Hour)
	o.Keys = cmp.Or(o.Keys, 10_000)
	o.PerOwner = cmp.Or(o.PerOwner, max(1, o.Keys/4))
	o.Memory = cmp.Or(o.Memory, 64*sandbox.MiB)
	o.OfOwner = cmp.Or(o.OfOwner, o.Memory/2)
	o.Answer = cmp.Or(o.Answer, 8*sandbox.MiB)
	o.Waiting = cmp.Or(o.Waiting, 16)
	return &Keeper{o: o, entries: map[id]*entry{}, done: list.New(), owners: map[string]*holding{}}
}

// Attach has the keeper look for asynchronous runs in what the server keeps.
func (k *Keeper) Attach(s *api.Server) { k.server.Store(s) }

// routes are those that it is for.
var routes = map[string]bool{wire.PathRun: true, wire.PathRuns: true, wire.PathBatch: true}

// Middleware is the keeper in front of a route; it is one of api.Options.Middleware.
func (k *Keeper) Middleware(next http.Handler) http.Handler {
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

// readKey takes a key as it is, or in quotes as structured fields have it.
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
		return "", problem(http.StatusBadRequest, wire.CodeMalformed, "The request is not as HTTP or JSON want it",
			"it has to be given once, with 1 to 255 visible ASCII characters; a UUID is fine")
	}
	return key, nil
}

func problem(status int, code, title, message string) *wire.Problem {
	return &wire.Problem{
		Type: wire.ProblemBase + code, Code: code, Title: title, Status: status, Detail: wire.HeaderIdempotencyKey + ": " + message,
		Errors: []wire.FieldError{{Field: wire.HeaderIdempotencyKey, Message: message}},
	}
}

// serve answers with what there is, or waits for it, or has it made.
func (k *Keeper) serve(w http.ResponseWriter, r *http.Request, server *api.Server, at id, body []byte, next http.Handler) {
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	print := digest
	if at.path != wire.PathRuns {
		print += strings.Join(r.Header.Values("Accept"), ",") // another form is another answer
	}
	for {
		e, mine, err := k.enter(at, print, server, digest)
		switch {
		case err != nil:
			server.Fail(w, r, err)
			return
		case mine:
			k.first(w, r, e, next)
			return
		}
		select {
		case <-e.over:
		case <-r.Context().Done():
			k.tired(e)
			server.Fail(w, r, context.Cause(r.Context()))
			return
		}
		k.tired(e)
		if e.answer != nil {
			e.answer.replay(w, r, server)
			return
		}
		// The first came to nothing; now somebody else is the first.
	}
}

// enter finds what a key stands for, or makes it the caller's to answer.
func (k *Keeper) enter(at id, print string, server *api.Server, digest string) (e *entry, mine bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweep(time.Now())
	if e := k.entries[at]; e != nil {
		if e.print != print {
			return nil, false, other()
		}
		if e.waiting >= k.o.Waiting && e.answer == nil {
			p := problem(http.StatusConflict, wire.CodeConflict, "Not possible in this state", "the first request with this key is still under way, and many wait for it")
			p.RetryAfter = 1
			return nil, false, p
		}
		e.waiting++
		return e, false, nil
	}
	if at.path == wire.PathRuns {
		if info, was, ok := server.Keyed(at.owner, at.key); ok {
			if was != digest {
				return nil, false, other()
			}
			over := make(chan struct{})
			close(over)
			return &entry{over: over, answer: accepted(info)}, false, nil
		}
	}
	own := k.owners[at.owner]
	if own == nil {
		own = &holding{done: list.New()}
	}
	if own.entries >= k.o.PerOwner || len(k.entries) >= k.o.Keys {
		if !k.makeRoom(own) {
			return nil, false, &api.Refusal{Status: http.StatusTooManyRequests, Reason: "too many requests with idempotency keys are under way", RetryAfter: time.Second}
		}
	}
	e = &entry{id: at, print: print, over: make(chan struct{})}
	k.entries[at] = e
	own.entries++
	k.owners[at.owner] = own
	return e, true, nil
}

func other() error {
	return problem(http.StatusUnprocessableEntity, wire.CodeInvalid, "A field of the request is wrong",
		"this key was used for another request; use a new one for every request that is not a repetition")
}

func (k *Keeper) tired(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.waiting--
}

// first has the route answer, and keeps the answer if it is one to keep.
func (k *Keeper) first(w http.ResponseWriter, r *http.Request, e *entry, next http.Handler) {
	rec := &recorder{ResponseWriter: w, most: int(k.o.Answer)}
	kept := false
	defer func() { // also when it panics
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
		k.sweep(time.Now())
	}()
	next.ServeHTTP(rec, r)
	kept = rec.keep(r.Context().Err() != nil)
}

// sweep forgets what is too old, and of what is too much the oldest of whoever has the most. mu is held.
func (k *Keeper) sweep(now time.Time) {
	for el := k.done.Front(); el != nil; el = k.done.Front() {
		e := el.Value.(*entry)
		if e.expires.After(now) {
			break
		}
		k.drop(e)
	}
	for k.size > int(k.o.Memory) {
		k.drop(k.most(func(h *holding) int { return h.size }).oldest())
	}
}

// oldest is the answer that an owner has for longest; there is one.
func (h *holding) oldest() *entry { return h.done.Front().Value.(*entry) }

// most is the owner with the most, of those that have an answer; nil if none has. mu is held.
func (k *Keeper) most(of func(*holding) int) (most *holding) {
	for _, h := range k.owners {
		if h.done.Len() > 0 && (most == nil || of(h) > of(most)) {
			most = h
		}
	}
	return most
}

// makeRoom forgets the oldest answer of an owner that has too many, or of whoever has the most if it is the table that is full. mu is held.
func (k *Keeper) makeRoom(own *holding) bool {
	from := own
	if own.entries < k.o.PerOwner {
		from = k.most(func(h *holding) int { return h.entries })
	}
	if from == nil || from.done.Len() == 0 {
		return false
	}
	k.drop(from.oldest())
	return true
}

// drop takes an entry out of the table. Whoever waits for it still has its answer. mu is held.
func (k *Keeper) drop(e *entry) {
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
