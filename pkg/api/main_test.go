package api

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// update rewrites the golden files.
var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		_ = os.Setenv("SANDBOX_RUN_INIT", filepath.Join(dir, "sandbox-init"))
	}
	if os.Getenv(victimVariable) != "" {
		victim() // does not return
	}
	code := m.Run()
	closeReal()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}
