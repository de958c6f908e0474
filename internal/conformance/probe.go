package conformance

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

//go:embed testdata/probe/main.go.txt
var probeSource []byte

var (
	probeMu   sync.Mutex
	probePath string
)

// Probe builds the probe once per test binary and returns its path: a static executable, in a
// directory that every user may read. CleanUp removes it.
func Probe(t testing.TB) string {
	t.Helper()
	probeMu.Lock()
	defer probeMu.Unlock()
	if probePath != "" {
		return probePath
	}
	// A machine without a compiler has it beside the executables under test.
	if ready := filepath.Join(os.Getenv("SANDBOX_RUN_TEST_BIN"), "probe"); filepath.IsAbs(ready) {
		if _, err := os.Stat(ready); err == nil {
			return ready
		}
	}
	dir, err := os.MkdirTemp("", "sandboxtest-probe-")
	if err != nil {
		t.Fatal(err)
	}
	if err := buildProbe(dir); err != nil {
		_ = os.RemoveAll(dir)
		t.Fatal(err)
	}
	probePath = filepath.Join(dir, "probe")
	return probePath
}

func buildProbe(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, probeSource, 0o644); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "probe"), source)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the probe: %w\n%s", err, out)
	}
	return os.Chmod(filepath.Join(dir, "probe"), 0o755)
}

// CleanUp removes the probe. A TestMain calls it last.
func CleanUp() {
	probeMu.Lock()
	defer probeMu.Unlock()
	if probePath != "" {
		_ = os.RemoveAll(filepath.Dir(probePath))
		probePath = ""
	}
}
