package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
)

// These variables tell the victims of the crash tests the runtime, and the directory of their disks.
const (
	runtimeVariable = "SANDBOXTEST_RUNTIME"
	cacheVariable   = "SANDBOXTEST_CACHE"
)

func TestMain(m *testing.M) {
	code := conformance.Main(m, func() (sandbox.Backend, error) {
		return New(Options{Runtime: os.Getenv(runtimeVariable), CacheDir: os.Getenv(cacheVariable)})
	})
	if binDir != "" {
		_ = os.RemoveAll(binDir)
	}
	os.Exit(code)
}

var binDir string // made by binaries

// binaries are the command and its init, linked statically: the test binary may need libraries that a root does not have.
var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-oci-")
	if err != nil {
		return "", err
	}
	binDir = dir
	cmd := exec.Command("go", "build", "-tags", "thin", "-o", dir+"/", "../../../cmd/sandbox-run", "../../../cmd/sandbox-rund",
		"../../../cmd/sandbox-init", "../../../cmd/sandbox-net")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return dir, os.Chmod(dir, 0o755)
})

// needs skips a test where a runtime is missing, or root, which can become any other user; it returns the directory of
// the executables.
func needs(t *testing.T, runtime string) (bin string) {
	t.Helper()
	testenv.NeedRoot(t)
	if _, err := exec.LookPath(byName(runtime).file); err != nil {
		t.Skipf("needs %s: %s", runtime, byName(runtime).get)
	}
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// newBackend returns a backend with a cache directory of its own, so that loop devices over it belong to it alone.
func newBackend(t *testing.T, runtime string) (b *Backend, cache string) {
	t.Helper()
	bin := needs(t, runtime)
	t.Setenv("SANDBOX_RUN_INIT", filepath.Join(bin, "sandbox-init"))
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-cache-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cache = filepath.Join(dir, "cache")
	t.Setenv(runtimeVariable, runtime)
	t.Setenv(cacheVariable, cache)
	b, err = New(Options{Runtime: runtime, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, cache
}

// Each runtime once, with a short test of every feature. The whole suites are for SANDBOX_RUN_TEST_ALL.
func TestSmoke(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			m := sandbox.NewManager(b, sandbox.Options{})
			ctx := context.Background()
			id, err := m.Create(ctx, sandbox.Spec{Require: byName(runtime).tier})
			if err != nil {
				t.Fatal(err)
			}
			sup, _, err := b.register()
			if err != nil {
				t.Fatal(err)
			}
			claim := claimOf(sup)
			// elsewhere they are made later, or are in the supervisor's own
			if runtime == "runc" && len(groupsOf(claim)) == 0 && b.host.Cgroups.Version() != "v2" {
				t.Errorf("control: %s has no group", claim)
			}
			if err := m.Put(ctx, id, []sandbox.File{{Path: "/workspace/in", Mode: 0o644, Data: []byte("put")}}); err != nil {
				t.Fatal(err)
			}
			run := func(script string, stdin string) *sandbox.Result {
				t.Helper()
				res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{Stdin: strings.NewReader(stdin)})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			res := run("id -u; pwd; cat in; cat; echo x > /usr/x || echo refused; echo kept > out; echo err >&2; exit 3", " typed\n")
			if got := string(res.Stdout.Bytes()); got != "1000\n/workspace\nput typed\nrefused\n" || res.Exit.Code != 3 ||
				res.Verdict != sandbox.VerdictNonzeroExit || !strings.Contains(string(res.Stderr.Bytes()), "err\n") {
				t.Errorf("%q, %q, %+v", got, res.Stderr.Bytes(), res.Exit)
			}
			if res.Isolation.Tier != byName(runtime).tier || res.Isolation.Runtime != runtime || res.Metrics.MemoryPeak == 0 {
				t.Errorf("%+v, %+v", res.Isolation, res.Metrics)
			}
			// The scratch survives the phase, the processes do not; and a signal is the program's own.
			if res = run("cat out; kill -TERM $$", ""); string(res.Stdout.Bytes()) != "kept\n" || res.Verdict != sandbox.VerdictSignaled ||
				res.Exit.Signal != 15 {
				t.Errorf("%q, %s, %+v", res.Stdout.Bytes(), res.Verdict, res.Exit)
			}
			if err := errors.Join(m.Delete(ctx, id), m.Close(), b.Close()); err != nil {
				t.Error(err)
			}
			if left := groupsOf(claim); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// claimOf is the name that a supervisor is registered under.
func claimOf(sup *supervisor.Supervisor) string {
	claim, _, _ := strings.Cut(sup.NewPhaseCgroup(0).Programs().Path(), "/")
	return claim
}

// groupsOf lists the cgroups that runtimes have made for a supervisor, with their processes. Other supervisors on this
// machine have their own, and may leave them.
func groupsOf(claim string) (list []string) {
	for _, h := range hierarchies() {
		groups, _ := filepath.Glob(filepath.Join(h.own, groupName(claim+"/*")))
		for _, g := range groups {
			list = append(list, fmt.Sprint(g, members(g)))
		}
	}
	return list
}

// claims are the expectations of each runtime.
func claims(runtime, cache string) conformance.Expectations {
	c := conformance.Expectations{
		Tier: byName(runtime).tier, ScratchDir: cache,
		Has: []conformance.Expectation{
			conformance.Programs, conformance.Isolated, conformance.Kernel, conformance.Bare, conformance.Volumes, conformance.Writable,
			conformance.AnyOwner, conformance.Roots, conformance.UniqueIDs, conformance.Network, conformance.Rules, conformance.PTY,
			conformance.DevTTY,
			conformance.Phases, conformance.Memory, conformance.Processes, conformance.Disk, conformance.Inodes, conformance.DiskApart,
			conformance.OpenFiles, conformance.CPUTime, conformance.Metrics, conformance.Live, conformance.Files,
		},
	}
	if runtime == "runsc" {
		// gVisor's kernel counts differently: the host's figures include the sentry's own memory, threads and time,
		// there is no limit on processes, and the sentry ends when memory runs out. Without a network it still has a
		// loopback. Its terminals have no name, and its /dev/tty can not be opened. No socket of the host reaches a program.
		c.Has = slices.DeleteFunc(c.Has, func(c conformance.Expectation) bool {
			return slices.Contains([]conformance.Expectation{conformance.Kernel, conformance.Network, conformance.Rules, conformance.Metrics, conformance.Processes,
				conformance.DevTTY, conformance.Live}, c)
		})
	}
	return c
}

func TestConformance(t *testing.T) {
	testenv.NeedAll(t, "TestSmoke")
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, cache := newBackend(t, runtime)
			conformance.Run(t, func(*testing.T) sandbox.Backend { return b }, claims(runtime, cache))
		})
	}
}

func TestNetworks(t *testing.T) {
	bin := needs(t, "runc")
	conformance.Networks(t, bin, func(t *testing.T) sandbox.Backend {
		b, _ := newBackend(t, "runc")
		return b
	}, conformance.Expectations{Tier: byName("runc").tier, Has: []conformance.Expectation{
		conformance.Kernel, conformance.Volumes, conformance.Processes, conformance.Rules,
	}})
}

func TestCrash(t *testing.T) {
	testenv.NeedAll(t, "TestSmoke")
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			conformance.Crash(t, b, byName(runtime).tier)
		})
	}
}

