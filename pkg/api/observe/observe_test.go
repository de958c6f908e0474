package observe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/internal/apitest"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/receipt"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// aRun returns a run that waited 100 ms, took 20 ms to start, compiled for 200 ms and ran for 300 ms.
func aRun(id, language string, verdict sandbox.Verdict) *api.Finished {
	took := func(start, wall time.Duration) monitor.Metrics {
		return monitor.Metrics{StartupTime: monitor.Seconds(start), WallTime: monitor.Seconds(wall), CPUTime: monitor.Seconds(wall / 2),
			MemoryPeak: 8 << 20}
	}
	r := &executor.Result{
		Language: language,
		Result: sandbox.Result{Verdict: verdict, Metrics: took(0, 300*time.Millisecond),
			Isolation: sandbox.Isolation{Backend: "native", Tier: sandbox.TierContainer}},
		Phases: []executor.PhaseResult{
			{Name: executor.PhaseCompile, Verdict: sandbox.VerdictOK, Metrics: took(20*time.Millisecond, 200*time.Millisecond)},
			{Name: executor.PhaseRun, Verdict: verdict, Metrics: took(0, 300*time.Millisecond)},
		},
		Evidence: &executor.Evidence{CodeSHA256: audit.Digest([]byte("code")), Entry: audit.Link{Seq: 3, Hash: strings.Repeat("b", 64)}},
	}
	return &api.Finished{
		Info:    api.Info{ID: id, Principal: &api.Principal{ID: "key-1", Name: "a key"}, Way: api.WayRun, Language: language, Accepted: began},
		Started: began.Add(100 * time.Millisecond), Ended: began.Add(700 * time.Millisecond), Result: r,
		Run:           &wire.Run{Code: "code", Stdin: "in"},
		RequestSHA256: audit.Digest([]byte("body")),
	}
}

// happen reports the events of a run to an observer.
func happen(o api.Observer, f *api.Finished) {
	ctx := context.Background()
	o.Queued(ctx, f.Info)
	if !f.Started.IsZero() {
		o.Started(ctx, f.Info)
	}
	o.Finished(ctx, f)
}

func newLog(t testing.TB) *audit.Log {
	t.Helper()
	log, err := audit.Open(filepath.Join(t.TempDir(), "state", "audit.jsonl"), audit.Options{Wait: time.Minute})
	must(t, err)
	return log
}

func closed(t testing.TB, o *Observation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(t, o.Close(ctx))
}

// entries returns kinds, reasons, counts and keys of the audit log.
func entries(t testing.TB, log *audit.Log) (all []string) {
	t.Helper()
	for e, err := range log.Query(audit.Filter{EntryPoint: audit.EntryAPI}) {
		must(t, err)
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %d %s", e.Kind, e.Reason, e.Count, e.Who.Key)))
	}
	return all
}

