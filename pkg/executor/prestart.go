package executor

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// prestarted lists the processes that will start in the sandbox, without anything specific to this request. If no process can
// start before the program is known, the pool can still prepare the sandbox; but not on an image, which its owner may remove.
func (x *execution) prestarted(phases []Phase) (list []sandbox.Process) {
	waits := slices.ContainsFunc(phases, func(p Phase) bool { return p.Process.Warm != nil })
	if !x.e.opts.Prestart || !waits && x.plan.Spec.Root.From != (sandbox.ImageRef{}) {
		return nil
	}
	for i := range phases {
		p := phases[i].Process
		env := map[string]string{}
		maps.Copy(env, x.plan.Spec.Env)
		maps.DeleteFunc(env, func(name, _ string) bool { _, own := x.req.Env[name]; return own })
		maps.Copy(env, p.Env)
		p.Env = env
		switch {
		case p.Warm != nil && p.Warm.Fixed > 0:
			p.Args = p.Args[:min(p.Warm.Fixed, len(p.Args))]
		case p.Phase == PhaseRun && len(x.req.Args) < len(p.Args) && slices.Equal(p.Args[len(p.Args)-len(x.req.Args):], x.req.Args):
			p.Args = p.Args[:len(p.Args)-len(x.req.Args)]
		}
		p.Args = slices.Clone(p.Args)
		list = append(list, p)
	}
	return list
}

// PrestartSpecs returns the specs of the sandboxes that ordinary programs of some languages need, complete for a pool. It leaves
// out languages that this machine does not have.
func (e *Executor) PrestartSpecs(ctx context.Context, languages ...string) (specs []*sandbox.Spec, err error) {
	for _, name := range languages {
		l, err := e.lookUp(name)
		if err != nil {
			return nil, err
		}
		if !e.opts.Prestart {
			return nil, nil
		}
		spec, err := e.prestartOf(ctx, l)
		if err != nil {
			continue // a run of such a program reports the error
		}
		if len(spec.Ahead) > 0 {
			specs = append(specs, spec)
		}
	}
	return specs, nil
}

// sampleOf returns a program of a language, for a plan that shows what ordinary programs need.
func sampleOf(l *Language) string { return cmp.Or(l.Sample, "0\n") }

func (e *Executor) prestartOf(ctx context.Context, l *Language) (*sandbox.Spec, error) {
	req := Request{Language: l.Name, Code: sampleOf(l)}
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	defer release()
	if plan.Prepare != nil {
		undo, err := plan.Prepare(ctx, &plan.Plan, true, e.opts.OnPrepare)
		if err != nil {
			return nil, err
		}
		defer undo()
	}
	x := &execution{e: e, req: &req, plan: plan}
	spec := plan.Spec
	spec.Ahead = x.prestarted(plan.Phases)
	spec, err = e.manager.Complete(spec)
	return &spec, err
}
