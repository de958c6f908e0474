package toolchain

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// tempStore is a finder over this machine whose findings nobody else sees.
func tempStore(t testing.TB) *Finder {
	t.Helper()
	return &Finder{Store: filepath.Join(t.TempDir(), "cache", "toolchains.json")}
}

// The toolchains of this very machine: scripts/deps.sh sees to it that there is one of each.
func TestRealToolchains(t *testing.T) {
	testenv.NeedSystem(t)
	f := tempStore(t)
	for _, found := range f.All(context.Background()) {
		t.Run(found.Name, func(t *testing.T) {
			if found.Err != nil {
				t.Fatal(found.Err)
			}
			tool := found.Toolchain
			if tool.Name != found.Name || tool.Version == "" || tool.ID == "" || tool.Found == "" {
				t.Errorf("incomplete answer: %+v", tool)
			}
			for role, p := range tool.Programs {
				if !filepath.IsAbs(p) {
					t.Errorf("%s is %q, no absolute path", role, p)
				}
			}
			home, _ := os.UserHomeDir()
			for _, m := range tool.Mounts {
				r, err := resolve(m.Source)
				if err != nil || len(r.links) > 0 || r.real != m.Source {
					t.Errorf("mount source %s: is %s behind links %v (%v)", m.Source, r.real, r.links, err)
				}
				if within(home, m.Source) || strings.HasSuffix(m.Source, "/.cargo") || strings.HasSuffix(m.Source, "/.pyenv") {
					t.Errorf("%s shows more than a toolchain", m.Source)
				}
				if shown(m.Source) && m.Source == m.Target {
					t.Errorf("%s is shown anyway", m.Source)
				}
			}
		})
	}
}
