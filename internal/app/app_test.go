package app

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestOpen(t *testing.T) {
	if names := Backends(); names[0] != Native || !slices.Contains(names, Process) {
		t.Errorf("%q", names)
	}
	for _, name := range []string{"", "Native", "vmware"} {
		b, err := Open(name, Options{})
		if b != nil || !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "auto, native, process, oci, docker") {
			t.Errorf("%q: %v, %v", name, b, err)
		}
	}
	for _, name := range Backends() {
		b, err := Open(name, Options{})
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

// A heavy backend is known by name everywhere, and can be had where it is registered.
func TestRegister(t *testing.T) {
	if !InOtherExecutable(Docker) || InOtherExecutable(Native) || InOtherExecutable("vmware") || slices.Contains(Backends(), Docker) ||
		CheckBackend(Docker) != nil {
		t.Errorf("%q of %q", Backends(), AllBackends())
	}
	if b, err := Open(Docker, Options{}); b != nil || !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("%v, %v", b, err)
	}
	opened := errors.New("opened, eager")
	Register(Docker, func(o Options) (sandbox.Backend, error) {
		if !o.Eager {
			t.Error("it is not eager")
		}
		return nil, opened
	})
	defer delete(registered, Docker)
	if InOtherExecutable(Docker) || !slices.Equal(Backends(), AllBackends()) {
		t.Errorf("registered: %q of %q", Backends(), AllBackends())
	}
	if _, err := Open(Docker, Options{Eager: true}); !errors.Is(err, opened) {
		t.Error(err)
	}
}

func TestRuntime(t *testing.T) {
	for _, backend := range []string{OCI, Docker, Auto} {
		if err := CheckRuntime(backend, "runsc"); err != nil {
			t.Error(err)
		}
	}
	if err := CheckRuntime(Native, "runc"); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "--backend oci") {
		t.Error(err)
	}
	if err := errors.Join(CheckRuntime(Native, ""), CheckRuntime(Process, "")); err != nil {
		t.Error(err)
	}
	if runtime.GOOS == "linux" {
		if b, err := Open(OCI, Options{Runtime: "nonsense"}); b != nil || !errors.Is(err, sandbox.ErrInvalid) ||
			!strings.Contains(err.Error(), "runc, crun") {
			t.Errorf("%v, %v", b, err)
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

// The first Open of the native backend gets the early one; without that, Close closes it.
func TestEarlyBackend(t *testing.T) {
	testenv.NeedRoot(t)
	a := OpenEarly()
	other, err := Open(Process, Options{Early: a})
	if err != nil || other.Name() != Process {
		t.Fatalf("%v, %v", other, err)
	}
	first, choice, err := OpenAuto(t.Context(), Want{}, Options{Early: a})
	if err != nil || first.Name() != Native || choice.Backend != Native || first != a.backend {
		t.Fatalf("%v, %v, %v", first, choice, err)
	}
	second, err := Open(Native, Options{Early: a})
	if err != nil || second == first {
		t.Errorf("%v, %v: it was taken twice", second, err)
	}
	for _, b := range []sandbox.Backend{other, first, second} {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	unused := OpenEarly()
	var none *EarlyBackend
	for range 2 {
		if err := errors.Join(a.Close(), unused.Close(), none.Close()); err != nil {
			t.Error(err)
		}
	}
}
