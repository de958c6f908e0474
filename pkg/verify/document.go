package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Source is a Markdown file.
type Source struct {
	Path string
	Text string
}

// Bounds of documents and of their blocks.
const (
	MaxDocument = 4 << 20 // bytes
	maxBlocks   = 10_000  // of all documents together
	maxCompared = 1 << 20 // bytes of an output that are compared
)

// Options say how documents are checked.
type Options struct {
	// Request has limits, policy, packages and further files for each block. It has no code.
	Request executor.Request
	// Languages are the only ones that are run, by any of their names; empty: all.
	Languages []string
	// OnCheck is called with each check as it ends. May be nil.
	OnCheck func(*Check)
}

// Documents runs the code blocks of Markdown files, and compares each with the output block that follows. It returns a report, and the
// texts of those documents that would have other output blocks. An error means that nothing can be said: a wrong document, or a failure of
// ours.
func Documents(ctx context.Context, e *executor.Executor, sources []Source, o Options) (*Report, []Update, error) {
	isLanguage, isChosen, err := languagesOf(e, o.Languages)
	if err != nil {
		return nil, nil, err
	}
	r := &documentRun{executor: e, sessions: session.NewManager(e, session.Options{}), options: o, report: &Report{}}
	defer r.sessions.Close()
	var all []*group
	for i := range sources {
		d := &document{Source: &sources[i], run: r}
		if d.blocks, err = readBlocks(d.Text, isLanguage); err != nil {
			return nil, nil, wrongDocument(d.Path, err)
		}
		d.blocks = slices.DeleteFunc(d.blocks, func(b *Block) bool { return !isChosen(b.Language) })
		all = append(all, d.groups()...)
		r.documents = append(r.documents, d)
		if r.blocks += len(d.blocks); r.blocks > maxBlocks {
			return nil, nil, sandbox.Invalid("verify", "the documents have more than %d blocks", maxBlocks)
		}
	}
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, g := range all {
		workers.Go(func() error { return g.execute(ctx) })
	}
	if err := workers.Wait(); err != nil {
		return nil, nil, err
	}
	updates := r.conclude()
	if len(r.report.Checks) == 0 {
		r.report.Notes = append(r.report.Notes, "no block of the documents is code in a language that is run")
	}
	return r.report, updates, nil
}

func wrongDocument(path string, err error) error {
	if at := new(ScanError); errors.As(err, &at) {
		return &sandbox.Error{Op: fmt.Sprintf("%s:%d", path, at.Line), Kind: sandbox.ErrInvalid, Err: errors.New(at.Why)}
	}
	return err
}

// languagesOf returns the tests whether a name is that of a language, and of one of the chosen ones; without names all are.
func languagesOf(e *executor.Executor, names []string) (isLanguage, isChosen func(string) bool, err error) {
	known := map[string]*language.Language{}
	for _, l := range slices.Backward(e.Languages()) { // the first that has a name wins
		for _, n := range append(slices.Clone(l.Aliases), l.Name) {
			known[n] = l
		}
	}
	chosen := map[*language.Language]bool{}
	for _, n := range names {
		l := known[strings.ToLower(strings.TrimSpace(n))]
		if l == nil {
			return nil, nil, sandbox.Invalid("lang", "unknown language %q", n)
		}
		chosen[l] = true
	}
	isLanguage = func(name string) bool { return known[name] != nil }
	return isLanguage, func(name string) bool { return len(chosen) == 0 || chosen[known[name]] }, nil
}

// documentRun is one call of Documents.
type documentRun struct {
	executor  *executor.Executor
	sessions  *session.Manager
	options   Options
	documents []*document
	blocks    int

	mu     sync.Mutex // guards what follows, and calls of OnCheck
	report *Report
}

// document is a Markdown file that is checked.
type document struct {
	*Source
	run    *documentRun
	blocks []*Block
	checks []*Check // one for each block
	prints []string // what each block printed
	other  []bool   // which blocks ended as they should, and printed something else than their output block has
}

// group is a block, or the blocks of a session.
type group struct {
	*document
	blocks []int
}

