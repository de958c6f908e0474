package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var _ api.Webhooks = Runs{}

// Types of messages.
const (
	TypeRun   = "run.finished"   // data is the run, as GET /v1/runs/{id} gives it
	TypeBatch = "batch.finished" // data is the summary of a batch, as its last line has it
)

// Message is the body of every delivery.
type Message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // when it was over
	Data      any       `json:"data"`
}

// Runs has a Sender tell of runs: the server's api.Webhooks.
type Runs struct{ *Sender }

// Check refuses an address that is not told anything.
func (r Runs) Check(_ context.Context, _ *api.Principal, hook *wire.Webhook) error {
	if err := r.Sender.Check(Hook(*hook)); err != nil {
		return sandbox.Invalid("webhook", "%w", err)
	}
	return nil
}

// Keep has a run told of once tell is called. A result that is too large to be sent is left out, and the message says so.
func (r Runs) Keep(owner string, hook *wire.Webhook, run wire.RunInfo) (tell func(), err error) {
	m := Message{Type: TypeRun, Data: run}
	if run.Ended != nil {
		m.Timestamp = *run.Ended
	}
	if n := len(run.Result); n > maxResult {
		run.Result = nil
		run.Error = &wire.Problem{
			Type: wire.ProblemBase + wire.CodeTooLarge, Code: wire.CodeTooLarge, Title: "The result is too large to be sent", Status: 413,
			Detail: fmt.Sprintf("it has %d bytes, and a webhook is sent %d at the most", n, maxResult), Hint: "GET " + wire.PathRuns + "/" + run.ID,
		}
		m.Data = run
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return r.Hold(Delivery{ID: run.ID, Owner: owner, Hook: Hook(*hook), Body: body})
}

// maxResult is what a receiver can be expected to take.
const maxResult = 32 << 20
