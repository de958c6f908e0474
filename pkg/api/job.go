package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// job is a checked run.
type job struct {
	Info
	run       *wire.Run
	req       executor.Request
	executor  Executor
	admission AdmissionRequest
	space     sandbox.Limits // of its workspace: Disk and Inodes
	digest    string
	key       string // idempotency key
	started   func() // called when the run is admitted; may be nil
	receipt   json.RawMessage
	// do replaces the execution of req; its result contains that of the run. nil: req is executed once.
	do func(context.Context) (*executor.Result, encoder, error)
	// retry: the run was accepted, so that Admission is asked again after a refusal.
	retry bool
}

// WebhooksDisabled is the message for a webhook on a server without webhooks.
const WebhooksDisabled = "webhooks are disabled on this server; its operator enables them with --webhooks"

// prepare checks a run against policy, ceilings and the server's abilities.
func (s *Server) prepare(p *Principal, way Way, run *wire.Run, digest string) (*job, error) {
	j := &job{
		Info: Info{ID: NewID(), Principal: p, Way: way, Language: run.Language, Accepted: time.Now()}, run: run, executor: s.opts.Executor,
		digest: digest,
	}
	if way != WayAsync {
		switch {
		case run.Interactive && way != WayInteractive:
			return nil, onlyAsync("interactive")
		case run.Webhook != nil:
			return nil, onlyAsync("webhook")
		}
	}
	var err error
	if way != WayAsync { // an asynchronous result does not wait in memory
		if err := s.results.reserve(p.ID, 0); err != nil {
			return nil, err
		}
	}
	if j.req, err = run.RequestWith(s.uploads.finder(p.ID)); err != nil {
		return nil, err
	}
	j.req.Asker, j.req.Evidence = executor.Asker{Run: j.ID, Key: p.ID}, run.Receipt
	j.req.OutputSpace = s.outputs.For(p.ID)
	policy := &s.opts.Policy
	if err := policy.check(run, &j.req); err != nil {
		return nil, err
	}
	j.req.Policy.Bounds = boundsOf(network.Bounds{}) // a network with rules is refused unless the ceilings set others
	if err := policy.Ceilings.Check(&j.req, p.Limits); err != nil {
		return nil, aboveCeiling(err)
	}
	if run.Workspace != "" {
		if j.space, err = s.workspaceLimits(run, p); err != nil {
			return nil, err
		}
	}
	passOn(run, &j.req)
	if run.Backend != "" || run.Runtime != "" {
		if s.opts.ExecutorFor == nil {
			return nil, wire.WrongField(wire.CodeUnsupported, "backend", "this server has only one backend; leave the field out")
		}
		if j.executor, err = s.opts.ExecutorFor(run.Backend, run.Runtime); err != nil {
			return nil, err
		}
	}
	if err := s.checkReceipt(run.Receipt); err != nil {
		return nil, err
	}
	if run.Webhook != nil {
		if s.opts.Webhooks == nil {
			return nil, wire.WrongField(wire.CodeUnsupported, "webhook", "%s", WebhooksDisabled)
		}
		if err := s.opts.Webhooks.Check(run.Webhook); err != nil {
			return nil, wire.WrongField(wire.CodeInvalid, "webhook", "%s", err)
		}
	}
	j.admission = p.admission(s.weigh(j))
	return j, nil
}

// admission is what Admission has to know of a run of that weight.
func (p *Principal) admission(weight executor.Weight) AdmissionRequest {
	return AdmissionRequest{
		Key: p.ID, Memory: weight.Memory, CPUs: weight.CPUs, Concurrency: p.Limits.Concurrency, Rate: p.Limits.Rate, Burst: p.Limits.Burst,
	}
}

// checkReceipt refuses a request for a receipt on a server without receipts.
func (s *Server) checkReceipt(asked bool) error {
	if asked && s.opts.Receipts == nil {
		return wire.WrongField(wire.CodeUnsupported, "receipt", "receipts are not available on this server; leave the field out")
	}
	return nil
}

// weigh returns the weight of a run: what its executor says, or its limits.
func (s *Server) weigh(j *job) executor.Weight {
	if w, ok := j.executor.(Weigher); ok {
		return w.Weight(j.req)
	}
	limits, compile := j.req.Limits.Or(sandbox.DefaultLimits()), sandbox.Limits{}
	if j.req.Lower != nil {
		j.req.Lower(&limits, &compile)
	}
	return executor.Weight{Memory: limits.Memory, CPUs: limits.CPUs}
}

// aboveCeiling gives the refusal of a ceiling its own code.
func aboveCeiling(err error) error {
	if !errors.Is(err, sandbox.ErrRefused) {
		return err
	}
	p := executorProblem(wire.CodeCeiling, err)
	if p.Hint == "" {
		p.Hint = "request less, or ask the operator of the server to allow more"
	}
	return p
}

