package tests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Options select and repeat tests.
type Options struct {
	Framework   string        // empty: detected by the files
	Filter      string        // which tests are run, as the framework's own filter takes it
	FailFast    bool          // end at the first test that fails
	RerunFailed bool          // run failed tests once more; one that then passes is flaky, and does not fail the run
	Repeat      int           // run all tests that many times, each time in a fresh sandbox; 0: once
	TestTimeout time.Duration // the most that one test may take; 0: any
}

// MaxRepeat is the most that Options.Repeat can be.
const MaxRepeat = 100

// Validate refuses options that no run can follow.
func (o *Options) Validate() error {
	switch {
	case o.Repeat < 0 || o.Repeat > MaxRepeat:
		return sandbox.Invalid("repeat", "%d is not between 1 and %d", o.Repeat, MaxRepeat)
	case o.TestTimeout < 0:
		return sandbox.Invalid("test-timeout", "%v is negative", o.TestTimeout)
	case len(o.Filter) > 4096 || strings.ContainsRune(o.Filter, 0):
		return sandbox.Invalid("filter", "it has a NUL, or more than 4096 bytes")
	}
	return nil
}

// Engine runs programs: an executor.Executor.
type Engine interface {
	Execute(ctx context.Context, req executor.Request) (*executor.Result, error)
}

// Prepare makes a request one for tests: it finds the framework and sets Language, Options.Test and Tests. Other fields stay.
func Prepare(req *executor.Request, o *Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if req.TTY != nil {
		return sandbox.Invalid("tty", "tests have no terminal; leave it out")
	}
	w, err := Detect(req.Files, o.Framework)
	if err != nil {
		return err
	}
	for name, asked := range map[string]bool{"timeout": o.TestTimeout > 0, "fail-fast": o.FailFast} {
		if asked && !w.Live {
			return sandbox.Errorf(sandbox.ErrInvalid, name, "--run-timeout, the limit of the whole run",
				"%s reports tests at its end, so that a run can not be ended at one of them", w.Name)
		}
	}
	if req.Language != "" && req.Language != w.Language {
		return sandbox.Invalid("lang", "%s is a framework of %s, and not of %s; leave it out", w.Name, w.Language, req.Language)
	}
	req.Language = w.Language
	req.Options.Test, req.Policy.MergeOutput = true, false
	req.Tests = &language.Tests{
		Framework: w.Name, Filter: o.Filter, FailFast: o.FailFast, Timeout: o.TestTimeout,
	}
	return nil
}

// errStopped is the cause of a run that is ended before its end.
var errStopped = errors.New("the tests were stopped")

// Run runs the tests of a prepared request. req.OnEvent gets the events of the run, except the report, and an event for each test that starts
// or ends, whose Content is the Test; they are numbered anew, through all attempts. on, which may be nil, gets each Test alone. The error is
// that of Execute.
func Run(ctx context.Context, e Engine, req executor.Request, o Options, on func(kind sandbox.EventKind, t *Test)) (*Result, error) {
	if to := req.OnEvent; to != nil {
		n := &numbering{to: to}
		req.OnEvent = n.event
		show := on
		on = func(kind sandbox.EventKind, t *Test) {
			n.test(kind, t)
			if show != nil {
				show(kind, t)
			}
		}
	}
	var all *Result
	for range max(1, o.Repeat) {
		one, err := attempt(ctx, e, req, on)
		if err != nil {
			return nil, closing(all, err)
		}
		if o.RerunFailed && canRerun(one) {
			if one, err = rerunFailed(ctx, e, req, one, on); err != nil {
				return nil, closing(all, err)
			}
		}
		over := one.Verdict == sandbox.VerdictCancelled || one.Stopped != ""
		if all = merge(all, one); over {
			break
		}
	}
	all.Summary = report.Count(all.Tests)
	return all, nil
}

