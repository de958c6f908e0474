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

// Client talks to one server.
type Client struct {
	t Transport
	// Patience is the longest silence to bear of an answer that is about a run; 0 is for ever. What needs no run is not waited for longer
	// than half a minute.
	Patience time.Duration
}

// answerPatience is for answers that take no run.
const answerPatience = 30 * time.Second

// New makes a client over a transport, which it does not own.
func New(t Transport) *Client { return &Client{t: t} }

// Run runs a program to its end and says what happened. Its error is a *Problem where the server refused or failed.
func (c *Client) Run(ctx context.Context, run *wire.Run) (*executor.Result, error) {
	running, err := c.Open(ctx, run)
	if err != nil {
		return nil, err
	}
	defer running.Close()
	for {
		ev, err := running.Next()
		if err != nil {
			return nil, midway(err)
		}
		if ev.Result != nil {
			return ev.Result, nil
		}
	}
}

// Stream runs a program and yields what happens while it happens; the last event carries the result. Whoever stops listening cancels
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

// Open runs a program, and returns as soon as the server has taken it. The server ends the program when the Running is closed, or
// its reader is gone.
func (c *Client) Open(ctx context.Context, run *wire.Run) (*Running, error) {
	resp, err := c.post(ctx, wire.PathRun, run, wire.TypeNDJSON, "")
	if err != nil {
		return nil, err
	}
	return newRunning(c, resp), nil
}

// Start has a program accepted, and does not wait for it. A key makes a second try of the same request the same run; "" is none.
func (c *Client) Start(ctx context.Context, run *wire.Run, key string) (*wire.RunInfo, error) {
	resp, err := c.post(ctx, wire.PathRuns, run, wire.TypeJSON, key)
	if err != nil {
		return nil, err
	}
	info := new(wire.RunInfo)
	return info, decode(resp, info)
}

// Get says how far a run is; of one that is done, RunInfo.Result has all.
func (c *Client) Get(ctx context.Context, id string) (*wire.RunInfo, error) {
	info := new(wire.RunInfo)
	return info, c.get(ctx, wire.PathRuns+"/"+url.PathEscape(id), info)
}

// Cancel ends a run. It may be called at any time, and twice; of a run that is over, its record is forgotten.
func (c *Client) Cancel(ctx context.Context, id string) error {
	resp, err := c.do(ctx, &Request{Method: "DELETE", Path: wire.PathRuns + "/" + url.PathEscape(id), Patience: answerPatience})
	if err != nil {
		return err
	}
	return drain(resp)
}

// Languages says which languages the server can run.
func (c *Client) Languages(ctx context.Context) ([]executor.Availability, error) {
	var doc wire.Languages
	err := c.get(ctx, wire.PathLanguages, &doc)
	return doc.Languages, err
}

// Health asks how the server is; deep has it run a sandbox. A server that is not well is no error.
func (c *Client) Health(ctx context.Context, deep bool) (*wire.Health, error) {
	path := wire.PathHealth
	if deep {
		path += "?deep=1"
	}
	resp, err := c.t.RoundTrip(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeJSON}, Patience: max(answerPatience, c.Patience)})
	if err != nil {
		return nil, err
	}
	if resp.Status != 200 && resp.Status != 503 || resp.Header.Get("Content-Type") == wire.TypeProblem {
		return nil, ProblemOf(resp)
	}
	h := new(wire.Health)
	return h, decode(resp, h)
}

// Version is that of the server.
func (c *Client) Version(ctx context.Context) (string, error) {
	h, err := c.Hello(ctx)
	if err != nil {
		return "", err
	}
	return h.Get(wire.HeaderVersion), nil
}

// Hello asks for nothing but the headers that every answer has, which say who the server is.
func (c *Client) Hello(ctx context.Context) (Header, error) {
	resp, err := c.t.RoundTrip(ctx, &Request{Method: "GET", Path: wire.PathHealth, Header: Header{"Accept": wire.TypeJSON}, Patience: answerPatience})
	if err != nil {
		return nil, err
	}
	return resp.Header, drain(resp)
}

// Upload puts a file on the server, for later runs to name by its id. size -1 is unknown.
func (c *Client) Upload(ctx context.Context, id string, content io.Reader, size int64) (*wire.Upload, error) {
	resp, err := c.do(ctx, &Request{
		Method: "PUT", Path: wire.PathFiles + "/" + url.PathEscape(id), Body: content, Length: size, Patience: answerPatience,
		Header: Header{"Content-Type": wire.TypeBinary, "Accept": wire.TypeJSON},
	})
	if err != nil {
		return nil, err
	}
	up := new(wire.Upload)
	return up, decode(resp, up)
}

// Download reads a file that was uploaded. The caller closes it.
func (c *Client) Download(ctx context.Context, id string) (io.ReadCloser, error) {
	return c.download(ctx, wire.PathFiles+"/"+url.PathEscape(id))
}

func (c *Client) download(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeBinary}, Patience: answerPatience})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// post sends a document. The answer is one of success.
func (c *Client) post(ctx context.Context, path string, doc any, accept, key string) (*Response, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	r := &Request{
		Method: "POST", Path: path, Body: bytes.NewReader(body), Length: int64(len(body)), Patience: c.Patience,
		Header: Header{"Content-Type": wire.TypeJSON, "Accept": accept},
	}
	if key != "" {
		r.Header[wire.HeaderIdempotencyKey] = key
	}
	return c.do(ctx, r)
}

// get reads a document.
func (c *Client) get(ctx context.Context, path string, into any) error {
	resp, err := c.do(ctx, &Request{Method: "GET", Path: path, Header: Header{"Accept": wire.TypeJSON}, Patience: answerPatience})
	if err != nil {
		return err
	}
	return decode(resp, into)
}

// do sends a request, and makes an answer that is none of success an error.
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

// decode reads the whole of an answer.
func decode(resp *Response, into any) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage+1))
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("the answer has more than %d MiB", maxMessage>>20)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer is not what was asked for: %w", err)
	}
	return nil
}

// drain reads an answer that nobody needs, so that its connection can be used again.
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