// runJob waits for admission, runs a job, and reports to the observer. ctx comes from registerRun.
func (s *Server) runJob(ctx context.Context, j *job) (f *Finished) {
	f = j.finished()
	s.observer.Queued(ctx, j.Info)
	defer func() { s.report(ctx, j, f, recover()) }()
	leave, err := s.admit(ctx, j, f)
	if err != nil {
		f.Err = err
		return f
	}
	defer leave()
	var result encoder
	if j.do != nil {
		f.Result, result, f.Err = j.do(ctx)
	} else {
		f.Result, f.Err = s.execute(ctx, j)
		result = f.Result
	}
	settle(ctx, f, result)
	return f
}

// finished returns the outcome of a job that has not begun.
func (j *job) finished() *Finished {
	return &Finished{Info: j.Info, RequestSHA256: j.digest, Run: j.run}
}

// report signs the receipt of a job that is over, and reports to the observer. cause is that of a panic.
func (s *Server) report(ctx context.Context, j *job, f *Finished, cause any) {
	if cause != nil {
		f.Close()
		f.Result, f.Document = nil, nil
		f.Err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
	}
	f.Ended = time.Now()
	if f.Err == nil && j.run.Receipt {
		// A result without its requested receipt is an error.
		if j.receipt, f.Err = s.opts.Receipts.Receipt(context.WithoutCancel(ctx), f); f.Err != nil {
			f.Err = fmt.Errorf("sign the receipt: %w", f.Err)
		}
	}
	s.observer.Finished(context.WithoutCancel(ctx), f)
	if f.Err != nil {
		f.Close() // the result is not sent
	}
}

// admit waits until a job may start. The caller calls leave when it is over.
func (s *Server) admit(ctx context.Context, j *job, f *Finished) (leave func(), err error) {
	if leave, err = s.enter(ctx, j); err != nil {
		return nil, err
	}
	principal := *j.Principal
	if j.Way == WayAsync || j.Way == WayCell {
		principal.Secret = "" // what was accepted stays valid when the key's secret is rotated
	}
	if !s.stillAuthorized(&principal) { // the run may have waited for long
		leave()
		return nil, errRevoked()
	}
	f.Started = time.Now()
	if j.started != nil {
		j.started()
	}
	s.observer.Started(ctx, j.Info)
	return leave, nil
}

// settle encodes the result of a job, unless its key was revoked meanwhile. result is f.Result, or contains it.
func settle(ctx context.Context, f *Finished, result encoder) {
	if p := revokedReason(ctx); p != nil && (f.Err != nil || f.Result.Verdict == sandbox.VerdictCancelled) {
		f.Close() // the key was revoked
		f.Result, f.Err = nil, p
	}
	if f.Err == nil {
		f.Language = f.Result.Language
		f.Document, f.Err = result.Encode()
	}
}

// enter waits for admission.
func (s *Server) enter(ctx context.Context, j *job) (leave func(), err error) {
	if s.opts.Admission == nil {
		return func() {}, context.Cause(ctx)
	}
	s.addQueued(1)
	defer s.addQueued(-1)
	for {
		leave, err := s.opts.Admission.Enter(ctx, j.admission)
		var refusal *Refusal
		if err == nil || !j.retry || !errors.As(err, &refusal) {
			return leave, err
		}
		// An accepted run is never lost: ask again.
		select {
		case <-time.After(max(refusal.RetryAfter, 100*time.Millisecond)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// execute runs the program, in its workspace if it has one.
func (s *Server) execute(ctx context.Context, j *job) (*executor.Result, error) {
	if j.run.Workspace == "" {
		return j.executor.Execute(ctx, j.req)
	}
	return s.inWorkspace(ctx, j)
}

// Call configures Do.
type Call struct {
	RequestSHA256 string // see Finished
	// OnEvent gets each event but the result as a line of ndjson, with its newline, in order. While it blocks, the program's output does.
	OnEvent    func(line []byte)
	OnPosition func(int) // see AdmissionRequest
}

// Do runs one program for a principal and blocks until its end, with the checks of a request of its own: policy, ceilings, admission,
// observers. It is for mounted routes, such as batches. The error means that the run was refused; Finished.Err that it has no result.
// Problem makes an answer of either. The caller closes the Finished.
func (s *Server) Do(ctx context.Context, p *Principal, run *wire.Run, c Call) (*Finished, error) {
	j, err := s.prepare(p, WayBatch, run, c.RequestSHA256)
	if err != nil {
		return nil, err
	}
	ctx, a, err := s.registerRun(ctx)
	if err != nil {
		return nil, err
	}
	defer s.unregisterRun(a)
	j.admission.OnPosition = c.OnPosition
	feed := &live{to: func(_ uint64, line []byte) { c.OnEvent(line) }}
	if c.OnEvent != nil {
		j.req.OnEvent = feed.event
	}
	stdin := attach(j)
	defer stdin.close()
	f := s.runJob(ctx, j)
	feed.end()
	return f, nil
}

func onlyAsync(field string) error {
	p := wire.WrongField(wire.CodeInvalid, field, "only POST %s supports it", wire.PathRuns)
	p.Hint = "leave it out, or send the request to POST " + wire.PathRuns
	return p
}