// numbering numbers the events of several runs, and of tests, as those of one run.
type numbering struct {
	mu   sync.Mutex
	last uint64
	to   func(sandbox.Event)
}

func (n *numbering) event(ev sandbox.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	ev.Seq = n.last
	n.to(ev)
}

func (n *numbering) test(kind sandbox.EventKind, t *Test) {
	content, err := json.Marshal(t)
	if err != nil {
		return // a number that JSON does not have, of a forged report
	}
	n.event(sandbox.Event{Time: time.Now(), Kind: kind, Phase: executor.PhaseRun, Content: content})
}

// closing closes the result of an earlier attempt.
func closing(r *Result, err error) error {
	if r != nil {
		r.Close()
	}
	return err
}

// canRerun reports whether all that failed in a run are tests which it names.
func canRerun(r *Result) bool {
	return r.Complete && r.Stopped == "" && r.Verdict == sandbox.VerdictNonzeroExit && r.Summary.Total > r.Summary.Passed+r.Summary.Skipped
}

// maxNamed bounds the names of tests in a command: the kernel takes 128 KiB of an argument, and patterns escape names.
const maxNamed = 32 << 10

// rerunFailed runs failed tests once more, and returns the result of both attempts. It closes the first one if there is an error.
func rerunFailed(ctx context.Context, e Engine, req executor.Request, first *Result, on func(sandbox.EventKind, *Test)) (*Result, error) {
	asked, size := *req.Tests, 0
	for _, t := range first.Tests {
		if t.Status.Failed() && !strings.ContainsRune(t.ID, 0) { // no argument can have a NUL
			asked.Names = append(asked.Names, t.ID)
			size += len(t.ID) + 1
		}
	}
	if size == 0 || size > maxNamed {
		first.Notes = append(first.Notes, "the failed tests were not run once more: their names are too long for a command")
		return first, nil
	}
	req.Tests = &asked
	second, err := attempt(ctx, e, req, on)
	if err != nil {
		return nil, closing(first, err)
	}
	return rerun(first, second), nil
}

// rerun adds the second attempt of failed tests to the first. The run is that of the second.
func rerun(first, second *Result) *Result {
	byID := map[string]*Test{}
	for _, t := range second.Tests {
		byID[t.ID] = t
	}
	for i, t := range first.Tests {
		again := byID[t.ID]
		if again == nil || !t.Status.Failed() {
			continue
		}
		again.Attempts = []Status{t.Status, again.Status}
		again.Flaky = !again.Status.Failed()
		first.Tests[i] = again
	}
	second.Tests = first.Tests
	first.Close()
	second.Summary = report.Count(second.Tests)
	return second
}

// merge adds a repetition. A test that failed once has failed.
func merge(all, one *Result) *Result {
	if all == nil {
		return one
	}
	byID := map[string]*Test{}
	for _, t := range one.Tests {
		byID[t.ID] = t
	}
	merged := all.Tests
	for i, t := range merged {
		again := byID[t.ID]
		if again == nil {
			continue
		}
		delete(byID, t.ID)
		if len(t.Attempts) == 0 {
			t.Attempts = []Status{t.Status}
		}
		more := again.Attempts
		if len(more) == 0 {
			more = []Status{again.Status}
		}
		attempts := append(t.Attempts, more...)
		flaky := t.Flaky || again.Flaky || t.Status != again.Status
		if !t.Status.Failed() && again.Status.Failed() {
			merged[i] = again
		}
		merged[i].Attempts, merged[i].Flaky = attempts, flaky
	}
	size, omitted := sizeOf(merged), 0
	for _, t := range one.Tests {
		if byID[t.ID] != t {
			continue
		}
		if size += sizeOf([]*Test{t}); len(merged) >= maxTests || size > maxTotalText+maxNames {
			omitted++
			continue
		}
		merged = append(merged, t)
	}
	keep, drop := all, one
	if all.Verdict == sandbox.VerdictOK && all.Complete || one.Verdict == sandbox.VerdictCancelled {
		keep, drop = one, all
	}
	drop.Close()
	keep.Tests = merged
	if omitted > 0 {
		keep.Complete = false
		keep.Notes = append(keep.Notes, fmt.Sprintf("%d tests of a repetition are beyond the bounds of a result", omitted))
	}
	return keep
}

