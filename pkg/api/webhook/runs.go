package webhook

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
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

// Keep has a run told of once tell is called. A result that is too large to be sent, or to be kept until it is, is left out, and the message says so.
func (r Runs) Keep(owner string, hook *wire.Webhook, run wire.RunInfo, result *sandbox.JSON) (tell func(), err error) {
	if result == nil {
		return r.keep(owner, hook, run, nil)
	}
	n := result.Size()
	if n > maxResult {
		return r.keep(owner, hook, without(run, fmt.Sprintf("it has %d bytes, and a webhook is sent %d at the most", n, maxResult)), nil)
	}
	tell, err = r.keep(owner, hook, run, result)
	if errors.Is(err, ErrNoRoom) {
		return r.keep(owner, hook, without(run, fmt.Sprintf("it has %d bytes, and too much waits for receivers that do not take it", n)), nil)
	}
	return tell, err
}

// without is a run whose result is left out.
func without(run wire.RunInfo, why string) wire.RunInfo {
	run.Error = &wire.Problem{
		Type: wire.ProblemBase + wire.CodeTooLarge, Code: wire.CodeTooLarge, Title: "The result is too large to be sent", Status: 413,
		Detail: why, Hint: "GET " + wire.PathRuns + "/" + run.ID,
	}
	return run
}

func (r Runs) keep(owner string, hook *wire.Webhook, run wire.RunInfo, result *sandbox.JSON) (tell func(), err error) {
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
	d := Delivery{ID: run.ID, Owner: owner, Hook: Hook(*hook), Body: body}
	if result != nil {
		d.Body, d.after, _ = bytes.Cut(body, place)
		d.large = result
	}
	return r.Hold(d)
}

// maxResult is what a receiver can be expected to take.
const maxResult = 32 << 20
