package guard

import (
	"io"
	"net/http"
	"time"
)

// pace bounds a body in size and time. Requests without one are left alone: their connection is watched for the client's going away, and
// a deadline would look like that.
func (h *handler) pace(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return
	}
	// A body that nobody reads is read on by the server before it answers, to use the connection again. That must not take for ever either,
	// and who sends one where none belongs is not waited for at all.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(h.o.BodyIdle)) // what has no deadlines, as a test's recorder, has no slow clients
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		w.Header().Set("Connection", "close")
	}
	if h.o.MaxBody > 0 {
		r.Body = http.MaxBytesReader(w, r.Body, h.o.MaxBody)
	}
	r.Body = &pacedBody{ReadCloser: r.Body, control: control, o: h.o, began: time.Now()}
}

// pacedBody is read with a deadline that moves on as long as enough comes in.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	o       Options
	began   time.Time
	read    int64
}

func (b *pacedBody) Read(p []byte) (int, error) {
	now := time.Now()
	deadline := b.began.Add(b.o.BodyIdle + time.Duration(float64(b.read)/float64(b.o.BodyRate)*float64(time.Second)))
	if idle := now.Add(b.o.BodyIdle); idle.Before(deadline) {
		deadline = idle
	}
	_ = b.control.SetReadDeadline(deadline)
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if err == io.EOF {
		// The server reads on by itself, to notice that the client goes away; that may take as long as it likes. After any other end the
		// deadline stays: what is left of the body is not waited for.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