func TestRunsAreCounted(t *testing.T) {
	o := New(Options{Version: "1", Backend: "native", Tier: sandbox.TierContainer})
	defer closed(t, o)
	happen(o, aRun("a", "go", sandbox.VerdictOK))
	happen(o, aRun("b", "go", sandbox.VerdictTimeLimit))
	gone := aRun("c", "python", "")
	gone.Started, gone.Result, gone.Err = time.Time{}, nil, context.Canceled
	happen(o, gone)
	broken := aRun("d", "python", "")
	broken.Result, broken.Err = nil, errors.New("no cgroup")
	happen(o, broken)
	refused := aRun("g", "python", "")
	refused.Started, refused.Result, refused.Err = time.Time{}, nil, &api.Refusal{Status: http.StatusServiceUnavailable, Reason: "full"}
	happen(o, refused)
	waiting, running := aRun("e", "go", ""), aRun("f", "go", "")
	o.Queued(t.Context(), waiting.Info)
	o.Queued(t.Context(), running.Info)
	o.Started(t.Context(), running.Info)
	o.Refused(t.Context(), api.Refused{Code: wire.CodeTooMany, Status: 429})
	o.Refused(t.Context(), api.Refused{Code: "whatever a client could choose", Status: 400})
	want := `
# HELP sandbox_run_isolation_info Default backend and tier of this server's sandboxes; always 1.
# TYPE sandbox_run_isolation_info gauge
sandbox_run_isolation_info{backend="native",tier="container"} 1
# HELP sandbox_run_isolation_runs_total Runs by backend and reached tier.
# TYPE sandbox_run_isolation_runs_total counter
sandbox_run_isolation_runs_total{backend="native",tier="container"} 2
# HELP sandbox_run_program_cpu_seconds_total CPU time that programs used, compilers included.
# TYPE sandbox_run_program_cpu_seconds_total counter
sandbox_run_program_cpu_seconds_total{language="go"} 0.5
# HELP sandbox_run_queued Runs that wait for admission.
# TYPE sandbox_run_queued gauge
sandbox_run_queued 1
# HELP sandbox_run_refusals_total Requests that were refused before a run began, by the code of the answer.
# TYPE sandbox_run_refusals_total counter
sandbox_run_refusals_total{code="busy"} 1
sandbox_run_refusals_total{code="other"} 1
sandbox_run_refusals_total{code="too_many"} 1
# HELP sandbox_run_running Runs under way.
# TYPE sandbox_run_running gauge
sandbox_run_running 1
# HELP sandbox_run_runs_total Finished runs. The verdict error means that there is no result.
# TYPE sandbox_run_runs_total counter
sandbox_run_runs_total{language="go",verdict="ok",way="run"} 1
sandbox_run_runs_total{language="go",verdict="time_limit",way="run"} 1
sandbox_run_runs_total{language="python",verdict="cancelled",way="run"} 1
sandbox_run_runs_total{language="python",verdict="error",way="run"} 1
`
	if err := testutil.GatherAndCompare(o.metrics.registry, strings.NewReader(want), "sandbox_run_isolation_info",
		"sandbox_run_isolation_runs_total",
		"sandbox_run_program_cpu_seconds_total", "sandbox_run_queued", "sandbox_run_running", "sandbox_run_refusals_total",
		"sandbox_run_runs_total"); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]struct {
		sum   float64
		count uint64
	}{
		"sandbox_run_queue_seconds": {0.3, 3}, "sandbox_run_start_seconds": {0.04, 2}, "sandbox_run_phase_seconds": {1, 4},
		"sandbox_run_request_seconds": {2.8, 4},
	} {
		sum, count := histogram(t, o.metrics.registry, name)
		if count != want.count || sum < want.sum-1e-6 || sum > want.sum+1e-6 {
			t.Errorf("%s: sum %v of %d, want %v of %d", name, sum, count, want.sum, want.count)
		}
	}
}

func histogram(t testing.TB, r *prometheus.Registry, name string) (sum float64, count uint64) {
	t.Helper()
	families, err := r.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetHistogram().GetSampleSum()
				count += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return sum, count
}

// everything reports every kind of event to an observation.
func everything(t testing.TB) *Observation {
	t.Helper()
	o := New(Options{Version: "1", Backend: "native", Tier: sandbox.TierContainer, Lacks: func() int { return 1 }, Pool: func() PoolStats {
		return PoolStats{Hits: 1, Shapes: []ShapeStats{{Name: "python", Hits: 1, Members: 2, Zygotes: 1}}}
	}})
	happen(o, aRun("a", "go", sandbox.VerdictOK))
	o.Refused(t.Context(), api.Refused{Code: wire.CodeBusy})
	cell := aRun("b/1", "python", sandbox.VerdictOK)
	cell.Way = api.WayCell
	happen(o, cell)
	o.Session(t.Context(), api.SessionEvent{ID: "b", Language: "python"})
	_, _ = o.Receipt(t.Context(), aRun("a", "go", sandbox.VerdictOK))
	o.Access(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/run", nil))
	return o
}

// The exposition is valid for Prometheus.
func TestExposition(t *testing.T) {
	o := everything(t)
	defer closed(t, o)
	problems, err := testutil.GatherAndLint(o.metrics.registry)
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	w := httptest.NewRecorder()
	o.metrics.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, PathMetrics, nil))
	for _, name := range []string{"sandbox_run_build_info{", "go_goroutines", "process_resident_memory_bytes",
		"sandbox_run_pool_members{shape=\"python\"} 2"} {
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), name) {
			t.Errorf("status %d, and no %s", w.Code, name)
		}
	}
}

