package native

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/testnet"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// run starts a test of this binary as an ordinary user.
func run(t *testing.T, p conformance.Plain, test string, more ...string) {
	t.Helper()
	runBehind(t, p, "", test, more...)
}

// runBehind does the same behind an obstacle.
func runBehind(t *testing.T, p conformance.Plain, obstacle, test string, more ...string) {
	t.Helper()
	needRoot(t)
	command, err := attackerPath()
	if err != nil {
		t.Fatal(err)
	}
	p.Run(t, filepath.Dir(command), obstacle, test, more...)
}

func TestRootless(t *testing.T) {
	conformance.EveryPlain(t, func(t *testing.T, p conformance.Plain) {
		if !p.Cgroups {
			testenv.NeedAll(t, "the user with cgroups; TestRootlessWalls and TestRootlessPolled for the others")
		}
		run(t, p, "^TestPlainConformance$")
	})
}

func TestRootlessWalls(t *testing.T) {
	conformance.EveryPlain(t, func(t *testing.T, p conformance.Plain) {
		run(t, p, "^(TestPlainIdentity|TestPlainInitIsSafe|TestPlainRefusals|TestPlainPosture|TestPlainStewardKilled)$")
	})
}

func TestRootlessNetworks(t *testing.T) {
	conformance.EveryPlain(t, func(t *testing.T, p conformance.Plain) {
		runBehind(t, p, internetOf(p), "^TestPlainNetworks$")
	})
}

// internetOf is an obstacle that makes a test internet as root for users with subordinate ids, which are of no use in another user
// namespace. Other users make it themselves.
func internetOf(p conformance.Plain) string {
	if !p.SubIDs {
		return ""
	}
	return `wrap="unshare --net ` + strings.Join(testnet.Prefix("$0"), " ") + `"`
}

func TestPlainNetworks(t *testing.T) {
	tier, _ := conformance.AsPlain(t)
	has := []conformance.Expectation{conformance.Kernel, conformance.Volumes, conformance.Rules}
	if tier == sandbox.TierContainer {
		has = append(has, conformance.Processes)
	}
	conformance.Networks(t, os.Getenv("SANDBOX_RUN_TEST_BIN"), func(t *testing.T) sandbox.Backend { return plainBackend(t) },
		conformance.Expectations{Tier: tier, Has: has})
}

func TestRootlessAttack(t *testing.T) {
	conformance.TwoPlain(t, func(t *testing.T, p conformance.Plain) {
		if !p.Cgroups {
			testenv.NeedAll(t, "the user with cgroups")
		}
		runBehind(t, p, internetOf(p), "^TestPlainAttack$")
	})
}

func TestRootlessPolled(t *testing.T) {
	run(t, conformance.Plain{}, "^TestPlainPolled$")
}

func TestRootlessCrash(t *testing.T) {
	conformance.TwoPlain(t, func(t *testing.T, p conformance.Plain) {
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
	tier, _ := conformance.AsPlain(t)
	has := []conformance.Expectation{
		conformance.Programs, conformance.Isolated, conformance.Kernel, conformance.Bare, conformance.NoSetUID, conformance.OneFilter,
		conformance.Volumes, conformance.Writable, conformance.AnyOwner, conformance.Roots, conformance.Network, conformance.Rules, conformance.PTY,
		conformance.DevTTY, conformance.Phases,
		conformance.OpenFiles, conformance.CPUTime, conformance.Disk, conformance.Inodes, conformance.Files,
	}
	if tier == sandbox.TierContainer {
		has = append(has, conformance.Memory, conformance.Processes, conformance.Metrics)
	}
	conformance.Run(t, func(t *testing.T) sandbox.Backend {
		b := plainBackend(t)
		if iso := b.Probe(context.Background()); iso.Tier != tier {
			t.Fatalf("%+v", iso)
		}
		return b
	}, conformance.Expectations{Tier: tier, Has: has})
}

func TestPlainCrash(t *testing.T) {
	tier, _ := conformance.AsPlain(t)
	b := plainBackend(t)
	conformance.Crash(t, b, tier)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
