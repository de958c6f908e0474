package executor

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var golang = Language{
	Name: "go", Title: "Go", Aliases: []string{"golang"},
	Extensions: []string{".go", ".txtar"}, Projects: []string{"go.mod", "go.work"},
	Source: "main.go", Mains: []string{"main.go"}, Directory: true,
	Toolchain: "go", Options: []string{"test"},
	Limits:  sandbox.Limits{Memory: 128 * sandbox.MiB},
	Working: 256 * sandbox.MiB, // 80 MiB were seen for one that uses net/http
	look:    lookForModules, plan: planGo,
}

const (
	// goCacheDir is where the standard library is shown as the compiler made it.
	goCacheDir = ToolDir + "/go-build"
	// goProxyDir is where modules lie that were in the user's module cache.
	goProxyDir = sandbox.HomeDir + "/.sandbox-run/modules"
	goBinary   = buildDir + "/main"
	// goLinkFlags: what is debugged here is debugged by its traces, which need no DWARF.
	goLinkFlags = "-ldflags=-w"
)

// goFlags decide what a compiled package looks like, and so whether one in the cache fits. Before 1.21 there is no profile that is taken
// unasked, and before 1.20 no flag to say so.
func goFlags(version string) []string {
	if minor, err := strconv.Atoi(strings.TrimPrefix(languageVersion(version), "1.")); err == nil && minor < 21 {
		return []string{"-buildvcs=false"}
	}
	return []string{"-buildvcs=false", "-pgo=off"}
}

// goEnv is for the go command, inside and when the cache is filled outside: both have to agree on everything that goes into a
// compiled package.
func goEnv(cache string) map[string]string {
	return map[string]string{
		"CGO_ENABLED": "0", "GOENV": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOSUMDB": "off", "GOCACHE": cache,
	}
}

func planGo(j *job) error {
	p, err := readGo(j)
	if err != nil {
		return err
	}
	env := maps.Clone(j.tool.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, goEnv(sandbox.TmpDir+"/go-build"))
	warm := j.warmDir
	if j.kept() {
		warm = "" // it could not be shown
	}
	if warm != "" {
		w := &goWarmth{
			dir: warmDirOf(warm, j.tool), tool: j.tool, packages: p.imports, modules: j.modules, engine: j.engine, image: j.image,
		}
		if len(p.tests) > 0 {
			w.packages = append(w.packages, "os", "reflect", "testing", "testing/internal/testdeps")
		}
		env["GOCACHE"] = goCacheDir
		j.plan.Spec.Root.Add = append(j.plan.Spec.Root.Add, sandbox.Mount{Source: w.buildDir(), Target: goCacheDir})
		if p.direct && j.image == nil {
			j.plan.Spec.Root.Add = append(j.plan.Spec.Root.Add, sandbox.Mount{Source: w.directDir(), Target: goDirectDir})
		}
		j.plan.prepare = w.prepare
	}
	if j.image != nil { // which may say where its modules are, and nothing can be written there
		env["GOPATH"], env["GOMODCACHE"] = sandbox.HomeDir+"/go", ""
	}
	for _, m := range j.modules {
		env["GOPROXY"] = "file://" + goProxyDir
		for _, f := range m.files {
			j.plan.Files = append(j.plan.Files, sandbox.File{Path: path.Join(goProxyDir, f.Path), Open: f.Open})
		}
	}
	// Without this, each go command in a fresh home starts a second one that looks for reports to upload.
	j.plan.Files = append(j.plan.Files, sandbox.File{Path: sandbox.HomeDir + "/.config/go/telemetry/mode", Data: []byte("off")})

	build := func(verb []string, binary, target string) {
		args := slices.Concat([]string{j.tool.Path}, verb, goFlags(j.tool.Version), []string{goLinkFlags})
		if p.vendored {
			args = append(args, "-mod=vendor")
		}
		args = append(args, "-o", binary, target)
		c := j.compile([]string{binary}, args...)
		c.Process.Env = env
		c.Process.Workdir = j.inside(p.root)
		if warm != "" {
			c.again(missesIndex, "GODEBUG", "goindex=0")
			if p.direct && j.image == nil {
				c.Process.Args = directly(binary, target, args)
			}
		}
	}
	var run *Phase
	switch len(p.tests) {
	case 0:
		build([]string{"build"}, goBinary, p.target)
		run = j.run(goBinary)
	case 1:
		build([]string{"test", "-c", "-vet=off"}, goBinary+".test", p.tests[0].target)
		run = j.run(goBinary+".test", "-test.paniconexit0", "-test.v")
		run.Process.Workdir = j.inside(p.tests[0].dir)
	default:
		// As go test does, each in its own directory, and all of them even if one fails.
		script := "code=0\n"
		for i, t := range p.tests {
			binary := buildDir + "/" + strconv.Itoa(i) + ".test"
			build([]string{"test", "-c", "-vet=off"}, binary, t.target)
			script += "(cd " + quoteShell(j.inside(t.dir)) + " && exec " + binary + " -test.paniconexit0 -test.v \"$@\") || code=1\n"
		}
		run = j.run("/bin/sh", "-c", script+"exit $code", "test")
	}
	if _, own := j.req.Env["GOMEMLIMIT"]; !own {
		// The collector works harder before the kernel ends the program.
		run.Process.Env = map[string]string{"GOMEMLIMIT": strconv.FormatInt(int64(j.memory()/10*9), 10)}
	}
	run.OutOfMemory = goOutOfMemory
	return nil
}

// goOutOfMemory recognises that the runtime was refused memory. Which words it has depends on where its heap happens to lie.
func goOutOfMemory(r *sandbox.Result) bool {
	said := r.Stderr.Edges(sandbox.OutputMemory)
	return r.Exit.Code == 2 && (bytes.Contains(said, []byte("fatal error: runtime: out of memory")) || bytes.Contains(said, []byte("fatal error: out of memory")))
}

// missesIndex recognises that the go command found a package's sources but not its index, which it can not add to a cache
// that is read-only, and so takes the package for missing. Without an index it only takes longer.
func missesIndex(stderr []byte) bool {
	for _, sign := range []string{"is not in std", "cannot find package", "no required module provides", "read-only file system"} {
		if bytes.Contains(stderr, []byte(sign)) {
			return true
		}
	}
	return false
}

// quoteShell makes one word of a string.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// languageVersion is the major and minor number of a toolchain's version: 1.26 of 1.26.8, 1.27 of 1.27rc1.
func languageVersion(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "go"), ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	return major + "." + rest
}
