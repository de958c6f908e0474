package native

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
)

// run starts a test of this very binary as a plain user.
func run(t *testing.T, p sandboxtest.Plain, test string, more ...string) {
	t.Helper()
	runBehind(t, p, "", test, more...)
}

// runBehind does so behind an obstacle.
func runBehind(t *testing.T, p sandboxtest.Plain, obstacle, test string, more ...string) {
	t.Helper()
	needRoot(t)
	command, err := attackerPath()
	if err != nil {
		t.Fatal(err)
	}
	p.Run(t, filepath.Dir(command), obstacle, test, more...)
}

func TestRootless(t *testing.T) {
	sandboxtest.EveryPlain(t, func(t *testing.T, p sandboxtest.Plain) { run(t, p, "^TestPlainConformance$") })
}

func TestRootlessWalls(t *testing.T) {
	sandboxtest.EveryPlain(t, func(t *testing.T, p sandboxtest.Plain) {
		run(t, p, "^(TestPlainIdentity|TestPlainInitIsSafe|TestPlainRefusals|TestPlainPosture|TestPlainStewardKilled)$")
	})
}

func TestRootlessAttack(t *testing.T) {
	sandboxtest.EveryPlain(t, func(t *testing.T, p sandboxtest.Plain) {
		if !p.Cgroups {
			testenv.NeedAll(t, "the user with cgroups")
		}
		run(t, p, "^TestPlainAttack$")
	})
}

func TestRootlessPolled(t *testing.T) {
	run(t, sandboxtest.Plain{}, "^TestPlainPolled$")
}

func TestRootlessCrash(t *testing.T) {
	sandboxtest.EveryPlain(t, func(t *testing.T, p sandboxtest.Plain) {
		if !p.Cgroups {
			testenv.NeedAll(t, "the user with cgroups")
		}
		run(t, p, "^TestPlainCrash$")
	})
}

func plainBackend(t testing.TB) *Backend {
	t.Helper()
	b, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPlainConformance(t *testing.T) {
	tier, _ := sandboxtest.AsPlain(t)
	has := []sandboxtest.Claim{
		sandboxtest.Programs, sandboxtest.Walls, sandboxtest.Kernel, sandboxtest.Bare, sandboxtest.NoSetUID, sandboxtest.OneFilter, sandboxtest.Volumes, sandboxtest.Writable, sandboxtest.Anybody, sandboxtest.Roots, sandboxtest.Network, sandboxtest.PTY, sandboxtest.DevTTY, sandboxtest.Phases,
		sandboxtest.OpenFiles, sandboxtest.CPUTime, sandboxtest.Disk, sandboxtest.Inodes, sandboxtest.Files,
	}
	if tier == sandbox.TierContainer {
		has = append(has, sandboxtest.Memory, sandboxtest.Processes, sandboxtest.Metrics, sandboxtest.Freeze)
	}
	sandboxtest.Run(t, func(t *testing.T) sandbox.Backend {
		b := plainBackend(t)
		if iso := b.Probe(context.Background()); iso.Tier != tier {
			t.Fatalf("%+v", iso)
		}
		return b
	}, sandboxtest.Claims{Tier: tier, Has: has})
}

func TestPlainCrash(t *testing.T) {
	tier, _ := sandboxtest.AsPlain(t)
	b := plainBackend(t)
	sandboxtest.Crash(t, b, tier)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
