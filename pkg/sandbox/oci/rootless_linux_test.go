package oci

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// asPlainUser starts a test of this binary as an ordinary user, optionally behind an obstacle: see conformance.Plain.
func asPlainUser(t *testing.T, p conformance.Plain, runtime, obstacle, test string) {
	t.Helper()
	p.Run(t, needs(t, runtime), obstacle, test, runtimeVariable+"="+runtime)
}

// everyPlain runs a test as each kind of ordinary user that can have a runtime. A long test is for make test-all, and has two kinds.
func everyPlain(t *testing.T, long bool, test string) {
	t.Helper()
	each := conformance.EveryPlain
	if long {
		testenv.NeedAll(t, "TestRootless")
		each = conformance.TwoPlain
	}
	each(t, func(t *testing.T, p conformance.Plain) {
		t.Run("runc", func(t *testing.T) { asPlainUser(t, p, "runc", "", test) })
		if p.Cgroups && p.SubIDs { // others are refused: TestPlainRefusals
			t.Run("runsc", func(t *testing.T) { asPlainUser(t, p, "runsc", "", test) })
		}
	})
}

// plainBackend is a backend of the ordinary user who runs this.
func plainBackend(t *testing.T) (b *Backend, runtime string, tier sandbox.Tier) {
	t.Helper()
	tier, _ = conformance.AsPlain(t)
	t.Setenv("SANDBOX_RUN_INIT", os.Getenv("SANDBOX_RUN_TEST_BIN")+"/sandbox-init")
	runtime = os.Getenv(runtimeVariable)
	b, err := New(Options{Runtime: runtime})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if tier == sandbox.TierContainer {
		tier = byName(runtime).tier
	}
	if iso := b.Probe(context.Background()); iso.Tier != tier || iso.Runtime != runtime {
		t.Fatalf("%+v", iso)
	}
	return b, runtime, tier
}

func TestRootless(t *testing.T) {
	everyPlain(t, false, "^(TestPlainSmoke|TestPlainIdentity|TestPlainDies|TestPlainRefusals)$")
}

func TestRootlessConformance(t *testing.T) { everyPlain(t, true, "^TestPlainConformance$") }
func TestRootlessCrash(t *testing.T)       { everyPlain(t, true, "^TestPlainCrash$") }
func TestRootlessAttack(t *testing.T)      { everyPlain(t, true, "^TestPlainAttack$") }

func TestPlainConformance(t *testing.T) {
	b, runtime, tier := plainBackend(t)
	// Features of root only: a disk of its own, a writable copy of the host's root, ids that no other process has.
	c := claims(runtime, "")
	c.Tier = tier
	drop := []conformance.Expectation{conformance.DiskApart, conformance.UniqueIDs}
	if tier == sandbox.TierNamespace {
		drop = append(drop, conformance.Memory, conformance.Processes, conformance.Metrics)
	}
	if runtime == "runsc" { // it does these for root only: TestPlainRefusals
		drop = append(drop, conformance.PTY, conformance.Writable)
	}
	c.Has = slices.DeleteFunc(c.Has, func(c conformance.Expectation) bool { return slices.Contains(drop, c) })
	conformance.Run(t, func(*testing.T) sandbox.Backend { return b }, c)
}

func TestPlainCrash(t *testing.T) {
	b, _, tier := plainBackend(t)
	conformance.Crash(t, b, tier)
}

func TestPlainAttack(t *testing.T) {
	b, runtime, _ := plainBackend(t)
	known := map[string]struct{ what, why string }{}
	maps.Copy(known, otherwise[runtime])
	for _, id := range []string{"N2", "N3", "N4", "N5", "N6", "N7", "N8"} {
		known[id] = struct{ what, why string }{refusesRules, "containers of an ordinary user have no networks with rules"}
	}
	if runtime == "runsc" { // the host's limits for users do not reach into it
		known["R6"] = struct{ what, why string }{`^(timers|inotify)`,
			"gVisor limits neither timers nor inotify instances but by open files; they are memory of the sandbox"}
		known["S7"] = struct{ what, why string }{`a terminal can be had with runsc as root only`, "there are none to attack: TestPlainRefusals"}
	}
	attackAll(t, b, runtime, known)
	// A case that could not run leaves the victim's cgroup to the next collector.
	if _, err := b.Collect(t.Context(), false); err != nil {
		t.Error(err)
	}
}

// When a supervisor is killed, runtime helper, runtime and container end with it, and leave nothing for a collector.
func TestPlainDies(t *testing.T) {
	b, runtime, _ := plainBackend(t)
	diesWithSupervisor(t, b, runtime)
	leavesNothing(t, b, func(sandbox.Residue) bool { return true })
}

