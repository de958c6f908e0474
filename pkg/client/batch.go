package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
)

// Item is the outcome of one run of a batch: a result, an error, or skipped. The last item of a batch has only the summary.
type Item struct {
	Index   int
	Name    string // of its input
	ID      string
	Result  *executor.Result
	Err     error // a *Problem: why there is no result
	Skipped bool
	Summary *wire.BatchSummary
}

// Batch runs many inputs of one program, or many programs. It yields each item as the server sends it; the last item is the summary. A
// caller that stops the iteration cancels the remaining runs. Item.Err is the error of one run; the sequence's error ends it.
func (c *Client) Batch(ctx context.Context, batch *wire.Batch) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		resp, err := c.post(ctx, wire.PathBatch, batch, wire.TypeNDJSON, "")
		if err != nil {
			yield(Item{}, err)
			return
		}
		defer resp.Body.Close()
		for lines := bufio.NewReaderSize(resp.Body, 64<<10); ; {
			line, err := readBounded(lines)
			if err != nil {
				yield(Item{}, fmt.Errorf("%w: %w", ErrBroken, err))
				return
			}
			if len(bytes.TrimSpace(line)) == 0 { // keep-alive
				continue
			}
			item, err := readItem(line)
			if !yield(item, err) || err != nil || item.Summary != nil {
				return
			}
		}
	}
}

// readItem reads one line of a batch.
func readItem(line []byte) (Item, error) {
	// The kind decides the meaning of the other names: "skipped" is a bool in an item and a number in the summary.
	var head struct {
		Kind    string        `json:"kind"`
		Problem *wire.Problem `json:"problem"`
	}
	broken := func(err error) (Item, error) {
		return Item{}, fmt.Errorf("batch item: decode: %w", err)
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return broken(err)
	}
	switch {
	case head.Kind == wire.KindSummary:
		s := new(wire.BatchSummary)
		if err := json.Unmarshal(line, s); err != nil {
			return broken(err)
		}
		return Item{Summary: s}, nil
	case head.Kind == wire.KindError && head.Problem != nil:
		return Item{}, &Problem{*head.Problem}
	case head.Kind != wire.KindItem:
		return broken(fmt.Errorf("kind %.40q", head.Kind))
	}
	var doc wire.BatchItem
	if err := json.Unmarshal(line, &doc); err != nil {
		return broken(err)
	}
	item := Item{Index: doc.Index, Name: doc.Name, ID: doc.ID, Skipped: doc.Skipped}
	if doc.Error != nil {
		item.Err = &Problem{*doc.Error}
	}
	if doc.Result != nil {
		var err error
		if item.Result, err = wire.DecodeResult(doc.Result); err != nil {
			return item, fmt.Errorf("batch item %d: decode result: %w", item.Index, err)
		}
	}
	return item, nil
}
