package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// installation is a set of packages that a program needs and that no layer has yet.
type installation struct {
	key      deps.Key
	packages *language.Packages
	plan     *Plan // of the sandbox in which the packages are installed
}

// Deps describes the packages of a run.
type Deps struct {
	Layer    string             `json:"layer"`  // sha256:… of what the sandbox was shown
	Cached   bool               `json:"cached"` // an earlier run has installed it
	Packages []language.Package `json:"packages"`
	Lock     string             `json:"lock,omitempty"` // text of a language.Lock, if the request wants it
}

// installLimits are the limits of an installation. CPUs and memory are those of compilers.
func installLimits() sandbox.Limits {
	return sandbox.Limits{
		Wall: InstallTime, Disk: 4 * sandbox.GiB, Inodes: 500_000, Processes: 256, OpenFiles: 4096,
	}
}

// RegistryNote is the prefix of the note on a request of an installation that was not forwarded to the registry.
const RegistryNote = "registry: "

// InstallTime is the time limit of each step of an installation.
const InstallTime = 10 * time.Minute

// installWorking is the memory that an ordinary installation takes: npm took 150 MiB for a hundred packages.
const installWorking = 256 * sandbox.MiB

// layerArchive is the archive of a layer in the installing sandbox.
const layerArchive = sandbox.WorkspaceDir + "/layer.tar"

// maxDeps and maxDep bound the packages of a request, and the text of each: clients of a server write them.
const (
	maxDeps = 1000
	maxDep  = 1000
)

// asksForPackages reports whether a request wants packages to be there.
func asksForPackages(o *LanguageOptions) bool { return len(o.Deps) > 0 || o.Install || o.Lock != "" }

// checkPackages refuses options of installations that contradict each other, or that the language does not have.
func checkPackages(j *job) error {
	o := &j.Job.Request.Options
	switch asked := asksForPackages(o); {
	case len(o.Deps) > maxDeps:
		return sandbox.Invalid("deps", "%d packages; the most is %d", len(o.Deps), maxDeps)
	case slices.ContainsFunc(o.Deps, func(d string) bool { return len(d) > maxDep }):
		return sandbox.Invalid("deps", "a package has more than %d bytes", maxDep)
	case !asked && (o.Frozen || o.DepsRefresh || o.AllowInstallScripts):
		name := map[bool]string{o.Frozen: "frozen", o.DepsRefresh: "deps-refresh", o.AllowInstallScripts: "allow-install-scripts"}[true]
		return sandbox.Invalid(name, "there are no packages to install; give --deps or --install")
	case asked && j.Language.Packages == nil:
		return sandbox.Invalid("deps", "%s has no packages to install", j.Language.Title)
	case asked && j.Image != nil:
		return sandbox.Errorf(sandbox.ErrUnsupported, "deps", "leave out --image, or use an image with the packages in it",
			"packages are installed with this machine's toolchains, and the program runs on the image %s", j.Image.Reference)
	}
	return nil
}

// findPackages finds the layer of the packages that a job needs, or plans their installation. The caller releases the lease.
func (e *Executor) findPackages(j *job) (lease *deps.Lease, missing *installation, err error) {
	o := &j.Job.Request.Options
	if err := checkPackages(j); err != nil || !asksForPackages(o) {
		return nil, nil, err
	}
	o.Deps = language.JoinRequirements(o.Deps)
	packages, err := j.Language.Packages(&j.Job)
	if err != nil || packages == nil {
		return nil, nil, err
	}
	if err := checkLockFits(j); err != nil {
		return nil, nil, err
	}
	if o.Frozen && !packages.Locked {
		return nil, nil, sandbox.Errorf(sandbox.ErrInvalid, "frozen", "--lock FILE without --frozen, which writes one",
			"the program has no lock that fixes the versions and digests of its packages")
	}
	if from := e.opts.InstallFrom; from != nil && !slices.Contains(from, packages.Registry) {
		return nil, nil, sandbox.Errorf(sandbox.ErrRefused, "deps", "leave them out, or ask the operator to allow them (allow-packages)",
			"the operator of this server does not let requests install packages of %s", packages.Registry)
	}
	if e.opts.Layers == nil {
		return nil, nil, sandbox.Errorf(sandbox.ErrUnsupported, "deps", "", "this executor keeps no packages")
	}
	registries, err := deps.RegistriesDigest(e.opts.RegistriesFile)
	if err != nil {
		return nil, nil, err
	}
	want := deps.Want{Language: j.Language.Name, Toolchain: j.Tool.ID, Packages: packages, Registries: registries}
	if !e.opts.SharedCache && j.req.Asker.Key != e.opts.OwnKey {
		want.Tenant = j.req.Asker.Key
	}
	key, err := want.Key()
	if err != nil {
		return nil, nil, err
	}
	if !o.DepsRefresh {
		lease, err = e.opts.Layers.Find(j.Language.Name, key)
		if !errors.Is(err, deps.ErrNotFound) {
			return lease, nil, err
		}
	}
	return nil, &installation{key: key, packages: packages, plan: e.installPlan(j, packages)}, nil
}