// sizeOf returns how many bytes the texts of tests have.
func sizeOf(list []*Test) (n int) {
	for _, t := range list {
		n += len(t.ID) + len(t.Name) + len(t.Suite) + len(t.File) + len(t.Output) + len(t.Reason) + len(t.Trace)
		if t.Failure != nil {
			n += len(t.Failure.Message)
		}
	}
	return n
}

// reading is a report while it is read.
type reading struct {
	mu        sync.Mutex
	collector *collector
	parser    parser
	framework string
	stopped   string
	over      bool  // later events are those of a run that was cancelled
	failed    error // of the plan
}

// attempt runs the tests once.
func attempt(ctx context.Context, e Engine, req executor.Request, on func(sandbox.EventKind, *Test)) (*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &reading{}
	limit := req.Tests.Timeout
	failFast := req.Tests.FailFast
	r.collector = newCollector(func(kind sandbox.EventKind, t *Test) {
		if on != nil {
			on(kind, t)
		}
		if failFast && kind == report.EventEnded && t.Status.Failed() && r.stopped == "" {
			r.stopped = StoppedFailFast
			cancel(errStopped)
		}
	})
	onPlan, onEvent := req.OnPlan, req.OnEvent
	req.OnPlan = func(p *executor.Plan) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.parser, r.failed = newParser(p.Report, r.collector); r.failed != nil {
			cancel(r.failed)
		}
		r.framework = p.Framework
		if onPlan != nil {
			onPlan(p)
		}
	}
	req.OnEvent = func(ev sandbox.Event) {
		if ev.Kind == sandbox.EventStdout && ev.Phase == executor.PhaseRun {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.parser != nil && !r.over {
				r.parser.write(ev.Data)
			}
			return
		}
		if onEvent != nil {
			onEvent(ev)
		}
	}
	stopWatch := r.watch(ctx, limit, cancel)
	result, err := e.Execute(ctx, req)
	stopWatch()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return nil, r.failed
	}
	if err != nil {
		return nil, err
	}
	return r.finish(&req, result, limit), nil
}

// selfTimed is how much longer than the limit a test may take before the run is ended: frameworks that end tests themselves do it meanwhile.
const selfTimed = 2 * time.Second

// watch ends the run when a test takes too long and its framework does not end it.
func (r *reading) watch(ctx context.Context, limit time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	if limit <= 0 {
		return func() {}
	}
	done := make(chan struct{})
	var gone sync.WaitGroup
	gone.Go(func() {
		ticker := time.NewTicker(min(max(limit/10, 10*time.Millisecond), time.Second))
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			r.mu.Lock()
			grace := selfTimed
			if r.framework == "go test" {
				grace = 0
			}
			if len(r.collector.overdue(limit+grace)) > 0 && r.stopped == "" {
				r.stopped = StoppedTimeout
				cancel(errStopped)
			}
			r.mu.Unlock()
		}
	})
	return func() {
		close(done)
		gone.Wait()
	}
}

