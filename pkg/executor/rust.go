package executor

import (
	"bytes"
	"cmp"
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
	edition = cmp.Or(edition, defaultEdition)
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

// manifest of Cargo: what decides which programs a package makes, and what they are called.
type cargoManifest struct {
	dir        string
	name       string // of the package; "" in a workspace that is none itself
	defaultRun string
	runs       bool // a part of it runs while it is compiled
	bins       []cargoBin
}

type cargoBin struct {
	name string
	path string // relative to the tree
}

const cargoToml = "Cargo.toml"

func manifests(files []File) bool {
	return slices.ContainsFunc(files, func(f File) bool { return path.Base(f.Path) == cargoToml })
}

// runsToCompile reports whether a project has code of its own that runs while it is compiled. What that code leaves elsewhere, the
// program may look for; the cache would not bring it back.
func runsToCompile(files []File) bool {
	return slices.ContainsFunc(files, func(f File) bool {
		if vendored(f.Path) {
			return false
		}
		if path.Base(f.Path) == "build.rs" {
			return find(files, path.Join(path.Dir(f.Path), cargoToml)) != nil
		}
		if path.Base(f.Path) != cargoToml {
			return false
		}
		text, err := f.content()
		return err != nil || readManifest("", string(text)).runs
	})
}

func vendored(file string) bool { return strings.Contains("/"+file, "/vendor/") }

// manifestOf is the nearest directory at or above dir that has a manifest, or the top.
func manifestOf(files []File, dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if find(files, path.Join(dir, cargoToml)) != nil {
			return dir
		}
	}
	return "."
}

// chooseBinary decides which program of a project is meant: that whose file is the entry, or the only one.
func chooseBinary(j *job) (dir, bin string, err error) {
	var all []cargoManifest
	for _, f := range j.files {
		if path.Base(f.Path) != cargoToml || vendored(f.Path) {
			continue
		}
		text, err := f.content()
		if err != nil {
			return "", "", err
		}
		m := readManifest(path.Dir(f.Path), string(text))
		m.findBins(j.files)
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b cargoManifest) int { return strings.Compare(a.dir, b.dir) })
	var choices []string
	var chosen []cargoBin
	var dirs []string
	within := j.entry
	asFile := find(j.files, within) != nil
	if !asFile {
		within = manifestOf(j.files, within)
	}
	for _, m := range all {
		if !asFile && j.req.Entry != "" && m.dir != within {
			continue
		}
		for _, b := range m.bins {
			if asFile && b.path != within {
				continue
			}
			if !asFile && m.defaultRun != "" && m.defaultRun != b.name {
				continue
			}
			chosen, dirs, choices = append(chosen, b), append(dirs, m.dir), append(choices, b.path)
		}
	}
	switch {
	case len(chosen) == 1:
		return dirs[0], chosen[0].name, nil
	case len(chosen) > 1 && dirs[0] == ".": // the top's own come before its members'
		if len(dirs) == 1 || dirs[1] != "." {
			return dirs[0], chosen[0].name, nil
		}
		fallthrough
	case len(chosen) > 1:
		return "", "", &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("this project makes several programs: %s", strings.Join(choices, ", ")), Hint: "--entry " + choices[0]}
	case asFile && j.req.Entry != "":
		return "", "", &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("%q is none of the project's programs", within), Hint: "a file in src/bin, or a [[bin]] in Cargo.toml"}
	}
	return "", "", &sandbox.Error{Op: "entry", Kind: sandbox.ErrInvalid, Err: fmt.Errorf("this project makes no program: there is neither src/main.rs nor a file in src/bin"), Hint: "--test, to run its tests"}
}

// readManifest reads the few lines of a manifest that matter here, one key to a line, as everybody writes it; cargo reads the rest.
func readManifest(dir, text string) cargoManifest {
	m := cargoManifest{dir: dir}
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			header, _, _ := strings.Cut(line, "#")
			section = strings.Join(strings.Fields(header), "")
			if section == "[[bin]]" {
				m.bins = append(m.bins, cargoBin{})
			}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		key, value = strings.TrimSpace(key), tomlString(value)
		switch section + " " + key {
		case "[package] name":
			m.name = value
		case "[package] default-run":
			m.defaultRun = value
		case "[package] build", "[lib] proc-macro", "[lib] proc_macro":
			m.runs = true
		case "[[bin]] name":
			m.bins[len(m.bins)-1].name = value
		case "[[bin]] path":
			m.bins[len(m.bins)-1].path = path.Join(dir, value)
		}
	}
	return m
}

// tomlString is the content of a plain string, or "".
func tomlString(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return ""
	}
	inner, _, ok := strings.Cut(s[1:], s[:1])
	if !ok || strings.Contains(inner, `\`) {
		return ""
	}
	return inner
}

// findBins adds the programs that need no mention.
func (m *cargoManifest) findBins(files []File) {
	add := func(name, p string) {
		for i := range m.bins {
			b := &m.bins[i]
			if b.name == name && b.path == "" {
				b.path = p
			}
			if b.name == name || b.path == p {
				return
			}
		}
		m.bins = append(m.bins, cargoBin{name, p})
	}
	if main := path.Join(m.dir, "src/main.rs"); m.name != "" && find(files, main) != nil {
		add(m.name, main)
	}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Path, path.Join(m.dir, "src/bin")+"/")
		if !ok || m.name == "" {
			continue
		}
		name, deeper, nested := strings.Cut(rest, "/")
		switch {
		case nested && deeper == "main.rs":
			add(name, f.Path)
		case !nested && strings.HasSuffix(name, ".rs"):
			add(strings.TrimSuffix(name, ".rs"), f.Path)
		}
	}
	// A name is part of a path here; cargo refuses the others itself.
	m.bins = slices.DeleteFunc(m.bins, func(b cargoBin) bool {
		return b.name == "" || strings.ContainsFunc(b.name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r > 127)
		})
	})
}
