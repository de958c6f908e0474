package python

import (
	"fmt"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var description = toolchain.Description{
	Name: "python", Programs: []string{"python3", "python"}, Query: query,
	First: []string{"$VIRTUAL_ENV/bin/python3", "$VIRTUAL_ENV/bin/python"}, // usually first on PATH
	Places: []string{
		"$PYENV_ROOT/versions/*/bin/python3", "~/.pyenv/versions/*/bin/python3",
		"$ASDF_DATA_DIR/installs/python/*/bin/python3", "~/.asdf/installs/python/*/bin/python3",
		"~/.local/share/mise/installs/python/*/bin/python3",
		"~/.local/share/uv/python/*/bin/python3",
		"$CONDA_PREFIX/bin/python3", "~/miniforge3/bin/python3", "~/mambaforge/bin/python3", "~/miniconda3/bin/python3",
		"~/anaconda3/bin/python3", "/opt/conda/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3", "/usr/bin/python3.*[0-9]",
		"/home/linuxbrew/.linuxbrew/bin/python3", "~/.linuxbrew/bin/python3", "/opt/homebrew/bin/python3",
		"~/.nix-profile/bin/python3", "/nix/var/nix/profiles/default/bin/python3", "/run/current-system/sw/bin/python3",
	},
	Variables: []string{"VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "PYENV_VERSION", "ASDF_PYTHON_VERSION"},
	Settings:  []string{"PYTHONDONTWRITEBYTECODE=1"},
	Packages:  toolchain.Packages{Apt: "python3", Dnf: "python3", Apk: "python3", Pacman: "python", Brew: "python"},
}

// queryScript runs on every Python, so that the error for an old one can name its version.
const queryScript = `import sys, os
def say(k, v): sys.stdout.write("` + toolchain.Mark + `" + k + "=" + str(v) + "\n")
say("version", "%d.%d.%d" % tuple(sys.version_info[:3]))
say("executable", sys.executable)
say("prefix", sys.prefix)
say("base", getattr(sys, "base_prefix", sys.prefix))
say("base_exec", getattr(sys, "base_exec_prefix", sys.exec_prefix))
say("library", os.path.dirname(os.__file__))
`

// oldestMinor is the first minor version of Python 3 that is supported.
const oldestMinor = 9

func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	answer, err := s.Query(found.Name(), "-E", "-s", "-B", "-c", queryScript)
	if err != nil {
		return nil, err
	}
	facts := toolchain.Facts(answer.Stdout)
	t := &toolchain.Toolchain{Version: facts["version"], Path: facts["executable"], Home: facts["prefix"]}
	if old, err := toolchain.OlderThan(t.Version, 3, oldestMinor); err != nil {
		return nil, fmt.Errorf("does not answer as a Python does: %w", err)
	} else if old {
		return nil, fmt.Errorf("Python %s is older than 3.%d", t.Version, oldestMinor) //nolint:staticcheck // a name
	}
	base, library := facts["base"], facts["library"]
	virtual := t.Home != base
	if virtual {
		t.Env = map[string]string{"VIRTUAL_ENV": t.Home}
	}
	if s.InImage() {
		if !filepath.IsAbs(t.Path) {
			t.Path = found.Name()
		}
		return t, nil
	}
	for _, p := range []string{t.Path, t.Home, base, facts["base_exec"], library} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("does not say where it is (%q)", p)
		}
	}
	real, err := s.Probe(t.Path)
	if err != nil {
		return nil, err
	}
	s.BehindShim(found, real.Real(), "$PYENV_ROOT/version", "~/.pyenv/version", "/.python-version")
	v := s.View()
	// The path of its link to the interpreter identifies a virtual environment; other installations are named by their file.
	if virtual {
		if err := showEnvironment(v, t.Home); err != nil {
			return nil, err
		}
		s.Watch(filepath.Join(t.Home, "pyvenv.cfg"))
	} else {
		t.Path = real.Real()
	}
	for _, prefix := range []string{base, facts["base_exec"]} {
		if err := showPrefix(v, prefix, real.Real(), library); err != nil {
			return nil, err
		}
	}
	// Extension modules of the standard library need libraries of their own.
	modules := s.Glob(library, "lib-dynload", "*.so")
	return s.Finish(t, v, found, append(modules, real.Real()))
}

// showEnvironment shows the parts of a virtual environment that Python uses: the directory may contain a whole project.
func showEnvironment(v *toolchain.View, dir string) error {
	v.Together(dir)
	for _, name := range []string{"pyvenv.cfg", "bin", "lib", "lib64"} {
		if err := v.ShowIfExists(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// showPrefix shows the directory of an installation as a whole. From a directory with other contents (a home, ~/.local, an
// installation of conda with its packages and environments) it shows what an interpreter needs.
func showPrefix(v *toolchain.View, prefix, program, library string) error {
	real, err := toolchain.Real(prefix)
	if err != nil {
		return err
	}
	conda := toolchain.Exists(filepath.Join(real, "conda-meta"))
	if toolchain.Shown(real) || !v.Broad(real) && !conda {
		return v.Show(prefix) // including its other names
	}
	v.Together(real)
	parts := []string{program, library}
	if conda {
		for _, name := range []string{"bin", "lib", "share", "ssl", "etc"} {
			parts = append(parts, filepath.Join(prefix, name))
		}
	}
	for _, p := range parts {
		if err := v.ShowIfExists(p); err != nil {
			return err
		}
	}
	return nil
}
