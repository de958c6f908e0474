package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// socketClient is a WebSocket client.
type socketClient struct {
	*websocket.Conn
	t    *testing.T
	out  string
	last executor.Event
	acks uint64
	errs []string
	why  string // it was sent away

	receipt string
	ready   wire.Ready
}

func (w *testServer) dial(id, query string) *socketClient {
	w.t.Helper()
	return w.dialPath(wire.PathRuns + "/" + id + "/ws" + query)
}

func (w *testServer) dialPath(path string) *socketClient {
	t := w.t.(*testing.T)
	t.Helper()
	header := http.Header{}
	if w.token != "" {
		header.Set("Authorization", "Bearer "+w.token)
	}
	conn, answer, err := websocket.Dial(t.Context(), "http://server"+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: w.client.Transport}, HTTPHeader: header, Subprotocols: []string{wire.Subprotocol},
	})
	if err != nil {
		t.Fatalf("%v %+v", err, answer)
	}
	conn.SetReadLimit(16 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &socketClient{Conn: conn, t: t}
}

func (c *socketClient) sendMessage(m wire.Message) {
	c.t.Helper()
	b, _ := json.Marshal(m)
	if err := c.Write(c.t.Context(), websocket.MessageText, b); err != nil {
		c.t.Fatal(err)
	}
}

// readUntil reads messages until a condition holds or the connection ends, and returns the close code.
func (c *socketClient) readUntil(until func() bool) websocket.StatusCode {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), testTimeout)
	defer cancel()
	for until == nil || !until() {
		_, b, err := c.Read(ctx)
		if err != nil {
			if ctx.Err() != nil || until != nil {
				c.t.Fatalf("%v after %q", err, c.out)
			}
			var closed websocket.CloseError
			if errors.As(err, &closed) {
				c.why = closed.Reason
			}
			return websocket.CloseStatus(err)
		}
		if n := wire.NoticeOf(b); n != nil {
			switch n.Kind {
			case wire.KindAck:
				c.acks = n.Bytes
			case wire.KindError:
				c.errs = append(c.errs, n.Problem.Detail)
			case wire.KindReceipt:
				c.receipt = string(n.Receipt)
			}
			continue
		}
		if bytes.HasPrefix(b, []byte(`{"kind":"`+wire.KindReady+`"`)) {
			if err := json.Unmarshal(b, &c.ready); err != nil {
				c.t.Fatal(err)
			}
			continue
		}
		ev, err := wire.DecodeEvent(b)
		if err != nil {
			c.t.Fatalf("%v: %s", err, b)
		}
		if ev.Seq != c.last.Seq+1 && c.last.Seq != 0 {
			c.t.Fatalf("%d follows %d", ev.Seq, c.last.Seq)
		}
		if c.last = ev; ev.Kind == sandbox.EventStdout {
			c.out += string(ev.Data)
		}
	}
	return -1
}

func TestSocket(t *testing.T) {
	w := newTestServer(t)
	id := w.start("cat\nout bye", `"interactive":true`, `"stdin":"first "`)
	c := w.dial(id, "")
	c.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "then "})
	c.sendMessage(wire.Message{Type: wire.MessageStdin, Data: base64.StdEncoding.EncodeToString([]byte{0, 255}), Encoding: "base64"})
	c.readUntil(func() bool { return strings.HasSuffix(c.out, "\xff") && c.acks == 7 })
	// A client continues after a lost connection.
	_ = c.CloseNow()
	d := w.dial(id, fmt.Sprintf("?from=%d", c.last.Seq+1))
	d.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "again "})
	d.sendMessage(wire.Message{Type: wire.MessageStdinClose})
	d.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "too late"})
	if code := d.readUntil(nil); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d", code)
	}
	if got := c.out + d.out; got != "first then \x00\xffagain bye\n" {
		t.Errorf("%q", got)
	}
	// The message is refused, or arrives after the end of the connection.
	if len(d.errs) > 1 || len(d.errs) == 1 && !strings.Contains(d.errs[0], "ended") && !strings.Contains(d.errs[0], "over") {
		t.Errorf("%q", d.errs)
	}
	if d.last.Result == nil || d.last.Result.Verdict != sandbox.VerdictOK {
		t.Errorf("%+v", d.last)
	}
	// After the run, the connection replays its events.
	e := w.dial(id, "")
	if code := e.readUntil(nil); code != websocket.StatusNormalClosure || !strings.HasPrefix(e.out, "first then ") || e.last.Result == nil {
		t.Errorf("%d %q", code, e.out)
	}
}

