package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// Client sends requests to one server. Its methods are safe for concurrent use.
type Client struct {
	t Transport
	// IdleTimeout is how long the server may send nothing while a run is under way; 0 means without limit. Requests that start no run time
	// out after 30 seconds.
	IdleTimeout time.Duration
}

// answerTimeout bounds the silence of requests that start no run.
const answerTimeout = 30 * time.Second

// New makes a client over a transport. The caller closes the transport.
func New(t Transport) *Client { return &Client{t: t} }

// Run runs a program, waits for its end and returns its result. The error is a *Problem where the server refused or failed.
func (c *Client) Run(ctx context.Context, run *wire.Run) (*executor.Result, error) {
	running, err := c.Open(ctx, run)
	if err != nil {
		return nil, err
	}
	defer running.Close()
	for {
		ev, err := running.Next()
		if err != nil {
			return nil, noEOF(err)
		}
		if ev.Result != nil {
			return ev.Result, nil
		}
	}
}

// Stream runs a program and yields its events as they happen; the last event has the result. A caller that stops the iteration cancels
// the program.
func (c *Client) Stream(ctx context.Context, run *wire.Run) iter.Seq2[executor.Event, error] {
	return func(yield func(executor.Event, error) bool) {
		running, err := c.Open(ctx, run)
		if err != nil {
			yield(executor.Event{}, err)
			return
		}
		defer running.Close()
		for {
			ev, err := running.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// Open starts a program and returns as soon as the server has accepted it. The caller reads the events and closes the Running. The
// server ends the program when the Running is closed or the connection is lost.
func (c *Client) Open(ctx context.Context, run *wire.Run) (*Running, error) {
	resp, err := c.post(ctx, wire.PathRun, run, wire.TypeNDJSON, "")
	if err != nil {
		return nil, err
	}
	return newRunning(c, resp), nil
}

// Start submits a program and returns once the server has accepted it. With the same key, a repeated request returns the same run; ""
// means no key.
func (c *Client) Start(ctx context.Context, run *wire.Run, key string) (*wire.RunInfo, error) {
	resp, err := c.post(ctx, wire.PathRuns, run, wire.TypeJSON, key)
	if err != nil {
		return nil, err
	}
	info := new(wire.RunInfo)
	return info, decode(resp, info)
}

// Get returns the state of a run, and the result of a finished one in RunInfo.Result.
func (c *Client) Get(ctx context.Context, id string) (*wire.RunInfo, error) {
	info := new(wire.RunInfo)
	return info, c.get(ctx, wire.PathRuns+"/"+url.PathEscape(id), info)
}

// Wait is Get, and blocks until the run is over or the time has passed: whole seconds, at most a minute.
func (c *Client) Wait(ctx context.Context, id string, d time.Duration) (*wire.RunInfo, error) {
	info := new(wire.RunInfo)
	path := wire.PathRuns + "/" + url.PathEscape(id) + "?wait=" + strconv.Itoa(int(d/time.Second))
	resp, err := c.do(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeJSON}, IdleTimeout: d + answerTimeout})
	if err != nil {
		return nil, err
	}
	return info, decode(resp, info)
}

// Cancel ends a run. It may be called at any time, and twice. Of a finished run it deletes the record.
func (c *Client) Cancel(ctx context.Context, id string) error {
	resp, err := c.do(ctx, &Request{Method: "DELETE", Path: wire.PathRuns + "/" + url.PathEscape(id), IdleTimeout: answerTimeout})
	if err != nil {
		return err
	}
	return drain(resp)
}

// Languages returns the languages of the server and whether they are available.
func (c *Client) Languages(ctx context.Context) ([]executor.Availability, error) {
	var doc wire.Languages
	err := c.get(ctx, wire.PathLanguages, &doc)
	return doc.Languages, err
}

// Health returns the state of the server. With deep set, the server runs a program in a sandbox. An unhealthy server is no error.
func (c *Client) Health(ctx context.Context, deep bool) (*wire.Health, error) {
	path := wire.PathHealth
	if deep {
		path += "?deep=1"
	}
	resp, err := c.t.RoundTrip(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeJSON},
		IdleTimeout: max(answerTimeout, c.IdleTimeout)})
	if err != nil {
		return nil, err
	}
	if resp.Status != 200 && resp.Status != 503 || resp.Header.Get("Content-Type") == wire.TypeProblem {
		return nil, ProblemOf(resp)
	}
	h := new(wire.Health)
	return h, decode(resp, h)
}

