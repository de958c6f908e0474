package verify

import (
	"testing"

	"go.uber.org/goleak"

	_ "github.com/sandbox-run/sandbox-run/pkg/executor/kit" // the test is its own kit
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
