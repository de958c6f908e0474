package shell

import (
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var description = toolchain.Description{
	Name: "shell", Programs: []string{"bash", "sh"}, Query: query,
	Places: []string{
		"/usr/bin/bash", "/bin/bash", "/usr/local/bin/bash", "/usr/bin/sh", "/bin/sh",
		"~/.nix-profile/bin/bash", "/run/current-system/sw/bin/bash",
	},
	Packages: toolchain.Packages{Apt: "bash", Dnf: "bash", Apk: "bash", Pacman: "bash", Brew: "bash"},
}

// query finds bash, or sh without bash. Other shells are programs with their own names.
func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	t := &toolchain.Toolchain{Path: found.Inside(), Home: filepath.Dir(found.Real()), Programs: map[string]string{}}
	isBash := filepath.Base(found.Name()) == "bash"
	if isBash {
		answer, err := s.Query(found.Name(), "--version")
		if err != nil {
			return nil, err
		}
		t.Version = toolchain.Version(toolchain.FirstLine(answer.Stdout))
	} else if s.InImage() {
		if _, err := s.Query(found.Name(), "-c", ":"); err != nil {
			return nil, err
		}
	}
	nothing := []string{"-c", ":"}
	for _, role := range []string{"bash", "sh", "zsh"} {
		r, ok := s.Named(nothing, role)
		if role == "sh" {
			// Several shells have that name, and behave by it: the system's shell is called by that name.
			r, ok = s.OfSystem(nothing, role)
		}
		if ok {
			t.Programs[role] = r.Inside()
		}
	}
	if isBash || s.InImage() {
		t.Programs[filepath.Base(found.Name())] = t.Path
	}
	return s.Finish(t, s.View(), found, nil)
}
