package batch

import (
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
func (o *out) item(i *wire.BatchItem) error {
	if o.kind != wire.TypeJSON {
		i.Kind = wire.KindItem
	}
	result := bytes.TrimSpace(i.Result)
	i.Result = nil
	data, err := marshal(i)
	if err != nil {
		return err
	}
	if result != nil { // it is JSON already, and may be large: the encoder would read all of it again
		data = append(append(append(data[:len(data)-1], `,"result":`...), result...), '}')
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begin()
	if o.kind == wire.TypeJSON {
		separator := ","
		if o.n == 0 {
			separator = ""
		}
		data = append([]byte(separator+"\n"), data...)
	} else {
		data = o.line(i.Kind, data)
	}
	o.n++
	return o.send(data)
}

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
		data = o.line(s.Kind, data)
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

func (o *out) line(kind string, data []byte) []byte {
	if o.kind == wire.TypeNDJSON {
		return append(data, '\n')
	}
	head := "id: " + strconv.Itoa(o.n+1) + "\nevent: " + kind + "\ndata: "
	return append(append([]byte(head), data...), "\n\n"...)
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
	if o.err == nil {
		_ = o.control.SetWriteDeadline(time.Now().Add(stall)) // there is no connection in some tests
		_, o.err = o.w.Write(b)
	}
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