// checkLockFits refuses a lock that was made without some of the packages that the request names beside it.
func checkLockFits(j *job) error {
	o := j.Job.Request.Options
	if o.Lock == "" || len(o.Deps) == 0 && !o.Install {
		return nil
	}
	lock, err := language.ParseLock(o.Lock)
	if err != nil {
		return err
	}
	unlocked := j.Job
	unlocked.Request.Options.Lock = ""
	asked, err := j.Language.Packages(&unlocked)
	if err != nil || asked == nil {
		return err
	}
	return lock.Covers(asked.Requirements)
}

// installPlan plans the sandbox of an installation: that of the run without its volumes, variables, inputs and network.
func (e *Executor) installPlan(j *job, packages *language.Packages) *Plan {
	p, pol := &Plan{language: j.Language}, j.req.Policy
	limits, _ := sandbox.Limits{Disk: e.opts.InstallDisk}.Or(installLimits()).Or(sandbox.DefaultCompileLimits()).Clamp(e.manager.Machine())
	p.Plan = language.Plan{
		Language: j.Language.Name, Version: j.Tool.Version, Files: packages.Files,
		Spec: sandbox.Spec{
			Env: maps.Clone(j.Tool.Env), Limits: limits, Require: pol.Require, Strict: pol.Strict, Scratch: pol.Scratch, Labels: maps.Clone(pol.Labels),
		},
	}
	p.program = len(p.Files)
	if p.Spec.Env == nil {
		p.Spec.Env = map[string]string{}
	}
	maps.Copy(p.Spec.Env, packages.Env)
	p.Spec.Root.Add = append(slices.Clone(j.Tool.Mounts), sandbox.Mount{Source: e.opts.Kit, Target: language.KitPath})
	pack := language.Step{Args: []string{language.KitPath, "pack", "--dir", language.LayerDir, "--out", layerArchive}, Offline: true}
	for _, s := range append(slices.Clone(packages.Steps), pack) {
		process := sandbox.Process{Phase: PhaseInstall, Args: s.Args, Env: maps.Clone(s.Env), Workdir: s.Workdir, Limits: limits.OfProcess(), Followed: true,
			Network: sandbox.NetworkNone}
		if !s.Offline {
			process.Network = network.Policy{Mode: network.Allow, Allow: []string{deps.ProxyName + ":80"}}
		}
		p.Phases = append(p.Phases, Phase{Process: process})
	}
	p.Phases[len(p.Phases)-1].Process.Followed = false
	return p
}