// No client can create series: their number is bounded for any requests.
func TestCardinality(t *testing.T) {
	shapes := 0
	o := New(Options{Pool: func() PoolStats {
		var s PoolStats
		for range 50 {
			shapes++
			s.Shapes = append(s.Shapes, ShapeStats{Name: fmt.Sprintf("shape-%d", shapes), Hits: 1})
		}
		return s
	}})
	defer closed(t, o)
	asked := 0
	access := o.Access(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(200 + asked/2%400)
	}))
	word := func(i int) string { return fmt.Sprintf("word-%d-%d", i, rand.Uint64()) }
	verdictNames := slices.Sorted(maps.Keys(verdicts))
	languages := append(executor.BuiltinLanguages(), "")
	count := func() int {
		n, err := testutil.GatherAndCount(o.metrics.registry)
		must(t, err)
		return n
	}
	storm := func(n int) {
		for i := range n {
			language := word(i)
			if i%2 == 0 {
				language = languages[i/2%len(languages)]
			}
			f := aRun(word(i), language, sandbox.Verdict(word(i)))
			if i%3 > 0 {
				f.Result.Verdict = sandbox.Verdict(verdictNames[i%len(verdictNames)])
			}
			f.Way, f.Principal.ID, f.Language = api.Way(word(i)), word(i), word(i)
			f.Result.Isolation.Backend, f.Result.Isolation.Tier = word(i), sandbox.Tier(word(i))
			f.Result.Phases[0].Name, f.Result.Phases[0].Verdict = word(i), sandbox.Verdict(word(i))
			f.Result.Phases[1].Verdict = f.Result.Verdict
			happen(o, f)
			o.Refused(t.Context(), api.Refused{Code: word(i), Route: word(i), Method: word(i), Detail: word(i),
				Principal: &api.Principal{ID: word(i)}})
			r := httptest.NewRequest(http.MethodGet, "/v1/runs/"+word(i)+"/"+word(i)+"?q="+word(i), nil)
			if i%2 == 0 {
				r.Method = strings.ToUpper(word(i))
			}
			access.ServeHTTP(httptest.NewRecorder(), r)
		}
		count()
	}
	storm(1600)
	before := count()
	storm(1000)
	if after := count(); after > before {
		t.Errorf("%d series, then %d: something grows", before, after)
	}
	if before > 1000 {
		t.Errorf("%d series", before)
	}
}

func TestPoolCountersNeverFall(t *testing.T) {
	stats := PoolStats{Hits: 5, RefillTime: 3 * time.Second, RefillCPU: time.Second,
		Shapes: []ShapeStats{{Name: "python", Hits: 3, Misses: 1}, {Name: "python", Hits: 2}, {Name: "no name\n"}}}
	o := New(Options{Pool: func() PoolStats { return stats }})
	defer closed(t, o)
	check := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(o.metrics.registry, strings.NewReader(want), "sandbox_run_pool_shape_hits_total",
			"sandbox_run_pool_refill_cpu_seconds_total"); err != nil {
			t.Error(err)
		}
	}
	const head = "# HELP sandbox_run_pool_refill_cpu_seconds_total CPU time spent on making pooled sandboxes.\n# TYPE " +
		"sandbox_run_pool_refill_cpu_seconds_total counter\n" +
		"sandbox_run_pool_refill_cpu_seconds_total 1\n" +
		"# HELP sandbox_run_pool_shape_hits_total Requests that got a pooled sandbox, by shape.\n# TYPE sandbox_run_pool_shape_hits_total " +
		"counter\n"
	check(head + "sandbox_run_pool_shape_hits_total{shape=\"other\"} 0\nsandbox_run_pool_shape_hits_total{shape=\"python\"} 5\n")
	stats.Shapes = nil // the pool forgot shapes without requests
	check(head + "sandbox_run_pool_shape_hits_total{shape=\"other\"} 0\nsandbox_run_pool_shape_hits_total{shape=\"python\"} 5\n")
	stats.Shapes = []ShapeStats{{Name: "python", Hits: 2}}
	check(head + "sandbox_run_pool_shape_hits_total{shape=\"other\"} 0\nsandbox_run_pool_shape_hits_total{shape=\"python\"} 7\n")
}

