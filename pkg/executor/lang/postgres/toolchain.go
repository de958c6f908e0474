package postgres

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

var description = toolchain.Description{
	Name: "postgres", Programs: []string{"postgres"}, Query: query,
	Places: []string{
		"/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres", "/usr/libexec/postgresql*/postgres", "/usr/local/pgsql/bin/postgres",
		"/usr/bin/postgres", "/usr/local/bin/postgres", "/opt/postgresql*/bin/postgres",
		"$ASDF_DATA_DIR/installs/postgres/*/bin/postgres", "~/.asdf/installs/postgres/*/bin/postgres",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin/postgres", "/opt/homebrew/opt/postgresql@*/bin/postgres",
		"~/.nix-profile/bin/postgres", "/nix/var/nix/profiles/default/bin/postgres", "/run/current-system/sw/bin/postgres",
	},
	Packages: toolchain.Packages{
		Apt: "postgresql", Dnf: "postgresql-server", Apk: "postgresql postgresql-client", Pacman: "postgresql", Brew: "postgresql",
	},
}

func query(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
	answer, err := s.Query(found.Name(), "--version")
	if err != nil {
		return nil, err
	}
	if !strings.Contains(answer.Stdout, "PostgreSQL") {
		return nil, errors.New("does not answer as PostgreSQL does")
	}
	_, after, _ := strings.Cut(answer.Stdout, "PostgreSQL)")
	bin := filepath.Dir(found.Real())
	if !s.Sees() {
		if answer, err = s.Query("pg_config", "--bindir"); err != nil {
			return nil, fmt.Errorf("does not say where it is: %w", err)
		}
		bin = filepath.Clean(strings.TrimSpace(answer.Stdout))
	}
	t := &toolchain.Toolchain{
		Version: toolchain.Version(after), Path: filepath.Join(bin, "postgres"), Home: bin, Programs: map[string]string{},
	}
	if !s.InImage() {
		t.Path = found.Real() // independent of its name
		t.Programs["postgres"] = t.Path
	}
	for _, role := range []string{"postgres", "initdb", "psql", "pg_ctl"} {
		if t.Programs[role] != "" {
			continue
		}
		p := s.At(filepath.Join(bin, role), "--version")
		if p == "" && (role == "psql" || role == "pg_ctl") && !s.InImage() {
			if r, ok := s.Named(nil, role); ok {
				p = r.Real()
			}
		}
		// Debian's psql on PATH is a script that selects a version by its configuration, which the sandbox does not show.
		if p != "" && filepath.Base(p) != "pg_wrapper" {
			t.Programs[role] = p
		}
	}
	for _, role := range []string{"postgres", "initdb", "psql"} {
		if t.Programs[role] == "" {
			return nil, s.Incomplete(t, fmt.Sprintf("%s is not there for version %s", role, t.Version))
		}
	}
	if s.InImage() {
		return t, nil
	}
	prefix := filepath.Dir(bin)
	major, _, _ := strings.Cut(t.Version, ".")
	v := s.View()
	if !toolchain.Shown(prefix) {
		if err := v.Show(prefix); err != nil {
			return nil, err
		}
	}
	// The files of a new cluster are below the prefix, or in the distribution's directory for data.
	for _, share := range []string{prefix + "/share/postgresql", prefix + "/share", "/usr/share/postgresql/" + major, "/usr/share/postgresql",
		"/usr/share/pgsql"} {
		if toolchain.Exists(share + "/postgres.bki") {
			if err := v.Show(share); err != nil {
				return nil, err
			}
			break
		}
	}
	return s.Finish(t, v, found, s.Glob(prefix, "lib", "*.so"))
}
