package requestcheck

import (
	"io"
	"net/http"
	"time"
)

// limitBody bounds a body in size and time. A request without a body gets no deadline: net/http watches its connection to notice a client
// that disconnects, and a deadline would look like that.
func (h *handler) limitBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return
	}
	// net/http reads an unread body before it answers, to use the connection again. That is bounded as well, and for methods without a body
	// the connection is closed instead.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(h.o.BodyIdle)) // a test's recorder has no deadlines
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		w.Header().Set("Connection", "close")
	}
	if h.o.MaxBody > 0 {
		r.Body = http.MaxBytesReader(w, r.Body, h.o.MaxBody)
	}
	r.Body = &rateLimitedBody{ReadCloser: r.Body, control: control, o: h.o, began: time.Now()}
}

// rateLimitedBody extends its read deadline as long as enough bytes arrive.
type rateLimitedBody struct {
	io.ReadCloser
	control *http.ResponseController
	o       Options
	began   time.Time
	read    int64
}

func (b *rateLimitedBody) Read(p []byte) (int, error) {
	now := time.Now()
	deadline := b.began.Add(b.o.BodyIdle + time.Duration(float64(b.read)/float64(b.o.BodyRate)*float64(time.Second)))
	if idle := now.Add(b.o.BodyIdle); idle.Before(deadline) {
		deadline = idle
	}
	_ = b.control.SetReadDeadline(deadline)
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if err == io.EOF {
		// After the body, net/http reads on to notice that the client disconnects; that has no time limit. After an error the deadline stays, so
		// that the rest of the body is not waited for.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