// The ids of a sandbox on the host, with and without subordinate ids, and with a volume that belongs to the user.
func TestPlainIdentity(t *testing.T) {
	b, runtime, tier := plainBackend(t)
	_, subIDs := conformance.AsPlain(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/secret", []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	writable := runtime == "runc"
	for _, volumes := range [][]sandbox.Volume{nil, {{Source: dir, Target: "/data", Writable: writable}}} {
		id, err := m.Create(t.Context(), sandbox.Spec{Require: tier, Volumes: volumes})
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Run(t.Context(), id, sandbox.Process{Args: []string{"sh", "-c",
			"id -u; cat /data/secret; echo made > /data/made; echo > /tmp/x; python3 -c 'import os; [print(s.st_uid, s.st_gid) for s " +
				"in map(os.stat, [\"/tmp/x\", \"/workspace\"])]'"}}, sandbox.IO{})
		if err != nil {
			t.Fatal(err)
		}
		want := "1000\n1000 1000\n1000 1000\n"
		if volumes != nil {
			want = "1000\nmine\n1000 1000\n1000 1000\n"
		}
		if got := string(res.Stdout.Bytes()); got != want {
			t.Errorf("%q, %q", got, res.Stderr.Bytes())
		}
		if volumes != nil && writable {
			if st, err := os.Stat(dir + "/made"); err != nil || st.Size() == 0 {
				t.Errorf("the volume was not written to: %v", err)
			}
		}
		if volumes == nil && runtime == "runc" {
			seenAs(t, m, id, subIDs)
		}
		if err := m.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	said := slices.ContainsFunc(b.Probe(t.Context()).Missing, func(g sandbox.Gap) bool {
		return g.Control == sandbox.ControlUserNS && strings.Contains(g.Reason, "one id only")
	})
	if said == subIDs {
		t.Errorf("subordinate ids %v, and the report says %+v", subIDs, b.Probe(t.Context()).Missing)
	}
}

// seenAs checks a program's ids from outside: they are not the user's if there are subordinate ids.
func seenAs(t *testing.T, m *sandbox.Manager, id string, subIDs bool) {
	t.Helper()
	const mark = "61.7531"
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = m.Run(ctx, id, sandbox.Process{Args: []string{"sleep", mark}}, sandbox.IO{})
	}()
	defer func() { cancel(); <-ended }()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range lines {
			if text, _ := os.ReadFile(file); string(text) == "sleep\x00"+mark+"\x00" {
				status, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
				uid, _, _ := strings.Cut(statusField(status, "Uid"), "\t")
				if own := uid == strconv.Itoa(conformance.PlainUID); own == subIDs {
					t.Errorf("to the host it is %s", uid)
				}
				return
			}
		}
	}
	t.Error("it is not seen")
}