// A cgroup of a dead supervisor is removed with the processes that still wait in it: runc's own init waits for a runc
// that was killed.
func TestSweepKills(t *testing.T) {
	testenv.NeedRoot(t)
	var dirs []string
	for _, h := range hierarchies() {
		if slices.Contains(needed, h.name) {
			dirs = append(dirs, filepath.Join(h.own, groupName("sdead/1")))
		}
	}
	if len(dirs) == 0 {
		t.Skip("there are no v1 hierarchies")
	}
	// Another collector on this machine may remove it first.
	for tries := 1; !collectWaiting(t, dirs) && !t.Failed(); tries++ {
		if tries == 10 {
			t.Fatal("others have swept it away, each time, or looking does")
		}
	}
}

// collectWaiting puts a waiting process into cgroups, and collects. It returns false if the process had ended before that:
// another collector was faster.
func collectWaiting(t *testing.T, dirs []string) bool {
	t.Helper()
	waits := exec.Command("sleep", "600")
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = waits.Wait()
	}()
	defer func() {
		_ = waits.Process.Kill()
		<-ended
		for _, dir := range dirs {
			_ = os.Remove(dir)
		}
	}()
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Logf("another collector: %v", err)
			return false
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(waits.Process.Pid)), 0o600); err != nil {
			t.Logf("another collector: %v", err)
			return false
		}
	}
	found := collectGroups(true)
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			t.Logf("another collector: %v", err)
			return false
		}
		if !slices.ContainsFunc(found, func(r sandbox.Residue) bool { return r.Name == dir }) {
			t.Errorf("%s is not among %+v", dir, found)
		}
	}
	select {
	case <-ended:
		t.Log("it has ended")
		return false
	default:
	}
	collectGroups(false)
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("it still waits")
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	return true
}

