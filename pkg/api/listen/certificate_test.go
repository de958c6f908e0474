package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newPair writes a certificate for 127.0.0.1 with a name of its own.
func newPair(t *testing.T, dir, name string, until time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		must(t, os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600))
		must(t, os.Rename(path+".new", path))
	}
	return cert, key
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	later := time.Now().Add(time.Hour)
	cert, key := newPair(t, dir, "first", later)
	failures := make(chan error, 100)
	c, err := LoadCertificate(cert, key, func(err error) { failures <- err })
	must(t, err)
	loop, err := Parse(t.Context(), "127.0.0.1:0")
	must(t, err)
	set, err := Open(t.Context(), Options{Addresses: []Address{loop}, TLS: c.Config()})
	must(t, err)
	defer set.Close()
	l := set.Listeners()[0]
	name := func() string {
		t.Helper()
		accepted := make(chan error, 1)
		go func() {
			s, err := l.Accept()
			if err == nil {
				_, err = s.Read(make([]byte, 1))
				if via, ok := ViaOf(ConnContext(t.Context(), s)); !ok || !via.TLS || via.Kind != Loopback {
					t.Errorf("%+v, %v", via, ok)
				}
				s.Close()
			}
			accepted <- err
		}()
		d, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		must(t, err)
		defer d.Close()
		_, err = d.Write([]byte("x"))
		must(t, err)
		must(t, <-accepted)
		state := d.ConnectionState()
		if state.NegotiatedProtocol != "http/1.1" || state.Version < tls.VersionTLS12 {
			t.Errorf("%+v", state)
		}
		return state.PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "first" {
		t.Errorf("%q", got)
	}
	newPair(t, dir, "second", later)
	must(t, c.Reload())
	if got := name(); got != "second" {
		t.Errorf("%q", got)
	}
	newPair(t, dir, "third", later) // found without a word, after a second
	for end := time.Now().Add(patienceForFiles); name() != "third"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never read again")
		}
	}
	must(t, os.WriteFile(key, []byte("nonsense"), 0o600))
	if err := c.Reload(); err == nil || !strings.Contains(err.Error(), "tls-key") {
		t.Error(err)
	}
	if got := name(); got != "third" {
		t.Errorf("what can not be read has put an end to what could: %q", got)
	}
	time.Sleep(checkInterval + 10*time.Millisecond)
	name()
	select {
	case <-failures:
	default:
		t.Error("the callback was not called")
	}
	if d, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		d.Close()
		t.Error("TLS 1.1 is offered")
	}
}

const patienceForFiles = 30 * time.Second

func TestWrongCertificates(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	cert, key := newPair(t, dir, "a", time.Now().Add(time.Hour))
	_, stranger := newPair(t, other, "b", time.Now().Add(time.Hour))
	expired, expiredKey := newPair(t, t.TempDir(), "c", time.Now().Add(-time.Hour))
	if _, err := LoadCertificate(cert, key, nil); err != nil {
		t.Fatalf("the positive control: %v", err)
	}
	for _, test := range []struct{ cert, key, says string }{
		{filepath.Join(dir, "none"), key, "tls-cert"}, {cert, filepath.Join(dir, "none"), "tls-key"},
		{cert, stranger, "one certificate and its key"},
		{key, cert, "one certificate and its key"}, {expired, expiredKey, "it expired"},
	} {
		if _, err := LoadCertificate(test.cert, test.key, nil); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s, %s: %v, want %q", test.cert, test.key, err, test.says)
		}
	}
	must(t, os.Chmod(key, 0o644))
	if _, err := LoadCertificate(cert, key, nil); err == nil || !strings.Contains(err.Error(), "chmod o=") {
		t.Error(err)
	}
}
