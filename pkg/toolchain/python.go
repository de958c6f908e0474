package toolchain

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

func python() language {
	return language{
		name: Python, names: []string{"python3", "python"}, ask: askPython, inside: (*inside).python,
		places: []string{
			"$PYENV_ROOT/versions/*/bin/python3", "~/.pyenv/versions/*/bin/python3",
			"$ASDF_DATA_DIR/installs/python/*/bin/python3", "~/.asdf/installs/python/*/bin/python3", "~/.local/share/mise/installs/python/*/bin/python3",
			"~/.local/share/uv/python/*/bin/python3",
			"$CONDA_PREFIX/bin/python3", "~/miniforge3/bin/python3", "~/mambaforge/bin/python3", "~/miniconda3/bin/python3", "~/anaconda3/bin/python3", "/opt/conda/bin/python3",
			"/usr/local/bin/python3", "/usr/bin/python3", "/usr/bin/python3.*[0-9]",
			"/home/linuxbrew/.linuxbrew/bin/python3", "~/.linuxbrew/bin/python3", "/opt/homebrew/bin/python3",
			"~/.nix-profile/bin/python3", "/nix/var/nix/profiles/default/bin/python3", "/run/current-system/sw/bin/python3",
		},
	}
}

// pythonScript is understood by every Python there is, so that one which is too old can say so.
const pythonScript = `import sys, os
def say(k, v): sys.stdout.write("` + mark + `" + k + "=" + str(v) + "\n")
say("version", "%d.%d.%d" % tuple(sys.version_info[:3]))
say("executable", sys.executable)
say("prefix", sys.prefix)
say("base", getattr(sys, "base_prefix", sys.prefix))
say("base_exec", getattr(sys, "base_exec_prefix", sys.exec_prefix))
say("library", os.path.dirname(os.__file__))
`

// oldestPython is the first minor version of Python 3 that is supported.
const oldestPython = 9

func askPython(h *hunt, found resolved) (*Toolchain, error) {
	said, err := h.ask(found.via[0], "-E", "-s", "-B", "-c", pythonScript)
	if err != nil {
		return nil, err
	}
	facts := told(said.stdout)
	t := &Toolchain{Name: Python, Version: facts["version"], Path: facts["executable"], Home: facts["prefix"]}
	if old, err := olderThan(t.Version, 3, oldestPython); err != nil {
		return nil, fmt.Errorf("does not answer as a Python does: %w", err)
	} else if old {
		return nil, fmt.Errorf("Python %s is older than 3.%d", t.Version, oldestPython) //nolint:staticcheck // a name
	}
	base, library := facts["base"], facts["library"]
	for _, p := range []string{t.Path, t.Home, base, facts["base_exec"], library} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("does not say where it is (%q)", p)
		}
	}
	real, err := h.probe(t.Path)
	if err != nil {
		return nil, err
	}
	h.behind(found, real.real, "$PYENV_ROOT/version", "~/.pyenv/version", "/.python-version")
	v := h.view(Python)
	// What a virtual environment is told by the place of its link to the interpreter; all else is named by its file.
	if t.Home != base {
		t.Env = map[string]string{"VIRTUAL_ENV": t.Home}
		if err := showEnvironment(v, t.Home); err != nil {
			return nil, err
		}
		h.trail.add(filepath.Join(t.Home, "pyvenv.cfg"))
	} else {
		t.Path = real.real
	}
	for _, prefix := range []string{base, facts["base_exec"]} {
		if err := showPrefix(v, prefix, real.real, library); err != nil {
			return nil, err
		}
	}
	// Extension modules of the standard library have libraries of their own.
	modules, _ := filepath.Glob(filepath.Join(globQuote(library), "lib-dynload", "*.so"))
	return h.finish(t, v, found, append(modules, real.real))
}

// showEnvironment shows of a virtual environment what Python uses: the directory may be a whole project's.
func showEnvironment(v *view, dir string) error {
	v.together(dir)
	for _, name := range []string{"pyvenv.cfg", "bin", "lib", "lib64"} {
		if p := filepath.Join(dir, name); exists(p) {
			if err := v.show(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// showPrefix shows an installation's own directory as a whole, and of one that it shares with others (a home, ~/.local, an
// installation of conda's with its packages and environments) what an interpreter needs.
func showPrefix(v *view, prefix, program, library string) error {
	r, err := resolve(prefix)
	if err != nil {
		return err
	}
	if shown(r.real) {
		return v.show(prefix) // its other names, if it has any
	}
	if !v.broad(r.real) && !exists(filepath.Join(r.real, "conda-meta")) {
		return v.show(prefix)
	}
	v.together(r.real)
	parts := []string{program, library}
	if exists(filepath.Join(r.real, "conda-meta")) {
		for _, name := range []string{"bin", "lib", "share", "ssl", "etc"} {
			parts = append(parts, filepath.Join(prefix, name))
		}
	}
	for _, p := range parts {
		if !exists(p) {
			continue
		}
		if err := v.show(p); err != nil {
			return err
		}
	}
	return nil
}

// olderThan compares the first two numbers of a version.
func olderThan(version string, major, minor int) (bool, error) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false, errors.New("it names no version")
	}
	a, err := strconv.Atoi(parts[0])
	if err != nil {
		return false, err
	}
	b, err := strconv.Atoi(parts[1])
	if err != nil {
		return false, err
	}
	return a < major || a == major && b < minor, nil
}

// globQuote makes a path a pattern that matches only itself.
func globQuote(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}
