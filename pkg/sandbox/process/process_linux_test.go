package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(conformance.Main(m, func() (sandbox.Backend, error) { return New(Options{}) }))
}

func newBackend(t testing.TB) *Backend {
	t.Helper()
	testenv.NeedRoot(t)
	b, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) sandbox.Backend { return newBackend(t) }, conformance.Expectations{
		Tier: sandbox.TierProcess,
		Has: []conformance.Expectation{conformance.Programs, conformance.Kernel, conformance.PTY, conformance.DevTTY, conformance.Memory,
			conformance.Processes, conformance.OpenFiles, conformance.CPUTime, conformance.Files},
	})
}

func TestCrash(t *testing.T) {
	b := newBackend(t)
	defer b.Close()
	conformance.Crash(t, b, sandbox.TierProcess)
}

// A feature that needs isolation is refused, not ignored; and the report shows how few controls there are.
func TestSaysThatItIsWeak(t *testing.T) {
	b := newBackend(t)
	defer b.Close()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	ctx := context.Background()
	if _, err := m.Create(ctx, sandbox.Spec{}); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "--require process") {
		t.Errorf("by default: %v", err)
	}
	if _, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierProcess, Strict: true}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("strict: %v", err)
	}
	for name, change := range map[string]func(*sandbox.Spec){
		"volumes":    func(s *sandbox.Spec) { s.Volumes = []sandbox.Volume{{Source: "/usr", Target: "/x"}} },
		"root":       func(s *sandbox.Spec) { s.Root.Dir = "/srv" },
		"host paths": func(s *sandbox.Spec) { s.Root.HostPaths = []string{"/usr"} },
		"added": func(s *sandbox.Spec) {
			s.Root.Add = []sandbox.Mount{{Source: "/usr", Target: "/usr"}, {Source: "/usr", Target: "/opt/usr"}}
		},
		"writable root": func(s *sandbox.Spec) { s.WritableRoot = true },
		"network":       func(s *sandbox.Spec) { s.Network = sandbox.NetworkLocalhost },
		"scratch disk":  func(s *sandbox.Spec) { s.Scratch = sandbox.ScratchDisk },
	} {
		spec := sandbox.Spec{Require: sandbox.TierProcess}
		change(&spec)
		if _, err := m.Create(ctx, spec); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "--backend native") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A mount that the host has in the same place is allowed.
	id, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierProcess,
		Root: sandbox.Root{Add: []sandbox.Mount{{Source: "/usr/bin", Target: "/usr/bin"}}}})
	if err == nil {
		err = m.Delete(ctx, id)
	}
	if err != nil {
		t.Errorf("added where it is: %v", err)
	}
	iso := b.Probe(ctx)
	for _, c := range []sandbox.Control{sandbox.ControlWall, sandbox.ControlMemory, sandbox.ControlProcesses, sandbox.ControlCPU} {
		if iso.Controls[c] == sandbox.Enforced {
			t.Errorf("%s holds, whatever the program does?", c)
		}
	}
	if iso.Tier != sandbox.TierProcess || iso.Controls[sandbox.ControlRoot] != sandbox.Absent ||
		iso.Controls[sandbox.ControlSeccomp] != sandbox.Absent {
		t.Errorf("%+v", iso)
	}
	for _, c := range sandbox.AllControls() {
		gap := slices.ContainsFunc(iso.Missing, func(g sandbox.Gap) bool { return g.Control == c && g.Reason != "" && g.Remedy != "" })
		if gap != (iso.Controls[c] != sandbox.Enforced) {
			t.Errorf("%s is %s, and missing says %v", c, iso.Controls[c], gap)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierProcess}); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("closed: %v", err)
	}
}

// HOME, TMPDIR and the working directory are private directories, and are removed with the sandbox.
func TestPrivateDirectories(t *testing.T) {
	b := newBackend(t)
	defer b.Close()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	ctx := context.Background()
	id, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierProcess})
	if err != nil {
		t.Fatal(err)
	}
	res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", "pwd; echo $HOME; echo $TMPDIR; mkdir -p a/b/c; chmod 0 a/b"}},
		sandbox.IO{})
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(string(res.Stdout.Bytes()))
	if len(dirs) != 3 {
		t.Fatalf("%q", dirs)
	}
	for i, name := range []string{"workspace", "home", "tmp"} {
		if st, err := os.Stat(dirs[i]); filepath.Base(dirs[i]) != name || err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%q: %v", dirs[i], err)
		}
	}
	// The directories below them are private as well.
	if res, err = m.Run(ctx, id, sandbox.Process{Args: []string{"pwd"}, Workdir: "/workspace/a"}, sandbox.IO{}); err != nil ||
		string(res.Stdout.Bytes()) != dirs[0]+"/a\n" {
		t.Errorf("%+v, %v", res, err)
	}
	if err := m.Delete(ctx, id); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(dirs[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory stays: %v", err)
	}
}
