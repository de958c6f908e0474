package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestRun(t *testing.T) {
	w := newTestServer(t)
	answer := w.request("POST", wire.PathRun, body("out hello\nerr oh\nexit 3", `"labels":{"a":"b"}`))
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 || answer.Header.Get("Content-Type") != wire.TypeJSON {
		t.Fatalf("%v %v: %s", err, answer, b)
	}
	if id := answer.Header.Get(wire.HeaderRunID); len(id) != 32 {
		t.Errorf("id %q", id)
	}
	r, err := wire.DecodeResult(b)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 3 || string(r.Stdout.Bytes()) != "hello\n" ||
		string(r.Stderr.Bytes()) != "oh\n" || r.Language != "act" {
		t.Errorf("%s", b)
	}
	// The answer equals the document that the command line prints, with its newline.
	if again := wire.AppendJSON(nil, r); !bytes.Equal(again, b) {
		t.Errorf("the document is not the engine's own:\n%s%s", b, again)
	}
	if n := w.fake.Alive(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// hostile is output that must arrive byte for byte in every form. The zeroes are an event that is longer than a reader's chunk.
var binary = "out plain\nhex 00ff1b5b324a0d0ae280a8c3\nhex a4\nhex " + strings.Repeat("00", 30000) +
	"\nout <&>\nflood 1500000\nhex c3\nerr \u2028 z\nsave /workspace/f file"

// TestExact (A6) compares every form of the events with the executor's own.
func TestExact(t *testing.T) {
	w := newTestServer(t)
	var want [][2][]byte // per stream
	collect := func(events []executor.Event) (out [2][]byte) {
		for i, ev := range events {
			if ev.Seq != uint64(i+1) {
				t.Fatalf("event %d has the number %d", i+1, ev.Seq)
			}
			switch ev.Kind {
			case sandbox.EventStdout:
				if ev.Offset != uint64(len(out[0])) {
					t.Fatalf("event %d begins at %d instead of %d", ev.Seq, ev.Offset, len(out[0]))
				}
				out[0] = append(out[0], ev.Data...)
			case sandbox.EventStderr:
				out[1] = append(out[1], ev.Data...)
			}
		}
		if last := events[len(events)-1]; last.Kind != executor.EventResult || last.Result == nil {
			t.Fatalf("the last event is %+v", last)
		}
		return out
	}
	var direct []executor.Event
	for ev, err := range w.engine.Stream(t.Context(), executor.Request{Language: "act", Code: binary}) {
		if err != nil {
			t.Fatal(err)
		}
		direct = append(direct, ev)
	}
	want = append(want, collect(direct))
	if len(want[0][0]) < 1_500_000 {
		t.Fatal("the probe prints nothing")
	}
	read := func(all [][]byte) (events []executor.Event) {
		for _, line := range all {
			ev, err := wire.DecodeEvent(line)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, ev)
		}
		return events
	}
	compare := func(way string, all [][]byte) {
		t.Helper()
		events := read(all)
		got := collect(events)
		if !bytes.Equal(got[0], want[0][0]) || !bytes.Equal(got[1], want[0][1]) {
			t.Errorf("%s: other bytes than the engine's", way)
		}
		result := events[len(events)-1].Result
		if !bytes.Equal(result.Stdout.Bytes(), want[0][0]) {
			t.Errorf("%s: the result has other bytes", way)
		}
	}
	ndjson := w.request("POST", wire.PathRun, body(binary), "Accept", wire.TypeNDJSON)
	compare("ndjson", lines(t, ndjson.Body))
	ndjson.Body.Close()
	sse := w.request("POST", wire.PathRun, body(binary), "Accept", wire.TypeSSE)
	compare("sse", fromSSE(t, sse.Body))
	sse.Body.Close()
	id := w.start(binary, `"out":["f"]`)
	w.waitForEnd(id)
	if b := w.ask(200, "GET", wire.PathRuns+"/"+id+"/files/f", ""); string(b) != "file" {
		t.Errorf("a file beside large output: %q", b)
	}
	for way, c := range map[string]*socketClient{"socket": w.dial(id, ""), "talk": w.dialPath(wire.PathTalk)} {
		if way == "talk" {
			must(t, c.Write(t.Context(), websocket.MessageText, []byte(body(binary))))
		}
		if code := c.readUntil(nil); code != websocket.StatusNormalClosure || c.out != string(want[0][0]) ||
			!bytes.Equal(c.last.Result.Stdout.Bytes(), want[0][0]) {
			t.Errorf("%s: closed with %d, other bytes than the engine's", way, code)
		}
	}
	replay := w.request("GET", wire.PathRuns+"/"+id+"/events", "")
	compare("replay", lines(t, replay.Body))
	replay.Body.Close()
	replay = w.request("GET", wire.PathRuns+"/"+id+"/events", "", "Accept", wire.TypeSSE)
	compare("replay as sse", fromSSE(t, replay.Body))
	replay.Body.Close()
	r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, body(binary)))
	if err != nil || !bytes.Equal(r.Stdout.Bytes(), want[0][0]) || !bytes.Equal(r.Stderr.Bytes(), want[0][1]) {
		t.Errorf("whole: %v: other bytes than the engine's", err)
	}
	info := w.info(id)
	if r, err := wire.DecodeResult(info.Result); err != nil || !bytes.Equal(r.Stdout.Bytes(), want[0][0]) {
		t.Errorf("fetched: %v: other bytes than the engine's", err)
	}
	eventually(t, "all spill space is returned", func() bool { return w.outputs.Used() == 0 })
}

