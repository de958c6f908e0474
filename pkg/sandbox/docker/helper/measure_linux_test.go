package helper

import (
	"os"
	"strings"
	"testing"
)

// A process without walls of its own is not taken for a program: the error names what is missing. TestSmoke is the positive control.
func TestLookAtNoProgram(t *testing.T) {
	if seen, err := look(os.Getpid(), nil); err == nil || !strings.Contains(err.Error(), "seccomp: ") {
		t.Errorf("%q, %v", seen, err)
	}
}
