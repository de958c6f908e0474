package full

import (
	"testing"

	"go.uber.org/goleak"
)

// The listener for signals stays until the process ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/sandbox-run/sandbox-run/internal/cli.CancelOnSignals.func1"))
}
