package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestRoom: undelivered bodies are bounded in bytes; one owner leaves room for others, and small bodies always have room.
func TestRoom(t *testing.T) {
	var up atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	o := rc.options(t.TempDir() + "/h")
	o.Disk, o.Attempts = 100<<10, 100_000
	s, _ := newSender(t, o)
	send := func(id, owner string, size int) error {
		return s.Send(Delivery{ID: id, Owner: owner, Hook: &wire.Webhook{URL: rc.URL}, Body: make([]byte, size)})
	}
	must(t, send("a0", "a", 40<<10))
	for range 2 {
		if err := send("a1", "a", 40<<10); !errors.Is(err, ErrNoRoom) {
			t.Errorf("more than half: %v", err)
		}
		must(t, s.Close()) // what an earlier one has kept counts, too
		s, _ = newSender(t, o)
	}
	must(t, send("a2", "a", 16<<10))
	must(t, send("b0", "b", 20<<10))
	result := json.RawMessage(`"` + strings.Repeat("x", 40<<10) + `"`)
	tell, err := s.Keep("a", &wire.Webhook{URL: rc.URL}, wire.RunInfo{ID: "run", State: wire.StateDone, Verdict: "ok"},
		sandbox.NewJSON(result))
	must(t, err)
	tell()
	up.Store(true)
	for end := time.Now().Add(time.Minute); s.Waiting() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d wait", s.Waiting())
		}
	}
	rc.mu.Lock()
	told := slices.Clone(rc.body)
	rc.mu.Unlock()
	if !slices.ContainsFunc(told, func(b string) bool { return strings.Contains(b, `"run"`) && strings.Contains(b, wire.CodeTooLarge) }) {
		t.Error("a run whose result had no room was not reported")
	}
	must(t, send("a1", "a", 40<<10))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size > 40<<10 || len(s.owners) > 1 {
		t.Errorf("%d bytes, %d owners", s.size, len(s.owners))
	}
}

// TestTurns: many deliveries of one owner to slow receivers do not delay those of another.
func TestTurns(t *testing.T) {
	release := make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	o := rc.options(t.TempDir() + "/h")
	o.Parallel, o.PerHost = 2, 2
	s, _ := newSender(t, o)
	defer close(release)
	send := func(id, owner string) {
		must(t, s.Send(Delivery{ID: id, Owner: owner, Hook: &wire.Webhook{URL: rc.URL}, Body: []byte(owner)}))
	}
	for i := range 100 {
		send(fmt.Sprint("a", i), "a")
	}
	await(t, rc.hits)
	await(t, rc.hits)
	send("b", "b")
	release <- struct{}{}
	n := await(t, rc.hits)
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if who := rc.body[n-1]; who != "b" {
		t.Errorf("%s is next", who)
	}
}
