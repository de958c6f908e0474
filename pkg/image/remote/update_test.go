package remote

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

func TestUpdate(t *testing.T) {
	reg := newRegistry(t)
	old, fresh, same := imageOf(t, "linux/amd64", 20, 100), imageOf(t, "linux/amd64", 21, 100), imageOf(t, "linux/amd64", 22, 100)
	arm, newArm := imageOf(t, "linux/arm64", 23, 100), imageOf(t, "linux/arm64", 24, 100)
	reg.push("moves:1", old)
	reg.push("stays:1", same)
	reg.push("goes:1", same)
	reg.push("breaks:1", same)
	reg.push("arm:1", arm)
	store := newStore(t)
	if changes, err := Update(t.Context(), store, nil, quick()); err != nil || len(changes) != 0 {
		t.Fatalf("an empty store: %v, %v", changes, err)
	}
	for _, name := range []string{"moves:1", "stays:1", "goes:1", "breaks:1", "moves@" + digestOfImage(t, old)} {
		pullWorks(t, store, reg.ref(name), quick())
	}
	onArm := quick()
	onArm.Platform = "linux/arm64"
	pullWorks(t, store, reg.ref("arm:1"), onArm)
	// A name given here belongs to this machine, whatever a registry has under it.
	if _, err := store.Tag(reg.ref("stays:1"), reg.ref("mine:1")); err != nil {
		t.Fatal(err)
	}
	reg.push("mine:1", fresh)
	// So does one that was pulled, and given to another image since.
	reg.push("over:1", old)
	pullWorks(t, store, reg.ref("over:1"), quick())
	if _, err := store.Tag(reg.ref("stays:1"), reg.ref("over:1")); err != nil {
		t.Fatal(err)
	}

	reg.push("moves:1", fresh)
	reg.push("arm:1", newArm)
	reg.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case strings.Contains(r.URL.Path, "goes/manifests"):
			w.WriteHeader(http.StatusNotFound)
		case strings.Contains(r.URL.Path, "breaks/manifests"):
			w.WriteHeader(http.StatusInternalServerError)
		default:
			next.ServeHTTP(w, r)
		}
	})
	reg.seen("")
	changes, err := Update(t.Context(), store, nil, quick())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Change{}
	for i, c := range changes {
		if i > 0 && changes[i-1].Name > c.Name {
			t.Errorf("not in order: %s, %s", changes[i-1].Name, c.Name)
		}
		got[strings.TrimPrefix(c.Name, reg.host()+"/")] = c
	}
	for name, want := range map[string]Change{
		"moves:1":                        {Outcome: Updated, Old: digestOfImage(t, old), New: digestOfImage(t, fresh)},
		"stays:1":                        {Outcome: Unchanged, Old: digestOfImage(t, same)},
		"goes:1":                         {Outcome: Gone, Old: digestOfImage(t, same)},
		"breaks:1":                       {Outcome: NotDone, Old: digestOfImage(t, same)},
		"arm:1":                          {Outcome: Updated, Old: digestOfImage(t, arm), New: digestOfImage(t, newArm)},
		"moves@" + digestOfImage(t, old): {Outcome: Unchanged, Old: digestOfImage(t, old)},
	} {
		c := got[name]
		if c.Outcome != want.Outcome || c.Old != want.Old || c.New != want.New {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
		if (c.Err != nil) != (want.Outcome == Gone || want.Outcome == NotDone) || (c.Message != "") != (c.Err != nil) {
			t.Errorf("%s: error %v, message %q", name, c.Err, c.Message)
		}
	}
	if len(got) != 6 {
		t.Errorf("%d names: %v", len(got), got)
	}
	for _, q := range reg.seen("/manifests/") {
		if strings.Contains(q.path, "mine") || strings.Contains(q.path, "over") {
			t.Errorf("a name given here was asked for: %s", q.path)
		}
	}
	for name, digest := range map[string]string{
		"moves:1": digestOfImage(t, fresh), "goes:1": digestOfImage(t, same), "mine:1": digestOfImage(t, same), "arm:1": digestOfImage(t, newArm),
		"moves@" + digestOfImage(t, old): digestOfImage(t, old),
	} {
		if img, err := store.Lookup(reg.ref(name)); err != nil || img.Digest != digest {
			t.Errorf("%s: %v, %v", name, img, err)
		}
	}

	// By name: what was given is refused, what is not here says how to get it, and a second time there is nothing to do.
	for _, name := range []string{"mine:1", "over:1"} {
		if _, err := Update(t.Context(), store, []string{reg.ref(name)}, quick()); err == nil {
			t.Errorf("%s, a name given here, was updated", name)
		} else {
			says(t, err, "not pulled", "image pull "+reg.ref(name))
		}
	}
	if _, err := Update(t.Context(), store, []string{reg.ref("nothing:1")}, quick()); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("%v", err)
	}
	changes, err = Update(t.Context(), store, []string{reg.ref("moves:1")}, quick())
	if err != nil || len(changes) != 1 || changes[0].Outcome != Unchanged || changes[0].Old != digestOfImage(t, fresh) {
		t.Errorf("%+v, %v", changes, err)
	}
	// Pulled over the given name, it is the registry's.
	pullWorks(t, store, reg.ref("mine:1"), quick())
	if changes, err := Update(t.Context(), store, []string{reg.ref("mine:1")}, quick()); err != nil || changes[0].Outcome != Unchanged {
		t.Errorf("%+v, %v", changes, err)
	}
}
