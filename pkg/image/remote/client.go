package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandbox-run/sandbox-run/pkg/image"
)

const (
	maxRedirects  = 5
	maxRetryAfter = time.Minute // a longer Retry-After fails the request
)

// reference is an image's name, taken apart. It has no tag beside a digest.
type reference struct {
	image.Reference
	host string // whom we talk to: index.docker.io
}

// parseReference parses a reference of the store's form. It refuses the names of images that are built here.
func parseReference(ref string) (reference, error) {
	full, err := image.ParseReference(ref)
	if err != nil {
		return reference{}, err
	}
	if full.Registry == "" {
		return reference{}, fmt.Errorf("%s is the name of an image that is built here, no registry has it; try: sandbox-run image build %s",
			full, strings.TrimPrefix(full.Repository, image.LocalPrefix))
	}
	if full.Digest != "" {
		full.Tag = "" // the digest says all; the tag may have moved on
	}
	registry, err := name.NewRegistry(full.Registry)
	if err != nil {
		return reference{}, fmt.Errorf("reference %q: %w", ref, err)
	}
	return reference{full, registry.RegistryStr()}, nil // docker.io is index.docker.io
}

// client sends requests to one repository of one image registry.
type client struct {
	ref    reference
	opts   Options
	egress *egress
	target name.Repository
	auth   authn.Authenticator
	source string // file or variable of the credentials; empty without any

	mu      sync.Mutex
	session http.RoundTripper // authenticated; replaced when its token has expired
}

// newClient logs in to the registry. The caller closes the client.
func newClient(ctx context.Context, ref reference, opts Options) (*client, error) {
	c := &client{ref: ref, opts: opts}
	if opts.Insecure && !loopbackName(ref.host) {
		return nil,
			c.fail("connect", &plainError{host: ref.host, reason: "--insecure is for registries on this machine (loopback addresses) only"})
	}
	var how []name.Option
	if opts.Insecure {
		how = append(how, name.Insecure)
	}
	registry, err := name.NewRegistry(ref.host, how...)
	if err != nil {
		return nil, c.fail("connect", err)
	}
	c.target = registry.Repo(ref.Repository)
	if c.egress, err = newEgress(ref.host, opts.Insecure, opts.Stall, opts.CertDirs); err != nil {
		return nil, c.fail("connect", err)
	}
	if c.auth, c.source, err = credentials(ctx, ref.Registry, ref.Repository); err != nil {
		return nil, c.fail("log in", err)
	}
	err = c.retry(ctx, func(ctx context.Context) error {
		c.session, err = c.login(ctx)
		return err
	})
	if err != nil {
		c.close()
		return nil, c.fail("connect", err)
	}
	return c, nil
}

func (c *client) close() { c.egress.close() }

// login requests the registry's authentication challenge, and a token if the challenge asks for one.
func (c *client) login(ctx context.Context) (http.RoundTripper, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.opts.Stall)
	defer cancel()
	base := transport.NewUserAgent(c.egress, c.opts.UserAgent)
	session, err := transport.NewWithContext(ctx, c.target.Registry, c.auth, base, []string{c.target.Scope(transport.PullScope)})
	if failure := c.egress.plainFailure.Load(); failure != nil && errors.Is(err, http.ErrSchemeMismatch) {
		// The library tried both schemes. The registry does not speak HTTPS, so the failure of plain HTTP is the cause.
		return nil, tidy(*failure)
	}
	return session, tidy(err)
}

// retry calls attempt until it succeeds, fails with a permanent error, or has failed Attempts times.
func (c *client) retry(ctx context.Context, attempt func(context.Context) error) error {
	for n := 1; ; n++ {
		err := attempt(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait, again := c.nextWait(n, err)
		if !again || !isTemporary(err) {
			return err
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// nextWait returns the wait after the nth failure, and whether another attempt follows.
func (c *client) nextWait(n int, err error) (time.Duration, bool) {
	if n >= c.opts.Attempts {
		return 0, false
	}
	wait := c.opts.Backoff << min(n-1, 5)
	wait += time.Duration(rand.Int64N(int64(wait)/4 + 1)) // jitter: clients that failed together do not retry together
	var status *statusError
	if errors.As(err, &status) && status.retryAfter > 0 {
		if status.retryAfter > maxRetryAfter {
			return 0, false
		}
		wait = max(wait, status.retryAfter)
	}
	return wait, true
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send requests a path of the repository. If the token has expired, it sends the request once more with a new one. A status that is not in
// want is an error.
func (c *client) send(ctx context.Context, path string, header http.Header, want ...int) (*http.Response, error) {
	for fresh := false; ; fresh = true {
		session := c.current()
		resp, err := c.do(ctx, session, path, header)
		if err != nil {
			return nil, tidy(err)
		}
		if slices.Contains(want, resp.StatusCode) {
			return resp, nil
		}
		err = readStatus(resp)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || fresh {
			return nil, err
		}
		if err := c.renew(ctx, session); err != nil {
			return nil, err
		}
	}
}

func (c *client) do(ctx context.Context, session http.RoundTripper, path string, header http.Header) (*http.Response, error) {
	address := url.URL{Scheme: c.target.Scheme(), Host: c.ref.host, Path: "/v2/" + c.ref.Repository + "/" + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	for key, values := range header {
		req.Header[key] = values
	}
	browser := http.Client{Transport: session, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("%w: more than %d redirects", ErrInvalid, maxRedirects)
		}
		// The library's transport adds credentials for the registry only. Delete headers that another transport may have set.
		if req.URL.Host != via[0].URL.Host {
			req.Header.Del("Authorization")
			req.Header.Del("Cookie")
		}
		req.Header.Del("Referer") // it contains the signed address of the previous host
		return nil
	}}
	return browser.Do(req)
}

func (c *client) current() http.RoundTripper {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// renew logs in again, unless another goroutine has replaced the session old.
func (c *client) renew(ctx context.Context, old http.RoundTripper) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != old {
		return nil
	}
	session, err := c.login(ctx)
	if err != nil {
		return err
	}
	c.session = session
	return nil
}

// readStatus returns the answer as a statusError, with the registry's message if it is short.
func readStatus(resp *http.Response) error {
	status := &statusError{status: resp.StatusCode, host: resp.Request.URL.Host}
	_ = errors.As(tidy(transport.CheckError(resp)), &status)
	status.retryAfter = retryAfter(resp.Header.Get("Retry-After"))
	return status
}

func retryAfter(header string) time.Duration {
	if header == "" {
		return 0
	}
	if seconds, err := strconv.Atoi(header); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 7*24*3600)) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, time.Until(at).Round(time.Second))
	}
	return 0
}
