package toolchain

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

func golang() language {
	return language{
		name: Go, names: []string{"go"}, ask: askGo, inside: (*inside).golang,
		places: []string{
			"/usr/local/go/bin/go", "/usr/lib/go/bin/go", "/usr/lib/go-*/bin/go", "/usr/bin/go", "~/sdk/go*/bin/go", "~/go/bin/go", "~/.local/go/bin/go",
			"~/.goenv/versions/*/bin/go", "$ASDF_DATA_DIR/installs/golang/*/go/bin/go", "~/.asdf/installs/golang/*/go/bin/go", "~/.local/share/mise/installs/go/*/bin/go",
			"/home/linuxbrew/.linuxbrew/bin/go", "~/.linuxbrew/bin/go", "/opt/homebrew/bin/go",
			"~/.nix-profile/bin/go", "/nix/var/nix/profiles/default/bin/go", "/run/current-system/sw/bin/go",
		},
	}
}

func askGo(h *hunt, found resolved) (*Toolchain, error) {
	said, err := h.ask(found.via[0], "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	root, version, err := goAnswer(said.stdout)
	if err != nil {
		return nil, err
	}
	t := &Toolchain{Name: Go, Version: version, Path: filepath.Join(root, "bin", "go"), Home: root, Programs: map[string]string{}}
	t.Env = map[string]string{"GOROOT": root, "GOTOOLCHAIN": "local"}
	real, err := h.probe(t.Path)
	if err != nil {
		return nil, fmt.Errorf("no go in its GOROOT: %w", err)
	}
	h.behind(found, real.real, "~/.goenv/version")
	if !isDir(filepath.Join(root, "src", "fmt")) {
		return nil, &incomplete{t, "the standard library's source is not in " + root, nil}
	}
	h.trail.add(filepath.Join(root, "VERSION"), filepath.Join(root, "pkg", "tool"))
	if p := h.beside(filepath.Dir(t.Path), "gofmt"); p != "" {
		t.Programs["gofmt"] = p
	}
	v := h.view(Go)
	if err := v.show(root); err != nil {
		return nil, err
	}
	// Distributions spread a GOROOT over several directories and link them.
	for _, part := range []string{"src", "pkg", "lib", "misc", "api"} {
		if p := filepath.Join(root, part); exists(p) {
			if err := v.show(p); err != nil {
				return nil, err
			}
		}
	}
	return h.finish(t, v, found, []string{real.real})
}

// goAnswer reads what `go env GOROOT GOVERSION` prints: a line each.
func goAnswer(out string) (root, version string, err error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		return "", "", errors.New("does not answer as Go does")
	}
	root, version = strings.TrimSpace(lines[0]), versionIn(lines[1])
	if !filepath.IsAbs(root) || filepath.Clean(root) == "/" || version == "" {
		return "", "", errors.New("does not answer as Go does")
	}
	return filepath.Clean(root), version, nil
}
