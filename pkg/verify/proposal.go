package verify

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// MaxProposed bounds the text of a proposal.
const MaxProposed = 16 << 20

// Proposal is a text that may replace a file.
type Proposal struct {
	*HostFile
	// Project is the directory of the project: the next one above the file that has an entry .git, or the file's own.
	Project string

	text []byte
	path string // relative to Project, with slashes
}

// OpenProposal reads the file as it is now; it may be missing. The caller closes the proposal.
func OpenProposal(name string, text []byte) (*Proposal, error) {
	if len(text) > MaxProposed {
		return nil, sandbox.Invalid("write", "the proposed text has more than %d bytes", MaxProposed)
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	f, err := OpenFile(abs, MaxProposed, true)
	if err != nil {
		return nil, err
	}
	f.Name = name
	p := &Proposal{HostFile: f, text: text, Project: filepath.Dir(abs)}
	for dir := p.Project; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			p.Project = dir
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	rel, err := filepath.Rel(p.Project, abs)
	if err != nil {
		f.Close()
		return nil, err
	}
	p.path = filepath.ToSlash(rel)
	return p, nil
}

// Write checks the project with the text in place of the file, and replaces the file if no check fails. c has the files of the project as
// they are, and settings. A file that has changed meanwhile stays as it is, which is an error.
func (p *Proposal) Write(ctx context.Context, e *executor.Executor, c Change) (*Report, error) {
	mode := p.mode
	files := slices.DeleteFunc(slices.Clone(c.Request.Files), func(f executor.File) bool { return f.Path == p.path })
	c.Request.Files = append(files, executor.File{Path: p.path, Mode: mode, Data: p.text})
	c.Changed, c.Deleted = []string{p.path}, nil
	r, err := Project(ctx, e, c)
	if err != nil || !r.Success() {
		return r, err
	}
	if len(r.Checks) == 0 {
		r.Notes = append(r.Notes, "nothing checks this file: its language has no check, and no test of the project concerns it")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := p.Replace(p.text); err != nil {
		return nil, err
	}
	r.Updated = append(r.Updated, p.Name)
	return r, nil
}
