package cli

import (
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// notInteractive are the flags of a run that have no meaning in a session.
var notInteractive = []string{
	"json", "format", "no-stream", "summary", "spill", "tty", "out", "dry-run", "test", "module", "check", "setup", "workspace",
	"workspace-cap", "workspace-inodes", "entry",
}

// runInteractively executes the program as the first piece of code of a session, and stays in it.
func (c *Invocation) runInteractively(o *runOptions, flags *pflag.FlagSet) error {
	for _, name := range notInteractive {
		if f := flags.Lookup(name); f != nil && isOnCommandLine(flags, name) {
			return sandbox.Invalid("interactive", "a session has no use for --%s; leave out one of them", name)
		}
	}
	if o.namesServer() {
		return sandbox.Invalid("interactive", "it takes place on this machine; leave out --server")
	}
	p := o.program
	code := p.code
	switch {
	case len(p.args) > 0:
		return sandbox.Invalid("interactive", "a session has no arguments: %q", p.args[0])
	case p.fromStdin:
		return sandbox.Invalid("interactive", "standard input is the session's; the code is a FILE or --code")
	case len(p.files) == 1 && code == "":
		code = string(p.files[0].Data)
	case len(p.files) > 0:
		return sandbox.Invalid("interactive", "a session begins with one file; --in copies others into it")
	}
	s := &SessionOptions{run: *o, project: o.project}
	s.run.policy.MergeOutput = false
	s.detect = s.run.request()
	if err := s.readProject(flags); err != nil {
		return err
	}
	return c.full.Interact(c, s, code)
}

// Detect returns the program of --interactive, whose language is that of the session unless a flag names one.
func (o *SessionOptions) Detect() (req executor.Request, needed bool) {
	return o.detect, o.run.lang == ""
}