// A feature that needs root is refused, with the reason.
func TestPlainRefusals(t *testing.T) {
	b, runtime, tier := plainBackend(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	for want, spec := range map[string]sandbox.Spec{
		"only an image's root can be writable": {WritableRoot: true},
		"a scratch disk needs a loop device":   {Scratch: sandbox.ScratchDisk},
	} {
		spec.Require = tier
		if _, err := m.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if runtime == "runsc" {
		dir := t.TempDir()
		m := sandbox.NewManager(b, sandbox.Options{VolumeRoots: []string{dir}})
		volume := sandbox.Spec{Require: tier, Volumes: []sandbox.Volume{{Source: dir, Target: "/data", Writable: true}}}
		if _, err := m.Create(t.Context(), volume); !errors.Is(err, sandbox.ErrUnsupported) ||
			!strings.Contains(err.Error(), "a volume that can be written to can be had with runsc as root only") {
			t.Errorf("volume: %v", err)
		}
		id, err := m.Create(t.Context(), sandbox.Spec{Require: tier})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Run(t.Context(), id, sandbox.Process{Args: []string{"/bin/true"}, TTY: &sandbox.TTY{Rows: 24, Cols: 80}}, sandbox.IO{})
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "a terminal can be had with runsc as root only") {
			t.Errorf("terminal: %v", err)
		}
		return
	}
	_, subIDs := conformance.AsPlain(t)
	for name, want := range map[string]string{"runsc": "needs a second id", "crun": "", "youki": "", "kata": "containerd"} {
		switch cgroups := tier == sandbox.TierContainer; {
		case name == "runsc" && subIDs && cgroups:
			continue
		case name == "runsc" && subIDs:
			want = "nothing but a cgroup limits"
		}
		other, err := New(Options{Runtime: name})
		if err != nil {
			t.Fatal(err)
		}
		_, err = sandbox.NewManager(other, sandbox.Options{}).Create(t.Context(), sandbox.Spec{Require: sandbox.TierNamespace})
		if other.runtime.path == "" && name != "kata" {
			want = "not on PATH"
		}
		if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Obstacles that keep an ordinary user from any container have distinct messages.
func TestRootlessObstacle(t *testing.T) {
	asPlainUser(t, conformance.Plain{}, "runc", "mount -t tmpfs tmpfs /proc/sys/kernel", "^TestPlainObstacle$")
}

func TestPlainObstacle(t *testing.T) {
	conformance.AsPlain(t)
	b, err := New(Options{Runtime: "runc"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const want = "parts of /proc are covered (/proc/sys/kernel)"
	iso := b.Probe(t.Context())
	_, err = sandbox.NewManager(b, sandbox.Options{}).Create(t.Context(), sandbox.Spec{Require: sandbox.TierNamespace})
	if iso.Tier != sandbox.TierNone || !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v", iso.Tier, err)
	}
}

// A short test of every feature, after which nothing is left.
func TestPlainSmoke(t *testing.T) {
	b, runtime, tier := plainBackend(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	ctx := context.Background()
	id, err := m.Create(ctx, sandbox.Spec{Require: tier})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(ctx, id, []sandbox.File{{Path: "/workspace/in", Mode: 0o644, Data: []byte("put")}}); err != nil {
		t.Fatal(err)
	}
	run := func(p sandbox.Process, stdin string) *sandbox.Result {
		t.Helper()
		res, err := m.Run(ctx, id, p, sandbox.IO{Stdin: strings.NewReader(stdin)})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := run(sh("id -u; id -G; pwd; cat in; cat; echo x > /usr/x || echo refused; echo kept > out; echo err >&2; exit 3"), " typed\n")
	if got := string(res.Stdout.Bytes()); got != "1000\n1000\n/workspace\nput typed\nrefused\n" || res.Exit.Code != 3 ||
		res.Verdict != sandbox.VerdictNonzeroExit || !strings.Contains(string(res.Stderr.Bytes()), "err\n") {
		t.Errorf("%q, %q, %+v", got, res.Stderr.Bytes(), res.Exit)
	}
	if res.Isolation.Tier != tier || res.Metrics.MemoryPeak == 0 && tier != sandbox.TierNamespace {
		t.Errorf("%+v, %+v", res.Isolation, res.Metrics)
	}
	if runtime == "runc" {
		smokeWalls(t, run)
	}
	// A program is asked to end before it is killed.
	asked := sh("trap 'echo asked; exit 5' TERM; while :; do :; done")
	asked.Limits.CPUTime, asked.Limits.Grace = 500*time.Millisecond, time.Minute
	if res = run(asked, ""); string(res.Stdout.Bytes()) != "asked\n" || res.Exit.Code != 5 || res.Verdict != sandbox.VerdictCPULimit {
		t.Errorf("asked to end: %q, %s, %+v", res.Stdout.Bytes(), res.Verdict, res.Exit)
	}
	// The scratch survives the phase, the processes do not; and a signal is the program's own.
	if res = run(sh("cat out; kill -TERM $$"), ""); string(res.Stdout.Bytes()) != "kept\n" || res.Verdict != sandbox.VerdictSignaled ||
		res.Exit.Signal != 15 {
		t.Errorf("%q, %s, %+v", res.Stdout.Bytes(), res.Verdict, res.Exit)
	}
	if err := errors.Join(m.Delete(ctx, id), m.Close()); err != nil {
		t.Error(err)
	}
}

func sh(script string) sandbox.Process { return sandbox.Process{Args: []string{"sh", "-c", script}} }

// smokeWalls checks the properties that only hold on the host's own kernel.
func smokeWalls(t *testing.T, run func(sandbox.Process, string) *sandbox.Result) {
	t.Helper()
	// The controls, as the program itself sees them.
	res := run(sh("grep -E '^(CapBnd|CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'; cut -d: -f3 /proc/self/cgroup "+
		"| sort -u; cat /proc/net/dev | wc -l; unshare -U true || echo refused"), "")
	if got := string(res.Stdout.Bytes()); got != "CapEff:0000000000000000\nCapBnd:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n/\n3\nrefused\n" {
		t.Errorf("%q, %q", got, res.Stderr.Bytes())
	}
	// A loopback for the process that asks for it, and a limit for the process that needs it.
	local := sh("exec 3<>/dev/tcp/127.0.0.1/1")
	local.Args[0] = "bash"
	for mode, want := range map[network.Mode]string{network.None: "unreachable", network.Localhost: "refused"} {
		local.Network.Mode = mode
		if res = run(local, ""); !strings.Contains(string(res.Stderr.Bytes()), want) {
			t.Errorf("%s: %q", mode, res.Stderr.Bytes())
		}
	}
	crowd := sandbox.Process{Args: []string{"python3", "-c", `
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        n += 1
except OSError as e: print(24 < n < 30, e.strerror)
`}, Limits: sandbox.Limits{Processes: 30}}
	if res = run(crowd, ""); string(res.Stdout.Bytes()) != "True Resource temporarily unavailable\n" {
		t.Errorf("%s, %q, %q", res.Verdict, res.Stdout.Bytes(), res.Stderr.Bytes())
	}
	hungry := sandbox.Process{Args: []string{"python3", "-c", "x = bytearray(1 << 30)"}, Limits: sandbox.Limits{Memory: 128 << 20}}
	if res = run(hungry, ""); res.Verdict != sandbox.VerdictMemoryLimit {
		t.Errorf("%s, %q", res.Verdict, res.Stderr.Bytes())
	}
}
