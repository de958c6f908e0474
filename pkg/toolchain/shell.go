package toolchain

import (
	"path/filepath"
)

func shell() language {
	return language{
		name: Shell, names: []string{"bash", "sh"}, ask: askShell, inside: (*inside).shell,
		places: []string{
			"/usr/bin/bash", "/bin/bash", "/usr/local/bin/bash", "/usr/bin/sh", "/bin/sh",
			"~/.nix-profile/bin/bash", "/run/current-system/sw/bin/bash",
		},
	}
}

// askShell takes bash, or whatever sh is where there is none; other shells are programs by their names.
func askShell(h *hunt, found resolved) (*Toolchain, error) {
	t := &Toolchain{Name: Shell, Path: nameInside(found), Home: filepath.Dir(found.real), Programs: map[string]string{}}
	if filepath.Base(found.via[0]) == "bash" {
		said, err := h.ask(found.via[0], "--version")
		if err != nil {
			return nil, err
		}
		t.Version = versionIn(firstLine(said.stdout))
	}
	for _, role := range []string{"bash", "sh", "zsh"} {
		r, ok := h.onPath(role)
		if role == "sh" {
			// Several shells answer to that name, each in its own manner: the system's is meant, by that very name.
			r, ok = h.in(h.system, role)
		}
		if ok {
			t.Programs[role] = nameInside(r)
		}
	}
	if filepath.Base(found.via[0]) == "bash" {
		t.Programs["bash"] = t.Path
	}
	return h.finish(t, h.view(Shell), found, nil)
}
