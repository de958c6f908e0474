package golang

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Language is Go.
var Language = language.Language{
	Name: "go", Title: "Go", Aliases: []string{"golang"},
	Extensions: []string{".go", ".txtar"}, Projects: []string{"go.mod", "go.work"},
	Source: "main.go", Mains: []string{"main.go"}, Directory: true,
	Sample:    "package main\n\nfunc main() {}\n",
	Toolchain: &description, Image: "sandbox-run/go", Options: []string{"test", "check"},
	Variables: []string{"GOPATH", "GOMODCACHE", "GOENV"},
	Limits:    sandbox.Limits{Memory: 128 * sandbox.MiB},
	Working:   256 * sandbox.MiB, // 80 MiB were measured for a program with net/http
	Inspect:   findUserModules, Packages: packages, Plan: plan, Cells: NewComposer, CellsDir: "sandbox-run-cell",
}

const (
	// goCacheDir is the directory of the compiled standard library in the sandbox.
	goCacheDir = language.ToolDir + "/go-build"
	// goProxyDir is the directory of the modules from the user's module cache.
	goProxyDir = sandbox.HomeDir + "/.sandbox-run/modules"
	goBinary   = language.BuildDir + "/main"
	// goLinkFlags leave out DWARF: traces do not need it, and no debugger runs in a sandbox.
	goLinkFlags = "-ldflags=-w"
)

// stackSignal is SIGQUIT: the runtime prints the stacks of all goroutines and ends the program. A program that imports os/signal does
// not get it, because it may want to end in an orderly way at SIGTERM.
const stackSignal = 3

// goFlags change compiled packages, and so decide whether an entry of the cache fits. Go before 1.21 applies no profile by
// default, and Go before 1.20 has no flag for it.
func goFlags(version string) []string {
	if minor, err := strconv.Atoi(strings.TrimPrefix(languageVersion(version), "1.")); err == nil && minor < 21 {
		return []string{"-buildvcs=false"}
	}
	return []string{"-buildvcs=false", "-pgo=off"}
}

// noTelemetry is a file without which each go command in a fresh home starts a second one that searches for reports to upload.
var noTelemetry = sandbox.File{Path: sandbox.HomeDir + "/.config/go/telemetry/mode", Data: []byte("off")}

// goEnv returns the variables of the go command, in the sandbox and while the cache is filled on the host: both have to agree on
// everything that affects a compiled package.
func goEnv(cache string) map[string]string {
	return map[string]string{
		"CGO_ENABLED": "0", "GOENV": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOSUMDB": "off", "GOCACHE": cache,
	}
}

