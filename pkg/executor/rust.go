package executor

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var rust = Language{
	Name: "rust", Title: "Rust", Aliases: []string{"rs"},
	Extensions: []string{".rs"}, Projects: []string{"Cargo.toml"},
	Source: "main.rs", Mains: []string{"main.rs", "src/main.rs"}, Directory: true,
	Toolchain: "rust", Options: []string{"release", "edition", "test"},
	Limits:  sandbox.Limits{Memory: 128 * sandbox.MiB},
	Compile: sandbox.Limits{Wall: 2 * time.Minute}, // a project's crates are compiled with it
	Working: 512 * sandbox.MiB,                     // 180 MiB were seen for a small program; crates take more
	plan:    planRust,
}

// defaultEdition is what a file without a project is written in.
const defaultEdition = "2021"

func planRust(j *job) error {
	var run *Phase
	var err error
	if manifests(j.files) {
		run, err = planCargo(j)
	} else {
		run, err = planRustc(j)
	}
	if err != nil {
		return err
	}
	run.OutOfMemory = func(r *sandbox.Result) bool {
		return r.Exit.Signal == int(syscall.SIGABRT) && bytes.Contains(r.Stderr.Edges(sandbox.OutputMemory), []byte("memory allocation of "))
	}
	return nil
}

// planRustc compiles one file, and those it names as its modules.
func planRustc(j *job) (*Phase, error) {
	entry := j.entry
	if entry == "." || find(j.files, entry) == nil {
		entry = rustMain(j, entry)
		if entry == "" {
			return nil, &sandbox.Error{
				Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("which file starts this Rust program? There is none of %s", strings.Join(j.lang.Mains, ", ")),
				Hint: "--entry FILE",
			}
		}
	}
	edition := j.req.Options.Edition
	pick(&edition, defaultEdition)
	if !slices.Contains([]string{"2015", "2018", "2021", "2024"}, edition) {
		return nil, sandbox.Invalid("edition", "%q is none of 2015, 2018, 2021, 2024", edition)
	}
	// Panics and traces name the file as it is named here.
	args := []string{j.tool.Path, "--edition", edition, "--crate-name", "main", "--out-dir", buildDir, "-Cdebuginfo=1"}
	if cc := j.tool.Programs["cc"]; cc != "" {
		args = append(args, "-Clinker="+cc)
	}
	if j.req.Options.Release {
		args = append(args, "-O")
	}
	if j.req.Options.Test {
		args = append(args, "--test")
	}
	const binary = buildDir + "/main"
	if strings.HasPrefix(entry, "-") {
		entry = "./" + entry
	}
	compile := &j.compile([]string{binary}, append(args, entry)...).Process
	compile.Env = maps.Clone(j.tool.Env)
	compile.Warm = j.compilerWarm("rustc", entry, compile.Args)
	return j.run(binary), nil
}

// rustMain is the file that starts a tree without a manifest.
func rustMain(j *job, dir string) string {
	files := j.files
	for _, m := range j.lang.Mains {
		if p := path.Join(dir, m); find(files, p) != nil {
			return p
		}
	}
	var own []string
	for _, f := range files {
		if path.Ext(f.Path) == ".rs" && path.Dir(f.Path) == dir {
			own = append(own, f.Path)
		}
	}
	if len(own) == 1 {
		return own[0]
	}
	return ""
}

// planCargo builds a project with what is in it: there is no registry to ask.
func planCargo(j *job) (*Phase, error) {
	if j.req.Options.Edition != "" {
		return nil, sandbox.Invalid("edition", "the project's Cargo.toml says which edition it is written in")
	}
	cargo := j.tool.Programs["cargo"]
	if cargo == "" {
		return nil, &sandbox.Error{Op: "rust", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("this is a Cargo project, and there is no cargo beside %s", j.tool.Path), Hint: "rustup component add cargo"}
	}
	env := map[string]string{
		"CARGO_HOME": sandbox.HomeDir + "/.cargo", "CARGO_TARGET_DIR": buildDir, "CARGO_NET_OFFLINE": "true", "CARGO_INCREMENTAL": "0",
		"CARGO_TERM_COLOR": "never", "RUSTC": j.tool.Path,
	}
	maps.Copy(env, j.tool.Env)
	args := []string{cargo, "build", "--offline", "--quiet"}
	if j.req.Options.Test {
		args[1] = "test"
	}
	profile := "debug"
	if j.req.Options.Release {
		args, profile = append(args, "--release"), "release"
	}
	if j.req.Options.Test {
		// Cargo alone knows what its tests are called. Examples in comments would be compiled while they run: left out.
		args = append(args, "--all-targets")
		dir := j.entry
		if find(j.files, dir) != nil {
			dir = path.Dir(dir)
		}
		dir = manifestOf(j.files, dir)
		c := j.compile(nil, append(slices.Clone(args), "--no-run")...)
		c.Process.Env, c.Process.Workdir = env, j.inside(dir)
		run := j.run(append(args, "--")...)
		run.Process.Env, run.Process.Workdir = env, j.inside(dir)
		return run, nil
	}
	dir, bin, err := chooseBinary(j)
	if err != nil {
		return nil, err
	}
	binary := path.Join(buildDir, profile, bin)
	produces := []string{binary}
	if runsToCompile(j.files) {
		produces = nil
	}
	c := j.compile(produces, append(args, "--bin", bin)...)
	c.Process.Env, c.Process.Workdir = env, j.inside(dir)
	return j.run(binary), nil
}
