package sandbox

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// big is a machine on which every default fits.
var big = Machine{CPUs: 8, Memory: 64 * GiB}
