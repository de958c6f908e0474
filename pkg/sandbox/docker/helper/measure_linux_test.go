package helper

import (
	"os"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
)

// A process without isolation of its own is not accepted as a program: the error names what is missing. TestSmoke is the positive control.
func TestMeasureUnisolatedProcess(t *testing.T) {
	l := new(measurement)
	if err := l.Examine(&seccomp.Probe{PID: os.Getpid()}); err == nil || !strings.Contains(err.Error(), "seccomp: ") {
		t.Errorf("%q, %v", l.seen, err)
	}
}