// finish ends the report and makes the result of it. The caller holds mu.
func (r *reading) finish(req *executor.Request, result *executor.Result, limit time.Duration) *Result {
	c := r.collector
	r.over = true
	if r.parser != nil {
		r.parser.close()
	}
	switch r.stopped {
	case "":
		c.endAll(limit, endMessage(result))
	default:
		c.endAll(limit, "the run was ended while the test ran")
	}
	if result.Phase != executor.PhaseRun || r.stopped != "" {
		c.complete = false
	}
	c.tests = slices.DeleteFunc(c.tests, func(t *Test) bool { return t.Status == dropped })
	out := &Result{result, report.Report{
		Framework: r.framework, Complete: c.complete, Stopped: r.stopped, Source: report.SourceProgram, Summary: report.Count(c.tests), Tests: c.tests,
	}}
	if c.ignored > 0 {
		result.Notes = append(result.Notes, fmt.Sprintf("%d lines of the report of %s are not understood", c.ignored, r.framework))
	}
	if c.missing != "" {
		result.Notes = append(result.Notes, fmt.Sprintf("the tests need %s, which is not installed; try: --deps %s", c.missing, c.missing))
	}
	if result.Phase == executor.PhaseRun {
		result.Stdout.Close() // the report
		result.Stdout = sandbox.Output{}
	}
	locate(req, out)
	explain(req, out)
	return out
}

// endMessage says how the process of a test ended that has not reported its end.
func endMessage(r *executor.Result) string {
	switch {
	case r.Exit.Signal != 0:
		return fmt.Sprintf("the process of the test was ended by signal %d (verdict %s) while the test ran", r.Exit.Signal, r.Verdict)
	case r.Verdict != sandbox.VerdictOK && r.Verdict != sandbox.VerdictNonzeroExit:
		return fmt.Sprintf("the run ended with the verdict %s while the test ran", r.Verdict)
	}
	return fmt.Sprintf("the process of the test ended with exit code %d while the test ran", r.Exit.Code)
}

var goTestFunc = regexp.MustCompile(`^func ((?:Test|Fuzz|Example)\w*)\(`)

// locate finds the files and lines of Go's tests, whose report has directories only.
func locate(req *executor.Request, r *Result) {
	if r.Framework != "go test" {
		return
	}
	type place struct {
		file string
		line int
	}
	places := map[string]place{} // by directory and function
	for i := range req.Files {
		f := &req.Files[i]
		if !strings.HasSuffix(f.Path, "_test.go") || isInstalled(f.Path) {
			continue
		}
		text, err := f.Head(maxSource)
		if err != nil {
			continue
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			if m := goTestFunc.FindStringSubmatch(line); m != nil {
				places[dirOf(f.Path)+" "+m[1]] = place{f.Path, n}
			}
		}
	}
	for _, t := range r.Tests {
		top, _, _ := strings.Cut(t.Name, "/")
		at := places[t.File+" "+top]
		t.File, t.Line = at.file, at.line
	}
}

const maxSource = 1 << 20

func dirOf(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return "."
}

// maxExplained bounds the failures that are explained.
const maxExplained = 200

// explain adds diagnoses to failures.
func explain(req *executor.Request, r *Result) {
	files := make([]string, 0, min(len(req.Files), 1000))
	for i := range req.Files[:cap(files)] {
		files = append(files, req.Files[i].Path)
	}
	source := func(name string) (string, bool) {
		f := language.Find(req.Files, name)
		if f == nil {
			return "", false
		}
		text, err := f.Head(maxSource)
		return string(text), err == nil && len(text) < maxSource
	}
	n := 0
	for _, t := range r.Tests {
		if t.Failure == nil {
			continue
		}
		if t.Failure.Message == "" && r.Framework == "go test" {
			t.Failure.Message = goMessage(t.Output)
		}
		if n++; n > maxExplained {
			continue
		}
		text := cmp.Or(t.Trace, t.Failure.Message)
		if r.Framework == "go test" {
			text = t.Output
		}
		said := sandbox.Output{Head: []byte(text), Total: uint64(len(text))}
		t.Failure.Diagnosis = diagnose.Of(&diagnose.Failure{
			Language: r.Language, Version: r.Version, Files: files, Source: source, Image: req.Image != "",
			Result: &sandbox.Result{Verdict: sandbox.VerdictNonzeroExit, Exit: sandbox.Exit{Code: 1}, Stderr: said},
		})
	}
}
