package batch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/keepalive"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// writeTimeout is how long a client may read nothing.
	writeTimeout = 2 * time.Minute
	// keepAliveInterval is the time between two comments in a stream of server-sent events.
	keepAliveInterval = 15 * time.Second
)

// writer writes a batch as one document, as lines, or as server-sent events. mu excludes the keep-alive goroutine.
type writer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	kind    string
	cancel  context.CancelFunc // called when a write fails

	mu    sync.Mutex
	begun bool
	n     int
	err   error
}

func newWriter(w http.ResponseWriter, kind string, cancel context.CancelFunc) *writer {
	return &writer{w: w, control: http.NewResponseController(w), kind: kind, cancel: cancel}
}

// started reports whether the status was sent.
func (o *writer) started() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun
}

// writeItem writes one item, with its result.
func (o *writer) writeItem(i *wire.BatchItem, result *sandbox.JSON) error {
	if o.kind != wire.TypeJSON {
		i.Kind = wire.KindItem
	}
	data, err := marshal(i)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writeHead()
	before, after := "\n", ""
	if o.kind != wire.TypeJSON {
		before, after = o.line(i.Kind)
	} else if o.n > 0 {
		before = ",\n"
	}
	o.n++
	b := bufio.NewWriterSize(writerFunc(o.write), 32<<10)
	_, _ = b.WriteString(before)
	if result == nil {
		_, _ = b.Write(data)
	} else { // a result may be large; encode it while it is written
		_, _ = b.Write(data[:len(data)-1])
		_, _ = b.WriteString(`,"result":`)
		if _, err := result.WriteTo(b); err != nil && o.err == nil {
			o.err = err
		}
		_ = b.WriteByte('}')
	}
	_, _ = b.WriteString(after)
	_ = b.Flush() // o.err has the error
	return o.send(nil)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// writeSummary writes the summary and ends the document.
func (o *writer) writeSummary(s *wire.BatchSummary) error {
	if o.kind != wire.TypeJSON {
		s.Kind = wire.KindSummary
	}
	data, err := marshal(s)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writeHead()
	if o.kind == wire.TypeJSON {
		data = append(append([]byte("\n],\"summary\":"), data...), "}\n"...)
	} else {
		before, after := o.line(s.Kind)
		data = append(append([]byte(before), data...), after...)
	}
	return o.send(data)
}

// marshal encodes JSON without escapes for HTML, as results are encoded.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// line returns the text before and after a document in a stream.
func (o *writer) line(kind string) (before, after string) {
	if o.kind == wire.TypeNDJSON {
		return "", "\n"
	}
	return "id: " + strconv.Itoa(o.n+1) + "\nevent: " + kind + "\ndata: ", "\n\n"
}

// writeHead sends the status and the headers once. mu is held.
func (o *writer) writeHead() {
	if o.begun {
		return
	}
	o.begun = true
	h := o.w.Header()
	h.Set("Content-Type", o.kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // tells proxies not to buffer
	o.w.WriteHeader(http.StatusOK)
	if o.kind == wire.TypeJSON {
		_, o.err = o.w.Write([]byte(`{"items":[`))
	}
}

// send writes and flushes. mu is held.
func (o *writer) send(b []byte) error {
	_, _ = o.write(b) // o.err has the error
	if o.err == nil {
		if err := o.control.Flush(); !errors.Is(err, http.ErrNotSupported) {
			o.err = err
		}
	}
	if o.err != nil {
		o.cancel()
	}
	return o.err
}

// write writes unless an earlier write failed. mu is held.
func (o *writer) write(b []byte) (n int, err error) {
	if o.err == nil && len(b) > 0 {
		_ = o.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails without a connection, as in some tests
		n, o.err = o.w.Write(b)
	}
	return n, o.err
}

// keepAlive sends comments in a stream of server-sent events. stop waits until the last one is sent.
func (o *writer) keepAlive() (stop func()) {
	if o.kind != wire.TypeSSE {
		return func() {}
	}
	return keepalive.Start(keepAliveInterval, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.begun {
			_ = o.send([]byte(":\n\n")) // the next item returns the error
		}
	})
}