// Version returns the server's version.
func (c *Client) Version(ctx context.Context) (string, error) {
	h, err := c.Headers(ctx)
	if err != nil {
		return "", err
	}
	return h.Get(wire.HeaderVersion), nil
}

// Headers returns the headers that every answer has: they identify the server.
func (c *Client) Headers(ctx context.Context) (Header, error) {
	resp, err := c.t.RoundTrip(ctx, &Request{Method: "GET", Path: wire.PathHealth, Header: Header{"Accept": wire.TypeJSON},
		IdleTimeout: answerTimeout})
	if err != nil {
		return nil, err
	}
	return resp.Header, drain(resp)
}

// Upload puts a file on the server; later runs refer to it by its id. A size of -1 means unknown.
func (c *Client) Upload(ctx context.Context, id string, content io.Reader, size int64) (*wire.Upload, error) {
	resp, err := c.do(ctx, &Request{
		Method: "PUT", Path: wire.PathFiles + "/" + url.PathEscape(id), Body: content, Length: size, IdleTimeout: answerTimeout,
		Header: Header{"Content-Type": wire.TypeBinary, "Accept": wire.TypeJSON},
	})
	if err != nil {
		return nil, err
	}
	up := new(wire.Upload)
	return up, decode(resp, up)
}

// Download opens an uploaded file. The caller closes it.
func (c *Client) Download(ctx context.Context, id string) (io.ReadCloser, error) {
	return c.download(ctx, wire.PathFiles+"/"+url.PathEscape(id))
}

func (c *Client) download(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeBinary}, IdleTimeout: answerTimeout})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// post sends a document and returns the answer if its status is a success.
func (c *Client) post(ctx context.Context, path string, doc any, accept, key string) (*Response, error) {
	return c.send(ctx, "POST", path, doc, accept, key)
}

func (c *Client) send(ctx context.Context, method, path string, doc any, accept, key string) (*Response, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	r := &Request{
		Method: method, Path: path, Body: bytes.NewReader(body), Length: int64(len(body)), IdleTimeout: c.IdleTimeout,
		Header: Header{"Content-Type": wire.TypeJSON, "Accept": accept},
	}
	if key != "" {
		r.Header[wire.HeaderIdempotencyKey] = key
	}
	return c.do(ctx, r)
}

// get reads a document into a value.
func (c *Client) get(ctx context.Context, path string, into any) error {
	resp, err := c.do(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeJSON}, IdleTimeout: answerTimeout})
	if err != nil {
		return err
	}
	return decode(resp, into)
}

// do sends a request, and returns an answer without success as a *Problem.
func (c *Client) do(ctx context.Context, r *Request) (*Response, error) {
	resp, err := c.t.RoundTrip(ctx, r)
	if err != nil {
		return nil, err
	}
	if resp.Status/100 != 2 {
		return nil, ProblemOf(resp)
	}
	return resp, nil
}

// decode reads a whole answer and closes it.
func decode(resp *Response, into any) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage+1))
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("answer: larger than %d MiB", maxMessage>>20)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer: decode: %w", err)
	}
	return nil
}

// drain reads and closes an answer without using it, so that its connection can be used again.
func drain(resp *Response) error {
	defer resp.Body.Close()
	_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return err
}

// query adds from=SEQ to a path.
func query(path string, from uint64) string {
	if from == 0 {
		return path
	}
	return path + "?from=" + strconv.FormatUint(from, 10)
}
