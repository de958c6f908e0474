package executor

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Programs that have an interpreter wait for its program are shown inside from files of the host: threads and later phases may look for them
// again, and what is in the scratch has to be gone by then.
//
//go:embed drivers
var drivers embed.FS

// driver is where a driver lies on the host; "" where it can not be had.
func (e *Executor) driver(name string) string {
	e.driversMu.Lock()
	defer e.driversMu.Unlock()
	if file, ok := e.driverFiles[name]; ok && stampOf(file) != "" {
		return file
	}
	file, err := writeDriver(e.warmDir(), name)
	if err != nil {
		return "" // what can not be made ready starts cold
	}
	if e.driverFiles == nil {
		e.driverFiles = map[string]string{}
	}
	e.driverFiles[name] = file
	return file
}

// writeDriver makes a driver's file, whose name is that of its content. Any number of processes may do so at once.
func writeDriver(dir, name string) (string, error) {
	text, err := drivers.ReadFile(path.Join("drivers", name))
	if err != nil {
		return "", err
	}
	if dir == "" {
		return "", os.ErrNotExist
	}
	dir = filepath.Join(dir, "drivers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := othersWrite(dir); err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	file := filepath.Join(dir, hex.EncodeToString(sum[:8])+"-"+name)
	if there, err := openPlain(file); err == nil {
		defer there.Close()
		if st, err := there.Stat(); err == nil && st.Size() == int64(len(text)) {
			return file, nil
		}
	}
	temporary, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary.Name()) // it has another name by then
	_, err = temporary.Write(text)
	if err == nil {
		err = temporary.Chmod(0o644) // whoever is inside is a stranger
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", err
	}
	return file, os.Rename(temporary.Name(), file)
}

// ahead reports whether anything may wait: not for a plan that nobody keeps sandboxes ready for, nor on an image on which nothing of
// the host can be shown.
func (j *job) ahead() bool { return j.engine != nil && j.engine.opts.Ahead && !j.kept() }

// showDriver shows a driver inside and returns its place there; "" where nothing waits.
func (j *job) showDriver(name string) string {
	if !j.ahead() {
		return ""
	}
	file := j.engine.driver(name)
	if file == "" {
		return ""
	}
	inside := path.Join(ToolDir, name)
	j.plan.Spec.Root.Add = append(j.plan.Spec.Root.Add, sandbox.Mount{Source: file, Target: inside})
	return inside
}

// ahead says what is sure to be started in the sandbox, without anything of this request's own. Where nothing can wait for it, the sandbox itself
// can; but not on an image, which is somebody else's to remove.
func (x *execution) ahead(phases []Phase) (list []sandbox.Process) {
	waits := slices.ContainsFunc(phases, func(p Phase) bool { return p.Process.Warm != nil })
	if !x.e.opts.Ahead || !waits && x.plan.Spec.Root.From != (sandbox.ImageRef{}) {
		return nil
	}
	for i := range phases {
		p := phases[i].Process
		env := maps.Clone(x.plan.Spec.Env)
		maps.DeleteFunc(env, func(name, _ string) bool { _, own := x.req.Env[name]; return own })
		if env == nil {
			env = map[string]string{}
		}
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

// Ahead are the sandboxes that ordinary programs of some languages will ask for: complete, as a pool takes them to have them ready. Languages that
// are not here are left out.
func (e *Executor) Ahead(ctx context.Context, languages ...string) (specs []*sandbox.Spec, err error) {
	for _, name := range languages {
		l, err := e.lookUp(name)
		if err != nil {
			return nil, err
		}
		if !e.opts.Ahead {
			return nil, nil
		}
		spec, err := e.aheadOf(ctx, l)
		if err != nil {
			continue // whoever runs such a program is told
		}
		if len(spec.Ahead) > 0 {
			specs = append(specs, spec)
		}
	}
	return specs, nil
}

// ordinary programs, where an empty line is none.
var ordinary = map[string]string{
	"java": "public class Main { public static void main(String[] args) {} }\n", "go": "package main\n\nfunc main() {}\n", "rust": "fn main() {}\n",
	"sqlite": "SELECT 1;\n", "postgres": "SELECT 1;\n",
}

func (e *Executor) aheadOf(ctx context.Context, l *Language) (*sandbox.Spec, error) {
	code, ok := ordinary[l.Name]
	if !ok {
		code = "\n"
	}
	req := Request{Language: l.Name, Code: code}
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	defer release()
	if plan.prepare != nil {
		undo, err := plan.prepare(ctx, plan, true, e.opts.OnPrepare)
		if err != nil {
			return nil, err
		}
		defer undo()
	}
	x := &execution{e: e, req: &req, plan: plan}
	spec := plan.Spec
	spec.Ahead = x.ahead(plan.Phases)
	spec, err = e.manager.Complete(spec)
	return &spec, err
}

// nodeDriver is what Node waits in.
const nodeDriver = "node.cjs"

// nodeWarm says how the run can wait in Node; nil where a variable of the user's is read before the driver could set it.
func (j *job) nodeWarm(fixed int) *sandbox.Warm {
	if _, own := j.plan.Spec.Env["NODE_OPTIONS"]; own || !j.nodeAtLeast([2]int{16, 0}) {
		return nil
	}
	for name := range j.req.Env {
		if readAtStart(name) {
			return nil
		}
	}
	inside := j.showDriver(nodeDriver)
	if inside == "" {
		return nil
	}
	return &sandbox.Warm{Name: "node", Env: map[string]string{"NODE_OPTIONS": "--require " + inside}, Handshake: "sandbox-run: node waits\n", Fixed: fixed}
}

// readAtStart reports whether an interpreter, the C library or one of its own looks at a variable before any program runs.
func readAtStart(name string) bool {
	switch name {
	case "NODE_ENV":
		return false
	case "LANG", "LANGUAGE", "TZ", "TZDIR", "HOME": // where Node looks for modules, too
		return true
	}
	for _, begin := range []string{"NODE", "LC_", "LD_", "UV_", "ICU_", "SSL_", "OPENSSL", "MALLOC_", "GLIBC_", "V8_"} {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}

// kitWarm says how a tool of the kit can wait: it has no driver but itself. It is started with its name and that of the tool.
func (j *job) kitWarm(fixed int) *sandbox.Warm {
	if !j.ahead() {
		return nil
	}
	return &sandbox.Warm{Name: "kit", Env: map[string]string{kitpath.Waits: "1"}, Handshake: kitpath.Waiting, Fixed: fixed}
}

// compilerWarm says how a compiler can wait for its source, which it reads once and from its start to its end: see runCompiler of the kit. Nothing of what
// it is started with can be changed later. nil where something is the program's own.
func (j *job) compilerWarm(name, source string, args []string) *sandbox.Warm {
	if !j.ahead() || j.kit == "" || j.image != nil || len(j.req.Env) > 0 || j.dir != sandbox.WorkspaceDir || strings.Contains(source, "/") {
		return nil
	}
	// Not by useKit: it has no part in what comes out.
	j.plan.Spec.Root.Add = append(j.plan.Spec.Root.Add, sandbox.Mount{Source: j.kit, Target: kitInside})
	return &sandbox.Warm{Name: name, Args: slices.Concat([]string{kitInside, "compiler", "--source", source, "--"}, args), Handshake: kitpath.Waiting}
}
