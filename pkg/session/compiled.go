package session

import (
	"bytes"
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// compile composes a program of the cell and of the declarations before it, and runs it in the session's sandbox.
func (c *cell) compile() (*Result, error) {
	composed, err := c.b.session.Composer().Compose(c.in.Code)
	if err != nil {
		return c.refused(err)
	}
	r, err := c.b.session.Run(c.ctx, composed, executor.Request{
		Limits: c.in.Limits, OnEvent: c.in.OnEvent, OutputSpace: c.in.OutputSpace,
	})
	if err != nil {
		return nil, err
	}
	if r.Verdict != sandbox.VerdictCompileError && composed.Keep != nil {
		composed.Keep()
	}
	result := &Result{Result: *r, State: StateIdle}
	c.mu.Lock()
	defer c.mu.Unlock()
	result.Interrupted = c.interrupting && r.Verdict == sandbox.VerdictCancelled
	return result, nil
}

// refused is the result of a cell of which no program can be composed: its message is that of a compiler.
func (c *cell) refused(why error) (*Result, error) {
	if !errors.Is(why, sandbox.ErrInvalid) {
		return nil, why
	}
	text := []byte(why.Error() + "\n")
	if c.in.OnEvent != nil {
		c.in.OnEvent(sandbox.Event{Seq: 1, Kind: sandbox.EventStderr, Data: bytes.Clone(text), Phase: executor.PhaseCompile})
	}
	m, id := c.b.session.Sandbox()
	info, err := m.Get(id)
	if err != nil {
		return nil, err
	}
	r := &Result{State: StateIdle, Error: &protocol.Error{Name: "compile error", Message: why.Error()}}
	r.Language, r.Version = c.b.session.Language().Name, c.b.session.Version()
	r.Result.Result = sandbox.Result{
		Verdict: sandbox.VerdictCompileError, Exit: sandbox.Exit{Code: 1}, Phase: executor.PhaseCompile, Limits: c.b.session.Limits(),
		Stderr: sandbox.Output{Head: text, Total: uint64(len(text))}, Isolation: info.Isolation,
	}
	return r, nil
}
