package batch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/admission"
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/apitest"
	"github.com/sandbox-run/sandbox-run/pkg/api/webhook"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t testing.TB, o api.Options, b Options) *apitest.Client {
	t.Helper()
	return apitest.New(t, o, func(s *api.Server) { Mount(s, b) })
}

// echo prints its input; "sleep N" takes N milliseconds, "fail" exits with 1, "error" is an error of the executor.
func echo(ctx context.Context, req executor.Request) (*executor.Result, error) {
	var in []byte
	if req.Stdin != nil {
		in, _ = io.ReadAll(req.Stdin)
	}
	text := string(in)
	var ms int
	if n, _ := fmt.Sscanf(text, "sleep %d", &ms); n == 1 {
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-ctx.Done():
			return apitest.Result(sandbox.VerdictCancelled, ""), nil
		}
	}
	switch text {
	case "fail":
		return apitest.Result(sandbox.VerdictNonzeroExit, text), nil
	case "error":
		return nil, errors.New("the kernel is out of order")
	case "invalid":
		return nil, sandbox.Invalid("code", "is not code")
	case "panic":
		panic("out of order")
	}
	return apitest.Result(sandbox.VerdictOK, text+strings.Join(req.Args, ",")+req.Env["A"]+req.Env["B"]), nil
}

