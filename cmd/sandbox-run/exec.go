package main

import (
	"errors"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// exec runs the command, shows what it prints and what became of it, and leaves the exit code in
// c.code. Its error is for failures of ours.
func (c *cli) exec(o *execOptions) error {
	s, err := openStage(o.backend)
	if err != nil {
		return err
	}
	defer s.close()
	id, err := s.manager.Create(s.ctx, o.spec)
	if err != nil {
		return interrupted(s.ctx, err)
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
	if err != nil {
		return errors.Join(interrupted(s.ctx, err), left)
	}
	if left != nil {
		result.Notes = append(result.Notes, cleanupNote+left.Error())
	}
	if o.noStream {
		c.printWhole(&o.boxOptions, result, show)
	}
	return c.conclude(s, &o.boxOptions, result, result, show, &story{noun: "command", whole: !o.noStream, machine: s.manager.Machine()})
}
