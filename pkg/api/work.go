package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// job is a run that was found to be in order.
type job struct {
	Info
	run     *wire.Run
	req     executor.Request
	engine  Engine
	ask     Ask
	space   sandbox.Limits // of its workspace: Disk and Inodes
	digest  string
	key     string // of its idempotency
	started func() // called when it was let in; nil: nobody wants to know
	receipt json.RawMessage
	// retry: it was promised to be run, so that it is asked for again when Admission refuses it.
	retry bool
}

func digestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// prepare finds out whether a run may be run as it is asked for.
func (s *Server) prepare(ctx context.Context, p *Principal, way Way, run *wire.Run, digest string) (*job, error) {
	j := &job{Info: Info{ID: newID(), Principal: p, Way: way, Language: run.Language, Accepted: time.Now()}, run: run, engine: s.opts.Engine, digest: digest}
	if way != WayAsync {
		switch {
		case run.Interactive && way != WayTalk:
			return nil, wrongField(wire.CodeInvalid, "interactive", "it is for POST %s", wire.PathRuns)
		case run.Webhook != nil:
			return nil, wrongField(wire.CodeInvalid, "webhook", "it is for POST %s", wire.PathRuns)
		}
	}
	var err error
	if way != WayAsync { // whose result waits for nobody
		if err := s.results.take(p.ID, 0); err != nil {
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
		if s.opts.EngineFor == nil {
			return nil, wrongField(wire.CodeUnsupported, "backend", "this server has but one")
		}
		if j.engine, err = s.opts.EngineFor(run.Backend, run.Runtime); err != nil {
			return nil, err
		}
	}
	if run.Receipt && s.opts.Receipts == nil {
		return nil, wrongField(wire.CodeUnsupported, "receipt", "this server gives none")
	}
	if run.Webhook != nil {
		if s.opts.Webhooks == nil {
			return nil, wrongField(wire.CodeUnsupported, "webhook", "this server tells nobody")
		}
		if err := s.opts.Webhooks.Check(ctx, p, run.Webhook); err != nil {
			return nil, err
		}
	}
	weight := s.weigh(j)
	j.ask = Ask{
		Key: p.ID, Memory: weight.Memory, CPUs: weight.CPUs, Concurrency: p.Limits.Concurrency, Rate: p.Limits.Rate, Burst: p.Limits.Burst,
	}
	return j, nil
}

// weigh is what a run counts for: what its engine says, or what it may use.
func (s *Server) weigh(j *job) executor.Weight {
	if w, ok := j.engine.(Weigher); ok {
		return w.Weight(j.req)
	}
	limits, compile := j.req.Limits.Or(sandbox.DefaultLimits()), sandbox.Limits{}
	if j.req.Lower != nil {
		j.req.Lower(&limits, &compile)
	}
	return executor.Weight{Memory: limits.Memory, CPUs: limits.CPUs}
}

// aboveCeiling names the code of a refusal by ceilings.
func aboveCeiling(err error) error {
	if !errors.Is(err, sandbox.ErrRefused) {
		return err
	}
	p := ofEngine(wire.CodeCeiling, err)
	if p.Hint == "" {
		p.Hint = "ask for less, or ask the operator of the server to allow more"
	}
	return p
}

// perform queues a job, runs it, and tells observers. Its context is one of enlist.
func (s *Server) perform(ctx context.Context, j *job) (f *Finished) {
	f = &Finished{Info: j.Info, RequestSHA256: j.digest, Run: j.run}
	s.observer.Queued(ctx, j.Info)
	defer func() {
		if cause := recover(); cause != nil {
			f.Close()
			f.Result, f.Document = nil, nil
			f.Err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
		f.Ended = time.Now()
		if f.Err == nil && j.run.Receipt {
			// What is reported must not depend on whether it can be signed.
			if j.receipt, f.Err = s.opts.Receipts.Receipt(context.WithoutCancel(ctx), f); f.Err != nil {
				f.Err = fmt.Errorf("sign the receipt: %w", f.Err)
			}
		}
		s.observer.Finished(context.WithoutCancel(ctx), f)
		if f.Err != nil {
			f.Close() // a result that is not answered with
		}
	}()
	leave, err := s.enter(ctx, j)
	if err != nil {
		f.Err = err
		return f
	}
	defer leave()
	who := *j.Principal
	if j.Way == WayAsync {
		who.Secret = "" // it was accepted, and is the key's, by whichever secret
	}
	if !s.still(&who) { // it may have waited for long
		f.Err = unwelcome()
		return f
	}
	f.Started = time.Now()
	if j.started != nil {
		j.started()
	}
	s.observer.Started(ctx, j.Info)
	f.Result, f.Err = s.execute(ctx, j)
	if p := sentAway(ctx); p != nil && (f.Err != nil || f.Result.Verdict == sandbox.VerdictCancelled) {
		f.Close() // the client has gone
		f.Result, f.Err = nil, p
	}
	if f.Err == nil {
		f.Language = f.Result.Language
		f.Document, f.Err = f.Result.Encode()
	}
	return f
}

// enter waits for admission.
func (s *Server) enter(ctx context.Context, j *job) (leave func(), err error) {
	if s.opts.Admission == nil {
		return func() {}, context.Cause(ctx)
	}
	s.waits(1)
	defer s.waits(-1)
	for {
		leave, err := s.opts.Admission.Enter(ctx, j.ask)
		var refusal *Refusal
		if err == nil || !j.retry || !errors.As(err, &refusal) {
			return leave, err
		}
		// It was accepted, and nothing that was accepted is lost (A5).
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
		return j.engine.Execute(ctx, j.req)
	}
	return s.inWorkspace(ctx, j)
}

// Call says how Do runs a program.
type Call struct {
	RequestSHA256 string            // see Finished
	OnEvent       func(line []byte) // each event but the result as a line of ndjson, with its newline, in order; it may block, which holds the program up
	OnPosition    func(int)         // see Ask
}

// Do runs one program for a principal to its end, and meets everything that a request of its own would: policy, ceilings, admission, observers. It is for
// those who mount routes, such as batches. Its error is for a run that was not let in; Finished.Err is for one that was and has no result. Problem
// makes an answer of either. Its caller closes what it gets.
func (s *Server) Do(ctx context.Context, p *Principal, run *wire.Run, c Call) (*Finished, error) {
	j, err := s.prepare(ctx, p, WayBatch, run, c.RequestSHA256)
	if err != nil {
		return nil, err
	}
	ctx, a, err := s.enlist(ctx)
	if err != nil {
		return nil, err
	}
	defer s.discharge(a)
	j.ask.OnPosition = c.OnPosition
	feed := &live{to: func(_ uint64, line []byte) { c.OnEvent(line) }}
	if c.OnEvent != nil {
		j.req.OnEvent = feed.event
	}
	stdin := attach(ctx, j)
	defer stdin.close()
	f := s.perform(ctx, j)
	feed.end()
	return f, nil
}