// fromSSE returns the data of server-sent events, and checks the other fields.
func fromSSE(t testing.TB, r io.Reader) (all [][]byte) {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
		if block == ":" {
			continue
		}
		parts := strings.Split(block, "\n")
		if len(parts) != 3 || parts[0] != fmt.Sprintf("id: %d", i+1) || !strings.HasPrefix(parts[2], "data: ") {
			t.Fatalf("block %d: %.200q", i+1, block)
		}
		data := []byte(strings.TrimPrefix(parts[2], "data: ") + "\n")
		if parts[1] != "event: "+kindOf(data) {
			t.Fatalf("block %d: %s", i+1, parts[1])
		}
		all = append(all, data)
	}
	return all
}

// TestVanish: a client that disconnects cancels its run, whole or streamed.
func TestVanish(t *testing.T) {
	for _, accept := range []string{wire.TypeJSON, wire.TypeNDJSON, wire.TypeSSE} {
		t.Run(accept, func(t *testing.T) {
			w := newTestServer(t)
			ctx, vanish := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				r, _ := http.NewRequestWithContext(ctx, "POST", "http://server"+wire.PathRun,
					strings.NewReader(body("out here\nwait", `"timeout":"300s"`)))
				r.Header.Set("Content-Type", wire.TypeJSON)
				r.Header.Set("Accept", accept)
				answer, err := w.client.Do(r)
				if err == nil {
					_, err = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
				gone <- err
			}()
			eventually(t, "it runs", func() bool { return w.fake.Alive() == 1 })
			vanish()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			eventually(t, "nothing is left", func() bool { return w.fake.Alive() == 0 })
		})
	}
}

// TestLive: events come while they happen.
func TestLive(t *testing.T) {
	w := newTestServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	answer := w.requestContext(ctx, "POST", wire.PathRun, strings.NewReader(body("out first\nwait", `"timeout":"300s"`)), "Accept",
		wire.TypeNDJSON)
	defer answer.Body.Close()
	buf := make([]byte, 4096)
	var seen []byte
	for !bytes.Contains(seen, []byte("first")) {
		n, err := answer.Body.Read(buf)
		if seen = append(seen, buf[:n]...); err != nil {
			t.Fatalf("%v: %s", err, seen)
		}
	}
	cancel()
}

// TestRefusedStream: an error before the first event has a status of its own.
func TestRefusedStream(t *testing.T) {
	w := newTestServer(t)
	w.fake.FailCreate(errors.New("no kernel today"))
	for _, accept := range []string{wire.TypeJSON, wire.TypeNDJSON, wire.TypeSSE} {
		p := w.problem(500, "POST", wire.PathRun, body("out hello"), "Accept", accept)
		if !strings.Contains(p.Detail, "no kernel today") || p.Instance == "" {
			t.Errorf("%+v", p)
		}
	}
	w.fake.FailCreate(nil)
	w.ask(200, "POST", wire.PathRun, body("out hello"))
}

// TestStdin: input is text or base64; on a terminal its end does not hang up.
func TestStdin(t *testing.T) {
	w := newTestServer(t)
	for _, fields := range []string{`"stdin":"x\u0000y"`, `"stdin":"eAB5","stdin_encoding":"base64"`} {
		r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, body("cat", fields)))
		if err != nil || string(r.Stdout.Bytes()) != "x\x00y" {
			t.Errorf("%s: %v, %q", fields, err, r.Stdout.Bytes())
		}
	}
	r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, body("out hi", `"tty":{"rows":24,"cols":80}`, `"timeout":"5s"`)))
	if err != nil || !strings.Contains(string(r.Stdout.Bytes()), "hi") || r.Verdict != sandbox.VerdictOK {
		t.Errorf("with a terminal: %v, %+v", err, r)
	}
}

