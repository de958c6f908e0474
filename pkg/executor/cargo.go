package executor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

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
