package stack

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// clientHello returns the first flight of Go's TLS client.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake() //nolint:gosec // the flight only
	}()
	header := make([]byte, 5)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(header, body...)
}

// split puts the handshake message of one record into records of n bytes.
func split(record []byte, n int) []byte {
	var out []byte
	for body := record[5:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		out = append(append(out, record[0], record[1], record[2], byte(len(part)>>8), byte(len(part))), part...)
		body = body[len(part):]
	}
	return out
}

func TestServerName(t *testing.T) {
	hello := clientHello(t, "api.example.com")
	for _, flight := range [][]byte{hello, split(hello, 1), split(hello, 100)} {
		for n := range flight {
			if name, more, err := serverName(flight[:n]); !more || err != nil {
				t.Fatalf("%d of %d bytes: %q, %t, %v", n, len(flight), name, more, err)
			}
		}
		if name, more, err := serverName(append(bytes.Clone(flight), "rest"...)); name != "api.example.com" || more || err != nil {
			t.Errorf("%q, %t, %v", name, more, err)
		}
	}
	if _, _, err := serverName(clientHello(t, "")); !errors.Is(err, errNoServerName) {
		t.Errorf("without a name: %v", err)
	}
	for _, bad := range []string{"GET / HTTP/1.1\r\n", "SSH-2.0-x", "\x16\x03\x01\x00\x00", "\x16\x03\x01\xff\xff\x01", "\x16\x03\x01\x00\x05\x02", "\x17\x03\x03\x00\x05"} {
		if _, more, err := serverName([]byte(bad)); more || !errors.Is(err, errNotTLS) {
			t.Errorf("%q: %t, %v", bad, more, err)
		}
	}
}

// FuzzServerName compares with the server of crypto/tls: a name that it takes from a flight is the name that we take, or we refuse.
func FuzzServerName(f *testing.F) {
	f.Add(clientHello(f, "example.com"))
	f.Add(split(clientHello(f, "a.example"), 50))
	f.Fuzz(func(t *testing.T, data []byte) {
		name, more, err := serverName(data)
		if more && len(data) > 2*maxHello {
			t.Error("it waits for more than a ClientHello has")
		}
		if more || err != nil {
			return
		}
		seen, done := "", errors.New("seen")
		server := tls.Server(flight{Reader: bytes.NewReader(data)}, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = i.ServerName
			return nil, done
		}})
		if err := server.Handshake(); errors.Is(err, done) && seen != name {
			t.Errorf("crypto/tls takes %q, we %q", seen, name)
		}
	})
}

// flight is a connection on which a client has sent all it will send.
type flight struct {
	net.Conn // nil: nothing else is called
	*bytes.Reader
}

func (f flight) Read(b []byte) (int, error) { return f.Reader.Read(b) }
func (flight) Write(b []byte) (int, error)  { return len(b), nil }
func (flight) Close() error                 { return nil }
