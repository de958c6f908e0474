package toolchain_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// tempStore returns a finder over this machine with a store of its own.
func tempStore(t testing.TB) *toolchain.Finder {
	t.Helper()
	return &toolchain.Finder{Store: filepath.Join(t.TempDir(), "cache", "toolchains.json")}
}

// The toolchains of this very machine: scripts/deps.sh sees to it that there is one of each.
func TestRealToolchains(t *testing.T) {
	testenv.NeedSystem(t)
	f := tempStore(t)
	for _, d := range descriptions() {
		t.Run(d.Name, func(t *testing.T) {
			tool, err := f.Find(context.Background(), d)
			if err != nil {
				t.Fatal(err)
			}
			if tool.Name != d.Name || tool.Version == "" || tool.ID == "" || tool.Found == "" {
				t.Errorf("incomplete answer: %+v", tool)
			}
			for role, p := range tool.Programs {
				if !filepath.IsAbs(p) {
					t.Errorf("%s is %q, no absolute path", role, p)
				}
			}
			home, _ := os.UserHomeDir()
			for _, m := range tool.Mounts {
				r, err := toolchain.Resolve(m.Source)
				if err != nil || len(r.Links()) > 0 || r.Real() != m.Source {
					t.Errorf("mount source %s: is %s behind links %v (%v)", m.Source, r.Real(), r.Links(), err)
				}
				if strings.HasPrefix(home+"/", m.Source+"/") || strings.HasSuffix(m.Source, "/.cargo") || strings.HasSuffix(m.Source, "/.pyenv") {
					t.Errorf("%s shows more than a toolchain", m.Source)
				}
				if toolchain.Shown(m.Source) && m.Source == m.Target {
					t.Errorf("%s is shown anyway", m.Source)
				}
			}
		})
	}
}