// The log has start, refusals by key and reason, and stop, in this order; a burst of refusals is one line.
func TestAuditor(t *testing.T) {
	log := newLog(t)
	o := New(Options{Audit: log})
	o.Begin()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				o.Refused(context.Background(), api.Refused{Code: wire.CodeTooMany, Principal: &api.Principal{ID: "key-1"}})
			}
		})
	}
	all.Wait()
	o.Refused(t.Context(), api.Refused{Code: wire.CodeUnauthorized})
	refusedLater := aRun("r", "go", "")
	refusedLater.Result, refusedLater.Err, refusedLater.Principal = nil, &api.Refusal{Status: 429}, &api.Principal{ID: "key-1"}
	happen(o, refusedLater)
	closed(t, o)
	closed(t, o)
	o.Refused(t.Context(), api.Refused{Code: wire.CodeTooMany}) // too late, and harmless
	got := entries(t, log)
	if len(got) < 4 || got[0] != "server_started  0" || got[len(got)-1] != "server_stopped  0" {
		t.Fatalf("%q", got)
	}
	refused, unauthorized := 0, 0
	for _, e := range got[1 : len(got)-1] {
		var n int
		if _, err := fmt.Sscanf(e, "refused too_many %d key-1", &n); err == nil {
			refused += n
		} else if e == "refused unauthorized 1" {
			unauthorized++
		} else {
			t.Errorf("%q", e)
		}
	}
	if refused != 4001 || unauthorized != 1 || len(got) > 10 {
		t.Errorf("%q", got)
	}
	if r, err := log.Verify(); err != nil || !r.OK {
		t.Errorf("%+v, %v", r, err)
	}
}

// Refusals of many kinds at once are bounded, too, and are written while the server runs.
func TestAuditorIsBounded(t *testing.T) {
	log := newLog(t)
	o := New(Options{Audit: log})
	defer closed(t, o)
	const many = 5000
	begin := time.Now()
	for i := range many {
		o.Refused(t.Context(), api.Refused{Code: wire.CodeBusy, Principal: &api.Principal{ID: fmt.Sprintf("key-%d", i)}})
	}
	most := (maxKinds + 1) * (2 + int(time.Since(begin)/gatherTime)) // as often as they were gathered meanwhile
	if most >= many {
		t.Fatalf("too slow to tell: %v", time.Since(begin))
	}
	sum := func() (n uint64, lines int) {
		for e, err := range log.Query(audit.Filter{Kind: audit.KindRefused}) {
			must(t, err)
			n, lines = n+e.Count, lines+1
		}
		return n, lines
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		n, lines := sum()
		if n == many && lines <= most {
			return
		}
		if n > many || lines > most || time.Now().After(end) {
			t.Fatalf("%d in %d lines", n, lines)
		}
	}
}

func TestAuditFailureIsLogged(t *testing.T) {
	log := newLog(t)
	var out bytes.Buffer
	o := New(Options{Audit: log, Log: slog.New(slog.NewJSONHandler(&out, nil))})
	o.auditor.failed(errors.New("disk full"))
	closed(t, o)
	if !strings.Contains(out.String(), `"msg":"audit entry not written","error":"disk full"`) || testutil.ToFloat64(o.metrics.unaudited) != 1 {
		t.Errorf("%s", out.String())
	}
}

