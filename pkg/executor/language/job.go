package language

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Request is the part of a request that languages read.
type Request struct {
	Language string // as in the request; "": detected
	Code     string
	Name     string
	Entry    string
	Args     []string
	Env      map[string]string
	Options  Options
	Tests    *Tests // nil: without a report
	Inputs   []File
}

// Job is a request while its plan is made.
type Job struct {
	Request  Request
	Language *Language
	Files    []File // the program
	Entry    string // relative; "." if the language accepts directories
	HostDir  string // as in the executor's request
	Dir      string // directory of the program in the sandbox
	Tool     *toolchain.Toolchain
	ToolID   string // changes with every part of the compiler
	Image    *Image // on which it runs; nil: this machine
	Layer    *Layer // installed packages; nil: none
	Plan     *Plan
	// RunFiles are files of the run that are neither the program's nor its inputs.
	RunFiles []sandbox.File
	// CompileLimits are the limits of compilers.
	CompileLimits sandbox.Limits
	// Inspected is the result of Language.Inspect; no other language reads it.
	Inspected any

	Kit   string // path of the kit on the host; "" without one
	KitID string // changes with the kit

	Manager *sandbox.Manager // for preparations
	Store   *prepared.Store
	WarmDir string // directory of the prepared files; "" without one
	// Prestart allows the backend to start processes before the program is known.
	Prestart bool
}

// Inside returns the path of a program's file in the sandbox.
func (j *Job) Inside(rel string) string { return path.Join(j.Dir, rel) }

// Memory returns the memory limit of the run.
func (j *Job) Memory() sandbox.Size { return j.Plan.Spec.Limits.Memory }

// Setenv sets a variable for every phase, unless the request has set it.
func (j *Job) Setenv(name, value string) {
	if _, own := j.Plan.Spec.Env[name]; own {
		return
	}
	if j.Plan.Spec.Env == nil {
		j.Plan.Spec.Env = map[string]string{}
	}
	j.Plan.Spec.Env[name] = value
}

// SetToolEnv sets the toolchain's variables for every phase.
func (j *Job) SetToolEnv() {
	for k, v := range j.Tool.Env {
		j.Setenv(k, v)
	}
}

// Mount shows a path of the host in the sandbox, read-only.
func (j *Job) Mount(source, target string) {
	j.Plan.Spec.Root.Add = append(j.Plan.Spec.Root.Add, sandbox.Mount{Source: source, Target: target})
}

// AddCompile adds the phase of a compiler, which runs in the program's directory.
func (j *Job) AddCompile(produces []string, args ...string) *Phase {
	j.Plan.Phases = append(j.Plan.Phases, Phase{
		Process:  sandbox.Process{Phase: PhaseCompile, Args: args, Workdir: j.Dir},
		Produces: produces,
	})
	return &j.Plan.Phases[len(j.Plan.Phases)-1]
}

// AddCheck adds the phase of a check: a command that reads the sources. what is what a success means.
func (j *Job) AddCheck(what string, args ...string) *Phase {
	j.Plan.Notes = append(j.Plan.Notes, CheckedNote+what)
	return j.AddCompile(nil, args...)
}

// Sources returns the paths in the sandbox of the program's files in its language. Installed packages are not among them.
func (j *Job) Sources() (paths []string) {
	for _, f := range j.Files {
		if f.Path == j.Entry || j.Language.Owns(f.Path) && !strings.Contains("/"+f.Path, "/node_modules/") {
			paths = append(paths, j.Inside(f.Path))
		}
	}
	return paths
}

// AddRun adds the run: a command, and the arguments of the request.
func (j *Job) AddRun(args ...string) *Phase {
	j.Plan.Phases = append(j.Plan.Phases, Phase{
		Process: sandbox.Process{Phase: PhaseRun, Args: append(slices.Clip(args), j.Request.Args...)},
	})
	return &j.Plan.Phases[len(j.Plan.Phases)-1]
}

// Workdir returns the directory in which the run starts.
func (j *Job) Workdir() string { return cmp.Or(j.Plan.Spec.Workdir, sandbox.WorkspaceDir) }

// Abs returns the path in the sandbox of a file name that a program has printed, relative to a directory.
func Abs(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}

