package batch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/idempotency"
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/apitest"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A batch over real sandboxes compiles its program once. The compiler is a shell script that counts its calls.
func TestCompiledOnce(t *testing.T) {
	file := t.TempDir() + "/languages.yaml"
	apitest.Must(t, os.WriteFile(file, []byte(`
languages:
  - name: shc
    extensions: [.shc]
    compile: [sh, -c, 'sleep 0.2; echo "echo compiled at $(date +%s%N); cat; echo \$1" >"$1"', "{file}", "{out}"]
    run: [sh, "{out}"]
`), 0o600))
	languages, err := executor.LoadLanguages(file)
	apitest.Must(t, err)
	engine, manager := apitest.Real(t, languages...)
	k := idempotency.New(idempotency.Options{})
	c := apitest.New(t, api.Options{Executor: engine, Middleware: []func(http.Handler) http.Handler{k.Middleware}}, func(s *api.Server) {
		k.Attach(s)
		Mount(s, Options{})
	})
	body := `{"run":{"language":"shc","code":"x"},"inputs":[{"stdin":"a\n","args":["0"]},{"stdin":"b\n","args":["1"]},{"stdin":"c\n",` +
		`"args":["2"]},{"stdin":"d\n","args":["3"]},{"stdin":"e\n","args":["4"]}]}`
	b, _ := c.Ask(200, wire.PathBatch, body, wire.HeaderIdempotencyKey, "once")
	r := apitest.Decode[wire.BatchResult](t, b)
	stamp := ""
	for i, item := range r.Items {
		at, rest, _ := strings.Cut(stdout(t, item), "\n")
		if i == 0 {
			stamp = at
		}
		if want := fmt.Sprintf("%c\n%d\n", 'a'+i, i); rest != want || at != stamp || !strings.HasPrefix(at, "compiled at ") {
			t.Errorf("item %d: %q %q, the first was %q", i, at, rest, stamp)
		}
	}
	if s := r.Summary; s.Succeeded != 5 || s.Cached != 4 {
		t.Errorf("%+v", s)
	}
	// Compilers see variables, so an input's own variable is part of the compile cache's key.
	b2, _ := c.Ask(200, wire.PathBatch, `{"run":{"language":"shc","code":"x"},"inputs":[{"args":["0"]},{"args":["0"],"env":{"A":"1"}}]}`)
	if s := apitest.Decode[wire.BatchResult](t, b2).Summary; s.Succeeded != 2 || s.Cached != 1 {
		t.Errorf("%+v", s)
	}
	if again, h := c.Ask(200, wire.PathBatch, body, wire.HeaderIdempotencyKey, "once"); string(again) != string(b) ||
		h.Get(idempotency.HeaderReplayed) != "true" {
		t.Error("it was done again")
	}
	if n := len(manager.List()); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// When the client disconnects while the first item is written, the other items return their disk space, too.
func TestSpillSpaceOfUnwrittenItems(t *testing.T) {
	engine, _ := apitest.Real(t)
	store := &sandbox.OutputStore{Dir: t.TempDir()}
	finished := func() *api.Finished {
		r, err := engine.Execute(t.Context(), executor.Request{
			Language: "shell", Code: "head -c 1500000 /dev/zero", Limits: sandbox.Limits{Output: 4 * sandbox.MiB}, OutputSpace: store.For(""),
		})
		apitest.Must(t, err)
		document, err := r.Encode()
		apitest.Must(t, err)
		return &api.Finished{Result: r, Document: document}
	}
	b := &batch{b: &wire.Batch{Runs: make([]wire.Run, 3)}, out: newWriter(goneWriter{httptest.NewRecorder()}, wire.TypeNDJSON, func() {})}
	b.summary.Verdicts = map[string]int{}
	done := make(chan outcome, 2)
	done <- outcome{index: 1, f: finished()}
	done <- outcome{index: 0, f: finished()}
	if store.Used() == 0 {
		t.Fatal("nothing is spilled")
	}
	apitest.Must(t, b.write(t.Context(), done, nil))
	if used := store.Used(); used != 0 {
		t.Errorf("%v are not returned", used)
	}
}

// goneWriter is the response writer of a client that has disconnected.
type goneWriter struct{ http.ResponseWriter }

func (goneWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }
