package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serveHTTP serves with the standard library on a unix socket, and counts connections.
func serveHTTP(t *testing.T, h http.Handler) (path string, connections *atomic.Int32) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	connections = new(atomic.Int32)
	s := &http.Server{Handler: h, ConnState: func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			connections.Add(1)
		}
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return path, connections
}

// serveBytes answers every connection with the same bytes, whatever is asked, and then calls a function.
func serveBytes(t *testing.T, then func(net.Conn), answer string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = readUntilBlank(c)
			_, _ = io.WriteString(c, answer)
			if then != nil {
				then(c)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return path
}

// readUntilBlank reads the head of a request.
func readUntilBlank(c net.Conn) (string, error) {
	r := bufio.NewReader(c)
	var all strings.Builder
	for {
		line, err := r.ReadString('\n')
		all.WriteString(line)
		if err != nil || strings.TrimSpace(line) == "" {
			return all.String(), err
		}
	}
}

func newUnix(t *testing.T, path string) *Unix {
	u := &Unix{Path: path}
	t.Cleanup(func() { _ = u.Close() })
	return u
}

func TestRoundTrip(t *testing.T) {
	big := make([]byte, 3<<20)
	_, _ = rand.Read(big)
	path, connections := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("X-Length", strconv.FormatInt(r.ContentLength, 10))
			w.Header().Add("X-Twice", "1")
			w.Header().Add("X-Twice", "2")
			_, _ = w.Write(body)
		case "/stream":
			for i := range 3 {
				fmt.Fprintf(w, "line %d\n", i)
				w.(http.Flusher).Flush()
			}
		case "/empty":
			w.WriteHeader(http.StatusNoContent)
		case "/early":
			http.Error(w, "too much", http.StatusRequestEntityTooLarge) // without reading the body
		}
	}))
	u := newUnix(t, path)
	ask := func(r *Request) (*Response, string) {
		t.Helper()
		resp, err := u.RoundTrip(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp, string(body)
	}
	for name, length := range map[string]int64{"with its length": int64(len(big)), "in pieces": -1} {
		resp, body := ask(&Request{Method: "POST", Path: "/echo", Body: bytes.NewReader(big), Length: length, Header: Header{"X-A": "b"}})
		if body != string(big) || resp.Header.Get("x-LENGTH") != strconv.FormatInt(length, 10) || resp.Header.Get("X-Twice") != "1, 2" {
			t.Errorf("%s: %d bytes of %d, %v", name, len(body), len(big), resp.Header)
		}
	}
	if resp, body := ask(&Request{Method: "POST", Path: "/echo"}); body != "" || resp.Header.Get("X-Length") != "0" {
		t.Errorf("%q %v", body, resp.Header)
	}
	if _, body := ask(&Request{Method: "GET", Path: "/stream"}); body != "line 0\nline 1\nline 2\n" {
		t.Errorf("%q", body)
	}
	if resp, body := ask(&Request{Method: "DELETE", Path: "/empty"}); body != "" || resp.Status != 204 {
		t.Errorf("%d %q", resp.Status, body)
	}
	if connections.Load() != 1 {
		t.Errorf("%d connections", connections.Load())
	}
	// The client accepts an answer that comes before the whole body is sent, and does not use that connection again.
	if resp, body := ask(&Request{Method: "POST", Path: "/early", Body: bytes.NewReader(big), Length: int64(len(big))}); resp.Status != 413 ||
		!strings.Contains(body, "too much") {
		t.Errorf("%d %q", resp.Status, body)
	}
	if _, body := ask(&Request{Method: "GET", Path: "/stream"}); !strings.HasPrefix(body, "line 0") {
		t.Errorf("%q", body)
	}
}

