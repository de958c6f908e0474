package requestcheck

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/listen"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

var fine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "fine ", r.Header.Get("Authorization")) })

// over makes a request that arrives through a kind of listener, at 192.0.2.1.
func over(kind listen.Kind, method, host string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "http://placeholder/v1/run", nil)
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	ctx := listen.WithVia(r.Context(), listen.Via{Kind: kind})
	return r.WithContext(context.WithValue(ctx, http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}))
}

func answer(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A3: a host name that is rebound to our address is refused.
func TestHost(t *testing.T) {
	h := New(fine, Options{Hosts: []string{"Run.Example.com."}})
	for _, test := range []struct {
		kind listen.Kind
		host string
		ok   bool
	}{
		{listen.Loopback, "localhost", true}, {listen.Loopback, "localhost:8080", true}, {listen.Loopback, "LocalHost.:8080", true},
		{listen.Loopback, "127.0.0.1:8080", true}, {listen.Loopback, "127.8.8.8", true}, {listen.Loopback, "[::1]:8080", true},
		{listen.Loopback, "[::1]", true},
		{listen.Loopback, "[::ffff:127.0.0.1]:80", true},
		{listen.Loopback, "run.example.com", true}, {listen.Loopback, "RUN.example.COM.:443", true},
		{listen.Exposed, "run.example.com:443", true},
		{listen.Exposed, "192.0.2.1", true}, {listen.Exposed, "192.0.2.1:80", true}, {listen.Exposed, "[::ffff:192.0.2.1]", true},
		{listen.Unix, "anything.at.all", true}, {listen.Unix, "", true},

		{listen.Loopback, "attacker.example", false}, {listen.Loopback, "attacker.example:8080", false}, {listen.Loopback, "", false},
		{listen.Loopback, "localhost.attacker.example", false}, {listen.Loopback, "127.0.0.1.nip.io:8080", false},
		{listen.Loopback, "x.run.example.com", false},
		{listen.Loopback, "localhost@attacker.example", false}, {listen.Loopback, "2130706433", false}, {listen.Loopback, "0x7f.1", false},
		{listen.Loopback, "0.0.0.0:8080", false}, {listen.Loopback, "[::]:8080", false}, {listen.Exposed, "192.0.2.2", false},
		{listen.Exposed, "[fe80::1%25lo]:80", false},
		{listen.Loopback, "run.example.com,attacker.example", false},
	} {
		w := answer(h, over(test.kind, "POST", test.host))
		if test.ok && w.Code != 200 || !test.ok && w.Code != 403 {
			t.Errorf("%s %q: %d", test.kind, test.host, w.Code)
		}
		if !test.ok {
			var p wire.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Code != wire.CodeForbidden || p.Status != 403 ||
				!strings.Contains(p.Hint, "--host") || w.Header().Get("Content-Type") != wire.TypeProblem {
				t.Errorf("%q: %s, %v", test.host, w.Body, err)
			}
		}
	}
	// A request without a listener is not trusted.
	if w := answer(h, httptest.NewRequest("GET", "http://attacker.example/", nil)); w.Code != 403 {
		t.Errorf("%d", w.Code)
	}
}

// A3: pages of other origins.
func TestOrigin(t *testing.T) {
	h := New(fine, Options{Origins: []string{"https://app.example.com"}})
	for _, test := range []struct {
		name    string
		ok      bool
		headers []string
	}{
		{"a program", true, nil},
		{"our own page", true, []string{"Origin", "http://localhost:8080", "Sec-Fetch-Site", "same-origin"}},
		{"typed", true, []string{"Sec-Fetch-Site", "none"}},
		{"allowed", true, []string{"Origin", "https://app.example.com", "Sec-Fetch-Site", "cross-site"}},
		{"foreign", false, []string{"Origin", "https://attacker.example"}},
		{"null", false, []string{"Origin", "null"}},
		{"another port", false, []string{"Origin", "http://localhost:3000"}},
		{"another scheme", false, []string{"Origin", "https://localhost:8080"}},
		{"longer", false, []string{"Origin", "https://app.example.com.attacker.example"}},
		{"two", false, []string{"Origin", "https://app.example.com", "Origin", "https://attacker.example"}},
		{"an image", false, []string{"Sec-Fetch-Site", "cross-site"}},
		{"a neighbour", false, []string{"Sec-Fetch-Site", "same-site"}},
		{"whatever comes next", false, []string{"Sec-Fetch-Site", "unheard-of"}},
		{"says two things", false, []string{"Origin", "http://localhost:8080", "Sec-Fetch-Site", "cross-site"}},
	} {
		for _, kind := range []listen.Kind{listen.Loopback, listen.Unix} { // a proxy may stand before a unix socket
			w := answer(h, over(kind, "POST", "localhost:8080", test.headers...))
			if test.ok && w.Code != 200 || !test.ok && w.Code != 403 {
				t.Errorf("%s: %d", test.name, w.Code)
			}
			if shared := w.Header().Get("Access-Control-Allow-Origin"); (shared != "") != (test.name == "allowed") {
				t.Errorf("%s: shared with %q", test.name, shared)
			}
		}
	}
	pre := []string{"Origin", "https://app.example.com", "Access-Control-Request-Method", "POST"}
	if w := answer(h, over(listen.Loopback, "OPTIONS", "localhost", pre...)); w.Code != 204 ||
		!strings.Contains(w.Header().Get("Access-Control-Allow-Headers"), "Authorization") ||
		w.Header().Get("Access-Control-Allow-Credentials") != "" || w.Header().Get("Vary") != "Origin" {
		t.Errorf("%d, %v", w.Code, w.Header())
	}
	pre[1] = "https://attacker.example"
	if w := answer(h, over(listen.Loopback, "OPTIONS", "localhost", pre...)); w.Code != 403 ||
		w.Header().Get("Access-Control-Allow-Headers") != "" {
		t.Errorf("%d, %v", w.Code, w.Header())
	}
}

func TestRequestIDs(t *testing.T) {
	h := New(fine, Options{})
	given := answer(h, over(listen.Unix, "GET", "x", HeaderRequestID, "My-id_1.2")).Header().Get(HeaderRequestID)
	if given != "My-id_1.2" {
		t.Errorf("%q", given)
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", "a b", "a\x1b[2J", `a"b`, strings.Repeat("a", 65), "é"} {
		id := answer(h, over(listen.Unix, "GET", "x", HeaderRequestID, bad)).Header().Get(HeaderRequestID)
		if id == "" || id == bad || seen[id] {
			t.Errorf("%q: %q", bad, id)
		}
		seen[id] = true
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"run.example.com": true, "x": true, "": false, ".": false, "a:80": false, "http://a": false,
		"*.a": false, "a b": false, "a,b": false} {
		if err := CheckHost(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	for origin, ok := range map[string]bool{
		"https://a.example": true, "http://localhost:3000": true, "": false, "null": false, "*": false, "https://*.a": false, "https://a/": false,
		"https://a/b": false,
		"ftp://a":     false, "https://A": false, "a.example": false, "https://u@a": false,
	} {
		if err := CheckOrigin(origin); (err == nil) != ok {
			t.Errorf("%q: %v", origin, err)
		}
	}
}

// A4: a body below the rate is cut off; one above it is not, however long it takes.
func TestSlowBodies(t *testing.T) {
	var got = make(chan error, 10)
	h := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil { // the connection is watched, and has no deadline left: who waits for a program may wait
			select {
			case <-r.Context().Done():
				err = fmt.Errorf("cancelled: %w", r.Context().Err())
			case <-time.After(1800 * time.Millisecond):
			}
		}
		got <- err
		fmt.Fprint(w, n)
	}), Options{BodyIdle: 1500 * time.Millisecond, BodyRate: 1000, MaxBody: 1 << 20})
	s := httptest.NewServer(h)
	defer s.Close()
	post := func(length int, pause time.Duration, piece, pieces int) (string, error) {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		must(t, err)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", length)
		for range pieces {
			if _, err := c.Write(make([]byte, piece)); err != nil {
				break
			}
			time.Sleep(pause)
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	if text, err := post(20_000, 100*time.Millisecond, 1000, 20); err != nil || text != "20000" { // 2 s in all, 10 kB/s
		t.Errorf("fast enough: %q, %v", text, err)
	}
	must(t, <-got)
	began := time.Now()
	_, _ = post(1000, 0, 1, 1) // and then nothing
	if err := <-got; err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("silence: %v after %v", err, time.Since(began))
	}
	began = time.Now()
	_, _ = post(1000, 100*time.Millisecond, 1, 100) // never silent, never done
	if err := <-got; err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("a byte at a time: %v after %v", err, time.Since(began))
	}
	_, _ = post(2<<20, 0, 1<<20, 2)
	if err := <-got; err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("too much: %v", err)
	}
}

// A4: an unread body does not occupy a connection, though net/http would read on to use the connection again.
func TestUnreadBodies(t *testing.T) {
	s := httptest.NewServer(New(fine, Options{BodyIdle: 300 * time.Millisecond}))
	defer s.Close()
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPost} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		fmt.Fprintf(c, "%s / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", method)
		text, err := io.ReadAll(c)
		_ = c.Close()
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") {
			t.Errorf("%s: %q, %v", method, text, err)
		}
	}
}
