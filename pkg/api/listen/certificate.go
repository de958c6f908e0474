package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Certificate is a certificate and its key in two files. It reads them again when they change. It is safe for concurrent use.
type Certificate struct {
	cert, key string
	failed    func(error) // called when a changed pair is refused; may be nil

	mu      sync.Mutex
	pair    *tls.Certificate
	files   [2]fs.FileInfo
	checked time.Time
}

// checkInterval is the minimum time between two checks for changed files.
const checkInterval = time.Second

// LoadCertificate reads the PEM files. It refuses a private key that other users can read, and an expired certificate. failed is called
// when a changed pair is refused later; it may be nil.
func LoadCertificate(cert, key string, failed func(error)) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, failed: failed}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Certificate) load() error {
	files, err := c.statFiles()
	if err != nil {
		return err
	}
	if mode := files[1].Mode().Perm(); mode&0o007 != 0 {
		return &sandbox.Error{
			Op: "tls-key " + c.key, Err: fmt.Errorf("all users can read it (mode %04o)", mode), Hint: "chmod o= " + c.key,
		}
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return &sandbox.Error{
			Op: fmt.Sprintf("tls-cert %s with tls-key %s", c.cert, c.key), Err: err, Hint: "give PEM files of one certificate and its key",
		}
	}
	if pair.Leaf != nil && time.Now().After(pair.Leaf.NotAfter) {
		return &sandbox.Error{
			Op: "tls-cert " + c.cert, Err: fmt.Errorf("it expired on %s", pair.Leaf.NotAfter.Format(time.DateOnly)), Hint: "renew the certificate",
		}
	}
	c.pair, c.files = &pair, files
	return nil
}

func (c *Certificate) statFiles() (files [2]fs.FileInfo, err error) {
	for i, path := range []string{c.cert, c.key} {
		if files[i], err = os.Stat(path); err != nil {
			return files, &sandbox.Error{Op: []string{"tls-cert ", "tls-key "}[i] + path, Err: plain(err)}
		}
	}
	return files, nil
}

func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Reload reads the files again if they have changed. On an error the previous pair stays in use.
func (c *Certificate) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reload()
}

func (c *Certificate) reload() error {
	c.checked = time.Now()
	files, err := c.statFiles()
	if err != nil {
		return err
	}
	if unchanged(files[0], c.files[0]) && unchanged(files[1], c.files[1]) {
		return nil
	}
	// If only one of the two files is replaced yet, load fails and the next check finds both.
	return c.load()
}

func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Config returns the TLS configuration of listeners. It offers HTTP/1.1 only: limits for slow clients are per connection, and WebSockets
// need HTTP/1.1.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if time.Since(c.checked) > checkInterval {
				if err := c.reload(); err != nil && c.failed != nil {
					c.failed(err)
				}
			}
			return c.pair, nil
		},
	}
}
