package cli

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// exec runs the command, shows what it prints and what became of it, and leaves the exit code in
// c.code. Its error is for failures of ours.
func (c *cli) exec(o *execOptions) error {
	s, err := c.openStage(&o.boxOptions)
	if err != nil {
		return err
	}
	defer s.close()
	said, release, err := c.useImage(s, o)
	if err != nil {
		return interrupted(s.ctx, err)
	}
	defer release() // the sandbox is gone by then
	id, err := s.manager.Create(s.ctx, o.spec)
	if err != nil {
		return errors.Join(interrupted(s.ctx, err), o.record(s.log, "", nil, err))
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
	failed := o.record(s.log, id, result, err)
	if err != nil {
		return errors.Join(interrupted(s.ctx, err), left, failed)
	}
	unlogged := s.unlogged
	if unlogged == nil {
		unlogged = failed
	}
	result.Notes = appendNotes(append(slices.Clip(result.Notes), said...), left, unlogged)
	if o.noStream {
		c.printWhole(&o.boxOptions, result, show)
	}
	return c.conclude(s, &o.boxOptions, result, result, show, &story{noun: "command", whole: !o.noStream, machine: s.manager.Machine()})
}

// useImage makes the sandbox stand on the image that was asked for, and the command what the image makes of it.
func (c *cli) useImage(s *stage, o *execOptions) (notes []string, release func(), err error) {
	if o.image == "" {
		return nil, func() {}, nil
	}
	var img *executor.Image
	err = c.providing(s.ctx, &o.boxOptions, func() {}, func() (err error) {
		img, err = executor.LookUpImage(s.ctx, s.manager, app.Images(), o.image)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	release = func() {
		if img.Release != nil {
			img.Release()
		}
	}
	if o.args, err = img.Command(o.entrypoint, o.args); err != nil {
		release()
		return nil, nil, err
	}
	return img.Apply(&o.spec), release, nil
}

// record writes the run to the audit log.
func (o *execOptions) record(log *audit.Log, id string, r *sandbox.Result, failed error) error {
	if log == nil || errors.Is(failed, sandbox.ErrInvalid) { // what is wrong with a request is found before anything is run
		return nil
	}
	s := &o.spec
	entry := audit.Entry{
		Kind: audit.KindRun, Run: id, Who: audit.Me(audit.DoorCLI), Command: o.args,
		Policy: audit.Policy{
			Network: s.Network, Require: s.Require, Backend: o.backend, Limits: &s.Limits,
			Image: s.Root.From.Reference, ImageDigest: cmp.Or(s.Root.From.Digest, s.Root.From.ID),
		},
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
