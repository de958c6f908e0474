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

// Certificate is a pair of files, read again when they change.
type Certificate struct {
	cert, key string
	failed    func(error) // told why a new pair was not taken; nil is nobody

	mu     sync.Mutex
	pair   *tls.Certificate
	files  [2]fs.FileInfo
	looked time.Time
}

// lookInterval is how often the files are looked at, at most.
const lookInterval = time.Second

// LoadCertificate reads the files, in PEM. The private key must not be open to others.
func LoadCertificate(cert, key string, failed func(error)) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, failed: failed}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Certificate) load() error {
	files, err := c.look()
	if err != nil {
		return err
	}
	if mode := files[1].Mode().Perm(); mode&0o007 != 0 {
		return &sandbox.Error{
			Op: "tls-key " + c.key, Err: fmt.Errorf("everybody can read it (mode %04o)", mode), Hint: "chmod o= " + c.key,
		}
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return &sandbox.Error{Op: fmt.Sprintf("tls-cert %s with tls-key %s", c.cert, c.key), Err: err, Hint: "files in PEM that belong together"}
	}
	if pair.Leaf != nil && time.Now().After(pair.Leaf.NotAfter) {
		return &sandbox.Error{Op: "tls-cert " + c.cert, Err: fmt.Errorf("it has expired on %s", pair.Leaf.NotAfter.Format(time.DateOnly)), Hint: "a new one"}
	}
	c.pair, c.files = &pair, files
	return nil
}

func (c *Certificate) look() (files [2]fs.FileInfo, err error) {
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

// Reload reads the files again if they have changed. On an error the pair before stays in use.
func (c *Certificate) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reload()
}

func (c *Certificate) reload() error {
	c.looked = time.Now()
	files, err := c.look()
	if err != nil {
		return err
	}
	if unchanged(files[0], c.files[0]) && unchanged(files[1], c.files[1]) {
		return nil
	}
	// One of two may be replaced already and the other not yet: the next look finds both.
	return c.load()
}

func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Config is for listeners. HTTP/1.1 alone is offered: what a slow client may take is bounded per connection here, and WebSockets need it.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if time.Since(c.looked) > lookInterval {
				if err := c.reload(); err != nil && c.failed != nil {
					c.failed(err)
				}
			}
			return c.pair, nil
		},
	}
}
