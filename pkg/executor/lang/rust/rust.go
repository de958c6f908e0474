package rust

import (
	"bytes"
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Language is Rust.
var Language = language.Language{
	Name: "rust", Title: "Rust", Aliases: []string{"rs"},
	Extensions: []string{".rs"}, Projects: []string{"Cargo.toml"},
	Source: "main.rs", Mains: []string{"main.rs", "src/main.rs"}, Directory: true,
	Sample:    "fn main() {}\n",
	Toolchain: &description, Image: "sandbox-run/rust", Options: []string{"release", "edition", "test", "check"},
	Limits:   sandbox.Limits{Memory: 128 * sandbox.MiB},
	Test:     sandbox.Limits{Memory: 1 * sandbox.GiB}, // rustc compiles the tests of the documentation during the run
	Compile:  sandbox.Limits{Wall: 2 * time.Minute},   // the crates of a project are compiled with it
	Working:  512 * sandbox.MiB,                       // 180 MiB were measured for a small program; crates take more
	Packages: packages, Plan: plan, Cells: NewComposer, CellsDir: cellsDir,
}

// defaultEdition is the edition of a file without a project.
const defaultEdition = "2021"

func plan(j *language.Job) error {
	var run *language.Phase
	var err error
	made := false // of a program without a manifest
	if j.Layer != nil {
		if made, err = useLayer(j); err != nil {
			return err
		}
	}
	if manifests(j.Files) {
		run, err = planCargo(j, made)
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

// planRustc compiles one file and its modules.
func planRustc(j *language.Job) (*language.Phase, error) {
	entry, err := entryOf(j)
	if err != nil {
		return nil, err
	}
	edition, err := editionOf(&j.Request.Options)
	if err != nil {
		return nil, err
	}
	// Panics and traces use the file name of this command line.
	args := []string{j.Tool.Path, "--edition", edition, "--crate-name", "main", "--out-dir", language.BuildDir, "-Cdebuginfo=1"}
	if cc := j.Tool.Programs["cc"]; cc != "" {
		args = append(args, "-Clinker="+cc)
	}
	if j.Request.Options.Release {
		args = append(args, "-O")
	}
	if j.Request.Options.Test {
		args = append(args, "--test")
	} else if err := completeSnippet(j, entry); err != nil {
		return nil, err
	}
	const binary = language.BuildDir + "/main"
	if strings.HasPrefix(entry, "-") {
		entry = "./" + entry
	}
	compile := &j.AddCompile([]string{binary}, append(args, entry)...).Process
	compile.Env = maps.Clone(j.Tool.Env)
	compile.Warm = j.WarmCompiler("rustc", entry, compile.Args)
	return j.AddRun(binary), nil
}

// entryOf returns the file with which a program without a manifest starts.
func entryOf(j *language.Job) (string, error) {
	if j.Entry != "." && language.Find(j.Files, j.Entry) != nil {
		return j.Entry, nil
	}
	entry := rustMain(j, j.Entry)
	if entry == "" {
		return "", sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry FILE",
			"which file starts this Rust program? There is none of %s", strings.Join(j.Language.Mains, ", "))
	}
	return entry, nil
}

// editionOf returns the edition of a program without a manifest.
func editionOf(o *language.Options) (string, error) {
	edition := cmp.Or(o.Edition, defaultEdition)
	if !slices.Contains([]string{"2015", "2018", "2021", "2024"}, edition) {
		return "", sandbox.Invalid("edition", "%q is none of 2015, 2018, 2021, 2024", edition)
	}
	return edition, nil
}

// rustMain returns the entry file of a tree without a manifest.
func rustMain(j *language.Job, dir string) string {
	if main := language.FirstFile(j.Files, dir, j.Language.Mains); main != "" {
		return main
	}
	var own []string
	for _, f := range j.Files {
		if path.Ext(f.Path) == ".rs" && path.Dir(f.Path) == dir {
			own = append(own, f.Path)
		}
	}
	if len(own) == 1 {
		return own[0]
	}
	return ""
}

// planCargo builds a project from its own files and the layer: the sandbox has no registry of packages.
func planCargo(j *language.Job, made bool) (*language.Phase, error) {
	if j.Request.Options.Edition != "" && !made {
		return nil, sandbox.Invalid("edition", "the project's Cargo.toml says which edition it is written in")
	}
	cargo := j.Tool.Programs["cargo"]
	if cargo == "" {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "rust", "rustup component add cargo",
			"this is a Cargo project, and there is no cargo beside %s", j.Tool.Path)
	}
	env := map[string]string{
		"CARGO_HOME": cargoHome, "CARGO_TARGET_DIR": language.BuildDir, "CARGO_NET_OFFLINE": "true", "CARGO_INCREMENTAL": "0",
		"CARGO_TERM_COLOR": "never", "RUSTC": j.Tool.Path,
		"RUSTDOC": path.Join(path.Dir(j.Tool.Path), "rustdoc"),
	}
	maps.Copy(env, j.Tool.Env)
	flags := []string{"--offline"}
	if j.Layer != nil {
		flags = append(flags, "--config", layerConfigFile) // it counts more than the project's own
	}
	profile := "debug"
	if j.Request.Options.Release {
		flags, profile = append(flags, "--release"), "release"
	}
	if j.Request.Options.Test {
		dir, err := packageDir(j)
		if err != nil {
			return nil, err
		}
		c := j.AddCompile(nil, slices.Concat([]string{cargo, "test", "--quiet", "--no-run"}, flags)...)
		c.Process.Env, c.Process.Workdir = env, j.Inside(dir)
		// Only cargo knows the names of its tests. It compiles the tests of the documentation while it runs them.
		run := j.AddRun()
		args := j.Request.Args
		if j.Request.Tests != nil {
			env = maps.Clone(env)
			var own []string
			own, args = reportTests(j, env)
			flags = append(flags, own...)
		}
		run.Process.Args = slices.Concat([]string{cargo, "test"}, flags, testArgs(args))
		run.Process.Env, run.Process.Workdir = env, j.Inside(dir)
		return run, nil
	}
	args := append([]string{cargo, "build", "--quiet"}, flags...)
	dir, bin, err := chooseBinary(j)
	if err != nil {
		return nil, err
	}
	binary := path.Join(language.BuildDir, profile, bin)
	produces := []string{binary}
	if runsToCompile(j.Files) {
		produces = nil
	}
	c := j.AddCompile(produces, append(args, "--bin", bin)...)
	c.Process.Env, c.Process.Workdir = env, j.Inside(dir)
	return j.AddRun(binary), nil
}

// testArgs returns the request's arguments as cargo test takes them: its own before a --, those of the tests behind it. Without a -- in
// the request, all are for the tests, except those that only cargo has.
func testArgs(args []string) []string {
	if slices.Contains(args, "--") {
		return args
	}
	var own, tests []string
	for _, a := range args {
		switch a {
		case "-v", "-vv", "--verbose", "--doc", "--lib", "--bins", "--tests", "--examples", "--no-fail-fast", "--workspace", "--all-features":
			own = append(own, a)
		default:
			tests = append(tests, a)
		}
	}
	return slices.Concat(own, []string{"--"}, tests)
}

// cargoManifest has the parts of a manifest that decide which programs a package has, and their names.
type cargoManifest struct {
	dir        string
	name       string // of the package; "" in a workspace without a package
	defaultRun string
	runs       bool // a part of it runs during the compilation
	bins       []cargoBin
}

type cargoBin struct {
	name string
	path string // relative to the tree
}

const cargoToml = "Cargo.toml"

func manifests(files []language.File) bool {
	return slices.ContainsFunc(files, func(f language.File) bool { return path.Base(f.Path) == cargoToml })
}

// runsToCompile reports whether a project has code that runs during its compilation. The program may need files that this code
// leaves elsewhere, which the cache does not restore.
func runsToCompile(files []language.File) bool {
	return slices.ContainsFunc(files, func(f language.File) bool {
		if vendored(f.Path) {
			return false
		}
		if path.Base(f.Path) == "build.rs" {
			return language.Find(files, path.Join(path.Dir(f.Path), cargoToml)) != nil
		}
		if path.Base(f.Path) != cargoToml {
			return false
		}
		text, err := f.Content()
		return err != nil || readManifest("", string(text)).runs
	})
}

func vendored(file string) bool { return strings.Contains("/"+file, "/vendor/") }

// manifestOf returns the nearest directory at or above dir with a manifest, or the top.
func manifestOf(files []language.File, dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if language.Find(files, path.Join(dir, cargoToml)) != nil {
			return dir
		}
	}
	return "."
}