func TestSocketSignals(t *testing.T) {
	w := newTestServer(t)
	id := w.start("trap", `"timeout":"200s"`)
	c := w.dial(id, "")
	c.readUntil(func() bool { return strings.Contains(c.out, "ready") })
	c.sendMessage(wire.Message{Type: wire.MessageSignal, Signal: "SIGUSR1"})
	c.readUntil(func() bool { return strings.Contains(c.out, "10\n") })
	c.sendMessage(wire.Message{Type: wire.MessageStdin, Data: "x"})
	c.sendMessage(wire.Message{Type: wire.MessageResize, Rows: 3, Cols: 4})
	c.readUntil(func() bool { return len(c.errs) == 2 })
	if !strings.Contains(c.errs[0], "interactive") || !strings.Contains(c.errs[1], "terminal") {
		t.Errorf("%q", c.errs)
	}
	c.sendMessage(wire.Message{Type: wire.MessageSignal, Signal: "SIGTERM"})
	c.readUntil(nil)
	if c.last.Result == nil || c.last.Result.Exit.Code != 0 {
		t.Errorf("%+v", c.last)
	}
	id = w.start("size", `"tty":{"rows":24,"cols":80}`, `"interactive":true`)
	c = w.dial(id, "")
	c.sendMessage(wire.Message{Type: wire.MessageResize, Rows: 30, Cols: 100})
	c.readUntil(nil)
	if !strings.Contains(c.out, "30×100") {
		t.Errorf("%q", c.out)
	}
	id = w.start("wait", `"timeout":"200s"`)
	c = w.dial(id, "")
	c.readUntil(func() bool { return c.last.Seq > 0 }) // one that has not begun has no result
	c.sendMessage(wire.Message{Type: wire.MessageCancel})
	c.readUntil(nil)
	if c.last.Result == nil || c.last.Result.Verdict != sandbox.VerdictCancelled {
		t.Errorf("%+v", c.last)
	}
	for signal, number := range map[string]string{"": "15\n", wire.SignalInterrupt: "2\n"} {
		c = w.dial(w.start("trap", `"timeout":"200s"`), "")
		c.readUntil(func() bool { return strings.Contains(c.out, "ready") })
		c.sendMessage(wire.Message{Type: wire.MessageCancel, Signal: signal})
		c.readUntil(func() bool { return strings.Contains(c.out, number) })
	}
}

// TestSocketProtocol: a protocol violation ends the connection, and the run continues.
func TestSocketProtocol(t *testing.T) {
	w := newTestServer(t)
	id := w.start("wait", `"timeout":"200s"`, `"interactive":true`)
	for _, message := range []string{
		"x", "[]", "{}", `{"type":"dance"}`, `{"type":"stdin","data":"!","encoding":"base64"}`, `{"type":"stdin","encoding":"rot13"}`,
		`{"type":"signal","signal":"KILL"}`, `{"type":"cancel","signal":"SIGKILL"}`, `{"type":"resize","rows":0,"cols":1}`,
		`{"type":"resize","rows":-1}`, `{"type":"stdin","more":1}`, `{"type":7}`,
	} {
		c := w.dial(id, "")
		if err := c.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if code := c.readUntil(nil); code != websocket.StatusPolicyViolation {
			t.Errorf("%s: closed with %d", message, code)
		}
	}
	c := w.dial(id, "")
	if err := c.Write(t.Context(), websocket.MessageBinary, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if code := c.readUntil(nil); code != websocket.StatusPolicyViolation {
		t.Errorf("binary: closed with %d", code)
	}
	c = w.dial(id, "")
	_ = c.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", maxMessage+1)))
	if code := c.readUntil(nil); code != websocket.StatusMessageTooBig {
		t.Errorf("too long: closed with %d", code)
	}
	w.problem(426, "GET", wire.PathRuns+"/"+id+"/ws", "")
	_, answer, err := websocket.Dial(t.Context(), "http://server"+wire.PathRuns+"/"+id+"/ws",
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: w.client.Transport}})
	if err == nil || answer == nil || answer.StatusCode != 400 {
		t.Errorf("without the subprotocol: %v", err)
	}
	if w.info(id).State != wire.StateRunning {
		t.Error("the run is over")
	}
	w.ask(202, "DELETE", wire.PathRuns+"/"+id, "")
	w.waitForEnd(id)
}

// TestNoClient: the input of an interactive run without a client ends.
func TestNoClient(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Keep.Interactive = 50 * time.Millisecond })
	id := w.start("cat\nout alone", `"interactive":true`, `"timeout":"200s"`)
	if info := w.waitForEnd(id); info.Verdict != "ok" {
		t.Errorf("%+v", info)
	}
}