// UseKit shows the kit in the sandbox and returns its path there.
func (j *Job) UseKit() (string, error) {
	if j.Kit == "" {
		return "", sandbox.Errorf(sandbox.ErrUnsupported, "sandbox-kit", "make install, or SANDBOX_RUN_KIT=/path/to/sandbox-kit",
			"%s needs it, and it is neither beside sandbox-run nor on PATH", j.Language.Title)
	}
	j.ToolID += " kit " + j.KitID // it is part of the compiler
	if j.OnForeignRoot() {
		kit := j.Kit
		j.Plan.Files = append(j.Plan.Files, sandbox.File{Path: KitCopy, Mode: 0o755, Open: func() (io.ReadCloser, error) { return os.Open(kit) }})
		return KitCopy, nil
	}
	j.Mount(j.Kit, KitPath)
	return KitPath, nil
}

// KitFailed is the exit code of the kit for a failure of its own.
const KitFailed = 70

// KitError returns the error that the kit has printed.
func KitError(op string, stderr []byte) error {
	text := strings.TrimSpace(string(stderr))
	if strings.Contains(text, "could not map anonymous shared memory") {
		return sandbox.Errorf(sandbox.ErrUnsupported, op, "sandbox-run doctor, which says how to have cgroups",
			"a server needs shared memory, which sandboxes refuse where memory is limited by looking (tier namespace)")
	}
	return &sandbox.Error{Op: op, Err: errors.New(text)}
}

// OnForeignRoot reports whether the backend has the image in its own store: then nothing of the host can be shown on it.
func (j *Job) OnForeignRoot() bool { return j.Image != nil && j.Image.Dir == "" }

// HostWarmDir is WarmDir for toolchains of this machine, and "" for those of an image, which would otherwise run outside of a
// sandbox.
func (j *Job) HostWarmDir() string {
	if j.Image != nil {
		return ""
	}
	return j.WarmDir
}

// MayPrestart reports whether a process of the plan may start before the program is known. It may not on an image on which the
// backend can show nothing of the host.
func (j *Job) MayPrestart() bool { return j.Prestart && !j.OnForeignRoot() }

// ShowDriver shows a driver in the sandbox and returns its path there; "" if the plan prestarts no process.
func (j *Job) ShowDriver(name string, text []byte) string {
	if !j.MayPrestart() {
		return ""
	}
	file := j.Store.File(name, text)
	if file == "" {
		return ""
	}
	inside := path.Join(ToolDir, name)
	j.Mount(file, inside)
	return inside
}

// WarmKit returns the warm start of a tool of the kit, which needs no driver. The tool starts with its first arguments; fixed is
// their number.
func (j *Job) WarmKit(fixed int) *sandbox.Warm {
	if !j.MayPrestart() {
		return nil
	}
	return &sandbox.Warm{Name: "kit", Env: map[string]string{kitpath.Waits: "1"}, Handshake: kitpath.Waiting, Fixed: fixed}
}

// WarmCompiler returns the warm start of a compiler that reads its source once, from start to end: see runCompiler of the kit.
// The arguments can not change later, so it is nil if one of them comes from the request.
func (j *Job) WarmCompiler(name, source string, args []string) *sandbox.Warm {
	own := len(j.Request.Env) > 0 || j.Dir != sandbox.WorkspaceDir || strings.Contains(source, "/")
	if own || !j.MayPrestart() || j.Kit == "" || j.Image != nil {
		return nil
	}
	j.Mount(j.Kit, KitPath) // not by UseKit: it does not change the output
	args = slices.Concat([]string{KitPath, "compiler", "--source", source, "--"}, args)
	return &sandbox.Warm{Name: name, Args: args, Handshake: kitpath.Waiting}
}

// ReadAtStart reports whether an interpreter or the C library reads a variable before any program runs.
func ReadAtStart(name string) bool {
	switch name {
	case "NODE_ENV":
		return false
	case "LANG", "LANGUAGE", "TZ", "TZDIR", "HOME": // Node looks for modules there, too
		return true
	}
	return slices.ContainsFunc([]string{"NODE", "LC_", "LD_", "UV_", "ICU_", "SSL_", "OPENSSL", "MALLOC_", "GLIBC_", "V8_"},
		func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// VerdictError describes a verdict as an error; nil for success.
func VerdictError(r *sandbox.Result) error {
	if r.Success() {
		return nil
	}
	if r.Exit.Signal != 0 {
		return fmt.Errorf("%s (%s)", r.Verdict, sandbox.SignalName(r.Exit.Signal))
	}
	return fmt.Errorf("%s (exit code %d)", r.Verdict, r.Exit.Code)
}

// Listed returns the first few of many names.
func Listed(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