// packageDir returns the directory of the package that is built.
func packageDir(j *language.Job) (dir string, err error) {
	if !j.Request.Options.Test {
		dir, _, err = chooseBinary(j)
		return dir, err
	}
	dir = j.Entry
	if language.Find(j.Files, dir) != nil {
		dir = path.Dir(dir)
	}
	return manifestOf(j.Files, dir), nil
}

// chooseBinary returns the program of a project to run: that of the entry file, or the only one.
func chooseBinary(j *language.Job) (dir, bin string, err error) {
	var all []cargoManifest
	for _, f := range j.Files {
		if path.Base(f.Path) != cargoToml || vendored(f.Path) {
			continue
		}
		text, err := f.Content()
		if err != nil {
			return "", "", err
		}
		m := readManifest(path.Dir(f.Path), string(text))
		m.findBins(j.Files)
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b cargoManifest) int { return strings.Compare(a.dir, b.dir) })
	var choices []string
	var chosen []cargoBin
	var dirs []string
	within := j.Entry
	asFile := language.Find(j.Files, within) != nil
	if !asFile {
		within = manifestOf(j.Files, within)
	}
	for _, m := range all {
		if !asFile && j.Request.Entry != "" && m.dir != within {
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
	case len(chosen) > 1 && dirs[0] == ".": // programs of the top come before those of members
		if len(dirs) == 1 || dirs[1] != "." {
			return dirs[0], chosen[0].name, nil
		}
		fallthrough
	case len(chosen) > 1:
		return "", "", sandbox.Errorf(sandbox.ErrInvalid, "entry", "--entry "+sandbox.ShellQuote(choices[0]),
			"this project makes several programs: %s", strings.Join(choices, ", "))
	case asFile && j.Request.Entry != "":
		return "", "", sandbox.Errorf(sandbox.ErrInvalid, "entry", "a file in src/bin, or a [[bin]] in Cargo.toml",
			"%q is none of the project's programs", within)
	}
	return "", "", sandbox.Errorf(sandbox.ErrInvalid, "entry", "--test, to run its tests",
		"this project makes no program: there is neither src/main.rs nor a file in src/bin")
}

// readManifest reads the few lines of a manifest that matter here, one key per line, as is usual; cargo reads the rest.
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
		key, value = strings.TrimSpace(key), language.TOMLString(value)
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

// findBins adds the programs that the manifest need not mention.
func (m *cargoManifest) findBins(files []language.File) {
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
	if main := path.Join(m.dir, "src/main.rs"); m.name != "" && language.Find(files, main) != nil {
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
	// The name is part of a path here; cargo refuses invalid names itself.
	m.bins = slices.DeleteFunc(m.bins, func(b cargoBin) bool {
		return b.name == "" || strings.ContainsFunc(b.name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r > 127)
		})
	})
}