// TestFiles: output files are in the result, and can be downloaded.
func TestFiles(t *testing.T) {
	w := newTestServer(t)
	id := w.start("save /workspace/a/b.txt content\nsave /tmp/c other", `"out":["a/*","/tmp/c"]`)
	w.waitForEnd(id)
	if b := w.ask(200, "GET", wire.PathRuns+"/"+id+"/files/a/b.txt", ""); string(b) != "content" {
		t.Errorf("%q", b)
	}
	if b := w.ask(200, "GET", wire.PathRuns+"/"+id+"/files/tmp/c", ""); string(b) != "other" {
		t.Errorf("%q", b)
	}
	w.problem(404, "GET", wire.PathRuns+"/"+id+"/files/a/none", "")
	waiting := w.start("wait", `"timeout":"300s"`)
	w.problem(409, "GET", wire.PathRuns+"/"+waiting+"/files/a", "")
	w.ask(202, "DELETE", wire.PathRuns+"/"+waiting, "")
}

func TestUploads(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Keep.Upload, o.Keep.Uploads, o.Keep.UploadFor = 1000, 1500, time.Hour })
	var u wire.Upload
	decode(t, w.ask(201, "PUT", wire.PathFiles+"/input.csv", "out from a file"), &u)
	if u.ID != "input.csv" || u.Size != 15 || len(u.SHA256) != 64 || time.Until(u.Expires) < 50*time.Minute {
		t.Errorf("%+v", u)
	}
	if b := w.ask(200, "GET", wire.PathFiles+"/input.csv", ""); string(b) != "out from a file" {
		t.Errorf("%q", b)
	}
	r, err := wire.DecodeResult(w.ask(200, "POST", wire.PathRun, `{"language":"act","files":[{"path":"main.act","id":"input.csv"}]}`))
	if err != nil || string(r.Stdout.Bytes()) != "from a file\n" {
		t.Errorf("%v: %+v", err, r)
	}
	w.ask(200, "PUT", wire.PathFiles+"/input.csv", "out replaced")
	r, err = wire.DecodeResult(w.ask(200, "POST", wire.PathRun, `{"language":"act","files":[{"path":"main.act","id":"input.csv"}]}`))
	if err != nil || string(r.Stdout.Bytes()) != "replaced\n" {
		t.Errorf("%v: %+v", err, r)
	}
	if p := w.problem(422, "POST", wire.PathRun, `{"language":"act","files":[{"path":"main.act",`+
		`"id":"none"}]}`); p.Errors[0].Field != "files[0].id" {
		t.Errorf("%+v", p)
	}
	w.problem(413, "PUT", wire.PathFiles+"/large", strings.Repeat("x", 1001))
	// without a length
	answer := w.requestContext(t.Context(), "PUT", wire.PathFiles+"/chunked", io.MultiReader(strings.NewReader(strings.Repeat("x", 1001))))
	answer.Body.Close()
	if answer.StatusCode != 413 {
		t.Errorf("%d", answer.StatusCode)
	}
	w.ask(201, "PUT", wire.PathFiles+"/more", strings.Repeat("x", 1000))
	w.problem(503, "PUT", wire.PathFiles+"/toomuch", strings.Repeat("x", 1000))
	w.ask(204, "DELETE", wire.PathFiles+"/more", "")
	w.problem(404, "DELETE", wire.PathFiles+"/more", "")
	w.ask(201, "PUT", wire.PathFiles+"/fits", strings.Repeat("x", 1000))
	for _, id := range []string{"%2e%2e", "a%00b", strings.Repeat("x", 129), "a%20b", "a%2Fb"} {
		if answer := w.request("PUT", wire.PathFiles+"/"+id, "x"); answer.StatusCode != 422 {
			t.Errorf("%s: %d", id, answer.StatusCode)
		}
	}
	// Expired files are gone.
	w.uploads.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	w.problem(404, "GET", wire.PathFiles+"/fits", "")
	w.uploads.removeExpired()
	if w.uploads.size != 0 || len(w.uploads.files) != 0 {
		t.Errorf("%d bytes and %d files are left", w.uploads.size, len(w.uploads.files))
	}
}

// noting is an Admission that admits every run and records its requests.
type noting struct {
	mu   sync.Mutex
	asks []AdmissionRequest
}

func (n *noting) Enter(_ context.Context, a AdmissionRequest) (func(), error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asks = append(n.asks, a)
	return func() {}, nil
}

// TestWeight: the weight of a run includes its compiler and its kept output.
func TestWeight(t *testing.T) {
	n := &noting{}
	w := newTestServer(t, func(o *Options) { o.Admission = n })
	w.ask(200, "POST", wire.PathRun, body("out x", `"memory":"64MiB"`, `"output_limit":"1MiB"`))
	if len(n.asks) != 1 || n.asks[0].Memory != 68*sandbox.MiB {
		t.Errorf("%+v", n.asks)
	}
}