func TestOneLinePerRun(t *testing.T) {
	var out bytes.Buffer
	o := New(Options{Log: slog.New(slog.NewJSONHandler(&out, nil))})
	happen(o, aRun("r-1", "go", sandbox.VerdictOK))
	wrong := aRun("r-2", "MARKER", "")
	wrong.Result, wrong.Err = nil, sandbox.Invalid("files", "name %q", "MARKER")
	happen(o, wrong)
	broken := aRun("r-3", "go", "")
	broken.Result, broken.Err = nil, errors.New("no cgroup")
	happen(o, broken)
	closed(t, o)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 { // and the server's end
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	var first map[string]any
	must(t, json.Unmarshal([]byte(lines[0]), &first))
	for name, want := range map[string]any{
		"msg": "run", "run": "r-1", "key": "key-1", "language": "go", "verdict": "ok", "exit_code": 0.0, "queue": 0.1, "total": 0.7, "wall": 0.3,
		"tier": "container", "level": "INFO",
	} {
		if first[name] != want {
			t.Errorf("%s is %v, want %v", name, first[name], want)
		}
	}
	if !strings.Contains(lines[2], `"level":"ERROR"`) || !strings.Contains(lines[2], "no cgroup") {
		t.Errorf("%s", lines[2])
	}
	if strings.Contains(out.String(), "MARKER") {
		t.Errorf("in the words of who asked: %s", out.String())
	}
}

func TestAccess(t *testing.T) {
	var out bytes.Buffer
	o := New(Options{Log: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/run", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(wire.HeaderRunID, "r-1")
		_, _ = io.WriteString(w, "hello")
		w.(http.Flusher).Flush()
	})
	mux.HandleFunc("GET /v1/runs/{id}/ws", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		_ = c.Close()
	})
	var serving sync.WaitGroup // Close does not wait for connections that were taken over
	access := o.Access(mux)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serving.Add(1)
		defer serving.Done()
		access.ServeHTTP(w, r)
	}))
	defer s.Close()
	r, err := http.Post(s.URL+"/v1/run?key=MARKER", "application/json", strings.NewReader("MARKER"))
	must(t, err)
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "hello" {
		t.Errorf("%s, %v", b, err)
	}
	must(t, r.Body.Close())
	r, err = http.Get(s.URL + "/MARKER/secret")
	must(t, err)
	must(t, r.Body.Close())
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	must(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "GET /v1/runs/MARKER/ws HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "101") {
		t.Errorf("%q, %v", line, err)
	}
	s.Close()
	serving.Wait()
	http.DefaultClient.CloseIdleConnections()
	closed(t, o)
	text := out.String()
	for _, want := range []string{
		`"method":"POST","route":"/v1/run","status":200`, `"bytes":5,"run":"r-1","remote":"127.0.0.1"`,
		`"method":"GET","route":"other","status":404`, `"route":"/v1/runs/{id}/ws","status":101`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "MARKER") {
		t.Errorf("something of the request is in the log:\n%s", text)
	}
}

func TestRoute(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/run": "/v1/run", "/v1/runs": "/v1/runs", "/v1/runs/abc": "/v1/runs/{id}", "/v1/runs/abc/events": "/v1/runs/{id}/events",
		"/v1/runs/abc/ws": "/v1/runs/{id}/ws",
		"/v1/files/x":     "/v1/files/{id}", "/v1/health/ready": "/v1/health", "/metrics": "/metrics", "/v1/runs/": other,
		"/v1/runs/a/b/c": other,
		"/v1/runs/{id}":  "/v1/runs/{id}",
		"/":              "/", "": other, "/index.html": other, "/v1/runs/a/events/b": other, "/v1/health": "/v1/health",
	} {
		if got := route(path); got != want {
			t.Errorf("%q is %q, want %q", path, got, want)
		}
	}
}

