package webhook

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var _ api.Webhooks = (*Sender)(nil)

// Types of messages.
const (
	TypeRun   = "run.finished"   // data is the run, as in the answer of GET /v1/runs/{id}
	TypeBatch = "batch.finished" // data is the summary of the batch, as in its last line
)

// Message is the body of every delivery.
type Message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // end of the run or batch
	Data      any       `json:"data"`
}

// Keep stores the webhook of a run, and sends it once send is called. A result that is too large to send or to store is left out, and the
// message says so.
func (s *Sender) Keep(owner string, hook *wire.Webhook, run wire.RunInfo, result *sandbox.JSON) (send func(), err error) {
	if result == nil {
		return s.keep(owner, hook, run, nil)
	}
	n := result.Size()
	if n > maxResult {
		return s.keep(owner, hook, without(run, fmt.Sprintf("the result has %d bytes; a webhook has at most %d", n, maxResult)), nil)
	}
	send, err = s.keep(owner, hook, run, result)
	if errors.Is(err, ErrNoRoom) {
		return s.keep(owner, hook, without(run, fmt.Sprintf("the result has %d bytes, and too many undelivered webhooks are stored", n)), nil)
	}
	return send, err
}

// without returns a run whose result is left out.
func without(run wire.RunInfo, why string) wire.RunInfo {
	run.Error = wire.NewProblem(wire.CodeTooLarge, "%s", why)
	run.Error.Title, run.Error.Hint = "The result is too large to be sent", "GET "+wire.PathRuns+"/"+run.ID
	return run
}

func (s *Sender) keep(owner string, hook *wire.Webhook, run wire.RunInfo, result *sandbox.JSON) (send func(), err error) {
	var place []byte
	if result != nil {
		place = []byte(`"` + rand.Text() + `"`)
		run.Result = place
	}
	m := Message{Type: TypeRun, Data: run}
	if run.Ended != nil {
		m.Timestamp = *run.Ended
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	d := Delivery{ID: run.ID, Owner: owner, Hook: hook, Body: body}
	if result != nil {
		d.Body, d.after, _ = bytes.Cut(body, place)
		d.large = result
	}
	return s.Prepare(d)
}

// maxResult bounds the result in a webhook, for the sake of receivers.
const maxResult = 32 << 20
