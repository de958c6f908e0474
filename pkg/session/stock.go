package session

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// Bounds of the stock.
const (
	stockAge    = 10 * time.Minute // of a session that waits, and of the memory of a request
	maxStock    = 8
	maxRequests = 256
)

// stock has started sessions that wait for an owner: for requests that were seen twice, one each. A session is handed out once.
type stock struct {
	m *Manager

	mu     sync.Mutex
	seen   map[string]*demand
	closed bool
	fills  sync.WaitGroup
}

// demand is a kind of request. Guarded by stock.mu.
type demand struct {
	last    time.Time
	ready   *Session
	expires *time.Timer // of ready
	filling bool
}

// keyOf identifies requests that can have the same session; false for a session with something of its own.
func keyOf(req *Request) (string, bool) {
	r := &req.Request
	if len(r.Files) > 0 || len(r.Inputs) > 0 || len(r.Policy.Volumes) > 0 || r.HostDir != "" || len(r.Policy.Network.Publish) > 0 ||
		len(r.Options.Deps) > 0 || r.Options.Install || r.Options.Lock != "" {
		return "", false
	}
	policy := r.Policy
	policy.Labels = nil
	text, err := json.Marshal([]any{r.Language, r.Image, r.Env, r.Limits, r.CompileLimits, policy, r.Options, r.Asker.Key})
	sum := sha256.Sum256(text) // requests may be large
	return string(sum[:]), err == nil
}

// take returns a session for a request, from the stock if it has one.
func (st *stock) take(ctx context.Context, req *Request) (*Session, error) {
	key, ok := keyOf(req)
	if !ok || !st.m.opts.Stock {
		return st.m.open(ctx, req)
	}
	s, again := st.find(key)
	if again {
		defer st.fill(key, req)
	}
	if s != nil {
		return s, nil
	}
	return st.m.open(ctx, req)
}

// find returns the waiting session of a key, if it is alive, and whether there should be another.
func (st *stock) find(key string) (s *Session, again bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	now := time.Now()
	d := st.seen[key]
	if d == nil {
		if st.seen == nil {
			st.seen = map[string]*demand{}
		}
		maps.DeleteFunc(st.seen, func(_ string, d *demand) bool { return d.ready == nil && !d.filling && now.Sub(d.last) > stockAge })
		if len(st.seen) < maxRequests {
			st.seen[key] = &demand{last: now}
		}
		return nil, false
	}
	again = now.Sub(d.last) < stockAge
	d.last = now
	if s = d.ready; s == nil {
		return nil, again
	}
	d.ready = nil
	if !d.expires.Stop() || !s.isIdle() {
		go s.end("it waited in vain")
		return nil, again
	}
	return s, again
}

// fill starts a session for the next request of the key.
func (st *stock) fill(key string, req *Request) {
	st.mu.Lock()
	d := st.seen[key]
	waiting := 0
	for _, other := range st.seen {
		if other.ready != nil || other.filling {
			waiting++
		}
	}
	if st.closed || d == nil || d.filling || d.ready != nil || waiting >= maxStock {
		st.mu.Unlock()
		return
	}
	d.filling = true
	st.mu.Unlock()
	like := Request{Request: executor.Request{
		Language: req.Language, Image: req.Image, Env: maps.Clone(req.Env), Limits: req.Limits, CompileLimits: req.CompileLimits,
		Policy: req.Policy, Options: req.Options, Asker: executor.Asker{Key: req.Asker.Key}, Lower: req.Lower,
	}}
	st.fills.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		s, err := st.m.open(ctx, &like)
		st.mu.Lock()
		d.filling = false
		keep := err == nil && !st.closed
		if keep {
			d.ready = s
			d.expires = time.AfterFunc(stockAge, func() { st.drop(d, s) })
		}
		st.mu.Unlock()
		if err == nil && !keep {
			s.end("the server ends")
		}
	})
}

// drop ends a session for which no request has come.
func (st *stock) drop(d *demand, s *Session) {
	st.mu.Lock()
	mine := d.ready == s
	if mine {
		d.ready = nil
	}
	st.mu.Unlock()
	if mine {
		s.end("it waited in vain")
	}
}

// Prestart starts a session for each request, as if a like one was seen before. Errors are those of the first request that gets no
// session.
func (m *Manager) Prestart(requests ...Request) {
	if !m.opts.Stock {
		return
	}
	for i := range requests {
		if key, ok := keyOf(&requests[i]); ok {
			m.stock.find(key)
			m.stock.fill(key, &requests[i])
		}
	}
}

func (st *stock) close() {
	st.mu.Lock()
	st.closed = true
	var left []*Session
	for _, d := range st.seen {
		if d.ready != nil {
			d.expires.Stop()
			left = append(left, d.ready)
			d.ready = nil
		}
	}
	st.mu.Unlock()
	for _, s := range left {
		s.end("the server ends")
	}
	st.fills.Wait()
}
