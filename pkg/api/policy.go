package api

import (
	"cmp"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/workspace"
)

// withDefaults returns the policy with defaults for zero fields.
func (p Policy) withDefaults() Policy {
	p.MaxBody = cmp.Or(p.MaxBody, 32*sandbox.MiB)
	p.BodyTimeout = cmp.Or(p.BodyTimeout, 30*time.Second)
	p.Require = cmp.Or(p.Require, sandbox.TierContainer)
	p.MostWorkspaces = cmp.Or(p.MostWorkspaces, workspace.Most{Workspaces: 16, Bytes: 16 * sandbox.GiB})
	if p.Ceilings == nil {
		p.Ceilings = DefaultCeilings()
	}
	return p
}

// withDefaults returns the bounds with defaults for zero fields.
func (k Keep) withDefaults(keys bool) Keep {
	k.For = cmp.Or(k.For, time.Hour)
	k.Runs = cmp.Or(k.Runs, 10_000)
	k.Open = cmp.Or(k.Open, 10_000)
	k.Memory = cmp.Or(k.Memory, sandbox.MiB)
	k.Events = cmp.Or(k.Events, 64*sandbox.MiB)
	k.Total = cmp.Or(k.Total, 4*sandbox.GiB)
	k.Spill = cmp.Or(k.Spill, 4*sandbox.GiB)
	share := 1
	if keys {
		share = 2
	}
	k.RunsPerKey = cmp.Or(k.RunsPerKey, max(1, k.Runs/share))
	k.TotalPerKey = cmp.Or(k.TotalPerKey, k.Total/sandbox.Size(share))
	k.Uploads = cmp.Or(k.Uploads, sandbox.GiB)
	k.Upload = cmp.Or(k.Upload, 64*sandbox.MiB)
	k.UploadFor = cmp.Or(k.UploadFor, time.Hour)
	k.Interactive = cmp.Or(k.Interactive, time.Minute)
	return k
}

// check refuses fields that only the operator may allow, unless the policy allows them. Each refusal names the field.
func (p *Policy) check(run *wire.Run, req *executor.Request) error {
	if err := p.checkHost(run, req); err != nil {
		return err
	}
	if run.Backend != "" && !slices.Contains(p.Backends, run.Backend) {
		return notAllowed("backend", "the operator does not let requests choose %.40q", run.Backend)
	}
	if run.Runtime != "" && !slices.Contains(p.Runtimes, run.Runtime) {
		return notAllowed("runtime", "the operator does not let requests choose %.40q", run.Runtime)
	}
	if t := req.Policy.Require; t != "" && !t.AtLeast(p.Require) {
		return notAllowed("require", "%q is weaker than %q, which the operator requires of every run", t, p.Require)
	}
	if req.Policy.Require == "" {
		req.Policy.Require = p.Require
	}
	if run.Image != "" && p.Images != nil && !slices.ContainsFunc(p.Images, func(allowed string) bool { return covers(allowed, run.Image) }) {
		return notAllowed("image", "the operator does not let requests use %.80q", run.Image)
	}
	if req.Policy.WritableRoot && !p.WritableRoot {
		return notAllowed("writable_root", "the operator does not allow a writable root (allow-writable-root is off)")
	}
	return nil
}

// checkHost checks access to the host's files and environment.
func (p *Policy) checkHost(run *wire.Run, req *executor.Request) error {
	for _, v := range req.Policy.Volumes {
		switch {
		case len(p.VolumeRoots) == 0:
			return notAllowed("volumes", "the operator allows no volumes")
		case !slices.ContainsFunc(p.VolumeRoots, func(root string) bool { return within(v.Source, root) }):
			return notAllowed("volumes", "%.80q is in no directory that the operator allows", v.Source)
		case v.Writable && !p.WritableVolumes:
			return notAllowed("volumes", "%.80q: the operator allows read-only volumes only; leave out rw", v.Source)
		}
	}
	if run.Workspace != "" && !p.Workspaces {
		return notAllowed("workspace", "the operator allows no workspaces")
	}
	if run.Workspace == "" && (run.WorkspaceCap != 0 || run.WorkspaceInodes != 0) {
		return wire.WrongField(wire.CodeInvalid, "workspace_cap", "it has no effect without workspace; leave out the cap, or set workspace")
	}
	for _, name := range run.PassEnv {
		if !slices.Contains(p.PassEnv, name) {
			return notAllowed("pass_env", "the operator does not pass on the variable %.80q", name)
		}
	}
	return nil
}

func notAllowed(field, format string, args ...any) error {
	p := wire.WrongField(wire.CodeRefused, field, format, args...)
	p.Hint = "leave it out, or ask the operator of the server to allow it"
	return p
}

// within reports whether a path in its shortest form is in a directory. Symlinks in it are refused where it is opened.
func within(source, root string) bool {
	if path.Clean(source) != source {
		return false
	}
	root = path.Clean(root)
	return source == root || strings.HasPrefix(source, strings.TrimSuffix(root, "/")+"/")
}

// covers reports whether a reference matches an allowed one, which may end in *.
func covers(allowed, reference string) bool {
	if prefix, ok := strings.CutSuffix(allowed, "*"); ok {
		return strings.HasPrefix(reference, prefix)
	}
	return allowed == reference
}

// passOn adds the server's variables that the policy allows. Variables of the request take precedence.
func passOn(run *wire.Run, req *executor.Request) {
	if len(run.PassEnv) == 0 {
		return
	}
	env := map[string]string{}
	for _, name := range run.PassEnv {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	maps.Copy(env, req.Env)
	req.Env = env
}
