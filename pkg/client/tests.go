package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// TestEvent is an event of tests: of their run, of a test that starts or ends, or the last one, which has the result.
type TestEvent struct {
	sandbox.Event
	Test   *report.Test
	Result *wire.TestsResult
}

// Tests runs the tests of a project, and yields their events as they happen; the last event has the result. A caller that leaves the loop
// early cancels the run. A result without success is no error.
func (c *Client) Tests(ctx context.Context, asked *wire.Tests) iter.Seq2[TestEvent, error] {
	return func(yield func(TestEvent, error) bool) {
		resp, err := c.post(ctx, wire.PathTests, asked, wire.TypeNDJSON, "")
		if err != nil {
			yield(TestEvent{}, err)
			return
		}
		running := newRunning(c, resp)
		defer running.Close()
		var line []byte // of the last event: its result has more than that of a run
		running.seen = func(l []byte) { line = l }
		for {
			ev, err := running.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			out := TestEvent{Event: ev.Event}
			if err == nil {
				err = out.complete(&ev, line)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// complete reads what an event has beside those of a run.
func (e *TestEvent) complete(ev *executor.Event, line []byte) error {
	switch ev.Kind {
	case report.EventStarted, report.EventEnded:
		e.Test = new(report.Test)
		if err := json.Unmarshal(ev.Content, e.Test); err != nil {
			return fmt.Errorf("server event %d: decode test: %w", ev.Seq, err)
		}
	case executor.EventResult:
		var doc struct {
			Result json.RawMessage `json:"result"`
		}
		err := json.Unmarshal(bytes.TrimSpace(line), &doc)
		if err == nil {
			e.Result, err = wire.DecodeTestsResult(doc.Result)
		}
		if err != nil {
			return fmt.Errorf("server event %d: decode result: %w", ev.Seq, err)
		}
	}
	return nil
}
