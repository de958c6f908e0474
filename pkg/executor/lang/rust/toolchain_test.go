package rust

import (
	"strings"
	"testing"
)

// The output of a program that claims to be rustc may be anything; what is taken from it is a version and the name of a host.
func FuzzReadBuild(f *testing.F) {
	f.Add("rustc 1.80.0\nrelease: 1.80.0-nightly\nhost: x86_64-unknown-linux-gnu\n")
	f.Add("\x00\xff\x1b[31m 1. .2 3..4")
	f.Add("release: " + strings.Repeat("0", 65) + ".0")
	f.Fuzz(func(t *testing.T, text string) {
		release, host := readBuild(text)
		if strings.Contains(host, "/") {
			t.Errorf("%q is a host %q", text, host)
		}
		if len(release) > 64 || strings.Trim(release, "0123456789abcdefghijklmnopqrstuvwxyz.+-_") != "" {
			t.Errorf("%q is version %q", text, release)
		}
	})
}
