package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Change is a change of a project.
type Change struct {
	// Request has the files of the project with the change, and limits, policy and packages for its checks and tests.
	Request executor.Request
	Changed []string // paths of the files that are new or different
	Deleted []string
	// Conflicts are files with a merge conflict, each of which is a failed check.
	Conflicts []string
	// NoTests leaves out the tests.
	NoTests bool
	// OnCheck is called with each check as it ends, and with each test. May be nil.
	OnCheck func(*Check)
}

// checkSuite is the suite of checks that parse or compile.
const checkSuite = "check"

// Project parses or compiles what has changed in a project, and, if that succeeds, runs the tests of the languages that have changed. A
// change of other files may matter to all tests, so that all are run. An error means that nothing can be said.
func Project(ctx context.Context, e *executor.Executor, c Change) (*Report, error) {
	p := &projectRun{Change: c, executor: e, report: &Report{}}
	var changed []*language.Language // in the order of the table
	own := map[*language.Language][]string{}
	others := len(c.Deleted) > 0
	for _, name := range c.Changed {
		i := slices.IndexFunc(e.Languages(), func(l *language.Language) bool { return l.Owns(name) })
		if i < 0 {
			others = others || !isDocument(name)
			continue
		}
		l := e.Languages()[i]
		own[l] = append(own[l], name)
	}
	for _, l := range e.Languages() {
		if len(own[l]) > 0 && slices.Contains(l.Options, "check") {
			changed = append(changed, l)
		}
	}
	for _, name := range c.Conflicts {
		p.add(&Check{Name: name, Suite: checkSuite + " git", File: name, Status: report.Failed,
			Failure: &report.TestFailure{Message: "the file has a merge conflict that is not resolved"}})
	}
	for _, l := range changed {
		if err := p.check(ctx, l, own[l]); err != nil {
			return nil, err
		}
	}
	if !p.report.Success() || c.NoTests {
		return p.report, nil
	}
	for _, f := range tests.DetectAll(c.Request.Files) {
		concerns := others || slices.ContainsFunc(changed, func(l *language.Language) bool {
			return l.Name == f.Language || l.Name == "typescript" && f.Language == "javascript"
		})
		if !concerns {
			continue
		}
		if err := p.test(ctx, f); err != nil {
			return nil, err
		}
	}
	return p.report, nil
}

// isDocument reports whether a file is text for people, which no test reads.
func isDocument(name string) bool {
	return slices.Contains([]string{".md", ".markdown", ".rst", ".adoc"}, strings.ToLower(path.Ext(name)))
}

// projectRun is one call of Project.
type projectRun struct {
	Change
	executor *executor.Executor
	report   *Report
}

func (p *projectRun) add(c *Check) {
	p.report.Checks = append(p.report.Checks, c)
	if p.OnCheck != nil {
		copied := *c
		p.OnCheck(&copied)
	}
}

// check parses or compiles files of one language. A language that only parses gets the changed files, others get the project.
func (p *projectRun) check(ctx context.Context, l *language.Language, names []string) error {
	req := p.Request
	req.Language, req.Options.Check, req.Limits.Wall = l.Name, true, 0
	whole := l.Directory || slices.Contains([]string{"java", "typescript"}, l.Name)
	if !whole {
		req.Files = slices.DeleteFunc(slices.Clone(req.Files), func(f executor.File) bool { return !slices.Contains(names, f.Path) })
		req.Entry = names[0]
	}
	c := &Check{Name: strings.Join(names[:min(len(names), 3)], ", "), Suite: checkSuite + " " + l.Name, File: names[0], Status: report.Passed}
	if len(names) > 3 {
		c.Name += fmt.Sprintf(" and %d more", len(names)-3)
	}
	switch l.Name {
	case "typescript":
		req.Entry = names[0]
	case "go": // with tests, all packages are compiled
		req.Options.Test = slices.ContainsFunc(tests.DetectAll(req.Files), func(f *tests.Framework) bool { return f.Language == l.Name })
	}
	result, err := p.executor.Execute(ctx, req)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, sandbox.ErrInvalid) {
			c.Status, c.Failure = report.Errored, &report.TestFailure{Message: err.Error()}
			p.add(c)
			return nil
		}
		return err
	}
	defer result.Close()
	if p.report.Isolation == nil {
		p.report.Isolation = &result.Isolation
	}
	c.Duration = time.Duration(result.Metrics.WallTime).Seconds()
	for _, n := range result.Notes {
		if what, ok := strings.CutPrefix(n, executor.CheckedNote); ok {
			c.Reason = what
		}
	}
	if result.Verdict != sandbox.VerdictOK {
		c.Status = report.Failed
		c.Failure = &report.TestFailure{Message: strings.TrimPrefix(edges(result), "\n"), Diagnosis: result.Diagnosis}
		if d := result.Diagnosis; d != nil {
			c.Failure.Message = cmp.Or(c.Failure.Message, d.Message)
			if at := d.Location; at != nil && !path.IsAbs(at.File) {
				c.File, c.Line = at.File, at.Line
			}
		}
		c.Failure.Message = cmp.Or(c.Failure.Message, "the check ended with the verdict "+string(result.Verdict))
	}
	p.add(c)
	return nil
}

// test runs the tests of one framework.
func (p *projectRun) test(ctx context.Context, f *tests.Framework) error {
	req := p.Request
	o := tests.Options{Framework: f.Name}
	if err := tests.Prepare(&req, &o); err != nil {
		return err
	}
	r, err := tests.Run(ctx, p.executor, req, o, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	if p.report.Isolation == nil {
		p.report.Isolation = &r.Isolation
	}
	for _, t := range r.Tests {
		p.add(t)
	}
	if !r.Success() && r.Summary.FailedTests() == 0 && !(r.Verdict == sandbox.VerdictOK && r.Complete && r.Summary.Total == 0) {
		p.add(&Check{Name: f.Name, Suite: "tests", Status: report.Errored, Failure: &report.TestFailure{
			Message:   fmt.Sprintf("the tests ended with the verdict %s and exit code %d", r.Verdict, r.Exit.Code) + edges(r.Result),
			Diagnosis: r.Diagnosis}})
	}
	p.report.Notes = append(p.report.Notes, r.Notes...)
	return nil
}
