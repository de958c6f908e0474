package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestAsync(t *testing.T) {
	w := newTestServer(t)
	answer := w.request("POST", wire.PathRuns, body("out hello", `"labels":{"k":"v"}`))
	defer answer.Body.Close()
	location := answer.Header.Get("Location")
	if answer.StatusCode != 202 || !strings.HasPrefix(location, wire.PathRuns+"/") {
		t.Fatalf("%d %q", answer.StatusCode, location)
	}
	id := strings.TrimPrefix(location, wire.PathRuns+"/")
	info := w.waitForEnd(id)
	if info.State != wire.StateDone || info.Verdict != "ok" || info.Labels["k"] != "v" || info.Started == nil || info.Ended == nil ||
		info.Expires == nil || info.Error != nil {
		t.Errorf("%+v", info)
	}
	r, err := wire.DecodeResult(info.Result)
	if err != nil || string(r.Stdout.Bytes()) != "hello\n" {
		t.Errorf("%v: %s", err, info.Result)
	}
	if info.Events.First != 1 || info.Events.Last < 3 {
		t.Errorf("%+v", info.Events)
	}
	w.ask(204, "DELETE", location, "")
	w.problem(404, "GET", location, "")
	w.problem(404, "DELETE", location, "")
	w.problem(404, "GET", location+"/events", "")
	if names, _ := os.ReadDir(filepath.Join(w.scratch, "runs")); len(names) != 1 { // the lock
		t.Errorf("%v is left", names)
	}
}

// TestCancel: a run under way is cancelled, and its result is kept.
func TestCancel(t *testing.T) {
	w := newTestServer(t)
	id := w.start("out here\nwait", `"timeout":"300s"`)
	eventually(t, "it has said something", func() bool { return w.info(id).Events.Last >= 2 })
	w.ask(202, "DELETE", wire.PathRuns+"/"+id, "")
	if info := w.waitForEnd(id); info.Verdict != string(sandbox.VerdictCancelled) || info.Result == nil {
		t.Errorf("%+v", info)
	}
}

// TestLostResult: a result that can not be stored is an error, and leaves no verdict.
func TestLostResult(t *testing.T) {
	w := newTestServer(t)
	id := w.start("flood 1500000\nwait", `"timeout":"300s"`)
	run := w.runs.runs[id] // no other run changes the map
	eventually(t, "it has said everything", func() bool {
		run.journal.mu.Lock()
		defer run.journal.mu.Unlock()
		return run.journal.size > 1_500_000
	})
	run.journal.mu.Lock()
	run.journal.fail(errors.New("the disk is full"))
	run.journal.mu.Unlock()
	w.ask(202, "DELETE", wire.PathRuns+"/"+id, "")
	if info := w.waitForEnd(id); info.Error == nil || info.Verdict != "" || info.Result != nil {
		t.Errorf("%+v", info)
	}
	eventually(t, "all spill space is returned", func() bool { return w.outputs.Used() == 0 })
}

