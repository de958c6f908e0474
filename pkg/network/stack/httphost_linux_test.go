package stack

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// follow feeds data in pieces and returns the hosts of its requests, and how much of it was passed on.
func follow(data string, piece int) (hosts []string, passed int, err error) {
	var r requests
	var held []byte
	for len(data) > 0 {
		n := min(piece, len(data))
		held, data = append(held, data[:n]...), data[n:]
		for len(held) > 0 {
			n, host, err := r.next(held)
			if err != nil {
				return hosts, passed, err
			}
			if host != "" {
				hosts = append(hosts, host)
			}
			if n == 0 {
				break
			}
			held = held[n:]
			passed += n
		}
	}
	return hosts, passed, nil
}

func TestRequests(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
	for data, want := range map[string]string{
		get:       "a.example",
		get + get: "a.example a.example",
		"GET / HTTP/1.1\r\nHost: a.example:8080\r\n\r\n":                                                         "a.example",
		"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n":                                             "a.example",
		"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nGET /" + get:                             "a.example a.example",
		"POST / HTTP/1.1\r\nhost:a.example\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nGET /\r\n0\r\n\r\n" + get: "a.example a.example",
		"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrail: er\r\n\r\n" + get:   "a.example a.example",
		"OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n":                                                          "a.example",
		"GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n":                 "a.example",
	} {
		for _, piece := range []int{1, 7, 1000} {
			hosts, passed, err := follow(data, piece)
			if err != nil || strings.Join(hosts, " ") != want || passed != len(data) {
				t.Errorf("%q in pieces of %d: %q, %d of %d, %v", data, piece, hosts, passed, len(data), err)
			}
		}
	}
	for _, bad := range []string{
		"SSH-2.0-OpenSSH\r\n", "\x16\x03\x01", "get / HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n",
		"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n Host: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost : a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\rHost: b\r\n\r\n", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
		"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "GET b HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n" + get, get + "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", "GET / HTTP/1.1\r\nHost: \r\n\r\n",
		"GET / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n\x0bX: y\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX\xff: y\r\nContent-Length: 1\r\n\r\nx",
		"GET /\x0bx HTTP/1.1\r\nHost: a\r\n\r\n", "GET /" + strings.Repeat("x", maxHead) + " ",
	} {
		if hosts, _, err := follow(bad, 1000); err == nil {
			t.Errorf("%.80q was accepted: %q", bad, hosts)
		}
	}
}

// FuzzRequests compares with net/http's server: where we follow a stream of requests to its end, net/http sees the same hosts.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 3)
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.0\r\nHost: b\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		if piece < 1 {
			return
		}
		hosts, passed, err := follow(string(data), piece)
		if err != nil || passed < len(data) || bytes.Contains(bytes.ToLower(data), []byte("upgrade")) {
			return
		}
		in := bufio.NewReader(bytes.NewReader(data))
		for i := 0; ; i++ {
			r, err := http.ReadRequest(in)
			if errors.Is(err, io.EOF) || err != nil {
				return // net/http is stricter here
			}
			if name, _, _ := strings.Cut(r.Host, ":"); i >= len(hosts) || name != hosts[i] {
				t.Fatalf("net/http sees %q as host %d, we %q", r.Host, i, hosts)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
		}
	})
}
