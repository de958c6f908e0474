package executor

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// update rewrites the golden files.
var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	code := runTests(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}