// groups sorts the blocks that run by sandbox.
func (d *document) groups() (all []*group) {
	bySession := map[string]*group{}
	d.checks, d.prints, d.other = make([]*Check, len(d.blocks)), make([]string, len(d.blocks)), make([]bool, len(d.blocks))
	for i, b := range d.blocks {
		d.checks[i] = &Check{
			Name: fmt.Sprintf("%s:%d", d.Path, b.Line), Suite: b.Language, File: d.Path, Line: b.Line, Status: report.Skipped,
		}
		if b.Skip {
			d.checks[i].Reason = "its attribute skip"
			continue
		}
		name := b.Language + " " + b.Session
		g := bySession[name]
		if g == nil || b.Session == "" {
			g = &group{document: d}
			all = append(all, g)
			if b.Session != "" {
				bySession[name] = g
			}
		}
		g.blocks = append(g.blocks, i)
	}
	return all
}

// execute runs the blocks of a group. Its error is ours; blocks that fail are checks.
func (g *group) execute(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if first := g.document.blocks[g.blocks[0]]; first.Session == "" {
		return g.once(ctx, g.blocks[0])
	}
	return g.inSession(ctx)
}

// request is a request with what all blocks have.
func (g *group) request(b *Block) executor.Request {
	req := g.run.options.Request
	req.Language = b.Language
	req.Inputs = slices.Clone(req.Inputs)
	for _, f := range b.files {
		req.Inputs = slices.DeleteFunc(req.Inputs, func(o executor.File) bool { return o.Path == f.path })
		req.Inputs = append(req.Inputs, executor.File{Path: f.path, Data: []byte(f.text)})
	}
	return req
}

// once runs a block in a sandbox of its own.
func (g *group) once(ctx context.Context, i int) error {
	b := g.document.blocks[i]
	req := g.request(b)
	req.Code, req.Stdin = b.Text, strings.NewReader(b.Stdin)
	req.Limits.Wall = cmp.Or(b.Timeout, req.Limits.Wall)
	result, err := g.run.executor.Execute(ctx, req)
	if err != nil {
		return g.refused(ctx, err, i)
	}
	defer result.Close()
	g.ended(i, result, "")
	return nil
}

// refused is the error of blocks that were not run. A block that no sandbox can run is a check that fails.
func (g *group) refused(ctx context.Context, err error, blocks ...int) error {
	b := g.document.blocks[blocks[0]]
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrRefused):
		for _, i := range blocks {
			g.fail(i, report.Errored, err.Error(), nil)
		}
		return nil
	}
	return fmt.Errorf("%s:%d: %w", g.Path, b.Line, err)
}

// inSession runs blocks in a session. After the end of its interpreter, the rest of them fails.
func (g *group) inSession(ctx context.Context) error {
	first := g.document.blocks[g.blocks[0]]
	s, err := g.run.sessions.Create(ctx, session.Request{Request: g.request(first)})
	if err != nil {
		return g.refused(ctx, err, g.blocks...)
	}
	defer s.Close()
	have := len(first.files)
	for n, i := range g.blocks {
		b := g.document.blocks[i]
		var added []sandbox.File
		for _, f := range b.files {
			if n > 0 && !slices.Contains(first.files, f) {
				added = append(added, language.File{Path: f.path, Data: []byte(f.text)}.Put(f.path))
			}
		}
		if len(b.files) != have && len(added) > 0 {
			if err := s.Put(ctx, added); err != nil {
				return g.refused(ctx, err, g.blocks[n:]...)
			}
			have = len(b.files)
		}
		result, err := s.Execute(ctx, session.Cell{Code: b.Text, Limits: sandbox.Limits{Wall: b.Timeout}})
		if errors.Is(err, session.ErrEnded) {
			for _, k := range g.blocks[n:] {
				g.fail(k, report.Errored, "the session has ended in a block before this one", nil)
			}
			return nil
		}
		if err != nil {
			return g.refused(ctx, err, g.blocks[n:]...)
		}
		g.ended(i, &result.Result, result.Value())
		result.Close()
	}
	return nil
}

