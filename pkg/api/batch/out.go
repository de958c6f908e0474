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

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/beat"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	// stall is how long a client may take nothing.
	stall = 2 * time.Minute
	// beatEvery is how often a stream of events says that it is still there.
	beatEvery = 15 * time.Second
)

// out writes a batch: one document, lines, or server-sent events. mu is for the beat.
type out struct {
	w       http.ResponseWriter
	control *http.ResponseController
	kind    string
	cancel  context.CancelFunc // for when nobody reads on

	mu    sync.Mutex
	begun bool
	n     int
	err   error
}

func newOut(w http.ResponseWriter, kind string, cancel context.CancelFunc) *out {
	return &out{w: w, control: http.NewResponseController(w), kind: kind, cancel: cancel}
}

// started says whether a status was sent.
func (o *out) started() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun
}

// item writes one.
func (o *out) item(i *wire.BatchItem, result *sandbox.JSON) error {
	if o.kind != wire.TypeJSON {
		i.Kind = wire.KindItem
	}
	data, err := marshal(i)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begin()
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
	} else { // it may be large, and is encoded while it is written
		_, _ = b.Write(data[:len(data)-1])
		_, _ = b.WriteString(`,"result":`)
		if _, err := result.WriteTo(b); err != nil && o.err == nil {
			o.err = err
		}
		_ = b.WriteByte('}')
	}
	_, _ = b.WriteString(after)
	_ = b.Flush() // o.err has what went wrong
	return o.send(nil)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// end writes the summary.
func (o *out) end(s *wire.BatchSummary) error {
	if o.kind != wire.TypeJSON {
		s.Kind = wire.KindSummary
	}
	data, err := marshal(s)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begin()
	if o.kind == wire.TypeJSON {
		data = append(append([]byte("\n],\"summary\":"), data...), "}\n"...)
	} else {
		before, after := o.line(s.Kind)
		data = append(append([]byte(before), data...), after...)
	}
	return o.send(data)
}

// marshal is JSON without escapes for HTML, as results have it.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// line is what stands before and after a document.
func (o *out) line(kind string) (before, after string) {
	if o.kind == wire.TypeNDJSON {
		return "", "\n"
	}
	return "id: " + strconv.Itoa(o.n+1) + "\nevent: " + kind + "\ndata: ", "\n\n"
}

// begin sends the head. mu is held.
func (o *out) begin() {
	if o.begun {
		return
	}
	o.begun = true
	h := o.w.Header()
	h.Set("Content-Type", o.kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for proxies that would collect
	o.w.WriteHeader(http.StatusOK)
	if o.kind == wire.TypeJSON {
		_, o.err = o.w.Write([]byte(`{"items":[`))
	}
}

// send writes what there is at once. mu is held.
func (o *out) send(b []byte) error {
	_, _ = o.write(b) // o.err has what went wrong
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

// write writes, unless something went wrong before. mu is held.
func (o *out) write(b []byte) (n int, err error) {
	if o.err == nil && len(b) > 0 {
		_ = o.control.SetWriteDeadline(time.Now().Add(stall)) // there is no connection in some tests
		n, o.err = o.w.Write(b)
	}
	return n, o.err
}

// beats sends comments while nothing happens, for server-sent events. stop waits until that is over.
func (o *out) beats() (stop func()) {
	if o.kind != wire.TypeSSE {
		return func() {}
	}
	return beat.Start(beatEvery, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.begun {
			_ = o.send([]byte(":\n\n")) // the next item hears of it
		}
	})
}