func inputs(list ...string) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"stdin":%q,"name":"n%d"}`, s, i)
	}
	return b.String()
}

func document(t testing.TB, c *apitest.Client, body string, headers ...string) wire.BatchResult {
	t.Helper()
	b, h := c.Ask(200, wire.PathBatch, body, headers...)
	if h.Get("Content-Type") != wire.TypeJSON {
		t.Errorf("%v", h)
	}
	return apitest.Decode[wire.BatchResult](t, b)
}

func stdout(t testing.TB, i wire.BatchItem) string {
	t.Helper()
	if i.Result == nil {
		t.Fatalf("item %d has no result: %+v", i.Index, i.Error)
	}
	r, err := wire.DecodeResult(i.Result)
	apitest.Must(t, err)
	return string(r.Stdout.Bytes())
}

func TestInputsInOrder(t *testing.T) {
	c := serve(t, api.Options{Executor: apitest.Fake(echo)}, Options{})
	r := document(t, c, `{"run":{"code":"x","args":["all"],"env":{"A":"a","B":"b"}},"inputs":[{"stdin":"sleep 80","name":"slow"},`+
		`{"args":[]},{"stdin":"eA==","stdin_encoding":"base64","args":["own"],"env":{"B":"c"}}]}`)
	want := []string{"sleep 80allab", "ab", "xownac"}
	if len(r.Items) != 3 {
		t.Fatalf("%+v", r.Summary)
	}
	for i, item := range r.Items {
		if item.Index != i || stdout(t, item) != want[i] || item.ID == "" || item.Kind != "" {
			t.Errorf("item %d: %+v: %q", i, item, stdout(t, item))
		}
	}
	if r.Items[0].Name != "slow" || r.Summary.Items != 3 || r.Summary.Succeeded != 3 || r.Summary.Verdicts["ok"] != 3 || r.Summary.ID == "" ||
		r.Summary.Took <= 0 {
		t.Errorf("%+v", r.Summary)
	}
}

func TestOrderDoneAndStreams(t *testing.T) {
	c := serve(t, api.Options{Executor: apitest.Fake(echo)}, Options{})
	body := `{"order":"done","runs":[{"code":"x","stdin":"sleep 1500","name":"a"},{"code":"y","stdin":"quick","name":"b"}]}`
	b, h := c.Ask(200, wire.PathBatch, body, "Accept", wire.TypeNDJSON)
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if len(lines) != 3 || h.Get("Content-Type") != wire.TypeNDJSON {
		t.Fatalf("%s", b)
	}
	first, last := apitest.Decode[wire.BatchItem](t, lines[0]), apitest.Decode[wire.BatchSummary](t, lines[2])
	if first.Index != 1 || first.Name != "b" || first.Kind != "item" || stdout(t, first) != "quick" || last.Kind != "summary" ||
		last.Succeeded != 2 {
		t.Errorf("%s", b)
	}
	b, _ = c.Ask(200, wire.PathBatch, body, "Accept", wire.TypeSSE)
	if s := string(b); !strings.HasPrefix(s, "id: 1\nevent: item\ndata: {") || !strings.Contains(s, "\n\nid: 3\nevent: summary\ndata: {") ||
		!strings.HasSuffix(s, "}\n\n") {
		t.Errorf("%s", s)
	}
	if p := c.Problem(406, wire.PathBatch, body, "Accept", "image/png"); p.Code != wire.CodeNotAccepted {
		t.Errorf("%+v", p)
	}
}

// A failed program, or an error of the executor, concerns one item only.
func TestFailuresAreItems(t *testing.T) {
	c := serve(t, api.Options{Executor: apitest.Fake(echo)}, Options{Parallel: 2})
	body := `{"run":{"code":"x"},"inputs":[` + inputs("one", "fail", "error", "invalid", "panic", "two") + `]}`
	r := document(t, c, body)
	if len(r.Items) != 6 || stdout(t, r.Items[0]) != "one" || stdout(t, r.Items[5]) != "two" {
		t.Fatalf("%+v", r.Summary)
	}
	for i, code := range map[int]string{2: wire.CodeInternal, 3: wire.CodeInvalid, 4: wire.CodeInternal} {
		if e := r.Items[i].Error; e == nil || e.Code != code || r.Items[i].Result != nil {
			t.Errorf("item %d: %+v", i, r.Items[i])
		}
	}
	if s := r.Summary; s.Succeeded != 2 || s.Failed != 1 || s.Errors != 3 || s.Skipped != 0 || s.Verdicts["nonzero_exit"] != 1 {
		t.Errorf("%+v", s)
	}
	r = document(t, c, strings.Replace(body, `{"run"`, `{"stop_on_failure":true,"parallel":1,"run"`, 1))
	if s := r.Summary; s.Succeeded != 1 || s.Failed != 1 || s.Skipped != 4 || s.Errors != 0 || len(r.Items) != 6 || !r.Items[5].Skipped {
		t.Errorf("%+v", r.Summary)
	}
}

func TestRefusedAsAWhole(t *testing.T) {
	c := serve(t, api.Options{Executor: apitest.Fake(echo)}, Options{Items: 3})
	for body, want := range map[string]struct {
		status int
		field  string
	}{
		`{}`:                                                       {422, "run"},
		`{"run":{"code":"x"}}`:                                     {422, "inputs"},
		`{"run":{"code":"x"},"inputs":[]}`:                         {422, "inputs"},
		`{"runs":[]}`:                                              {422, "run"},
		`{"runs":[{"code":"x"}],"inputs":[{}]}`:                    {422, "runs"},
		`{"runs":[{"code":"x"}],"order":"best"}`:                   {422, "order"},
		`{"runs":[{"code":"x"}],"parallel":0}`:                     {422, "parallel"},
		`{"runs":[{"code":"x","memroy":1}]}`:                       {422, "runs[0].memroy"},
		`{"run":{"code":"x"},"inputs":[{"stdin":1}]}`:              {422, "inputs[0].stdin"},
		`{"run":{"code":"x","memory":"9999GiB"},"inputs":[{}]}`:    {403, "memory"},
		`{"run":{"code":"x","volumes":["/etc:/x"]},"inputs":[{}]}`: {403, "volumes"},
		`{"run":{"code":"x"},"inputs":[{},{},{},{}]}`:              {403, "inputs"},
		`{"run":{"code":"x"},"inputs":[{}],"webhook":{"url":"https://example.org"}}`:     {501, "webhook"},
		`{"run":{"code":"x","webhook":{"url":"https://example.org/"}},"inputs":[{},{}]}`: {422, "webhook"},
		`{"run":{"code":"x","interactive":true},"inputs":[{},{}]}`:                       {422, "interactive"},
	} {
		p := c.Problem(want.status, wire.PathBatch, body)
		if len(p.Errors) == 0 || p.Errors[0].Field != want.field {
			t.Errorf("%s: %+v", body, p)
		}
		if want.field == "inputs" && want.status == 403 && p.Errors[0].Ceiling != "3" {
			t.Errorf("%+v", p)
		}
	}
	for _, body := range []string{``, `[]`, `{"runs":`, `{"runs":[{"code":"x"}]} x`} {
		if p := c.Problem(400, wire.PathBatch, body); p.Code != wire.CodeMalformed {
			t.Errorf("%s: %+v", body, p)
		}
	}
	// An invalid input concerns one item only.
	r := document(t, c, `{"run":{"code":"x"},"inputs":[{"stdin":"*","stdin_encoding":"base64"},{"stdin":"fine"}]}`)
	if r.Items[0].Error == nil || stdout(t, r.Items[1]) != "fine" {
		t.Errorf("%+v", r)
	}
}

// The number of parallel items is bounded, and finished items wait until they are read.
func TestBounds(t *testing.T) {
	var now, most, begun atomic.Int32
	engine := apitest.Fake(func(ctx context.Context, req executor.Request) (*executor.Result, error) {
		n := now.Add(1)
		defer now.Add(-1)
		begun.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		return apitest.Result(sandbox.VerdictOK, strings.Repeat("x", 1<<16)), nil
	})
	c := serve(t, api.Options{Executor: engine}, Options{Parallel: 3})
	body := `{"parallel":50,"run":{"code":"x"},"inputs":[{}` + strings.Repeat(`,{}`, 99) + `]}`
	res, err := c.Post(t.Context(), wire.PathBatch, body, "Accept", wire.TypeNDJSON)
	apitest.Must(t, err)
	defer res.Body.Close()
	time.Sleep(300 * time.Millisecond) // the client does not read
	if n := begun.Load(); n > 30 {
		t.Errorf("%d items began while the client did not read", n)
	}
	in := bufio.NewReaderSize(res.Body, 4<<20)
	read := 0
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		if bytes.Contains(line[:20], []byte("item")) {
			read++
		}
	}
	if read != 100 || most.Load() > 3 || most.Load() < 2 {
		t.Errorf("%d items, %d at a time", read, most.Load())
	}
}

// A client that disconnects cancels the remaining items.
func TestClientDisconnects(t *testing.T) {
	var begun, cancelled atomic.Int32
	engine := apitest.Fake(func(ctx context.Context, _ executor.Request) (*executor.Result, error) {
		if begun.Add(1) == 1 {
			return apitest.Result(sandbox.VerdictOK, "first"), nil
		}
		<-ctx.Done()
		cancelled.Add(1)
		return apitest.Result(sandbox.VerdictCancelled, ""), nil
	})
	c := serve(t, api.Options{Executor: engine}, Options{Parallel: 2})
	ctx, cancel := context.WithCancel(t.Context())
	res, err := c.Post(ctx, wire.PathBatch, `{"run":{"code":"x"},"inputs":[{}`+strings.Repeat(`,{}`, 99)+`]}`, "Accept", wire.TypeNDJSON)
	apitest.Must(t, err)
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.Contains(line, "first") {
		t.Fatal(line, err)
	}
	apitest.Eventually(t, "others run", func() bool { return begun.Load() == 3 })
	cancel()
	res.Body.Close()
	apitest.Eventually(t, "they are cancelled", func() bool { return cancelled.Load() == 2 })
	time.Sleep(50 * time.Millisecond)
	if n := begun.Load(); n > 4 {
		t.Errorf("%d were begun", n)
	}
}

// Items of one program wait until the first has compiled it; items of different programs do not.
func TestFirstCompiles(t *testing.T) {
	var mu sync.Mutex
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	for name, c := range map[string]struct {
		phases []string
		alone  bool
	}{"compiled": {[]string{"compile", "run"}, true}, "interpreted": {[]string{"run"}, false}} {
		t.Run(name, func(t *testing.T) {
			order = nil
			another, begins := make(chan struct{}), new(sync.Once)
			engine := apitest.Fake(func(_ context.Context, req executor.Request) (*executor.Result, error) {
				in, _ := io.ReadAll(req.Stdin)
				note("begin " + string(in))
				if string(in) != "0" {
					begins.Do(func() { close(another) })
				}
				for i, p := range c.phases {
					if req.OnEvent != nil {
						req.OnEvent(sandbox.Event{Seq: uint64(i + 1), Time: time.Now(), Kind: sandbox.EventPhase, Phase: p})
					}
					if p == executor.PhaseCompile {
						time.Sleep(200 * time.Millisecond)
					}
				}
				if string(in) == "0" && !c.alone { // the others need not wait for its end
					select {
					case <-another:
					case <-time.After(apitest.Timeout):
					}
				}
				note("end " + string(in))
				return apitest.Result(sandbox.VerdictOK, ""), nil
			})
			cl := serve(t, api.Options{Executor: engine}, Options{})
			document(t, cl, `{"run":{"code":"x"},"inputs":[{"stdin":"0"},{"stdin":"1"},{"stdin":"2"}]}`)
			alone := slices.Index(order, "end 0") == 1
			if order[0] != "begin 0" || alone != c.alone {
				t.Errorf("%v", order)
			}
		})
	}
}

// Every item passes admission, and an item that is refused for now is retried.
func TestAdmission(t *testing.T) {
	var now, most atomic.Int32
	engine := apitest.Fake(func(context.Context, executor.Request) (*executor.Result, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		return apitest.Result(sandbox.VerdictOK, ""), nil
	})
	q, err := admission.New(admission.Options{CPUs: 2, Memory: 4 * sandbox.GiB, Queue: 1})
	apitest.Must(t, err)
	c := serve(t, api.Options{Executor: engine, Admission: q, Auth: apitest.Tokens{"k": {Rate: 20, Burst: 2}}}, Options{Parallel: 8})
	c.Token = "k"
	r := document(t, c, `{"parallel":8,"run":{"code":"x"},"inputs":[{}`+strings.Repeat(`,{}`, 11)+`]}`)
	if r.Summary.Succeeded != 12 || most.Load() > 2 {
		t.Errorf("%+v, %d at a time", r.Summary, most.Load())
	}
	// If the first item is refused, the batch is.
	res, err := c.Post(t.Context(), wire.PathBatch, `{"runs":[{"code":"x"},{"code":"y"}]}`)
	apitest.Must(t, err)
	res.Body.Close()
	q.Drain()
	p := c.Problem(503, wire.PathBatch, `{"runs":[{"code":"x"},{"code":"y"}]}`)
	if p.RetryAfter == 0 || p.Code != wire.CodeDraining {
		t.Errorf("%+v", p)
	}
	apitest.Eventually(t, "no run runs or waits", func() bool { // the client of the previous one has disconnected
		l := q.Load()
		return l.Running == 0 && l.Waiting == 0 && l.Reserved == 0
	})
}

func TestWebhookOfABatch(t *testing.T) {
	got := make(chan []byte, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if err := webhook.Verify(r.Header, b, "a secret of some length", time.Now()); err != nil {
			t.Error(err)
		}
		got <- b
	}))
	t.Cleanup(receiver.Close)
	s, err := webhook.New(webhook.Options{Dir: t.TempDir() + "/h", Allow: []string{strings.TrimPrefix(receiver.URL, "http://")}})
	apitest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	c := serve(t, api.Options{Executor: apitest.Fake(echo)}, Options{Webhooks: s})
	body := `{"run":{"code":"x"},"inputs":[{},{}],"webhook":{"url":"` + receiver.URL + `","secret":"a secret of some length"}}`
	r := document(t, c, body)
	select {
	case b := <-got:
		m := apitest.Decode[struct {
			Type string            `json:"type"`
			Data wire.BatchSummary `json:"data"`
		}](t, b)
		if m.Type != webhook.TypeBatch || m.Data.ID != r.Summary.ID || m.Data.Succeeded != 2 {
			t.Errorf("%s", b)
		}
	case <-time.After(apitest.Timeout):
		t.Fatal("nothing was sent")
	}
	if p := c.Problem(422, wire.PathBatch, strings.Replace(body, "http://", "http://x:y@", 1)); p.Errors[0].Field != "webhook" {
		t.Errorf("%+v", p)
	}
}

func TestInDocument(t *testing.T) {
	s, err := api.New(api.Options{Executor: apitest.Fake(echo)})
	apitest.Must(t, err)
	defer s.Close()
	Mount(s, Options{})
	doc, err := s.OpenAPI()
	apitest.Must(t, err)
	for _, want := range []string{`"/v1/batch"`, `"BatchSummary"`, `stop_on_failure`} {
		if !bytes.Contains(doc, []byte(want)) {
			t.Errorf("the document lacks %s", want)
		}
	}
}

// Every body gets one valid document or a problem, and no request hangs.
func FuzzBatch(f *testing.F) {
	for _, s := range []string{
		`{"run":{"code":"x"},"inputs":[{},{"stdin":"fail"}]}`, `{"runs":[{"code":"x"}],"order":"done","parallel":2}`,
		`{"runs":[{"code":"x","stdin":"error"}],"stop_on_failure":true}`,
		`{"run":null,"inputs":null}`, `{"run":{"code":"x","memory":-1},"inputs":[{}]}`, `{"runs":[[]]}`,
		`{"run":{},"inputs":[{"env":{"A":"\u0000"}}]}`, `{"webhook":{}}`, `[`,
	} {
		f.Add([]byte(s))
	}
	s, err := api.New(api.Options{Executor: apitest.Fake(func(ctx context.Context, r executor.Request) (*executor.Result, error) {
		if r.Stdin == nil {
			return apitest.Result(sandbox.VerdictOK, ""), nil
		}
		b, _ := io.ReadAll(io.LimitReader(r.Stdin, 10))
		if bytes.HasPrefix(b, []byte("sleep")) {
			b = nil
		}
		r.Stdin = bytes.NewReader(b)
		return echo(ctx, r)
	})})
	apitest.Must(f, err)
	f.Cleanup(func() { s.Close() })
	Mount(s, Options{Items: 20})
	h := s.Handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, accept := range []string{wire.TypeJSON, wire.TypeNDJSON} {
			r := httptest.NewRequest(http.MethodPost, wire.PathBatch, bytes.NewReader(body))
			r.Header.Set("Content-Type", wire.TypeJSON)
			r.Header.Set("Accept", accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			switch {
			case w.Code >= 400:
				if p := apitest.Decode[wire.Problem](t, w.Body.Bytes()); p.Status != w.Code || w.Code == 500 {
					t.Fatalf("%d: %s", w.Code, w.Body)
				}
			case accept == wire.TypeJSON:
				d := apitest.Decode[wire.BatchResult](t, w.Body.Bytes())
				s := d.Summary
				if len(d.Items) != s.Items || s.Items == 0 || s.Items > 20 || s.Succeeded+s.Failed+s.Errors+s.Skipped != s.Items {
					t.Fatalf("%+v", s)
				}
				for i, item := range d.Items {
					if b := apitest.Decode[wire.Batch](t, body); item.Index != i && b.Order != "done" {
						t.Fatalf("item %d is at %d", item.Index, i)
					}
				}
			default:
				lines := bytes.Split(bytes.TrimSpace(w.Body.Bytes()), []byte("\n"))
				if s := apitest.Decode[wire.BatchSummary](t, lines[len(lines)-1]); s.Kind != wire.KindSummary || s.Items != len(lines)-1 {
					t.Fatalf("%s", w.Body)
				}
			}
		}
	})
}