func plan(j *language.Job) error {
	p, err := readGo(j)
	if err != nil {
		return err
	}
	modules, _ := j.Inspected.([]goModule)
	if j.Layer != nil {
		modules = layerModules(j.Layer)
	}
	env := map[string]string{}
	maps.Copy(env, j.Tool.Env)
	maps.Copy(env, goEnv(sandbox.TmpDir+"/go-build"))
	warm := j.WarmDir
	if j.OnForeignRoot() {
		warm = "" // it can not be shown
	}
	if warm != "" {
		w := &libraryCache{
			dir: prepared.ToolchainDir(warm, j.Tool), tool: j.Tool, packages: p.imports, modules: modules, manager: j.Manager, image: j.Image,
		}
		if len(p.tests) > 0 {
			w.packages = append(w.packages, "os", "reflect", "testing", "testing/internal/testdeps")
		}
		env["GOCACHE"] = goCacheDir
		j.Plan.Spec.Root.Add = append(j.Plan.Spec.Root.Add, sandbox.Mount{Source: w.buildDir(), Target: goCacheDir})
		if p.direct && j.Image == nil {
			j.Plan.Spec.Root.Add = append(j.Plan.Spec.Root.Add, sandbox.Mount{Source: w.directDir(), Target: goDirectDir})
		}
		j.Plan.Prepare = w.prepare
	}
	if j.Image != nil { // its module cache may be a read-only directory
		env["GOPATH"], env["GOMODCACHE"] = sandbox.HomeDir+"/go", ""
	}
	if j.Layer != nil {
		j.Mount(path.Join(j.Layer.Dir, modulesDir), modulesAt)
		env["GOMODCACHE"] = modulesAt
		if warm != "" {
			env["GODEBUG"] = "goindex=0" // the cache can not take an index of these modules
		}
	}
	for _, m := range modules {
		if len(m.files) == 0 {
			continue
		}
		env["GOPROXY"] = "file://" + goProxyDir
		for _, f := range m.files {
			j.Plan.Files = append(j.Plan.Files, sandbox.File{Path: path.Join(goProxyDir, f.Path), Open: f.Open})
		}
	}
	j.Plan.Files = append(j.Plan.Files, noTelemetry)

	build := func(verb []string, binary string, targets ...string) {
		args := slices.Concat([]string{j.Tool.Path}, verb, goFlags(j.Tool.Version), []string{goLinkFlags})
		if p.vendored {
			args = append(args, "-mod=vendor")
		}
		var products []string
		if binary != "" {
			args = append(args, "-o", binary)
		}
		if strings.HasPrefix(binary, language.BuildDir) {
			products = []string{binary}
		}
		c := j.AddCompile(products, append(args, targets...)...)
		c.Process.Env = env
		c.Process.Workdir = j.Inside(p.root)
		if warm != "" && j.Layer == nil {
			c.RunAgain(missesIndex, "GODEBUG", "goindex=0")
			if p.direct && j.Image == nil {
				c.Process.Args = directly(binary, targets[0], c.Process.Args)
			}
		}
	}
	var run *language.Phase
	switch {
	case p.library && j.Request.Options.Check:
		build([]string{"build"}, "/dev/null", p.target)
		run = j.AddRun(goBinary) // which a check leaves out
	case p.library:
		build([]string{"run"}, "", p.target) // the go command reports that this is no program
		run = j.AddRun(goBinary)
	case len(p.tests) == 0:
		build([]string{"build"}, goBinary, p.target)
		run = j.AddRun(goBinary)
		if !slices.Contains(p.imports, "os/signal") {
			run.Process.StackSignal = stackSignal
		}
	default:
		for i, t := range p.tests {
			build([]string{"test", "-c"}, testBinary(i), t.target)
		}
		if len(p.untested) > 0 {
			var targets []string
			for _, t := range p.untested {
				targets = append(targets, t.target)
			}
			build([]string{"build"}, "/dev/null", targets...)
		}
		run = j.AddRun()
		args := testArgs(j.Request.Args)
		if j.Request.Tests != nil {
			args = append(reportTests(j), args...)
		}
		run.Process.Args = append([]string{"/bin/sh", "-c", testScript(j, p), "test"}, args...)
	}
	if _, own := j.Request.Env["GOMEMLIMIT"]; !own {
		// The collector works harder before the kernel ends the program.
		run.Process.Env = map[string]string{"GOMEMLIMIT": strconv.FormatInt(int64(j.Memory()/10*9), 10)}
	}
	run.OutOfMemory = isOutOfMemory
	return nil
}

// isOutOfMemory recognises that the kernel refused memory to the runtime. The message depends on the address of the heap. Tests print it
// to standard output and exit with 1 (tests.go).
func isOutOfMemory(r *sandbox.Result) bool {
	said := r.Stderr.Edges(sandbox.OutputMemory)
	if r.Exit.Code == 1 {
		said = r.Stdout.Edges(sandbox.OutputMemory)
	}
	return (r.Exit.Code == 1 || r.Exit.Code == 2) && (bytes.Contains(said, []byte("fatal error: runtime: out of memory")) ||
		bytes.Contains(said, []byte("fatal error: out of memory")))
}

// missesIndex recognises that the go command found a package's sources but not its index, which it can not add to a cache
// that is read-only, and so takes the package for missing. Without an index it only takes longer.
func missesIndex(stderr []byte) bool {
	return slices.ContainsFunc([]string{"is not in std", "cannot find package", "no required module provides", "read-only file system"},
		func(sign string) bool { return bytes.Contains(stderr, []byte(sign)) })
}

// quoteShell quotes a string as one word.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// languageVersion returns the major and minor number of a toolchain's version: 1.26 for 1.26.8, 1.27 for 1.27rc1.
func languageVersion(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "go"), ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	return major + "." + rest
}
