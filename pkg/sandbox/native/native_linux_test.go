package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) {
	if fault := os.Getenv(faultVariable); fault != "" {
		os.Exit(runFault(fault))
	}
	code := conformance.Main(m, func() (sandbox.Backend, error) {
		b, err := New(Options{CacheDir: os.Getenv(cacheVariable)})
		if err == nil && os.Getenv(forksVariable) != "" {
			return newForks(b)
		}
		return b, err
	})
	removeAttacker()
	os.Exit(code)
}

// cacheVariable tells a victim of TestCrash the directory of its disks.
const cacheVariable = "SANDBOXTEST_CACHE"

func needRoot(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t)
}

// cacheDir is a private directory, so that loop devices over it belong to this test alone.
func cacheDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-cache-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "cache")
}

func newBackend(t testing.TB, o Options) *Backend {
	t.Helper()
	needRoot(t)
	if o.CacheDir == "" {
		o.CacheDir = cacheDir(t)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// shellImage makes the root of an image in a new directory: a shell, with the host's /usr added read-only.
func shellImage() (sandbox.Root, error) {
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-image-")
	for _, link := range []string{"bin", "lib", "lib64"} {
		if err == nil {
			err = os.Symlink("usr/"+link, filepath.Join(dir, link))
		}
	}
	return sandbox.Root{Dir: dir, From: sandbox.ImageRef{Reference: "test/shell:1"},
		Add: []sandbox.Mount{{Source: "/usr", Target: "/usr"}}}, err
}

// writable returns a spec with the writable root of an image.
func writable(t *testing.T, spec sandbox.Spec) sandbox.Spec {
	t.Helper()
	root, err := shellImage()
	t.Cleanup(func() { os.RemoveAll(root.Dir) })
	if err != nil {
		t.Fatal(err)
	}
	spec.Root, spec.WritableRoot = root, true
	return spec
}

func TestConformance(t *testing.T) {
	needRoot(t)
	dir := cacheDir(t)
	conformance.Run(t, func(t *testing.T) sandbox.Backend { return newBackend(t, Options{CacheDir: dir}) }, conformance.Expectations{
		Tier: sandbox.TierContainer, ScratchDir: dir,
		Has: []conformance.Expectation{
			conformance.Programs, conformance.Isolated, conformance.Kernel, conformance.Bare, conformance.NoSetUID, conformance.OneFilter,
			conformance.Volumes, conformance.Writable, conformance.AnyOwner, conformance.Roots, conformance.UniqueIDs, conformance.Network,
			conformance.Rules, conformance.PTY, conformance.DevTTY,
			conformance.Phases, conformance.Memory, conformance.Processes, conformance.Disk, conformance.Inodes, conformance.DiskApart,
			conformance.OpenFiles, conformance.CPUTime, conformance.Metrics, conformance.Live, conformance.Files,
		},
	})
}

func TestNetworks(t *testing.T) {
	networks(t, false, func(b *Backend) (sandbox.Backend, error) { return b, nil })
}

// Warm forks have the same networks as programs that start cold.
func TestForkNetworks(t *testing.T) {
	var f *forks
	networks(t, true, func(b *Backend) (made sandbox.Backend, err error) {
		f, err = newForks(b)
		return f, err
	})
	if f != nil && f.forked.Load() == 0 {
		t.Error("nothing was forked")
	}
}

func networks(t *testing.T, zygotes bool, over func(*Backend) (sandbox.Backend, error)) {
	t.Helper()
	needRoot(t)
	command, err := attackerPath()
	if err != nil {
		t.Fatal(err)
	}
	dir := cacheDir(t)
	conformance.Networks(t, filepath.Dir(command), func(t *testing.T) sandbox.Backend {
		b, err := over(newBackend(t, Options{CacheDir: dir}))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}, conformance.Expectations{Tier: sandbox.TierContainer, ScratchDir: dir, Zygotes: zygotes, Has: []conformance.Expectation{
		conformance.Kernel, conformance.Volumes, conformance.Processes, conformance.Rules,
	}})
}

// A killed supervisor leaves no process of a network.
func TestNetworkCrash(t *testing.T) {
	needRoot(t)
	command, err := attackerPath()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(command)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv(conformance.CrashNetworkVariable, "good.example")
	dir := cacheDir(t)
	t.Setenv(cacheVariable, dir)
	b := newBackend(t, Options{CacheDir: dir})
	conformance.Crash(t, b, sandbox.TierContainer)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestCrash(t *testing.T) {
	needRoot(t)
	dir := cacheDir(t)
	t.Setenv(cacheVariable, dir)
	b := newBackend(t, Options{CacheDir: dir})
	conformance.Crash(t, b, sandbox.TierContainer)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	// A loop device is released when the last descriptor of a dead process is closed, which the kernel may do after it
	// has reported the death.
	var left []string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left = nil
		backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, f := range backing {
			if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir+"/") {
				left = append(left, f+" over "+strings.TrimSpace(string(text)))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	t.Errorf("left after 30 s: %q", left)
}

func TestProbe(t *testing.T) {
	b := newBackend(t, Options{})
	defer b.Close()
	iso := b.Probe(context.Background())
	if iso.Backend != Name || iso.Tier != sandbox.TierContainer {
		t.Errorf("%+v", iso)
	}
	for _, c := range sandbox.AllControls() {
		gap := slices.ContainsFunc(iso.Missing, func(g sandbox.Gap) bool { return g.Control == c && g.Reason != "" })
		if iso.Controls[c] == sandbox.Absent && !gap {
			t.Errorf("%s is absent without a reason", c)
		}
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Create(context.Background(), &sandbox.Spec{}); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("closed: %v", err)
	}
}