// TestResume: a client that reconnects at any point, during or after the run, gets each event once and in order.
func TestResume(t *testing.T) {
	w := newTestServer(t)
	id := w.start("out a\nsleep 20\nout b\nsleep 20\nout c\nflood 200000\nsleep 20\nout d")
	var all [][]byte
	for cut := 1; ; cut++ {
		answer := w.request("GET", fmt.Sprintf("%s/%s/events?from=%d", wire.PathRuns, id, len(all)+1), "")
		in := bufio.NewReader(answer.Body)
		for range cut {
			line, err := in.ReadBytes('\n')
			if err != nil {
				break
			}
			all = append(all, line)
		}
		answer.Body.Close()
		if n := len(all); n > 0 && kindOf(all[n-1]) == "result" {
			break
		}
	}
	whole := lines(t, bytes.NewReader(w.ask(200, "GET", wire.PathRuns+"/"+id+"/events", "")))
	if !slices.EqualFunc(all, whole, bytes.Equal) {
		t.Errorf("%d events in pieces, %d as a whole", len(all), len(whole))
	}
	for i, line := range whole {
		if seq, err := seqOf(line); err != nil || seq != uint64(i+1) {
			t.Fatalf("event %d: %v, %.80s", i+1, err, line)
		}
	}
	last := len(whole)
	tail := fromLast(t, w, id, last-1)
	if len(tail) != 1 || !bytes.Equal(tail[0], whole[last-1]) {
		t.Errorf("after Last-Event-ID: %d events", len(tail))
	}
	w.ask(204, "GET", wire.PathRuns+"/"+id+"/events", "", "Accept", wire.TypeSSE, "Last-Event-ID", fmt.Sprint(last))
	if b := w.ask(200, "GET", fmt.Sprintf("%s/%s/events?from=%d", wire.PathRuns, id, last+5), ""); len(b) != 0 {
		t.Errorf("after the end: %q", b)
	}
	for _, query := range []string{"?from=-1", "?from=x", "?from=1.5", "?from=9223372036854775808", "?from=1&from=2", "?form=1", "?from=+1",
		"?from=%zz"} {
		answer := w.request("GET", wire.PathRuns+"/"+id+"/events"+query, "")
		answer.Body.Close()
		if answer.StatusCode != 422 && answer.StatusCode != 400 {
			t.Errorf("%s: %d", query, answer.StatusCode)
		}
	}
}

func fromLast(t *testing.T, w *testServer, id string, last int) [][]byte {
	t.Helper()
	return lines(t, bytes.NewReader(w.ask(200, "GET", wire.PathRuns+"/"+id+"/events", "", "Last-Event-ID", fmt.Sprint(last))))
}

// TestGap: missing events are reported, and kept ones are complete.
func TestGap(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Keep.Memory, o.Keep.Events = 4<<10, 256<<10 })
	id := w.start("flood 3000000\nout end")
	info := w.waitForEnd(id)
	if info.Events.Dropped == 0 || info.Events.First == 1 || info.Result == nil {
		t.Fatalf("nothing was dropped: %+v", info.Events)
	}
	all := lines(t, bytes.NewReader(w.ask(200, "GET", wire.PathRuns+"/"+id+"/events", "")))
	gap := wire.NoticeOf(all[0])
	if gap == nil || gap.Kind != wire.KindGap || gap.From != 1 || gap.To != info.Events.First-1 {
		t.Fatalf("%s", all[0])
	}
	next := gap.To + 1
	for _, line := range all[1:] {
		seq, err := seqOf(line)
		if err != nil || seq != next {
			t.Fatalf("%d instead of %d: %v", seq, next, err)
		}
		next++
	}
	if next != info.Events.Last+1 || kindOf(all[len(all)-1]) != "result" {
		t.Errorf("it ends at %d, not %d", next-1, info.Events.Last)
	}
}

// TestSlowReader: a slow reader misses no event, however little is kept; the program waits for it.
func TestSlowReader(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Keep.Memory, o.Keep.Events = 4<<10, 128<<10 })
	begin := filepath.Join(t.TempDir(), "begin")
	id := w.start("until "+begin+"\nflood 3000000\nout end", `"timeout":"200s"`)
	answer := w.request("GET", wire.PathRuns+"/"+id+"/events", "")
	defer answer.Body.Close()
	must(t, os.WriteFile(begin, nil, 0o600)) // its first event has come: it is there
	in := bufio.NewReaderSize(answer.Body, 16)
	var next uint64 = 1
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		seq, seqErr := seqOf(line)
		if err != nil || seqErr != nil || seq != next {
			t.Fatalf("%v, %v: %.100s instead of %d", err, seqErr, line, next)
		}
		if next++; next%50 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	if info := w.waitForEnd(id); info.Events.Last != next-1 || info.Verdict != "ok" {
		t.Errorf("%+v after %d", info, next-1)
	}
}