// installPackages installs what the plan needs, and reports whether that succeeded. If not, x.out is the result.
func (x *execution) installPackages(ctx context.Context) (ok bool, err error) {
	in, opts := x.plan.install, &x.e.opts
	switch {
	case opts.Registries == nil:
		return false, sandbox.Errorf(sandbox.ErrUnsupported, "deps", "", "this executor can install no packages")
	case opts.Kit == "":
		return false, sandbox.Errorf(sandbox.ErrUnsupported, "sandbox-kit", "make install, or SANDBOX_RUN_KIT=/path/to/sandbox-kit",
			"installations need it, and it is neither beside sandbox-run nor on PATH")
	}
	done := prepared.Hook(opts.OnPrepare).Begin("installing " + language.Listed(in.packages.Requirements))
	defer done()
	lock, err := opts.Layers.Lock(ctx, in.key)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if !x.req.Options.DepsRefresh { // another process may have installed them meanwhile
		lease, err := opts.Layers.Find(x.plan.Language, in.key)
		if err == nil {
			lease.Release()
		}
		if !errors.Is(err, deps.ErrNotFound) {
			return err == nil, err
		}
	}
	if x.e.installs != nil {
		select {
		case x.e.installs <- struct{}{}:
			defer func() { <-x.e.installs }()
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	access, stop, err := opts.Registries.Open(ctx, in.packages.Registry)
	if err != nil {
		return false, err
	}
	defer func() {
		for _, why := range stop() {
			if !ok {
				x.note(RegistryNote + why)
			}
		}
	}()
	return x.runInstallation(ctx, in, access)
}

// runInstallation runs the steps of an installation in a sandbox of its own, and keeps what they have made.
func (x *execution) runInstallation(ctx context.Context, in *installation, access *deps.Access) (ok bool, err error) {
	request := *x.req
	request.Policy.MergeOutput = false
	y := &execution{e: x.e, req: &request, plan: in.plan, seq: x.seq}
	y.out = Result{Language: x.plan.Language, Version: x.plan.Version}
	fillPlan(in.plan, in.packages.Filled, access)
	m := x.e.manager
	if y.id, err = m.Create(ctx, in.plan.Spec); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, m.Delete(context.WithoutCancel(ctx), y.id)) }()
	if err := m.Put(ctx, y.id, in.plan.Files); err != nil {
		return false, err
	}
	steps := in.plan.Phases
	locks := map[string][]byte(nil)
	for i := range steps {
		if last := i == len(steps)-1; locks == nil && (last || in.packages.Steps[i].Foreign) {
			if locks, err = x.takeLocks(ctx, y.id, in, access); err != nil {
				y.out.Close()
				return false, err
			}
		}
		ok, err := y.phase(ctx, &steps[i])
		x.seq = y.seq
		if err != nil {
			y.out.Close()
			return false, err
		}
		if !ok {
			if y.out.Verdict == sandbox.VerdictNonzeroExit && i == len(steps)-1 { // the archive of ours
				return false, &sandbox.Error{Op: "pack the packages", Err: errors.New(strings.TrimSpace(string(y.out.Stderr.Edges(4 * sandbox.KiB))))}
			}
			y.out.Notes = append(y.out.Notes, x.out.Notes...)
			x.out, x.id = y.out, y.id
			return false, nil
		}
	}
	y.out.Close()
	x.out.Phases = y.out.Phases[:len(y.out.Phases)-1]
	x.refused = y.out.Violations
	return true, x.keepLayer(ctx, y.id, in, locks)
}

// fillPlan replaces the placeholders of the registry's address.
func fillPlan(p *Plan, filled []string, access *deps.Access) {
	p.Spec.Bounds = network.Bounds{Services: map[string]netip.AddrPort{deps.ProxyName: access.Address}}
	p.Files = slices.Clone(p.Files)
	for i := range p.Files {
		if !slices.Contains(filled, p.Files[i].Path) {
			continue
		}
		p.Files[i].Data = []byte(access.Fill(string(p.Files[i].Data)))
	}
	fill := func(env map[string]string) {
		for k, v := range env {
			env[k] = access.Fill(v)
		}
	}
	fill(p.Spec.Env)
	for i := range p.Phases {
		process := &p.Phases[i].Process
		fill(process.Env)
		process.Args = slices.Clone(process.Args)
		for j := range process.Args {
			process.Args[j] = access.Fill(process.Args[j])
		}
	}
}

// maxLockFile bounds the lock files of a tool.
const maxLockFile = 32 * sandbox.MiB

// takeLocks copies the lock files of the tool out of the installing sandbox.
func (x *execution) takeLocks(ctx context.Context, id string, in *installation, access *deps.Access) (map[string][]byte, error) {
	locks := map[string][]byte{}
	var patterns []string
	for _, name := range in.packages.Locks {
		patterns = append(patterns, path.Join(sandbox.WorkspaceDir, name))
	}
	if len(patterns) == 0 {
		return locks, nil
	}
	return locks, x.takeInstalled(ctx, id, patterns, maxLockFile, func(f sandbox.File, r io.Reader) error {
		text, err := io.ReadAll(r)
		locks[strings.TrimPrefix(f.Path, sandbox.WorkspaceDir+"/")] = []byte(access.Restore(string(text)))
		return err
	})
}

// takeInstalled copies files out of an installing sandbox, all of them or none.
func (x *execution) takeInstalled(ctx context.Context, id string, patterns []string, most sandbox.Size, each func(f sandbox.File, r io.Reader) error) error {
	left, err := x.e.manager.Take(ctx, id, sandbox.Selection{Patterns: patterns, MaxBytes: most},
		func(f sandbox.File, _ sandbox.Size, r io.Reader) error { return each(f, r) })
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s: %s", left[0].Path, left[0].Reason)
	}
	if err != nil {
		return &sandbox.Error{Op: "keep the packages", Err: err}
	}
	return nil
}

