package app

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestOpen(t *testing.T) {
	if names := Backends(); names[0] != DefaultBackend || !slices.Contains(names, Process) {
		t.Errorf("%q", names)
	}
	for _, name := range []string{"", "Native", "vmware"} {
		b, err := Open(name, false)
		if b != nil || !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "native, process") {
			t.Errorf("%q: %v, %v", name, b, err)
		}
	}
	for _, name := range Backends() {
		b, err := Open(name, false)
		if runtime.GOOS != "linux" {
			if b != nil || !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "needs Linux") {
				t.Errorf("%s: %v, %v", name, b, err)
			}
			continue
		}
		if err != nil {
			if os.Geteuid() == 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if b.Name() != name {
			t.Errorf("%s calls itself %s", name, b.Name())
		}
		if err := b.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFacts(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Facts() {
		if f.Name == "" || f.Value == "" || seen[f.Name] {
			t.Errorf("%+v", f)
		}
		seen[f.Name] = true
	}
	if !seen["system"] || runtime.GOOS == "linux" && !(seen["kernel"] && seen["cgroups"] && seen["landlock"]) {
		t.Errorf("%v", seen)
	}
}
