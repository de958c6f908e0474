package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

// mcpExcess is the most milliseconds that run_code may take more than the same run over HTTP.
const mcpExcess = 2

// mcpRevision is the revision of the protocol of the requests.
const mcpRevision = "2026-07-28"

// mcp compares run_code at /mcp with POST /v1/run, of the same program on the same server.
func (s *environment) mcp(ctx context.Context) (rows []bench.Row, err error) {
	v, err := s.serve(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	for _, language := range []string{"shell", "python"} {
		h := of(language)
		if err := v.hello(ctx, &h); err != nil { // fills the prepared files and the pool
			return nil, err
		}
		timed := func(ask func(context.Context, *hello) error) bench.Run {
			return func(ctx context.Context, _ int) (bench.Sample, error) {
				began := time.Now()
				err := ask(ctx, &h)
				wall := time.Since(began)
				time.Sleep(refillTime)
				return bench.Sample{Wall: wall}, err
			}
		}
		ours, ref, err := bench.Pairs(ctx, s.warmup, s.pairs, timed(v.helloAgent), timed(v.hello))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", language, err)
		}
		row := bench.Compare(h.language+" hello, run_code at /mcp", "POST /v1/run", ours, ref, 0)
		row.Bar = &bench.Bar{Limit: mcpExcess, OfExcess: true}
		row.Note = "both over the unix socket, one after the other, each until its whole answer is read; revision " + mcpRevision
		rows = append(rows, row)
	}
	return rows, nil
}

// helloAgent is hello as a call of run_code.
func (v *server) helloAgent(ctx context.Context, h *hello) error {
	n := int(v.number.Add(1))
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": map[string]any{
		"name": "run_code", "arguments": map[string]any{"language": h.language, "code": fmt.Sprintf(h.text, n)},
		"_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion": mcpRevision, "io.modelcontextprotocol/clientCapabilities": map[string]any{},
		},
	}})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", bytes.NewReader(text))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": mcpRevision,
		"Mcp-Method": "tools/call", "Mcp-Name": "run_code",
	} {
		r.Header.Set(name, value)
	}
	got, err := v.client.Do(r)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	text, err = io.ReadAll(got.Body)
	if want := fmt.Sprintf(`"text":"%d\n"`, n); err == nil && !strings.Contains(string(text), want) {
		err = fmt.Errorf("%s: no %s in %s", got.Status, want, text)
	}
	return err
}