// TestInputPressure: unread input is bounded, and its sender waits.
func TestInputPressure(t *testing.T) {
	in := attach(&job{Info: Info{Way: WayAsync}, run: &wire.Run{Interactive: true}})
	defer in.close()
	block := make([]byte, maxBuffered)
	if err := in.write(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := in.write(ctx, []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if n, err := in.Read(make([]byte, 10)); n != 10 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := in.write(t.Context(), []byte("0123456789")); err != nil {
		t.Error(err)
	}
	in.close()
	if err := in.write(t.Context(), []byte("x")); !errors.Is(err, errInputEnded) {
		t.Errorf("%v", err)
	}
}

// TestSocketEndsWithServer: an open connection does not delay Close.
func TestSocketEndsWithServer(t *testing.T) {
	w := newTestServer(t)
	id := w.start("wait", `"timeout":"200s"`)
	c := w.dial(id, "")
	answer := w.request("GET", wire.PathRuns+"/"+id+"/events", "")
	defer answer.Body.Close()
	c.readUntil(func() bool { return c.last.Seq > 0 })
	go func() { _ = w.Close() }()
	code := c.readUntil(nil)
	if code != websocket.StatusGoingAway && code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d", code)
	}
	lines(t, answer.Body)
}

// TestMessagesOfOne: unread messages of many connections count as their owner's memory. Small messages get through.
func TestMessagesOfOne(t *testing.T) {
	w := newTestServer(t)
	id := w.start("wait", `"interactive":true`, `"timeout":"200s"`)
	first, second := w.dial(id, ""), w.dial(id, "")
	large := wire.Message{Type: wire.MessageStdin, Data: strings.Repeat("x", maxMessage-100)}
	first.sendMessage(large)
	first.sendMessage(large) // the program's side takes none, so that this one waits
	eventually(t, "a message that waits is counted", func() bool { return w.bodies.total() >= maxMessage })
	full := w.bodies.count(owner.ID, maxAccount/2)
	sent := make(chan error, 1)
	go func() { // it waits for room
		b, _ := json.Marshal(large)
		sent <- second.Write(t.Context(), websocket.MessageText, b)
	}()
	time.Sleep(50 * time.Millisecond)
	if more := w.bodies.total() - maxAccount/2; more >= 2*maxMessage {
		t.Errorf("%d bytes are counted where there is no room", more)
	}
	third := w.dial(id, "")
	third.sendMessage(wire.Message{Type: wire.MessageCancel})
	if info := w.waitForEnd(id); info.Verdict != string(sandbox.VerdictCancelled) {
		t.Errorf("%+v", info)
	}
	full()
	<-sent
	for _, c := range []*socketClient{first, second, third} {
		c.readUntil(nil)
	}
	eventually(t, "all is given back", func() bool { return w.bodies.total() == 0 })
}

// TestPings: a client that waits for room is not taken for disconnected, though the server does not read its pongs.
func TestPings(t *testing.T) {
	for name, waits := range map[string]bool{"waits": true, "disconnected": false} {
		t.Run(name, func(t *testing.T) {
			in := attach(&job{Info: Info{Way: WayAsync}, run: &wire.Run{Interactive: true}})
			defer in.close()
			if err := in.write(t.Context(), make([]byte, maxBuffered)); err != nil { // one more byte has to wait
				t.Fatal(err)
			}
			given, heard := make(chan struct{}), make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.CloseNow() }()
				c := &socketConn{run: &run{input: in, over: make(chan struct{})}, conn: conn}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go c.handleMessages(ctx)
				for waits && !c.handling.Load() && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				close(heard)
				c.ping(ctx, func() { close(given) }, 10*time.Millisecond, 100*time.Millisecond)
			}))
			defer server.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client, _, err := websocket.Dial(ctx, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.CloseNow() }()
			if waits { // it reads, and so answers; the other does not
				client.CloseRead(ctx)
				if err := client.Write(ctx, websocket.MessageText, []byte(`{"type":"stdin","data":"x"}`)); err != nil {
					t.Fatal(err)
				}
			}
			<-heard
			span := testTimeout
			if waits {
				span = time.Second
			}
			select {
			case <-given:
				if waits {
					t.Error("it was given up")
				}
			case <-time.After(span):
				if !waits {
					t.Error("it is waited for")
				}
			}
		})
	}
}

// TestWindow: an interactive client gets a window and acknowledgements; others get none.
func TestWindow(t *testing.T) {
	w := newTestServer(t)
	for _, interactive := range []bool{true, false} {
		c := w.dialPath(wire.PathTalk)
		text := body("cat\nout x", fmt.Sprintf(`"interactive":%v`, interactive))
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if interactive {
			c.sendMessage(wire.Message{Type: wire.MessageStdin, Data: strings.Repeat("x", window/4)})
			c.readUntil(func() bool { return c.acks >= window/8 }) // the last of it may go without a word
			c.sendMessage(wire.Message{Type: wire.MessageStdinClose})
		}
		c.readUntil(nil)
		if got := c.ready.Window; got != map[bool]uint64{true: window}[interactive] || !strings.HasSuffix(c.out, "x\n") {
			t.Errorf("interactive %v: a window of %d, and it printed %d bytes", interactive, got, len(c.out))
		}
	}
}
