package java

import (
	"path/filepath"
	"testing"
)

// The output of a program that claims to be Java may be anything; a home that is taken from it is a clean path.
func FuzzReadProperties(f *testing.F) {
	f.Add("    java.home = /usr/lib/jvm/java-17\n    java.version = 17.0.15\n")
	f.Add("\x00\xff\x1b[31m java.home = ../x/..")
	f.Fuzz(func(t *testing.T, text string) {
		if home, _ := readProperties(text); home != "" && home != filepath.Clean(home) {
			t.Errorf("%q is a Java at %q", text, home)
		}
	})
}