// A config of any size reaches a runtime that has opened the pipe in its place, and one that opens the path later.
func TestConfigOverPipe(t *testing.T) {
	b, _ := newBackend(t, "runc")
	_, ns, err := b.register()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{10, 64 << 10, 300 << 10} {
		c := &container{ns: ns, kind: byName("runc"), dir: ns.path("b")}
		if err := c.makeBundleDir(); err != nil {
			t.Fatal(err)
		}
		text := bytes.Repeat([]byte("x"), size)
		var early *os.File
		var late []byte
		err := ns.helper.Do(func() (err error) {
			if early, err = os.Open(c.bundle.config()); err != nil {
				return err
			}
			c.bundle.Config = text
			if err := c.bundle.write(); err != nil {
				return err
			}
			late, err = os.ReadFile(c.bundle.config())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		_, err = io.ReadFull(early, got)
		if err != nil || !bytes.Equal(got, text) || !bytes.Equal(late, text) {
			t.Errorf("of %d bytes %d and %d came, %v", size, len(got), len(late), err)
		}
		if err := errors.Join(early.Close(), c.undoBundle()); err != nil {
			t.Error(err)
		}
	}
}

// A runtime that has found the pipe, and opens it after the config was written, gets the config as well, and does not
// wait for ever.
func TestConfigFoundEarly(t *testing.T) {
	b, _ := newBackend(t, "runc")
	_, ns, err := b.register()
	if err != nil {
		t.Fatal(err)
	}
	c := &container{ns: ns, kind: byName("runc"), dir: ns.path("b")}
	if err := c.makeBundleDir(); err != nil {
		t.Fatal(err)
	}
	const text = "{}"
	var found int // the pipe, and not opened
	err = ns.helper.Do(func() (err error) {
		if found, err = unix.Open(c.bundle.config(), unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		c.bundle.Config = []byte(text)
		return c.bundle.write()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(found)
	read := make(chan string, 1)
	go func() {
		got := make([]byte, len(text))
		f, err := os.Open("/proc/self/fd/" + strconv.Itoa(found))
		if err == nil {
			_, err = io.ReadFull(f, got)
			_ = f.Close()
		}
		read <- fmt.Sprintf("%s, %v", got, err)
	}()
	select {
	case got := <-read:
		if got != text+", <nil>" {
			t.Error(got)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for a writer")
	}
	if err := c.undoBundle(); err != nil {
		t.Error(err)
	}
}

// A root whose user and group files would keep a runtime reading for ever is refused before the runtime sees it.
func TestEndlessNames(t *testing.T) {
	b, _ := newBackend(t, "runc")
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	link := func(to string) func(string) error { return func(at string) error { return os.Symlink(to, at) } }
	for what, c := range map[string]struct {
		make func(at string) error
		fits bool
	}{
		"nothing":        {func(string) error { return nil }, true},
		"file":           {func(at string) error { return os.WriteFile(at, []byte("x:x:7:\n"), 0o644) }, true},
		"link to a file": {link("/names"), true},
		"FIFO":           {func(at string) error { return unix.Mkfifo(at, 0o644) }, false},
		"no end":         {link("/dev/zero"), false},
		"terminal":       {link("/dev/ptmx"), false},
		"memory":         {link("/proc/self/pagemap"), false},
		"huge":           {func(at string) error { return errors.Join(os.WriteFile(at, nil, 0o644), os.Truncate(at, 1<<40)) }, false},
	} {
		for _, p := range namesOfIDs {
			root, err := os.MkdirTemp("/var/tmp", "sandboxtest-root-")
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "etc"), 0o755),
				os.WriteFile(filepath.Join(root, "names"), nil, 0o644), c.make(filepath.Join(root, p)))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			id, err := m.Create(t.Context(), sandbox.Spec{Root: sandbox.Root{Dir: root}})
			if took := time.Since(began); c.fits != (err == nil) || !c.fits && !errors.Is(err, sandbox.ErrRefused) || took > startTimeout/2 {
				t.Errorf("%s as %s: %v, after %v", what, p, err, took)
			}
			if err == nil {
				err = m.Delete(t.Context(), id)
			} else {
				err = nil
			}
			if err := errors.Join(err, os.RemoveAll(root)); err != nil {
				t.Error(err)
			}
		}
	}
}

// The runtime's reading of these files is limited besides: the program may change them, in a writable root.
func TestInitIsLimited(t *testing.T) {
	b, _ := newBackend(t, "runc")
	i, err := b.Create(t.Context(), &sandbox.Spec{Hostname: sandbox.UserName, User: sandbox.DefaultUser, Limits: sandbox.DefaultLimits(),
		Network: sandbox.NetworkNone})
	if err != nil {
		t.Fatal(err)
	}
	controller, file := "memory", "memory.limit_in_bytes"
	if b.host.Cgroups.Version() == "v2" {
		controller, file = "", "memory.max"
	}
	groups, _ := os.ReadFile("/proc/" + strconv.Itoa(i.(*instance).Spare().InitPID) + "/cgroup")
	_, path, _ := strings.Cut(string(groups), ":"+controller+":")
	path, _, _ = strings.Cut(path, "\n")
	for _, h := range hierarchies() {
		if h.name == controller {
			if text, err := os.ReadFile(filepath.Join(h.at, path, file)); strings.TrimSpace(string(text)) != strconv.Itoa(initMemory) {
				t.Errorf("%s: %q, %v", path, text, err)
			}
		}
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// A runtime that is killed while it makes a container is detected soon, and leaves neither a process nor a cgroup, even
// while the supervisor lives.
func TestRuntimeKilled(t *testing.T) {
	b, _ := newBackend(t, "runc")
	sup, _, err := b.register()
	if err != nil {
		t.Fatal(err)
	}
	claim := claimOf(sup)
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	killed := 0
	for n := range 30 { // milliseconds: it takes some forty
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			pid := 0
			for pid == 0 {
				for _, child := range descendants(os.Getpid()) {
					if line, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/cmdline"); bytes.Contains(line, []byte("/runc\x00--root\x00")) {
						pid = child
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
			time.Sleep(time.Duration(n) * time.Millisecond)
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				if slices.Contains(descendants(os.Getpid()), pid) {
					_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				}
				_ = unix.Close(fd)
			}
		}()
		began := time.Now()
		id, err := m.Create(t.Context(), sandbox.Spec{})
		took := time.Since(began)
		close(stop)
		<-stopped
		if err == nil {
			err = m.Delete(t.Context(), id)
		} else if killed++; errors.Is(err, box.ErrStuck) {
			t.Error(err)
		}
		if took > startTimeout/2 {
			t.Errorf("after %d ms: %v, after %v", n, err, took)
		}
		if l := groupsOf(claim); len(l) > 0 {
			t.Errorf("after %d ms: %v; left %q", n, err, l)
		}
	}
	if killed == 0 { // control
		t.Error("none was killed in time")
	}
}

// A runtime that was started before its bundle waits for it, and ends when none arrives: because it could not be made,
// or because the supervisor is gone.
func TestAhead(t *testing.T) {
	b, _ := newBackend(t, "runc")
	sup, ns, err := b.register()
	if err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) {
		_ = ns.helper.Do(func() error {
			for _, pattern := range []string{"b*", "s?*", "state/*"} {
				found, _ := filepath.Glob(filepath.Join(ns.dir, pattern))
				names = append(names, found...)
			}
			return nil
		})
		return slices.DeleteFunc(names, func(n string) bool { return n == ns.stateDir() })
	}
	within := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	begin := func() *container {
		t.Helper()
		i, err := b.newInstance(sup, ns, &sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sup.Release(i.ID.Root) })
		p := i.newContainer()
		if err := p.waitForRuntime(); err != nil {
			t.Fatal(err)
		}
		var pipe unix.Stat_t
		if err := unix.Fstat(int(p.bundle.pipe[0].Fd()), &pipe); err != nil {
			t.Fatal(err)
		}
		within("it does not come to its config", func() bool {
			fds, _ := filepath.Glob("/proc/" + strconv.Itoa(p.pid) + "/fd/*")
			return slices.ContainsFunc(fds, func(fd string) bool {
				var st unix.Stat_t
				return unix.Stat(fd, &st) == nil && st.Ino == pipe.Ino && st.Dev == pipe.Dev
			})
		})
		if !p.Init.Alive() || len(left()) == 0 {
			t.Fatalf("it does not wait: %s", p.printed())
		}
		return p
	}
	pid := func(p *container) string { return "/proc/" + strconv.Itoa(p.pid) }

	p := begin()
	if err := p.Discard(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(pid(p)); err == nil || len(left()) > 0 {
		t.Errorf("%s: %v; left %q", pid(p), err, left())
	}

	p = begin()
	if err := p.bundle.closePipe(); err != nil { // as when the supervisor is killed
		t.Error(err)
	}
	within("it waits on", func() bool { return !p.Init.Alive() })
	if err := p.Discard(t.Context()); err != nil || len(left()) > 0 {
		t.Errorf("%v; left %q", err, left())
	}

	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for below, works := range map[string]bool{"/workspace/other": true, "/workspace/file/below": false} {
		id, err := m.Create(t.Context(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: file, Target: "/workspace/file"},
			{Source: dir, Target: below}}})
		if works != (err == nil) {
			t.Errorf("%s: %v", below, err)
		}
		if err == nil {
			err = m.Delete(t.Context(), id)
		} else if errors.Is(err, box.ErrStuck) {
			t.Error(err)
		}
		if len(left()) > 0 || len(descendants(os.Getpid())) > 0 {
			t.Errorf("%s: %v; left %q, %v", below, err, left(), descendants(os.Getpid()))
		}
	}
}

// A program with all controls is measured. Controls that gVisor hides are declared. TestWeakenedMeasured (internal/cli)
// removes controls.
func TestMeasured(t *testing.T) {
	for runtime, want := range map[string]sandbox.ControlState{"runc": sandbox.Enforced, "runsc": sandbox.Declared} {
		t.Run(runtime, func(t *testing.T) {
			b, _ := newBackend(t, runtime)
			m := sandbox.NewManager(b, sandbox.Options{})
			defer m.Close()
			id, err := m.Create(t.Context(), sandbox.Spec{Require: byName(runtime).tier})
			if err != nil {
				t.Fatal(err)
			}
			res, err := m.Run(t.Context(), id, sandbox.Process{Args: []string{"true"}}, sandbox.IO{})
			if err != nil {
				t.Fatal(err)
			}
			for _, control := range sandbox.WallControls() {
				if got := res.Isolation.Controls[control]; got != want {
					t.Errorf("%s is %s: %+v", control, got, res.Isolation.Missing)
				}
			}
			if res.Isolation.Controls[sandbox.ControlMemory] != sandbox.Enforced || res.Isolation.Tier != byName(runtime).tier {
				t.Errorf("%+v", res.Isolation)
			}
		})
	}
}
