package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/client"
)

// inProcess sends the requests of a client to a handler of this process. The context of a handler has nothing of the call but its
// cancellation: what a middleware has stored about the outer request does not concern the inner one.
type inProcess struct{ handler http.Handler }

var _ client.Transport = (*inProcess)(nil)

// RoundTrip returns a document when the handler has written the whole of it. Of a file, which may be large, it returns the beginning; the
// handler goes on while the file is read.
func (t *inProcess) RoundTrip(ctx context.Context, r *client.Request) (*client.Response, error) {
	own, cancel := context.WithCancelCause(context.Background())
	unhook := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	req, err := http.NewRequestWithContext(own, r.Method, "http://in-process"+r.Path, r.Body)
	if err != nil {
		unhook()
		cancel(nil)
		return nil, fmt.Errorf("%w: %w", client.ErrNotSent, err)
	}
	req.ContentLength = r.Length
	if r.Body == nil {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	if r.Header["Accept"] != wire.TypeBinary {
		defer cancel(nil)
		defer unhook()
		return t.whole(req)
	}
	out, in := io.Pipe()
	w := &pipeWriter{header: http.Header{}, begun: make(chan struct{}), body: in}
	go func() {
		defer func() {
			w.end(recover())
			unhook()
			cancel(nil)
		}()
		t.handler.ServeHTTP(w, api.WithoutSync(req))
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		_ = out.Close() // a handler that still writes ends
		return nil, context.Cause(ctx)
	}
	return &client.Response{Status: w.status, Header: headerOf(w.sent), Body: &answerBody{out, cancel}}, nil
}

// whole runs a handler to its end.
func (t *inProcess) whole(req *http.Request) (_ *client.Response, err error) {
	w := &documentWriter{header: http.Header{}, status: http.StatusOK}
	defer func() {
		if recover() != nil {
			err = errAborted
		}
	}()
	t.handler.ServeHTTP(w, api.WithoutSync(req))
	return &client.Response{Status: w.status, Header: headerOf(w.header), Body: io.NopCloser(&w.body)}, nil
}

// errAborted is the error of an answer that its handler aborted by a panic; the server has logged the other panics.
var errAborted = errors.New("the answer was aborted")

func headerOf(h http.Header) client.Header {
	header := client.Header{}
	for name, values := range h {
		header[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	return header
}

// documentWriter is the answer of a handler in memory.
type documentWriter struct {
	header http.Header
	begun  bool
	status int
	body   bytes.Buffer
}

func (w *documentWriter) Header() http.Header { return w.header }

func (w *documentWriter) WriteHeader(status int) {
	if !w.begun {
		w.begun, w.status = true, status
	}
}

func (w *documentWriter) Write(b []byte) (int, error) {
	w.begun = true
	return w.body.Write(b)
}

// Dial is not needed: no tool uses a WebSocket.
func (t *inProcess) Dial(context.Context, string, string) (client.Socket, client.Header, error) {
	return nil, nil, fmt.Errorf("%w: no WebSocket within a process", client.ErrNotSent)
}

// Close does nothing: there are no connections.
func (t *inProcess) Close() error { return nil }

// answerBody ends the request when it is closed.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	b.cancel(nil)
	return b.PipeReader.Close()
}

// pipeWriter is the answer of a handler that is read while it is written.
type pipeWriter struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan struct{} // closed when status and sent are set
	status int
	sent   http.Header
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *pipeWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush does nothing: the pipe has no buffer.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

// end ends the answer.
func (w *pipeWriter) end(cause any) {
	if cause != nil {
		w.WriteHeader(http.StatusInternalServerError)
		_ = w.body.CloseWithError(errAborted)
		return
	}
	w.WriteHeader(http.StatusOK)
	_ = w.body.Close()
}
