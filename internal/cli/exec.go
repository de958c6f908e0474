package cli

import (
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// exec runs the command, shows what it prints and what became of it, and leaves the exit code in
// c.code. Its error is for failures of ours.
func (c *cli) exec(o *execOptions) error {
	log, unlogged, err := o.openAudit()
	if err != nil {
		return err
	}
	s, err := openStage(o.backend)
	if err != nil {
		return err
	}
	defer s.close()
	id, err := s.manager.Create(s.ctx, o.spec)
	if err != nil {
		return errors.Join(interrupted(s.ctx, err), o.record(log, "", nil, err))
	}
	show, streams := c.connect(&o.boxOptions, s.stop)
	if o.stdin {
		streams.Stdin = c.std.in
	}
	size, takeBack := c.lend(&o.boxOptions, &streams)
	defer takeBack()
	result, err := s.manager.Run(s.ctx, id, sandbox.Process{Args: o.args, TTY: size, KillOnOutput: o.killOnOutput}, streams)
	takeBack()
	show.finish()
	left := s.dismantle()
	failed := o.record(log, id, result, err)
	if err != nil {
		return errors.Join(interrupted(s.ctx, err), left, failed)
	}
	if unlogged == nil {
		unlogged = failed
	}
	result.Notes = appendNotes(result.Notes, left, unlogged)
	if o.noStream {
		c.printWhole(&o.boxOptions, result, show)
	}
	return c.conclude(s, &o.boxOptions, result, result, show, &story{noun: "command", whole: !o.noStream, machine: s.manager.Machine()})
}

// record writes the run to the audit log.
func (o *execOptions) record(log *audit.Log, id string, r *sandbox.Result, failed error) error {
	if log == nil || errors.Is(failed, sandbox.ErrInvalid) { // what is wrong with a request is found before anything is run
		return nil
	}
	s := &o.spec
	entry := audit.Entry{
		Kind: audit.KindRun, Run: id, Who: audit.Me(audit.DoorCLI), Command: o.args,
		Policy: audit.Policy{Network: s.Network, Require: s.Require, Backend: o.backend, Limits: &s.Limits},
	}
	if r != nil {
		entry.Verdict, entry.ExitCode, entry.Metrics = r.Verdict, r.Exit.Code, &r.Metrics
		entry.Policy.Tier, entry.Policy.Limits = r.Isolation.Tier, &r.Limits
	}
	if failed != nil {
		entry.Error = failed.Error()
	}
	return log.Append(entry)
}
