package golang

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var description = toolchain.Description{
	Name: "go", Programs: []string{"go"}, Query: query,
	Places: []string{
		"/usr/local/go/bin/go", "/usr/lib/go/bin/go", "/usr/lib/go-*/bin/go", "/usr/bin/go", "~/sdk/go*/bin/go", "~/go/bin/go",
		"~/.local/go/bin/go",
		"~/.goenv/versions/*/bin/go",
		"$ASDF_DATA_DIR/installs/golang/*/go/bin/go", "~/.asdf/installs/golang/*/go/bin/go", "~/.local/share/mise/installs/go/*/bin/go",
		"/home/linuxbrew/.linuxbrew/bin/go", "~/.linuxbrew/bin/go", "/opt/homebrew/bin/go",
		"~/.nix-profile/bin/go", "/nix/var/nix/profiles/default/bin/go", "/run/current-system/sw/bin/go",
	},
	Variables: []string{"ASDF_GOLANG_VERSION"},
	Settings:  []string{"GOTOOLCHAIN=local", "GOENV=off", "GOWORK=off", "GOFLAGS=", "GOPROXY=off"},
	Packages:  toolchain.Packages{Apt: "golang-go", Dnf: "golang", Apk: "go", Pacman: "go", Brew: "go"},
}

func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	answer, err := s.Query(found.Name(), "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	root, version, err := readGoEnv(answer.Stdout)
	if err != nil {
		return nil, err
	}
	t := &toolchain.Toolchain{Version: version, Path: filepath.Join(root, "bin", "go"), Home: root, Programs: map[string]string{}}
	t.Env = map[string]string{"GOROOT": root, "GOTOOLCHAIN": "local"}
	real, err := s.Probe(t.Path)
	if err != nil {
		return nil, fmt.Errorf("no go in its GOROOT: %w", err)
	}
	s.BehindShim(found, real.Real(), "~/.goenv/version")
	if !s.HasDir(filepath.Join(root, "src", "fmt")) {
		return nil, s.Incomplete(t, "the standard library's source is not in "+root)
	}
	s.Watch(filepath.Join(root, "VERSION"), filepath.Join(root, "pkg", "tool"))
	if p := s.At(filepath.Join(root, "bin", "gofmt"), "-h"); p != "" {
		t.Programs["gofmt"] = p
	}
	v := s.View()
	if err := v.Show(root); err != nil {
		return nil, err
	}
	// Distributions spread a GOROOT over several directories and link them.
	for _, part := range []string{"src", "pkg", "lib", "misc", "api"} {
		if err := v.ShowIfExists(filepath.Join(root, part)); err != nil {
			return nil, err
		}
	}
	return s.Finish(t, v, found, []string{real.Real()})
}

// readGoEnv reads the output of `go env GOROOT GOVERSION`: a line each.
func readGoEnv(out string) (root, version string, err error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		return "", "", errors.New("does not answer as Go does")
	}
	root, version = strings.TrimSpace(lines[0]), toolchain.Version(lines[1])
	if !filepath.IsAbs(root) || filepath.Clean(root) == "/" || version == "" {
		return "", "", errors.New("does not answer as Go does")
	}
	return filepath.Clean(root), version, nil
}