// ended judges a block that ran. value is that of the last expression, in a session.
func (g *group) ended(i int, result *executor.Result, value string) {
	b, c := g.document.blocks[i], g.checks[i]
	out := result.Stdout
	if b.Stderr {
		out, value = result.Stderr, ""
	}
	said := string(out.Edges(maxCompared))
	if value != "" {
		if said != "" && !strings.HasSuffix(said, "\n") {
			said += "\n"
		}
		said += value + "\n"
	}
	g.prints[i] = said
	c.Duration = time.Duration(result.Metrics.WallTime).Seconds()
	g.run.isolated(result.Isolation)
	if why := b.mismatch(result); why != "" {
		status := report.Failed
		if result.Verdict == sandbox.VerdictTimeLimit {
			status = report.TimedOut
		}
		g.fail(i, status, why+edges(result), result.Diagnosis)
		return
	}
	if b.Output == nil || normal(b.Output.Text) == normal(said) {
		c.Status = report.Passed
		g.run.checked(c)
		return
	}
	g.other[i] = true
	g.fail(i, report.Failed, fmt.Sprintf("the output differs from that of line %d:\n%s", b.Output.Line,
		difference(normal(b.Output.Text), normal(said))), nil)
}

// mismatch explains an end that the block does not have; "" if it is as it says.
func (b *Block) mismatch(r *executor.Result) string {
	code := r.ExitCode()
	failed := r.Verdict != sandbox.VerdictOK
	how := fmt.Sprintf("it ended with the verdict %s and exit code %d", r.Verdict, code)
	switch {
	case b.Fail == "" && failed:
		return how
	case b.Fail != "" && !failed:
		return "it succeeded, and its attribute fail says that it does not"
	case b.Fail != "" && b.Fail != failAny && b.Fail != string(r.Verdict) && b.Fail != strconv.Itoa(code):
		return how + ", and its attribute says fail=" + b.Fail
	}
	return ""
}

// maxQuoted bounds what is quoted of the output of a block that failed.
const maxQuoted = 4 << 10

// edges quotes what a program that failed has printed.
func edges(r *executor.Result) (text string) {
	said := []string{string(r.Stdout.Edges(maxQuoted)), string(r.Stderr.Edges(maxQuoted))}
	for _, s := range said {
		if s = strings.TrimRight(s, "\n"); s != "" {
			text += "\n" + strings.ToValidUTF8(s, "\uFFFD")
		}
	}
	return text
}

func (g *group) fail(i int, status report.Status, why string, d *diagnose.Diagnosis) {
	c := g.checks[i]
	c.Status, c.Failure = status, &report.TestFailure{Message: why, Diagnosis: d}
	g.run.checked(c)
}

func (r *documentRun) checked(c *Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.options.OnCheck != nil {
		copied := *c
		r.options.OnCheck(&copied)
	}
}

func (r *documentRun) isolated(i sandbox.Isolation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.report.Isolation == nil {
		r.report.Isolation = &i
	}
}

// Update is a document with the output that its blocks have printed.
type Update struct {
	Source
	checks []*Check // that then pass
}

// conclude puts the checks into the order of the documents, and returns the documents whose output differs.
func (r *documentRun) conclude() (updates []Update) {
	for _, d := range r.documents {
		r.report.Checks = append(r.report.Checks, d.checks...)
		if u := d.update(); len(u.checks) > 0 {
			updates = append(updates, u)
		}
	}
	return updates
}

// update returns the document with the output that its blocks have printed. Blocks that did not end as they should keep theirs.
func (d *document) update() Update {
	u := Update{Source: Source{Path: d.Path}}
	var b strings.Builder
	at := 0
	for i, block := range d.blocks {
		if !d.other[i] {
			continue
		}
		c, o := d.checks[i], block.Output
		if why := unprintable(d.prints[i]); why != "" {
			c.Failure.Message += "\nan update leaves it as it is: " + why
			continue
		}
		b.WriteString(d.Text[at:o.start])
		b.WriteString(o.render(normal(d.prints[i])))
		at = o.end
		u.checks = append(u.checks, c)
	}
	b.WriteString(d.Text[at:])
	u.Text = b.String()
	return u
}

// Accept marks the checks of a document that was rewritten.
func (r *Report) Accept(u Update) {
	r.Updated = append(r.Updated, u.Path)
	for _, c := range u.checks {
		c.Status, c.Failure = report.Passed, nil
	}
}
