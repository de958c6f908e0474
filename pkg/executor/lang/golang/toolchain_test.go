package golang

import (
	"path/filepath"
	"testing"
)

// The output of a program that claims to be Go may be anything; what is taken from it is a version and an absolute path.
func FuzzReadGoEnv(f *testing.F) {
	f.Add("/usr/local/go\ngo1.26.0\n")
	f.Add("\x00\xff\x1b[31m 1. .2 3..4")
	f.Fuzz(func(t *testing.T, text string) {
		if root, version, err := readGoEnv(text); err == nil && (!filepath.IsAbs(root) || version == "") {
			t.Errorf("%q is a Go at %q, version %q", text, root, version)
		}
	})
}