// keepLayer copies the archive out of the installing sandbox, and adds the layer.
func (x *execution) keepLayer(ctx context.Context, id string, in *installation, locks map[string][]byte) error {
	spool, err := os.CreateTemp(x.e.opts.Layers.Dir, "layer-*")
	if err != nil {
		return err
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil { // it ends with this process
		return err
	}
	var size int64
	if err := x.takeInstalled(ctx, id, []string{layerArchive}, in.plan.Spec.Limits.Disk, func(_ sandbox.File, r io.Reader) (err error) {
		size, err = io.Copy(spool, r)
		return err
	}); err != nil {
		return err
	}
	lock, err := in.packages.ReadLock(locks)
	if err != nil {
		return &sandbox.Error{Op: "read what was installed", Err: err}
	}
	lock.Language, lock.Version, lock.Platform = x.plan.Language, x.plan.Version, runtime.GOOS+"/"+runtime.GOARCH
	lock.Requires, lock.Packages = in.packages.Requirements, language.SortPackages(lock.Packages)
	lease, err := x.e.opts.Layers.Add(ctx, in.key, spool, size, lock)
	if errors.Is(err, sandbox.ErrRefused) {
		return err // the quota
	}
	if err != nil {
		return &sandbox.Error{Op: "keep the packages", Err: err}
	}
	x.layer = lease // until the run has its own
	return nil
}

// havePackages has the packages of the plan installed, and plans the run again, with them. The caller releases the new plan. If ok is false,
// x.out is the result.
func (x *execution) havePackages(ctx context.Context) (release func(), ok bool, err error) {
	release = func() {}
	installed := false
	if x.plan.install != nil {
		if ok, err = x.installPackages(ctx); err != nil || !ok {
			return nil, false, err
		}
		again := *x.req
		again.Options.DepsRefresh = false
		var plan *Plan
		plan, release, err = x.e.plan(ctx, &again)
		if x.layer != nil {
			x.layer.Release()
		}
		if err != nil {
			return nil, false, err
		}
		if plan.install != nil {
			release()
			return nil, false, &sandbox.Error{Op: "deps", Err: errors.New("the packages were removed while they were installed"), Hint: "run it again"}
		}
		x.plan, installed = plan, true
	} else if x.plan.layer != nil {
		x.out.Phases = append(x.out.Phases, PhaseResult{
			Name: PhaseInstall, Cached: true, Verdict: sandbox.VerdictOK, ProgramExitCode: new(int),
		})
	}
	if l := x.plan.layer; l != nil {
		x.out.Deps = &Deps{Layer: l.ID, Cached: !installed, Packages: l.Lock.Packages}
		if x.req.Options.ReturnLock {
			text, err := json.MarshalIndent(l.Lock, "", "  ")
			if err != nil {
				release()
				return nil, false, err
			}
			x.out.Deps.Lock = string(text) + "\n"
		}
	}
	return release, true, nil
}

// declaredPackages returns the packages that the program declares.
func (j *job) declaredPackages() []string {
	j.Job.Request.Options.Install = true
	packages, err := j.Language.Packages(&j.Job)
	if err != nil || packages == nil {
		return nil
	}
	return packages.Requirements
}

// missingModules are parts of messages about a module that is not there.
var missingModules = []string{
	"No module named ", "Cannot find module ", "Cannot find package ", "no required module provides", "unresolved import", "can't find crate",
	"unresolved module", "does not exist", "ERR_MODULE_NOT_FOUND", "ERR_UNSUPPORTED_ESM_URL_SCHEME", "Could not resolve", "no matching package named",
}

// hintPackages notes that a program which failed for want of a module declares packages that were not installed.
func (x *execution) hintPackages() {
	r := &x.out.Result
	if x.plan.declared == nil || r.Verdict != sandbox.VerdictNonzeroExit && r.Verdict != sandbox.VerdictCompileError {
		return
	}
	said := string(r.Stderr.Edges(sandbox.OutputMemory)) + string(r.Stdout.Edges(sandbox.OutputMemory))
	if !slices.ContainsFunc(missingModules, func(words string) bool { return strings.Contains(said, words) }) {
		return
	}
	if names := x.plan.declared(); len(names) > 0 {
		if x.out.Diagnosis != nil {
			x.out.Diagnosis.Suggestions = []string{"--install, which installs the packages that the program declares"}
		}
		x.note(language.HintNote + "the program declares packages (" + language.Listed(names) + "), and none were installed; to install them: --install")
	}
}
