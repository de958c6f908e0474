package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// execute runs the program, shows what it prints and what became of it, and leaves the exit code in c.code. Its error is
// for failures of ours.
func (c *cli) execute(o *runOptions) error {
	s, err := c.openStage(&o.boxOptions)
	if err != nil {
		return err
	}
	defer s.close()
	show, streams := c.connect(&o.boxOptions, s.stop)
	engine, err := app.NewExecutor(s.manager, app.Engine{Audit: s.log, Door: audit.DoorCLI, OnPrepare: func(what string) func() {
		show.wait.start(what)
		return show.wait.end
	}})
	if err != nil {
		return err
	}
	req := o.request()
	if o.dryRun {
		var plan *executor.Plan
		err := c.providing(s.ctx, &o.boxOptions, func() {}, func() (err error) {
			plan, err = engine.Plan(s.ctx, req)
			return err
		})
		if err != nil {
			return interrupted(s.ctx, err)
		}
		return c.printPlan(plan, o.backend)
	}
	leave, err := o.enterWorkspace(s, &req)
	if err != nil {
		return interrupted(s.ctx, err)
	}
	defer func() { _ = leave() }() // twice is fine; what went wrong is said below
	streams.Stdin = req.Stdin
	var takeBack func()
	req.TTY, takeBack = c.lend(&o.boxOptions, &streams)
	defer takeBack()
	req.Stdin, req.OnEvent, req.Spill, req.Resize = streams.Stdin, streams.OnEvent, streams.Spill, streams.Resize
	req.OutputSpace = streams.OutputSpace

	var ready *wire.Ready
	req.OnReady = func(p *executor.Plan, i sandbox.Isolation) {
		ready = &wire.Ready{Language: p.Language, Version: p.Version, Image: p.Spec.Root.From.Reference, Isolation: i}
	}
	show.begin = func() { c.headline(o, ready) }
	show.wait.start("preparing")
	var result *executor.Result
	err = c.providing(s.ctx, &o.boxOptions, show.wait.end, func() (err error) {
		result, err = engine.Execute(s.ctx, req)
		return err
	})
	takeBack()
	show.finish()
	left := errors.Join(s.dismantle(), leave())
	if failed := (unwatched{}); errors.As(context.Cause(s.ctx), &failed) {
		return errors.Join(failed.error, left)
	}
	if err != nil {
		return errors.Join(interrupted(s.ctx, err), left)
	}
	result.Notes = appendNotes(result.Notes, left, s.unlogged)
	judgeWorkspace(s, &result.Result)
	return c.present(s, o, result, show, s.manager.Machine())
}

// present shows what became of a program, wherever it was run, and brings its files back.
func (c *cli) present(s *stage, o *runOptions, result *executor.Result, show *live, m sandbox.Machine) error {
	if o.noStream {
		c.printWhole(&o.boxOptions, &result.Result, show, result.Phases...)
	}
	brought := o.carry(result.Files, c.format != formatText)
	err := c.conclude(s, &o.boxOptions, &result.Result, result, show, &story{
		noun: "program", headed: true, phases: result.Phases, machine: m, whole: !o.noStream, wrote: brought.wrote, lost: brought.lost,
	})
	if brought.failed && c.code == 0 {
		c.code = codeOurs
	}
	return err
}

// headline tells a person what is about to run, and behind which walls.
func (c *cli) headline(o *runOptions, ready *wire.Ready) {
	if c.format != formatText || o.quiet || !isTerminal(c.std.err) || ready == nil {
		return
	}
	text := ready.Language
	if ready.Version != "" {
		text += " " + ready.Version
	}
	if ready.Image != "" {
		text += " · image " + ready.Image
	}
	text += " · " + tierText(ready.Isolation)
	fmt.Fprintln(c.std.err, c.palette(c.std.err).dim(escaped(text)))
}

// writeKept shows an output that was kept, and on a terminal what is missing.
func (l *live) writeKept(to *sink, o sandbox.Output) {
	head := o.HeadLen()
	notice := func() {
		if o.Truncated() && to.terminal {
			l.writeTo(to, fmt.Appendf(nil, "\n… %d bytes are left out here …\n", o.Dropped))
		}
		head = -1
	}
	_, err := o.WriteTo(writerFunc(func(b []byte) (int, error) {
		n := max(0, min(head, int64(len(b))))
		l.writeTo(to, b[:n])
		if head -= n; head == 0 {
			notice()
		}
		l.writeTo(to, b[n:])
		return len(b), nil
	}))
	if head == 0 {
		notice()
	}
	l.lose(err)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// printWhole shows at the end what was kept: standard output, then standard error.
func (c *cli) printWhole(o *boxOptions, r *sandbox.Result, show *live, phases ...executor.PhaseResult) {
	if c.format != formatText {
		return
	}
	show.out, show.err = c.sinks(o)
	for _, p := range phases {
		if p.Name != r.Phase { // what a compiler had to say about a program that ran
			show.writeTo(show.err, []byte(p.Stdout+p.Stderr))
		}
	}
	stdout := show.out
	if r.Phase == executor.PhaseCompile {
		stdout = show.err
	}
	for _, stream := range []struct {
		to  *sink
		out sandbox.Output
	}{{stdout, r.Stdout}, {show.err, r.Stderr}} {
		show.writeKept(stream.to, stream.out)
	}
	show.flush()
}
