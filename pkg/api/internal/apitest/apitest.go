// Package apitest serves the HTTP API for tests of the packages around it.
//
// What. [Serve] puts a server on a unix socket and returns a client for it; [Real] is an executor over real sandboxes, [Fake] one whose
// programs are Go functions.
//
// Place in the flow. Tests only.
//
// Lifecycle. Everything ends with the test.
//
// Concurrency. Clients may be used from many goroutines.
//
// Limits. Fake runs no program: tests of sandboxes need Real.
package apitest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Timeout is generous, because other tests run at the same time.
const Timeout = 2 * time.Minute

// Fake is an executor whose programs are a Go function.
type Fake func(ctx context.Context, req executor.Request) (*executor.Result, error)

// Execute calls p.
func (p Fake) Execute(ctx context.Context, req executor.Request) (*executor.Result, error) {
	if req.OnPlan != nil {
		req.OnPlan(&executor.Plan{})
	}
	return p(ctx, req)
}

// CheckLanguages returns no languages.
func (Fake) CheckLanguages(context.Context) []executor.Availability { return nil }

// Result returns a result with that output.
func Result(verdict sandbox.Verdict, stdout string) *executor.Result {
	r := &executor.Result{Language: "played"}
	r.Verdict, r.Stdout.Head, r.Stdout.Total = verdict, []byte(stdout), uint64(len(stdout))
	return r
}

// Client is an HTTP client of a test server.
type Client struct {
	*http.Client
	T     testing.TB
	Token string
}

// Serve serves until the test ends.
func Serve(t testing.TB, s *api.Server) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // t.TempDir is too long for a socket
	Must(t, err)
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	Must(t, err)
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: Timeout}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = server.Serve(listener)
	}()
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.Close()
		_ = server.Close()
		<-over
		_ = os.RemoveAll(dir) //nolint:forbidigo // a directory of the test's own, that no sandbox has seen
	})
	return &Client{Client: &http.Client{Transport: transport}, T: t}
}

// New makes a server and serves it. attach is called before it is served.
func New(t testing.TB, o api.Options, attach func(*api.Server)) *Client {
	t.Helper()
	s, err := api.New(o)
	Must(t, err)
	if attach != nil {
		attach(s)
	}
	return Serve(t, s)
}

// Post sends a body, with headers in pairs. The caller closes the answer.
func (c *Client) Post(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", wire.TypeJSON)
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return c.Do(r)
}

// Ask is Post that reads the answer. The test fails unless it has that status.
func (c *Client) Ask(status int, path, body string, headers ...string) ([]byte, http.Header) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	res, err := c.Post(ctx, path, body, headers...)
	Must(c.T, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	Must(c.T, err)
	if res.StatusCode != status {
		c.T.Fatalf("POST %s: %d instead of %d: %.2000s", path, res.StatusCode, status, b)
	}
	return b, res.Header
}

// Problem is Ask for a problem document.
func (c *Client) Problem(status int, path, body string, headers ...string) wire.Problem {
	c.T.Helper()
	b, h := c.Ask(status, path, body, headers...)
	p := Decode[wire.Problem](c.T, b)
	if h.Get("Content-Type") != wire.TypeProblem || p.Status != status || p.Code == "" || p.Title == "" ||
		p.Type != wire.ProblemBase+p.Code {
		c.T.Errorf("an odd problem: %s", b)
	}
	return p
}

// Info returns the state of a run.
func (c *Client) Info(id string) wire.RunInfo {
	c.T.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://server"+wire.PathRuns+"/"+id, nil)
	Must(c.T, err)
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	res, err := c.Do(r)
	Must(c.T, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	Must(c.T, err)
	return Decode[wire.RunInfo](c.T, b)
}

// Decode decodes JSON.
func Decode[T any](t testing.TB, b []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v: %.2000s", err, b)
	}
	return v
}

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until holds returns true, and fails the test after Timeout.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Timeout); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

// Tokens is an Authenticator whose tokens are the names of their owners.
type Tokens map[string]api.KeyLimits

// Authenticate accepts the names in k.
func (k Tokens) Authenticate(_ context.Context, token string) (*api.Principal, error) {
	limits, ok := k[token]
	if !ok {
		return nil, api.ErrUnauthorized
	}
	return &api.Principal{ID: token, Name: token, Limits: limits}, nil
}
