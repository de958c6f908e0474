package session

import (
	"bytes"
	"errors"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// compile composes a program of the cell and of the declarations before it, and runs it in the session's sandbox. Its standard input is
// empty: a pipe does not tell that a program waits for a line.
func (c *cell) compile() (*Result, error) {
	composed, err := c.b.session.Composer().Compose(c.id, c.in.Code)
	for err == nil {
		var r *executor.Result
		held := heldEvents{to: c.in.OnEvent}
		r, err = c.b.session.Run(c.ctx, composed, executor.Request{Limits: c.in.Limits, OnEvent: held.handler(), OutputSpace: c.in.OutputSpace})
		if err != nil {
			break
		}
		var again *language.Composition
		if r.Verdict == sandbox.VerdictCompileError && composed.Revise != nil && !held.passing {
			again, err = composed.Revise(string(r.Stderr.Edges(maxCompilerText)))
		}
		if again == nil && err == nil {
			held.pass()
			return c.finished(r, composed), nil
		}
		r.Close()
		composed = again
	}
	if stopped := c.ctx.Err(); stopped != nil && errors.Is(err, stopped) {
		return c.notRun(sandbox.VerdictCancelled, "", nil)
	}
	var refused *language.CellError
	if !errors.As(err, &refused) {
		return nil, err
	}
	return c.notRun(sandbox.VerdictCompileError, err.Error()+"\n", &protocol.Error{
		Name: "compile error", Message: refused.Text, Line: refused.Line,
	})
}

// maxCompilerText is the most that is read of what a compiler or a program has printed.
const maxCompilerText = 256 * sandbox.KiB

// finished is the result of a cell whose program was compiled, or refused by the compiler.
func (c *cell) finished(r *executor.Result, composed *language.Composition) *Result {
	result := &Result{Result: *r, State: StateIdle}
	if slices.ContainsFunc(r.Phases, func(p executor.PhaseResult) bool { return p.Name == executor.PhaseRun }) {
		composed.Keep()
	}
	switch r.Verdict {
	case sandbox.VerdictCompileError, sandbox.VerdictNonzeroExit, sandbox.VerdictSignaled:
		f := composed.Explain(r.Phase, string(r.Stderr.Edges(maxCompilerText)))
		if f.Name != "" {
			result.Error = &protocol.Error{Name: f.Name, Message: f.Message, Line: f.Line}
		}
		if f.Hint != "" {
			result.Notes = append(result.Notes, language.HintNote+f.Hint)
		}
	case sandbox.VerdictCancelled:
		result.Interrupted = c.isInterrupted()
	}
	return result
}

func (c *cell) isInterrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.interrupting
}

// notRun is the result of a cell of which no program has run.
func (c *cell) notRun(v sandbox.Verdict, text string, why *protocol.Error) (*Result, error) {
	stderr := []byte(text)
	if c.in.OnEvent != nil && text != "" {
		c.in.OnEvent(sandbox.Event{Seq: 1, Kind: sandbox.EventStderr, Data: bytes.Clone(stderr), Phase: executor.PhaseCompile})
	}
	m, id := c.b.session.Sandbox()
	info, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	r := &Result{State: StateIdle, Error: why, Interrupted: v == sandbox.VerdictCancelled && c.isInterrupted()}
	r.Language, r.Version = c.b.session.Language().Name, c.b.session.Version()
	r.Result.Result = sandbox.Result{
		Verdict: v, Exit: sandbox.Exit{Code: 1}, Phase: executor.PhaseCompile, Limits: c.b.session.Limits(),
		Stderr: sandbox.Output{Head: stderr, Total: uint64(len(stderr))}, Isolation: info.Isolation,
	}
	return r, nil
}

// heldEvents keeps the events of a compiler until it is known that no other program is compiled in place of this one. It belongs to one
// goroutine at a time.
type heldEvents struct {
	to      func(sandbox.Event)
	list    []sandbox.Event
	size    sandbox.Size
	passing bool // events are no longer held
}

func (h *heldEvents) handler() func(sandbox.Event) {
	if h.to == nil {
		return nil
	}
	return h.handle
}

func (h *heldEvents) handle(e sandbox.Event) {
	h.size += sandbox.Size(len(e.Data))
	if h.passing || e.Phase != executor.PhaseCompile || h.size > maxCompilerText || len(h.list) > 1000 {
		h.pass()
		h.to(e)
		return
	}
	e.Data = bytes.Clone(e.Data)
	h.list = append(h.list, e)
}

func (h *heldEvents) pass() {
	h.passing = true
	for _, e := range h.list {
		h.to(e)
	}
	h.list = nil
}