// A body of unknown length is sent while it is read, and the answer arrives meanwhile.
func TestBothWaysAtOnce(t *testing.T) {
	path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.WriteHeader(200)
		_ = rc.Flush()
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintf(w, "<%s>\n", lines.Text())
			_ = rc.Flush()
		}
	}))
	u := newUnix(t, path)
	pr, pw := io.Pipe()
	resp, err := u.RoundTrip(t.Context(), &Request{Method: "POST", Path: "/", Body: pr, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for _, word := range []string{"a", "b"} {
		fmt.Fprintln(pw, word)
		if line, err := lines.ReadString('\n'); err != nil || line != "<"+word+">\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
	_ = pw.Close()
	if _, err := lines.ReadString('\n'); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A GET is sent again when the server has closed the idle connection.
func TestStaleConnection(t *testing.T) {
	path := serveBytes(t, nil, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	u := newUnix(t, path)
	for range 3 {
		resp, err := u.RoundTrip(t.Context(), &Request{Method: "GET", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
			t.Fatal(string(body), err)
		}
		_ = resp.Body.Close()
	}
	// A POST is not sent again: it is unknown whether the server handled it.
	_, err := u.RoundTrip(t.Context(), &Request{Method: "POST", Path: "/"})
	if !errors.Is(err, errHungUp) && !errors.Is(err, ErrNotSent) {
		t.Error(err)
	}
}

func TestNoServer(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), file, dir, "/" + strings.Repeat("x", 200)} {
		_, err := (&Unix{Path: path}).RoundTrip(t.Context(), &Request{Method: "GET", Path: "/"})
		if !errors.Is(err, ErrNoServer) || !errors.Is(err, ErrNotSent) {
			t.Errorf("%.40s: %v", path, err)
		}
	}
}

// A2: the client sends nothing to a server of another user.
func TestOtherUser(t *testing.T) {
	heard := make(chan string, 1)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		text, _ := io.ReadAll(c)
		heard <- string(text)
		_ = c.Close()
	}()
	var seen Peer
	u := &Unix{Path: path, Trusted: func(p Peer) error {
		seen = p
		return ErrOtherUser
	}}
	if _, err := u.RoundTrip(t.Context(), &Request{Method: "GET", Path: "/", Header: Header{"X": "secret"}}); !errors.Is(err, ErrOtherUser) ||
		!errors.Is(err, ErrNotSent) {
		t.Error(err)
	}
	if text := <-heard; text != "" {
		t.Errorf("it was told %q", text)
	}
	if seen.UID != os.Geteuid() || seen.PID != os.Getpid() {
		t.Errorf("%+v", seen)
	}
	for uid, ok := range map[int]bool{0: true, os.Geteuid(): true, 65534: os.Geteuid() == 65534, -1: false} {
		if err := OwnOrRoot(Peer{UID: uid}); (err == nil) != ok {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// Every malformed answer gives an error or an end soon.
func TestHostileAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct{ answer, says string }{
		"nothing":           {"", "closed the connection"},
		"not HTTP":          {"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1"},
		"HTTP/1.0":          {"HTTP/1.0 200 OK\r\n\r\n", "not HTTP/1.1"},
		"a status":          {"HTTP/1.1 20 OK\r\n\r\n", "status"},
		"a status of words": {"HTTP/1.1 abc\r\n\r\n", "status"},
		"half a line":       {"HTTP/1.1 200", "unexpected EOF"},
		"half a head":       {ok + "A: b\r\n", "unexpected EOF"},
		"a long line":       {ok + "A: " + strings.Repeat("x", maxLine) + "\r\n\r\n", "more than"},
		"many headers":      {ok + strings.Repeat("A: b\r\n", maxHeaders+1) + "\r\n", "headers"},
		"large headers":     {ok + strings.Repeat("A: "+strings.Repeat("x", 4000)+"\r\n", 20) + "\r\n", "headers"},
		"a nameless header": {ok + ": b\r\n\r\n", "header"},
		"a header's name":   {ok + "A B: b\r\n\r\n", "header"},
		"control":           {ok + "A: \x1b[2J\r\n\r\n", "control"},
		"two lengths":       {ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "Content-Length"},
		"length and pieces": {ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"},
		"gzip":              {ok + "Transfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding"},
		"negative length":   {ok + "Content-Length: -1\r\n\r\n", "Content-Length"},
		"a huge length":     {ok + "Content-Length: 99999999999999999999\r\n\r\n", "Content-Length"},
		"cut short":         {ok + "Content-Length: 10\r\n\r\nabc", "unexpected EOF"},
		"pieces cut short":  {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nab", "unexpected EOF"},
		"no last piece":     {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "unexpected EOF"},
		"a piece's length":  {ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "length"},
		"a huge piece":      {ok + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "length"},
		"too long a piece":  {ok + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", "longer"},
		"endless interim":   {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100), "interim answers"},
		"large trailers": {ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: "+strings.Repeat("x", 4000)+"\r\n", 20) +
			"\r\n", "trailers"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUnix(t, serveBytes(t, nil, c.answer))
			resp, err := u.RoundTrip(t.Context(), &Request{Method: "GET", Path: "/"})
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	// Control: the same with a correct answer.
	hinted := "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"
	u := newUnix(t, serveBytes(t, nil, hinted+ok+"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n"))
	resp, err := u.RoundTrip(t.Context(), &Request{Method: "GET", Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "abc" {
		t.Error(string(body), err)
	}
	_ = resp.Body.Close()
}

// A silent server is waited for until the idle timeout or the end of the context.
func TestIdleTimeout(t *testing.T) {
	silent := func(t *testing.T, answer string) string {
		release := make(chan struct{})
		path := serveBytes(t, func(net.Conn) { <-release }, answer)
		t.Cleanup(func() { close(release) })
		return path
	}
	for name, answer := range map[string]string{"before the answer": "", "in its head": "HTTP/1.1 200 OK\r\n",
		"in its body": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"} {
		t.Run(name, func(t *testing.T) {
			resp, err := newUnix(t, silent(t, answer)).RoundTrip(t.Context(), &Request{Method: "GET", Path: "/", IdleTimeout: 50 * time.Millisecond})
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if !errors.Is(err, ErrIdleTimeout) {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := newUnix(t, silent(t, "")).RoundTrip(ctx, &Request{Method: "GET", Path: "/"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, _, err := newUnix(t, silent(t, "")).Dial(ctx, "/", "p"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Methods, paths and headers can not inject lines into the request.
func TestInjection(t *testing.T) {
	for _, r := range []*Request{
		{Method: "GET", Path: "/a b"}, {Method: "GET", Path: "/a\r\nX: y"}, {Method: "GET", Path: "a"}, {Method: "G T", Path: "/"},
		{Method: "", Path: "/"},
		{Method: "GET", Path: "/", Header: Header{"A": "b\r\nC: d"}}, {Method: "GET", Path: "/", Header: Header{"A:": "b"}},
		{Method: "GET", Path: "/", Header: Header{"": "b"}},
	} {
		if err := writeHead(bufio.NewWriter(io.Discard), "h", r); err == nil {
			t.Errorf("%q was sent", r.Path)
		}
	}
	if err := writeHead(bufio.NewWriter(io.Discard), "h", &Request{Method: "GET", Path: "/a?b=c%20d", Header: Header{"A": "b"}}); err != nil {
		t.Error(err)
	}
}

// FuzzAnswer: any bytes are an answer or an error; what the standard library reads as one, we read alike.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nall", "HTTP/1.1 200\r\nA:b\nC :d\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(answer), maxLine)
		status, header, err := readHead(r)
		if err != nil {
			return
		}
		if status == 101 {
			return
		}
		body, _, err := bodyOf(r, "GET", status, header)
		if err != nil {
			return
		}
		got, err := io.ReadAll(body)
		if err != nil {
			return
		}
		theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		if err != nil || theirs.StatusCode != status { // an interim answer, or what we are less strict about
			return
		}
		defer theirs.Body.Close()
		want, err := io.ReadAll(theirs.Body)
		if err == nil && !bytes.Equal(want, got) {
			t.Errorf("%q: we read %q, they %q", answer, got, want)
		}
	})
}