func TestList(t *testing.T) {
	w := newTestServer(t)
	var ids []string
	for range 7 {
		ids = append(ids, w.start("out x"))
	}
	slices.Reverse(ids)
	var got []string
	cursor := ""
	for pages := 1; ; pages++ {
		var page wire.RunList
		decode(t, w.ask(200, "GET", wire.PathRuns+"?limit=3&cursor="+cursor, ""), &page)
		for _, r := range page.Runs {
			got = append(got, r.ID)
			if r.Result != nil {
				t.Error("a list has results in it")
			}
		}
		if cursor = page.Next; cursor == "" {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("%v instead of %v", got, ids)
	}
	for _, query := range []string{"limit=0", "limit=-1", "limit=501", "limit=x", "cursor=x", "cursor=!!", "page=1"} {
		w.problem(422, "GET", wire.PathRuns+"?"+query, "")
	}
}

// keys is an Authenticator whose tokens are names.
type keys map[string]*Principal

func (k keys) Authenticate(_ context.Context, token string) (*Principal, error) {
	if p := k[token]; p != nil {
		return p, nil
	}
	return nil, ErrUnauthorized
}

// TestCancelWhileWaitedFor (A2): only its owner can cancel a run by its id while the client waits for the answer.
func TestCancelWhileWaitedFor(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Auth = keys{"a": {ID: "a"}, "b": {ID: "b"}} })
	w.token = "a"
	answer := w.request("POST", wire.PathRun, body("out begun\nwait", `"timeout":"300s"`), "Accept", wire.TypeNDJSON)
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	if line, err := lines.ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	path := wire.PathRuns + "/" + answer.Header.Get(wire.HeaderRunID)
	w.token = "b"
	w.problem(404, "DELETE", path, "")
	w.token = "a"
	var info wire.RunInfo
	decode(t, w.ask(202, "DELETE", path, ""), &info)
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.Contains(string(rest), `"verdict":"cancelled"`) || info.State != wire.StateRunning || info.Accepted.IsZero() {
		t.Errorf("%v, %+v: %s", err, info, rest)
	}
	w.problem(404, "DELETE", path, "")
}

// TestOwners (A2): a principal can not see runs and files of another.
func TestOwners(t *testing.T) {
	w := newTestServer(t, func(o *Options) {
		o.Auth = keys{"a": {ID: "a"}, "b": {ID: "b"}, "reader": {ID: "a", Scopes: []string{ScopeRead}},
			"admin": {ID: "c", Scopes: []string{ScopeAdmin}}}
	})
	w.token = "a"
	id := w.start("out mine")
	w.waitForEnd(id)
	w.ask(201, "PUT", wire.PathFiles+"/f", "mine")
	unknown := w.problem(404, "GET", wire.PathRuns+"/"+NewID(), "")
	w.token = "b"
	other := w.problem(404, "GET", wire.PathRuns+"/"+id, "")
	if strings.ReplaceAll(other.Detail, id, "") == other.Detail || len(other.Detail) != len(unknown.Detail) || other.Code != unknown.Code {
		t.Errorf("it can be told apart: %+v, %+v", other, unknown)
	}
	w.problem(404, "GET", wire.PathRuns+"/"+id+"/events", "")
	w.problem(404, "GET", wire.PathRuns+"/"+id+"/files/x", "")
	w.problem(404, "DELETE", wire.PathRuns+"/"+id, "")
	w.problem(404, "GET", wire.PathFiles+"/f", "")
	w.problem(422, "POST", wire.PathRun, `{"language":"act","files":[{"path":"main.act","id":"f"}]}`)
	var page wire.RunList
	decode(t, w.ask(200, "GET", wire.PathRuns, ""), &page)
	if len(page.Runs) != 0 {
		t.Errorf("%+v", page)
	}
	w.token = "reader"
	w.ask(200, "GET", wire.PathRuns+"/"+id, "")
	if p := w.problem(403, "POST", wire.PathRun, body("out x")); p.Code != wire.CodeForbidden {
		t.Errorf("%+v", p)
	}
	w.problem(403, "DELETE", wire.PathRuns+"/"+id, "")
	var said []string
	for _, token := range []string{"", "wrong", strings.Repeat("x", 5000)} {
		w.token = token
		p := w.problem(401, "GET", wire.PathRuns, "")
		said = append(said, p.Detail)
	}
	w.token = ""
	said = append(said, w.problem(401, "GET", wire.PathRuns, "", "Authorization", "Basic YTpi").Detail)
	for _, headers := range [][]string{
		{wire.HeaderKey, "wrong"}, {wire.HeaderKey, strings.Repeat("x", 5000)}, {wire.HeaderKey, "a", "Authorization", "Bearer wrong"},
	} {
		said = append(said, w.problem(401, "GET", wire.PathRuns, "", headers...).Detail)
	}
	w.ask(200, "GET", wire.PathRuns+"/"+id, "", wire.HeaderKey, "a")
	if said = slices.Compact(said); len(said) != 1 {
		t.Errorf("an oracle: %q", said)
	}
	w.problem(401, "GET", wire.PathHealth+"?deep=1", "")
	// Without a key, health shows only that the server is alive; with one, its state.
	answer := w.request("GET", wire.PathHealth, "")
	text, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if strings.TrimSpace(string(text)) != `{"live":true,"ready":true}` || answer.StatusCode != 200 ||
		answer.Header.Get(wire.HeaderVersion) != "" {
		t.Errorf("%d %s %v", answer.StatusCode, text, answer.Header)
	}
	w.token = "a"
	if b := w.ask(200, "GET", wire.PathHealth, ""); !strings.Contains(string(b), `"version":"test"`) ||
		!strings.Contains(string(b), `"running":0`) {
		t.Errorf("%s", b)
	}
	// Only the owner sees the text of a server failure.
	w.token = "a"
	w.fake.FailCreate(errors.New("secret path /root/x"))
	if p := w.problem(500, "POST", wire.PathRun, body("out x")); strings.Contains(p.Detail, "secret") || p.Instance == "" {
		t.Errorf("%+v", p)
	}
}

