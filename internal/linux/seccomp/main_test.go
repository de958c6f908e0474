package seccomp

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// runChild is set where tests re-execute this binary as the process under a filter.
var runChild func(mode string)

func TestMain(m *testing.M) {
	if mode := os.Getenv("SECCOMP_TEST_CHILD"); mode != "" && runChild != nil {
		runChild(mode)
		return
	}
	goleak.VerifyTestMain(m)
}
