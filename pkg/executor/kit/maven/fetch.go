package maven

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1" // old artifacts have no other checksum
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/coordinate"
)

const (
	connections = 16
	tries       = 3
	pause       = 500 * time.Millisecond // before the second try; twice that before the third
	headerTime  = 90 * time.Second
	maxChecksum = 4 << 10 // bytes; some have names of files in them
)

// errAbsent: the repository does not have a file.
var errAbsent = errors.New("the registry does not have it")

// fetcher reads files of a repository.
type fetcher struct {
	index  string
	client *http.Client
}

func newFetcher(index string) *fetcher {
	return &fetcher{index: strings.TrimSuffix(index, "/") + "/", client: &http.Client{
		Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, ResponseHeaderTimeout: headerTime,
			DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the proxy follows them
	}}
}

// get reads a file of at most that many bytes. It calls keep again if a try fails.
func (f *fetcher) get(ctx context.Context, path string, most int64, keep func(io.Reader) error) (err error) {
	for try := range tries {
		if try > 0 {
			select {
			case <-time.After(pause << (try - 1)):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var again bool
		if again, err = f.try(ctx, path, most, keep); !again || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (f *fetcher) try(ctx context.Context, path string, most int64, keep func(io.Reader) error) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.index+path, nil)
	if err != nil {
		return false, err
	}
	answer, err := f.client.Do(req)
	if err != nil {
		if cause := new(url.Error); errors.As(err, &cause) {
			err = cause.Err // without the address, which is that of the proxy
		}
		return true, fmt.Errorf("the registry does not answer: %w", err)
	}
	defer answer.Body.Close()
	switch s := answer.StatusCode; {
	case s == http.StatusNotFound || s == http.StatusGone:
		return false, errAbsent
	case s != http.StatusOK:
		first, _ := bufio.NewReader(io.LimitReader(answer.Body, maxChecksum)).ReadString('\n')
		why, _ := strings.CutPrefix(strings.TrimSpace(first), "sandbox-run: ") // of the proxy
		return s >= 500 || s == http.StatusTooManyRequests, fmt.Errorf("the registry answers %s: %.200q", answer.Status, why)
	case answer.ContentLength > most:
		return false, fmt.Errorf("it has %d bytes; the most is %d", answer.ContentLength, most)
	}
	body := &counted{from: io.LimitReader(answer.Body, most+1)}
	err = keep(body)
	switch {
	case body.failed != nil:
		return true, fmt.Errorf("the answer of the registry ended early: %w", body.failed)
	case body.n > most:
		return false, fmt.Errorf("it has more than %d bytes, the most", most)
	}
	return false, err
}

// counted counts what is read, and keeps the error of reading.
type counted struct {
	from   io.Reader
	n      int64
	failed error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.failed = err
	}
	return n, err
}

// digests computes every digest that a repository may state.
type digests struct{ sha512, sha256, sha1 hash.Hash }

func newDigests() digests { return digests{sha512.New(), sha256.New(), sha1.New()} }

func (d digests) Write(p []byte) (int, error) {
	for _, h := range []hash.Hash{d.sha512, d.sha256, d.sha1} {
		_, _ = h.Write(p) // never fails
	}
	return len(p), nil
}

// checksum is a digest that the repository states for a file.
type checksum struct {
	kind string // extension of its file; "": the repository states none
	hex  string
	err  error
}

// readChecksum reads the strongest checksum of a file.
func (f *fetcher) readChecksum(ctx context.Context, path string) checksum {
	for _, kind := range []string{"sha512", "sha256", "sha1"} {
		var text string
		err := f.get(ctx, path+"."+kind, maxChecksum, func(r io.Reader) error {
			all, err := io.ReadAll(r)
			text = string(all)
			return err
		})
		if errors.Is(err, errAbsent) {
			continue
		}
		first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
		return checksum{kind, strings.ToLower(first), err}
	}
	return checksum{}
}

// fetchChecked reads a file and checks it. open is called for each try, and returns where to write to. The result is the SHA-256.
func (f *fetcher) fetchChecked(ctx context.Context, path string, most int64, open func() (io.WriteCloser, error)) (sum string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stated := make(chan checksum, 1)
	go func() { stated <- f.readChecksum(ctx, path) }()
	var made digests
	if err := f.get(ctx, path, most, func(r io.Reader) error {
		made = newDigests()
		return save(io.TeeReader(r, made), open)
	}); err != nil {
		return "", err
	}
	c := <-stated
	if c.err != nil {
		return "", c.err
	}
	own, found := map[string]hash.Hash{"sha512": made.sha512, "sha256": made.sha256, "sha1": made.sha1}[c.kind]
	if !found {
		return "", fmt.Errorf("%s: the registry has no checksum of it: neither .sha512 nor .sha256 nor .sha1", path)
	}
	if is := hexOf(own); is != c.hex {
		return "", fmt.Errorf("%s: it is damaged or replaced: its %s is %s, and the registry states %.128q", path, c.kind, is, c.hex)
	}
	return hexOf(made.sha256), nil
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func save(r io.Reader, open func() (io.WriteCloser, error)) error {
	w, err := open()
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// fetchJar fetches a jar into a file. Its digest must be the one that it has, if it has one.
func (f *fetcher) fetchJar(ctx context.Context, j *jar, name string) error {
	open := func() (io.WriteCloser, error) { return os.Create(name) }
	path := j.Path("jar")
	if j.digest == "" {
		sum, err := f.fetchChecked(ctx, path, maxJar, open)
		if errors.Is(err, errAbsent) && j.optional {
			return nil
		}
		j.digest = sum
		return err
	}
	var made digests
	if err := f.get(ctx, path, maxJar, func(r io.Reader) error {
		made = newDigests()
		return save(io.TeeReader(r, made), open)
	}); err != nil {
		return err
	}
	if is := hexOf(made.sha256); is != j.digest {
		return fmt.Errorf("%s: it is not the file of the lock: its SHA-256 is %s, and the lock has %s", path, is, j.digest)
	}
	return nil
}

// fetchPOM fetches and reads a POM.
func (f *fetcher) fetchPOM(ctx context.Context, c coordinate.Coordinate) (*pom, error) {
	var text bytes.Buffer
	_, err := f.fetchChecked(ctx, c.Path("pom"), maxPOM, func() (io.WriteCloser, error) {
		text.Reset()
		return unclosed{&text}, nil
	})
	if err != nil {
		return nil, err
	}
	p, err := parsePOM(text.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path("pom"), err)
	}
	return p, nil
}

// unclosed is a writer with nothing to close.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
