package executor

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestLayerQuota: the layers of a tenant stay within the quota. Those that were not used for longest go first, unless a program uses them; if
// that is not enough, the installation is refused. Other tenants lose nothing.
func TestLayerQuota(t *testing.T) {
	s := testregistry.New(t, http.NotFoundHandler())
	e := packageEngineOf(t, scripted("true", `n=$(tr -dc 0-9 < asked); head -c "${n}M" /dev/zero > layer/data`), map[string]string{"pypi": s.URL + "/"})
	e.opts.Layers.Quota = 64 * sandbox.MiB
	request := func(tenant, name string) Request {
		return Request{Language: "scripted", Code: "wc -c < /opt/sandbox-run/layer/data", Asker: Asker{Key: tenant}, Options: LanguageOptions{Deps: []string{name}}}
	}
	install := func(tenant, name string) {
		t.Helper()
		expectOn(t, e, request(tenant, name), want{stdout: "20971520\n"})
	}
	expectLayers := func(names ...string) {
		t.Helper()
		list, err := e.opts.Layers.List()
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, i := range list {
			have = append(have, strings.Join(i.Lock.Requires, " "))
		}
		if slices.Sort(have); !slices.Equal(have, names) {
			t.Errorf("%q are there, and not %q", have, names)
		}
	}
	install("two", "x20")
	for _, name := range []string{"a20", "b20", "c20", "a20"} { // a20 is used again
		install("one", name)
	}
	expectLayers("a20", "b20", "c20", "x20") // the control: three fit
	install("one", "d20")
	expectLayers("a20", "c20", "d20", "x20")

	// What a program uses stays.
	plan, release, err := e.plan(t.Context(), func() *Request { r := request("one", "c20"); return &r }())
	if err != nil || plan.layer == nil {
		t.Fatal(plan, err)
	}
	install("one", "a20")
	install("one", "e20") // d20 goes: c20 and a20 were used later
	expectLayers("a20", "c20", "e20", "x20")
	install("one", "f20") // a20 goes
	expectLayers("c20", "e20", "f20", "x20")
	others := make([]func(), 0, 2)
	for _, name := range []string{"e20", "f20"} {
		r := request("one", name)
		_, release, err := e.plan(t.Context(), &r)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, release)
	}
	refused := func(name string, words ...string) {
		t.Helper()
		r, err := e.Execute(t.Context(), request("one", name))
		if !errors.Is(err, sandbox.ErrRefused) {
			t.Fatalf("%+v, %v", r, err)
		}
		for _, word := range words {
			if text := err.Error() + " " + sandbox.Describe(err).Hint; !strings.Contains(text, word) {
				t.Errorf("no %q in %s", word, text)
			}
		}
	}
	refused("g20", "max-layers-size", "64 MiB", "running programs of the key use layers with 60", "deps rm")
	expectLayers("c20", "e20", "f20", "x20")
	for _, release := range others {
		release()
	}
	refused("g70", "max-layers-size", "64 MiB")
	expectLayers("c20", "e20", "f20", "x20") // nothing was removed in vain
	install("one", "g20")
	expectLayers("c20", "f20", "g20", "x20")

	// A layer that was replaced while a program uses it still counts, and goes when its place is needed.
	again := request("one", "c20")
	again.Options.DepsRefresh = true
	expectOn(t, e, again, want{stdout: "20971520\n"})
	release()
	for _, name := range []string{"x20", "y20", "z20"} {
		install("two", name)
	}
	list, err := e.opts.Layers.List()
	if err != nil {
		t.Fatal(err)
	}
	var used, more int64
	for _, i := range list {
		if strings.ContainsAny(strings.Join(i.Lock.Requires, ""), "xyz") {
			more += i.Size
		} else {
			used += i.Size
		}
	}
	if used > int64(e.opts.Layers.Quota) || more > int64(e.opts.Layers.Quota) || more < 60<<20 {
		t.Errorf("%d and %d bytes are used", used, more)
	}
}