// gate is an Admission that admits runs one by one.
type gate struct {
	mu   sync.Mutex
	open chan struct{}
	err  error
	asks []AdmissionRequest
}

func (g *gate) Enter(ctx context.Context, a AdmissionRequest) (func(), error) {
	g.mu.Lock()
	g.asks = append(g.asks, a)
	err := g.err
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if a.OnPosition != nil {
		a.OnPosition(4)
	}
	select {
	case <-g.open:
		return func() {}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func TestAdmission(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newTestServer(t, func(o *Options) { o.Admission = g })
	id := w.start("out x", `"memory":"100MiB"`, `"cpus":0.5`)
	eventually(t, "it stands in the queue", func() bool { i := w.info(id); return i.State == wire.StateQueued && i.Position == 4 })
	var h wire.Health
	decode(t, w.ask(200, "GET", wire.PathHealth, ""), &h)
	if *h.Queued != 1 || *h.Running != 0 {
		t.Errorf("%+v", h)
	}
	g.open <- struct{}{}
	if info := w.waitForEnd(id); info.Verdict != "ok" || info.Position != 0 {
		t.Errorf("%+v", info)
	}
	if a := g.asks[0]; a.Memory != 104*sandbox.MiB /* with its kept output */ || a.CPUs != 0.5 || a.Key != owner.ID || !a.Accepted {
		t.Errorf("%+v", a)
	}
	// A run that is cancelled while it waits never starts.
	id = w.start("out x")
	w.ask(202, "DELETE", wire.PathRuns+"/"+id, "")
	if info := w.waitForEnd(id); info.Error == nil || info.Error.Code != wire.CodeCancelled ||
		info.Verdict != string(sandbox.VerdictCancelled) || info.Started != nil {
		t.Errorf("%+v", info)
	}
	all := lines(t, bytes.NewReader(w.ask(200, "GET", wire.PathRuns+"/"+id+"/events", "")))
	if n := wire.NoticeOf(all[0]); len(all) != 1 || n == nil || n.Problem == nil || n.Problem.Code != wire.CodeCancelled {
		t.Errorf("%s", all)
	}
	g.mu.Lock()
	g.err = &Refusal{Status: 429, Reason: "too fast", RetryAfter: 1500 * time.Millisecond, Position: 9}
	g.mu.Unlock()
	answer := w.request("POST", wire.PathRun, body("out x"))
	answer.Body.Close()
	if answer.StatusCode != 429 || answer.Header.Get("Retry-After") != "2" {
		t.Errorf("%d, Retry-After %q", answer.StatusCode, answer.Header.Get("Retry-After"))
	}
	if p := w.problem(429, "POST", wire.PathRun, body("out x"), "Accept", wire.TypeSSE); p.Position != 9 || p.RetryAfter != 2 {
		t.Errorf("%+v", p)
	}
	// Admission of an accepted run is retried.
	id = w.start("out later")
	time.Sleep(50 * time.Millisecond)
	g.mu.Lock()
	g.err = nil
	g.mu.Unlock()
	g.open <- struct{}{}
	if info := w.waitForEnd(id); info.Verdict != "ok" {
		t.Errorf("%+v", info)
	}
}

func TestDrain(t *testing.T) {
	w := newTestServer(t)
	end := filepath.Join(t.TempDir(), "end")
	id := w.start("until "+end+"\nout done", `"timeout":"100s"`)
	eventually(t, "it runs", func() bool { return w.info(id).State == wire.StateRunning })
	drained := make(chan error, 1)
	go func() { drained <- w.Drain(t.Context()) }()
	eventually(t, "it drains", w.isDraining)
	answer := w.request("POST", wire.PathRun, body("out x"))
	answer.Body.Close()
	if answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" {
		t.Errorf("%d", answer.StatusCode)
	}
	w.problem(503, "POST", wire.PathRuns, body("out x"))
	w.problem(503, "PUT", wire.PathFiles+"/x", "x")
	w.ask(503, "GET", wire.PathHealth, "")
	w.ask(200, "GET", wire.PathHealth+"?check=live", "")
	must(t, os.WriteFile(end, nil, 0o600))
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if info := w.info(id); info.Verdict != "ok" {
		t.Errorf("%+v", info)
	}
}

// TestDrainDeadline: a run that takes too long is cancelled, and still has a result.
func TestDrainDeadline(t *testing.T) {
	w := newTestServer(t)
	id := w.start("wait", `"timeout":"300s"`)
	eventually(t, "it runs", func() bool { return w.info(id).State == wire.StateRunning })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if info := w.info(id); info.Verdict != string(sandbox.VerdictCancelled) {
		t.Errorf("%+v", info)
	}
}

// TestRestart: finished runs are available with their events, queued runs are run, and a directory has one server.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	g := &gate{open: make(chan struct{})}
	durable := func(o *Options) { o.Dir, o.Admission = dir, g }
	w := newTestServer(t, durable)
	done := w.start("out kept")
	g.open <- struct{}{}
	w.waitForEnd(done)
	events := w.ask(200, "GET", wire.PathRuns+"/"+done+"/events", "")
	result := w.info(done).Result
	w.ask(201, "PUT", wire.PathFiles+"/f", "uploaded")
	queued := w.start("out after a restart")
	if _, err := New(Options{Executor: w.engine, Dir: dir}); err == nil || !strings.Contains(err.Error(), "another server uses") {
		t.Errorf("a second server: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.open(durable)
	info := w.info(done)
	if info.State != wire.StateDone || !bytes.Equal(info.Result, result) {
		t.Errorf("%+v", info)
	}
	if again := w.ask(200, "GET", wire.PathRuns+"/"+done+"/events", ""); !bytes.Equal(again, events) {
		t.Errorf("other events:\n%s%s", events, again)
	}
	if b := w.ask(200, "GET", wire.PathFiles+"/f", ""); string(b) != "uploaded" {
		t.Errorf("%q", b)
	}
	if info := w.info(queued); info.State != wire.StateQueued {
		t.Errorf("%+v", info)
	}
	g.open <- struct{}{}
	r, err := wire.DecodeResult(w.waitForEnd(queued).Result)
	if err != nil || string(r.Stdout.Bytes()) != "after a restart\n" {
		t.Errorf("%v: %+v", err, r)
	}
	var page wire.RunList
	decode(t, w.ask(200, "GET", wire.PathRuns, ""), &page)
	if len(page.Runs) != 2 || page.Runs[0].ID != queued {
		t.Errorf("%+v", page)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// A run under way is reported as lost; incomplete and foreign files do no harm.
	runs := filepath.Join(dir, "runs")
	record, err := os.ReadFile(filepath.Join(runs, done+suffixDone))
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := bytes.Cut(record, []byte("\n"))
	lost := NewID()
	head = bytes.ReplaceAll(head, []byte(done), []byte(lost))
	segment := "{\"seq\":1,\"time\":\"2026-01-02T03:04:05Z\",\"kind\":\"phase\"}\n{\"seq\":2,\"ti"
	for name, text := range map[string]string{
		lost + suffixRunning: string(head) + "\n", lost + ".e0": segment, NewID() + suffixDone: "{", NewID() + ".e3": "x\n", NewID() +
			suffixQueued + temporary: "x",
	} {
		if err := os.WriteFile(filepath.Join(runs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.open(durable)
	for range 2 { // and still after another restart
		info = w.info(lost)
		if info.State != wire.StateLost || info.Error == nil || info.Error.Code != wire.CodeLost || info.Events.Last != 1 {
			t.Errorf("%+v, %+v", info, info.Events)
		}
		all := lines(t, bytes.NewReader(w.ask(200, "GET", wire.PathRuns+"/"+lost+"/events", "")))
		if len(all) != 2 || kindOf(all[0]) != "phase" || wire.NoticeOf(all[1]) == nil {
			t.Errorf("%s", all)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.open(durable)
	}
}

// TestKeep: finished runs are removed by number, size and age, the oldest first; running ones never are.
func TestKeep(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Keep.Runs = 2 })
	under := w.start("wait", `"timeout":"300s"`)
	var ids []string
	for range 4 {
		id := w.start("out x")
		w.waitForEnd(id)
		ids = append(ids, id)
	}
	eventually(t, "what is to be forgotten for the last of them is", func() bool { // a run is over before others go for it
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.active) == 1
	})
	for i, id := range ids {
		answer := w.request("GET", wire.PathRuns+"/"+id, "")
		answer.Body.Close()
		if want := map[bool]int{true: 404, false: 200}[i < 2]; answer.StatusCode != want {
			t.Errorf("run %d: %d", i, answer.StatusCode)
		}
	}
	w.runs.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	w.runs.prune()
	w.problem(404, "GET", wire.PathRuns+"/"+ids[3], "")
	w.ask(202, "DELETE", wire.PathRuns+"/"+under, "")
	eventually(t, "it is swept with the rest", func() bool {
		answer := w.request("GET", wire.PathRuns+"/"+under, "")
		answer.Body.Close()
		return answer.StatusCode == 404
	})
	if w.runs.size != 0 || len(w.runs.runs) != 0 || len(w.runs.owners) != 0 || w.runs.open != 0 {
		t.Errorf("%+v", w.runs)
	}
}

// TestKeepFair: a key with many or large runs evicts only its own.
func TestKeepFair(t *testing.T) {
	for name, k := range map[string]Keep{
		"number": {Runs: 6, RunsPerKey: 6}, "number of one": {Runs: 100, RunsPerKey: 4}, "size": {Total: 40 << 10, TotalPerKey: 40 << 10},
		"size of one": {TotalPerKey: 20 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestServer(t, func(o *Options) { o.Auth, o.Keep = keys{"a": {ID: "a"}, "b": {ID: "b"}}, k })
			run := func(token, code string) string {
				w.token = token
				id := w.start(code)
				w.waitForEnd(id)
				return id
			}
			theirs := []string{run("b", "out x"), run("b", "out x")} // the oldest of all
			var own []string
			for range 12 {
				own = append(own, run("a", "flood 3000"))
			}
			gone := 0
			for _, id := range own {
				if w.runs.get("a", id) == nil {
					gone++
				}
			}
			if gone < 4 || gone == len(own) || w.runs.get("a", own[len(own)-1]) == nil {
				t.Errorf("%d of its %d are gone", gone, len(own))
			}
			w.token = "b"
			for _, id := range theirs {
				w.info(id)
			}
		})
	}
}
