package idempotency

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// answer is a recorded answer.
type answer struct {
	status   int
	header   http.Header
	body     []byte
	tooLarge bool
}

// size returns the approximate memory of the answer.
func (a *answer) size() int { return len(a.body) + 512 }

// replay sends the answer again.
func (a *answer) replay(w http.ResponseWriter, r *http.Request, server *api.Server) {
	if a.tooLarge {
		p := problem(wire.CodeConflict, "the request was answered, but the answer was too large to keep")
		p.Hint = "use a new idempotency key to run it again"
		server.Fail(w, r, p)
		return
	}
	maps.Copy(w.Header(), a.header)
	w.Header().Set(HeaderReplayed, "true")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // fails when the client is gone
}

// accepted returns the answer of POST /v1/runs for a run that the server still keeps.
func accepted(info wire.RunInfo) *answer {
	return &answer{status: http.StatusAccepted, body: wire.AppendJSON(nil, info), header: http.Header{
		"Content-Type": {wire.TypeJSON}, "Cache-Control": {"no-store"}, "Location": {wire.PathRuns + "/" + info.ID}, wire.HeaderRunID: {info.ID},
	}}
}

// recorder passes an answer on and keeps a copy.
type recorder struct {
	http.ResponseWriter
	most   int
	status int
	header http.Header
	body   []byte
	sent   int64
	large  bool
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status, r.header = status, r.Header().Clone()
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.status/100 == 2 && !r.large {
		if r.large = len(r.body)+len(b) > r.most; r.large {
			r.body = nil
		} else {
			r.body = append(r.body, b...)
		}
	}
	n, err := r.ResponseWriter.Write(b)
	r.sent += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// keep reports whether the answer is valid for a repeated request.
func (r *recorder) keep(clientGone bool) bool {
	switch {
	case r.status/100 != 2:
		return false
	case !clientGone:
		return r.large || !failed(r.body)
	case r.large: // a client may close its connection after the last byte, before the route returns
		return r.header.Get("Content-Length") == strconv.FormatInt(r.sent, 10)
	}
	// If the client left after the run had ended, the answer is what it will ask for again; if its leaving ended the run, it is not.
	var result struct {
		Verdict string `json:"verdict"`
		ID      string `json:"id"`
	}
	whole := strings.HasPrefix(r.header.Get("Content-Type"), wire.TypeJSON) && json.Unmarshal(r.body, &result) == nil
	return whole && (result.ID != "" || result.Verdict != "" && result.Verdict != "cancelled")
}

// failed reports whether a stream ended in a problem of the server.
func failed(body []byte) bool {
	last := bytes.TrimRight(body, "\n")
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	last = bytes.TrimPrefix(last, []byte("data: "))
	return wire.NoticeOf(last) != nil && bytes.HasPrefix(last, []byte(`{"kind":"`+wire.KindError+`"`))
}

func (r *recorder) answer() *answer {
	h := r.header
	h.Del("Date")
	return &answer{status: r.status, header: h, body: r.body, tooLarge: r.large}
}