func TestReceipts(t *testing.T) {
	signer, err := receipt.NewSigner(bytes.Repeat([]byte{1}, 32))
	must(t, err)
	o := New(Options{Signer: signer})
	defer closed(t, o)
	f := aRun("r-1", "go", sandbox.VerdictOK)
	f.Result.Stdout.Head = []byte(strings.Repeat("<ä\u2028\x01", 100_000)) // what is encoded while it is written is signed as it is read
	f.Result.Stderr.Head = []byte(strings.Repeat("\xff<", 100_000))
	f.Result.Stdout.Total, f.Result.Stderr.Total = uint64(len(f.Result.Stdout.Head)), uint64(len(f.Result.Stderr.Head))
	f.Document, err = f.Result.Encode()
	must(t, err)
	text, err := o.Receipt(t.Context(), f)
	must(t, err)
	st, err := receipt.Verify(text, signer.Public())
	must(t, err)
	whole, err := json.Marshal(f.Result)
	must(t, err)
	must(t, st.Matches(whole))
	must(t, st.MatchesRequest([]byte("body")))
	if st.Run != "r-1" || st.CodeSHA256 != audit.Digest([]byte("code")) || st.StdinSHA256 != audit.Digest([]byte("in")) ||
		st.Audit == nil || st.Audit.Seq != 3 {
		t.Errorf("%+v", st)
	}
	for name, change := range map[string]func(f *api.Finished){
		"no result":   func(f *api.Finished) { f.Result = nil },
		"no evidence": func(f *api.Finished) { r := *f.Result; r.Evidence = nil; f.Result = &r },
		"no document": func(f *api.Finished) { f.Document = nil },
	} {
		bad := *f
		change(&bad)
		if _, err := o.Receipt(t.Context(), &bad); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	w := httptest.NewRecorder()
	o.keyHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, PathReceiptKey, nil))
	if key, err := receipt.ParsePublicKey(w.Body.Bytes()); err != nil || key.ID() != signer.Public().ID() ||
		w.Header().Get("Content-Type") != wire.TypeJSON {
		t.Errorf("%s, %v", w.Body, err)
	}
	none := New(Options{})
	defer closed(t, none)
	if _, err := none.Receipt(t.Context(), f); !errors.Is(err, ErrNoReceipts) {
		t.Error(err)
	}
	w = httptest.NewRecorder()
	none.keyHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, PathReceiptKey, nil))
	if w.Code != http.StatusNotImplemented || !strings.Contains(w.Body.String(), `"code":"unsupported"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The routes of the package are in the OpenAPI document, with the access that they need.
func TestDescribed(t *testing.T) {
	o := New(Options{})
	defer closed(t, o)
	s, err := api.New(api.Options{Executor: apitest.Fake(nil), Auth: apitest.Tokens{}})
	must(t, err)
	defer s.Close()
	o.Mount(s)
	text, err := s.OpenAPI()
	must(t, err)
	var doc struct {
		Paths map[string]struct {
			Get struct {
				Security []map[string]any `json:"security"`
			} `json:"get"`
		} `json:"paths"`
		Components struct {
			SecuritySchemes map[string]struct{ Type, In, Name, Scheme string } `json:"securitySchemes"`
		} `json:"components"`
	}
	must(t, json.Unmarshal(text, &doc))
	for path, secured := range map[string]bool{PathMetrics: true, PathReceiptKey: false} {
		item, found := doc.Paths[path]
		if !found || (len(item.Get.Security) > 0) != secured {
			t.Errorf("%s: %v, %+v", path, found, item)
		}
	}
	if key := doc.Components.SecuritySchemes["key"]; key.Type != "apiKey" || key.In != "header" || key.Name != wire.HeaderKey {
		t.Errorf("%+v", key)
	}
	if _, ok := doc.Paths[PathMetrics].Get.Security[1]["key"]; !ok {
		t.Errorf("%+v", doc.Paths[PathMetrics])
	}
}

// Every path of the API has a label of its own.
func TestRoutes(t *testing.T) {
	var doc struct {
		Paths map[string]json.RawMessage `json:"paths"`
	}
	text, err := os.ReadFile("../testdata/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &doc); err != nil || len(doc.Paths) < 10 {
		t.Fatal(err, len(doc.Paths))
	}
	for path := range doc.Paths {
		if got := route(regexp.MustCompile(`{[a-z]+}`).ReplaceAllString(path, "x")); got == other {
			t.Errorf("%s is %q", path, got)
		}
	}
	if got := route("/v1/none"); got != other { // control
		t.Errorf("%q", got)
	}
}
