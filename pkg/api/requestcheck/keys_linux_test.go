package requestcheck

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/key"
	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
)

func TestAuthenticate(t *testing.T) {
	store, err := key.Open(filepath.Join(t.TempDir(), "own", "keys.json"))
	must(t, err)
	ring := key.NewRing(store)
	defer ring.Close()
	keys := &Keys{Ring: ring}
	ask := func(k *Keys, kind listen.Kind, token, want string) {
		t.Helper()
		p, err := k.Authenticate(listen.WithVia(t.Context(), listen.Via{Kind: kind}), token)
		if want == "" {
			if p != nil || err != api.ErrUnauthorized { //nolint:errorlint // the very same, so that nothing can be told apart
				t.Errorf("%s %q: %+v, %v", kind, token, p, err)
			}
			return
		}
		if err != nil || p.ID != want {
			t.Errorf("%s %q: %+v, %v, want %s", kind, token, p, err, want)
		}
	}
	ask(keys, listen.Unix, "", Owner)
	ask(keys, listen.Loopback, "", Loopback)
	ask(keys, listen.Exposed, "", "")
	ask(keys, listen.Unix, "nonsense", "") // a key that is given is checked
	ask(keys, listen.Loopback, "nonsense", "")
	if _, err := keys.Authenticate(t.Context(), ""); !errors.Is(err, api.ErrUnauthorized) {
		t.Errorf("unknown listener: %v", err)
	}

	limits, err := key.ParseLimits("memory=64m,compile-memory=1g,rate=2,burst=3,concurrency=4")
	must(t, err)
	k, token, err := store.Create(t.Context(), key.New{Name: "a", Limits: limits, Scopes: []string{key.ScopeRead}})
	must(t, err)
	for _, kind := range []listen.Kind{listen.Unix, listen.Loopback, listen.Exposed} {
		ask(keys, kind, token, k.ID)
	}
	p, err := keys.Authenticate(t.Context(), token)
	must(t, err)
	if p.Name != "a" || len(p.Scopes) != 1 || p.Limits.Limits.Memory != 64<<20 || p.Limits.CompileLimits.Memory != 1<<30 ||
		p.Limits.Rate != 2 || p.Limits.Burst != 3 || p.Limits.Concurrency != 4 {
		t.Errorf("%+v", p)
	}
	ask(keys, listen.Loopback, "", "") // from now on
	ask(keys, listen.Unix, "", Owner)
	ask(&Keys{Ring: ring, Always: true}, listen.Unix, "", "")
	ask(&Keys{Ring: ring, Always: true}, listen.Unix, token, k.ID)
	still := func(want bool, ids ...string) {
		t.Helper()
		for _, id := range ids {
			if got := keys.StillAuthorized(&api.Principal{ID: id}); got != want {
				t.Errorf("%s: %v", id, got)
			}
		}
	}
	still(true, k.ID, Owner)
	still(false, "loopback after a key", Loopback)
	_, err = store.Remove(t.Context(), "a")
	must(t, err)
	still(false, k.ID)
	ask(keys, listen.Exposed, token, "")
	ask(keys, listen.Loopback, "", "") // the last key's end does not open the door

	// Scopes there are, and no others.
	for _, scope := range key.Scopes() {
		if scope != api.ScopeRun && scope != api.ScopeRead && scope != api.ScopeAdmin {
			t.Errorf("%s is none of the API's", scope)
		}
	}
	_, soon, err := store.Create(t.Context(), key.New{Name: "soon", Expires: time.Now().Add(2 * time.Second)})
	must(t, err)
	time.Sleep(2100 * time.Millisecond)
	ask(keys, listen.Unix, soon, "")
	ask(&Keys{Ring: ring}, listen.Loopback, "", "") // nor does a server open it that begins when all have expired

	must(t, os.WriteFile(store.Path(), []byte("nonsense"), 0o600))
	fresh := &Keys{Ring: ring}
	for _, kind := range []listen.Kind{listen.Loopback} { // keys that can not be read do not mean that there are none
		if p, err := fresh.Authenticate(listen.WithVia(t.Context(), listen.Via{Kind: kind}), ""); p != nil || err == nil ||
			errors.Is(err, api.ErrUnauthorized) {
			t.Errorf("%+v, %v", p, err)
		}
	}
	must(t, os.Remove(store.Path()))
}
