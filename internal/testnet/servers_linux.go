package testnet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// internet is all servers. Every address has the same.
type internet struct {
	mu      sync.Mutex
	seen    []Event
	rebound bool
	key     *ecdsa.PrivateKey
	certs   map[string]*tls.Certificate
}

// maxSeen bounds the log: a flood must not fill the memory.
const maxSeen = 20000

func (n *internet) see(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.seen) < maxSeen {
		n.seen = append(n.seen, e)
	}
}

// start starts the servers in the network namespace of the calling thread.
func (n *internet) start(addresses []string) error {
	var err error
	if n.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	n.certs = map[string]*tls.Certificate{}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web := &http.Server{Handler: http.HandlerFunc(n.web), ErrorLog: quiet, ReadHeaderTimeout: time.Minute}
	secure := &http.Server{Handler: http.HandlerFunc(n.web), ErrorLog: quiet, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: n.certificate,
	}}
	for port, serve := range map[string]func(net.Listener){
		"80":      func(l net.Listener) { _ = web.Serve(l) },
		"8080":    func(l net.Listener) { _ = web.Serve(l) },
		"443":     func(l net.Listener) { _ = secure.ServeTLS(l, "", "") },
		"53":      each(n.dnsStream),
		EchoPort:  each(func(c net.Conn) { _, _ = io.Copy(c, c) }),
		SlowPort:  each(slowly),
		HalfPort:  each(halfOpen),
		ResetPort: each(reset),
		SSHPort: each(func(c net.Conn) {
			_, _ = io.WriteString(c, greeting)
			_, _ = io.Copy(c, c)
		}),
	} {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		go serve(&listener{l, n})
	}
	l, err := net.Listen("tcp", net.JoinHostPort(Gateway, logPort))
	if err != nil {
		return err
	}
	go func() { _ = (&http.Server{Handler: http.HandlerFunc(n.log), ReadHeaderTimeout: time.Minute}).Serve(l) }()
	for _, a := range addresses {
		for _, port := range []string{"53", EchoPort, "443"} {
			c, err := net.ListenPacket("udp", net.JoinHostPort(a, port))
			if err != nil {
				return err
			}
			go n.datagrams(c, port == "53")
		}
	}
	return nil
}

// listener notes who connects.
type listener struct {
	net.Listener
	n *internet
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.see(Event{Service: "tcp", Local: c.LocalAddr().String(), Remote: c.RemoteAddr().String()})
	}
	return c, err
}

// each serves every connection in a goroutine.
func each(serve func(net.Conn)) func(net.Listener) {
	return func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}
}

func slowly(c net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }() // a close with unread data would reset the connection
	for range 20 {
		if _, err := io.WriteString(c, "."); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func halfOpen(c net.Conn) {
	all, err := io.ReadAll(c)
	if err == nil {
		_, _ = c.Write(all)
	}
}

func reset(c net.Conn) {
	_, _ = c.Read(make([]byte, 1))
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
}

// web is every web server, and an open proxy.
func (n *internet) web(w http.ResponseWriter, r *http.Request) {
	local := r.Context().Value(http.LocalAddrContextKey).(net.Addr).String() //nolint:forcetypeassert // net/http's own
	e := Event{Service: "http", Local: local, Remote: r.RemoteAddr, Host: r.Host}
	if r.Method == http.MethodConnect || r.URL.Host != "" {
		e.Service = "proxy"
		n.see(e)
		_, _ = fmt.Fprintf(w, "%s is a way to %s", local, r.Host)
		return
	}
	n.see(e)
	switch r.URL.Path {
	case "/moved":
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	case "/bytes":
		size, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		_, _ = io.CopyN(w, zeros{}, size)
	default:
		_, _ = fmt.Fprintf(w, infoFormat, local, r.Host)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// certificate makes a certificate for whatever server name the client has sent.
func (n *internet) certificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	n.see(Event{Service: "tls", Local: h.Conn.LocalAddr().String(), Remote: h.Conn.RemoteAddr().String(), Host: h.ServerName})
	name := h.ServerName
	if name == "" {
		name = "unnamed"
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.certs[name]; c != nil {
		return c, nil
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &n.key.PublicKey, n.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: n.key}
	n.certs[name] = c
	return c, nil
}

// datagrams echoes, or answers queries.
func (n *internet) datagrams(c net.PacketConn, dns bool) {
	buffer := make([]byte, 64<<10)
	for {
		size, from, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		data := bytes.Clone(buffer[:size])
		if dns {
			go func() { _, _ = c.WriteTo(n.answer(data, c.LocalAddr(), from, 512), from) }()
			continue
		}
		n.see(Event{Service: "udp", Local: c.LocalAddr().String(), Remote: from.String(), Data: data[:min(size, 512)]})
		_, _ = c.WriteTo(data, from)
	}
}

// log tells what the servers have seen, and forgets it.
func (n *internet) log(w http.ResponseWriter, _ *http.Request) {
	n.mu.Lock()
	seen := n.seen
	n.seen, n.rebound = nil, false
	n.mu.Unlock()
	_ = json.NewEncoder(w).Encode(seen)
}

// Inside reports whether this process is in the supervisor's namespace of a test internet. A test that is not must dial no address of it.
func Inside() bool {
	_, err := net.InterfaceByName(supervisorDevice)
	return err == nil
}

// Log returns what the servers have seen since the last call. It is called in the supervisor's namespace.
func Log(ctx context.Context) (seen []Event, err error) {
	if !Inside() {
		return nil, errors.New("this process is not in a test internet")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(Gateway, logPort), http.NoBody)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("read the log of the test's internet: %w", err)
	}
	defer a.Body.Close()
	if err := json.NewDecoder(a.Body).Decode(&seen); err != nil {
		return nil, fmt.Errorf("read the log of the test's internet (%s): %w", a.Status, err)
	}
	return seen, nil
}

// At reports whether the event happened at an address of a server.
func (e Event) At(address string) bool {
	host, _, err := net.SplitHostPort(e.Local)
	return err == nil && strings.TrimPrefix(host, "::ffff:") == address
}
