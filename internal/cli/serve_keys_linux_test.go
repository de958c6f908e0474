package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/internal/userdir"
)

// followedRun is a run that a client follows over a stream and over a WebSocket.
type followedRun struct {
	stream *http.Response
	lines  *bufio.Scanner
	socket *websocket.Conn
}

// followRun follows a run in both ways, and has read its first event in each.
func followRun(t *testing.T, s *serverProcess, id, token string) *followedRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), serveTime)
	t.Cleanup(cancel)
	base, header := "http://"+s.at[0]+"/v1/runs/"+id, http.Header{"Authorization": {"Bearer " + token}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	o := &followedRun{}
	if o.stream, err = http.DefaultClient.Do(req); err != nil || o.stream.StatusCode != 200 {
		t.Fatalf("%v, %v", o.stream, err)
	}
	t.Cleanup(func() { o.stream.Body.Close() })
	if o.lines = bufio.NewScanner(o.stream.Body); !o.lines.Scan() {
		t.Fatal(o.lines.Err())
	}
	options := &websocket.DialOptions{HTTPHeader: header, Subprotocols: []string{"sandbox-run.v1"}}
	if o.socket, _, err = websocket.Dial(ctx, base+"/ws", options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.socket.CloseNow() })
	if _, _, err := o.socket.Read(ctx); err != nil {
		t.Fatal(err)
	}
	return o
}

// end reads both to their ends. It returns the last line of the stream and the close error of the WebSocket.
func (o *followedRun) end(t *testing.T) (last string, closed websocket.CloseError) {
	t.Helper()
	for o.lines.Scan() {
		last = o.lines.Text()
	}
	if err := o.lines.Err(); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), serveTime)
	defer cancel()
	for {
		if _, _, err := o.socket.Read(ctx); err != nil {
			if !errors.As(err, &closed) {
				t.Errorf("the socket was cut off: %v", err)
			}
			return last, closed
		}
	}
}

// expireKeys sets the expiry of all keys that have one to the past.
func expireKeys(t *testing.T, keys string) {
	t.Helper()
	lock, err := os.OpenFile(keys+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() // unlocks it
	if err := userdir.Lock(lock, false, serveTime); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(keys)
	if err != nil {
		t.Fatal(err)
	}
	after := regexp.MustCompile(`("expires": *)"[^"]*"`).ReplaceAll(before, []byte(`$1"2001-02-03T04:05:06Z"`))
	if bytes.Equal(before, after) {
		t.Fatalf("no key has a time: %s", before)
	}
	if err := os.WriteFile(keys+".new", after, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(keys+".new", keys); err != nil {
		t.Fatal(err)
	}
}

// A2: streams and WebSockets of a key that is rotated, removed or expired are closed with the reason. The key's runs go on and stay the
// key's. During an overlap nothing is closed, and other keys are not affected.
func TestServeRevokedKeys(t *testing.T) {
	needRoot(t)
	dir, args := newServerDir(t)
	keys := filepath.Join(dir, "keys", "keys.json")
	rotated, removed := newKey(t, dir, "--name", "rotated"), newKey(t, dir, "--name", "removed")
	overlaps, other := newKey(t, dir, "--name", "overlaps"), newKey(t, dir, "--name", "other")
	expired := newKey(t, dir, "--name", "expired", "--expires", "1h")
	s := startServer(t, append(args, "--listen", "127.0.0.1:0")...)
	start := func(token string) (id string) {
		t.Helper()
		r := s.request(0, "POST", "/v1/runs", `{"language":"shell","code":"echo begun; read go; echo $go","interactive":true}`, bearer(token)...)
		if r.code != 202 {
			t.Fatalf("%d %s", r.code, r.body)
		}
		return r.field(t, "id")
	}
	runs, open := map[string]string{}, map[string]*followedRun{}
	for _, token := range []string{rotated, removed, expired, overlaps, other} {
		runs[token] = start(token)
		open[token] = followRun(t, s, runs[token], token)
	}
	key := func(args ...string) string {
		t.Helper()
		out, err := command(t, append([]string{"key", args[0], "--keys", keys}, args[1:]...)...).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	fresh := key("rotate", "rotated")
	key("rm", "removed")
	renewed := key("rotate", "--overlap", "10m", "overlaps")
	expireKeys(t, keys)
	for name, token := range map[string]string{"rotated": rotated, "removed": removed, "expired": expired} {
		began := time.Now()
		last, closed := open[token].end(t)
		if !strings.Contains(last, `"unauthorized"`) || closed.Code != websocket.StatusPolicyViolation || !strings.Contains(closed.Reason, name) {
			t.Errorf("%s: the last line is %s, the socket was closed with %v", name, last, closed)
		}
		t.Log(name, time.Since(began))
	}
	// The connections of other keys are still open, and their programs get input.
	for token, now := range map[string]string{rotated: fresh, overlaps: renewed, other: other} {
		o := open[token]
		if token == rotated {
			o = followRun(t, s, runs[token], now) // with the new secret
		}
		ctx, cancel := context.WithTimeout(t.Context(), serveTime)
		if err := o.socket.Write(ctx, websocket.MessageText, []byte(`{"type":"stdin","data":"on\n"}`)); err != nil {
			t.Error(err)
		}
		cancel()
		if last, closed := o.end(t); !strings.Contains(last, `"verdict":"ok"`) || closed.Code != websocket.StatusNormalClosure {
			t.Errorf("the last line is %s, the socket was closed with %v", last, closed)
		}
		if r := s.request(0, "GET", "/v1/runs/"+runs[token], "", bearer(now)...); r.code != 200 || !strings.Contains(r.body, `on\n`) {
			t.Errorf("%d %s", r.code, r.body)
		}
	}
}
