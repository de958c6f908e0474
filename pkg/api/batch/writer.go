package batch

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"strconv"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/stream"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// writer writes a batch as one document, as lines, or as server-sent events.
type writer struct {
	*stream.Stream
	n int
}

// newWriter makes a writer that calls cancel when a write fails.
func newWriter(w http.ResponseWriter, kind string, cancel context.CancelFunc) *writer {
	o := &writer{Stream: stream.New(w, kind)}
	o.Failed = cancel
	return o
}

// writeItem writes one item, with its result.
func (o *writer) writeItem(i *wire.BatchItem, result *sandbox.JSON) error {
	if o.Kind != wire.TypeJSON {
		i.Kind = wire.KindItem
	}
	data := marshal(i)
	o.Lock()
	defer o.Unlock()
	o.begin()
	before, after := "\n", ""
	if o.Kind != wire.TypeJSON {
		before, after = o.line(i.Kind)
	} else if o.n > 0 {
		before = ",\n"
	}
	o.n++
	b := bufio.NewWriterSize(o, 32<<10)
	_, _ = b.WriteString(before)
	if result == nil {
		_, _ = b.Write(data)
	} else { // a result may be large; encode it while it is written
		_, _ = b.Write(data[:len(data)-1])
		_, _ = b.WriteString(`,"result":`)
		if _, err := result.WriteTo(b); err != nil && o.Err == nil {
			o.Err = err
		}
		_ = b.WriteByte('}')
	}
	_, _ = b.WriteString(after)
	_ = b.Flush() // o.Err has the error
	return o.Send(nil)
}

// writeSummary writes the summary and ends the document.
func (o *writer) writeSummary(s *wire.BatchSummary) error {
	if o.Kind != wire.TypeJSON {
		s.Kind = wire.KindSummary
	}
	data := marshal(s)
	o.Lock()
	defer o.Unlock()
	o.begin()
	if o.Kind == wire.TypeJSON {
		data = append(append([]byte("\n],\"summary\":"), data...), "}\n"...)
	} else {
		before, after := o.line(s.Kind)
		data = append(append([]byte(before), data...), after...)
	}
	return o.Send(data)
}

// marshal encodes JSON as results are encoded.
func marshal(v any) []byte { return bytes.TrimSuffix(wire.AppendJSON(nil, v), []byte("\n")) }

// line returns the text before and after a document in a stream.
func (o *writer) line(kind string) (before, after string) {
	if o.Kind == wire.TypeNDJSON {
		return "", "\n"
	}
	return "id: " + strconv.Itoa(o.n+1) + "\nevent: " + kind + "\ndata: ", "\n\n"
}

// begin sends the head, and begins the document. The lock is held.
func (o *writer) begin() {
	first := !o.Begun
	o.Head()
	if first && o.Kind == wire.TypeJSON {
		_, _ = o.Write([]byte(`{"items":[`)) // o.Err has the error
	}
}
