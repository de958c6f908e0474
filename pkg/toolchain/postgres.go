package toolchain

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

func postgres() language {
	return language{
		name: Postgres, names: []string{"postgres"}, ask: askPostgres, inside: (*inside).postgres,
		places: []string{
			"/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres", "/usr/libexec/postgresql*/postgres", "/usr/local/pgsql/bin/postgres",
			"/usr/bin/postgres", "/usr/local/bin/postgres", "/opt/postgresql*/bin/postgres",
			"$ASDF_DATA_DIR/installs/postgres/*/bin/postgres", "~/.asdf/installs/postgres/*/bin/postgres",
			"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin/postgres", "/opt/homebrew/opt/postgresql@*/bin/postgres",
			"~/.nix-profile/bin/postgres", "/nix/var/nix/profiles/default/bin/postgres", "/run/current-system/sw/bin/postgres",
		},
	}
}

func askPostgres(h *hunt, found resolved) (*Toolchain, error) {
	said, err := h.ask(found.via[0], "--version")
	if err != nil {
		return nil, err
	}
	if !strings.Contains(said.stdout, "PostgreSQL") {
		return nil, errors.New("does not answer as PostgreSQL does")
	}
	_, after, _ := strings.Cut(said.stdout, "PostgreSQL)")
	bin := filepath.Dir(found.real)
	t := &Toolchain{Name: Postgres, Version: versionIn(after), Path: found.real, Home: bin, Programs: map[string]string{"postgres": found.real}}
	for _, role := range []string{"initdb", "psql", "pg_ctl"} {
		p := h.beside(bin, role)
		if p == "" && role != "initdb" {
			if r, ok := h.onPath(role); ok {
				p = r.real
			}
		}
		// Debian's psql on PATH is a script that chooses one by its configuration, which is not shown.
		if p != "" && filepath.Base(p) != "pg_wrapper" {
			t.Programs[role] = p
		}
	}
	for _, role := range []string{"initdb", "psql"} {
		if t.Programs[role] == "" {
			return nil, &incomplete{t, fmt.Sprintf("%s is not there for version %s", role, t.Version), h.install(Postgres)}
		}
	}
	prefix := filepath.Dir(bin)
	major, _, _ := strings.Cut(t.Version, ".")
	v := h.view(Postgres)
	if !shown(prefix) {
		if err := v.show(prefix); err != nil {
			return nil, err
		}
	}
	// What a new cluster is made of lies below the prefix, or where the distribution keeps what is not a program.
	for _, share := range []string{prefix + "/share/postgresql", prefix + "/share", "/usr/share/postgresql/" + major, "/usr/share/postgresql", "/usr/share/pgsql"} {
		if exists(share + "/postgres.bki") {
			if err := v.show(share); err != nil {
				return nil, err
			}
			break
		}
	}
	modules, _ := filepath.Glob(filepath.Join(globQuote(prefix), "lib", "*.so"))
	return h.finish(t, v, found, modules)
}
