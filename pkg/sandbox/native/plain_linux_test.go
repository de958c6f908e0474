package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// These tests run as an ordinary user: see rootless_linux_test.go.

// plainRun runs a shell script in a sandbox of its own.
func plainRun(t *testing.T, m *sandbox.Manager, spec sandbox.Spec, args ...string) *sandbox.Result {
	t.Helper()
	id, err := m.Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	}()
	res, err := m.Run(context.Background(), id, sandbox.Process{Args: args}, sandbox.IO{})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func plainManager(t *testing.T) (*Backend, *sandbox.Manager, sandbox.Tier) {
	t.Helper()
	tier, _ := conformance.AsPlain(t)
	b := plainBackend(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return b, m, tier
}

// The ids of a sandbox on the host, with and without subordinate ids, and with a volume that belongs to the user.
func TestPlainIdentity(t *testing.T) {
	_, subIDs := conformance.AsPlain(t)
	b, m, tier := plainManager(t)
	own, sub := fmt.Sprint(conformance.PlainUID), fmt.Sprint(conformance.SubFirst)[:5] // the rest depends on the registration
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/secret", []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, volumes := range [][]sandbox.Volume{nil, {{Source: dir, Target: "/data", Writable: true}}} {
		res := plainRun(t, m, sandbox.Spec{Require: tier, Volumes: volumes}, "/bin/sh", "-c",
			`awk '{print $1, $2}' /proc/self/uid_map; id -u; cat /data/secret 2>/dev/null; echo made > /data/made; cat `+
				`/proc/self/setgroups; echo > /tmp/x && stat -c %u:%g /tmp/x /workspace`)
		said := strings.Fields(string(res.Stdout.Bytes()))
		var want string
		switch {
		case !subIDs && volumes == nil:
			want = "1000 " + own + " 1000 deny 1000:1000 1000:1000"
		case !subIDs:
			want = "1000 " + own + " 1000 mine deny 1000:1000 1000:1000"
		case volumes == nil:
			want = "0 " + own + " 1000 " + sub
		default:
			want = "0 " + sub
		}
		got := strings.Join(said, " ")
		if subIDs {
			if !strings.HasPrefix(got, want) || !strings.Contains(got, " allow 1000:1000 1000:1000") || volumes != nil &&
				!strings.Contains(got, "1000 "+own+" 1000 mine") {
				t.Errorf("%q", got)
			}
		} else if got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if volumes != nil {
			if st, err := os.Stat(dir + "/made"); err != nil || st.Size() == 0 {
				t.Errorf("the volume was not written to: %v", err)
			}
		}
	}
	iso := b.Probe(context.Background())
	said := false
	for _, gap := range iso.Missing {
		said = said || gap.Control == sandbox.ControlUserNS && strings.Contains(gap.Reason, "one id only")
	}
	if said == subIDs {
		t.Errorf("subordinate ids %v, and the report says %+v", subIDs, iso.Missing)
	}
}

// A program with the same id as its init can not affect the init.
func TestPlainInitIsSafe(t *testing.T) {
	_, m, tier := plainManager(t)
	const attack = `
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
SYS_tkill, SYS_tgkill = 200, 234
if os.uname().machine == "aarch64": SYS_tkill, SYS_tgkill = 130, 131
hits = 0
for sig in range(1, 65):
    for tid in range(1, 40):
        if tid == os.getpid(): continue
        libc.syscall(SYS_tkill, tid, sig)
        libc.syscall(SYS_tgkill, 1, tid, sig)
    try: os.kill(1, sig)
    except OSError: pass
import resource
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):
    try: resource.prlimit(1, what, (0, 0)); hits += 1
    except OSError: pass
resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))
for name in ("mem", "environ", "exe", "fd", "maps", "root", "cwd"):
    try:
        os.stat("/proc/1/" + name); os.open("/proc/1/" + name, os.O_RDONLY); hits += 1
    except OSError: pass
child = os.fork()
if child == 0: os._exit(7)
print("alive", hits, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
`
	for _, volumes := range [][]sandbox.Volume{nil, {{Source: t.TempDir(), Target: "/data"}}} { // with its own id, and with the user's
		res := plainRun(t, m, sandbox.Spec{Require: tier, Volumes: volumes, Limits: sandbox.Limits{Wall: 30 * time.Second}},
			"/usr/bin/python3", "-c", attack)
		if got := string(res.Stdout.Bytes()); got != "alive 0 7\n" || !res.Success() {
			t.Errorf("volumes %v: %s %q %q", volumes, res.Verdict, got, res.Stderr.Bytes())
		}
	}
}

// A killed mount helper is replaced, and its successor has rights to the files of existing sandboxes.
func TestPlainStewardKilled(t *testing.T) {
	b, m, tier := plainManager(t)
	id, err := m.Create(context.Background(), sandbox.Spec{Require: tier})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		putAndTake(t, m, id, n)
		if res := plainRun(t, m, sandbox.Spec{Require: tier}, "/bin/echo", "hello"); string(res.Stdout.Bytes()) != "hello\n" {
			t.Errorf("after %d: %s %q", n, res.Verdict, res.Stdout.Bytes())
		}
		b.mounts.(*rootless.HelperProcess).Kill()
	}
}

// A feature that needs root is refused by name, and an unreachable tier is refused with the remedy.
func TestPlainRefusals(t *testing.T) {
	_, m, tier := plainManager(t)
	for _, c := range []struct {
		spec sandbox.Spec
		want string
	}{
		{sandbox.Spec{WritableRoot: true}, "only an image's root can be writable"},
		{sandbox.Spec{Scratch: sandbox.ScratchDisk}, "a scratch disk needs a loop device"},
	} {
		c.spec.Require = tier
		_, err := m.Create(context.Background(), c.spec)
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.spec, err)
		}
	}
	// A directory of another user may be shown; its files keep their owner.
	foreign := sandbox.Spec{Require: tier, Volumes: []sandbox.Volume{{Source: "/root", Target: "/data", Writable: true}}}
	if res := plainRun(t, m, foreign, "/bin/sh", "-c", "ls /data || touch /data/x"); res.Success() {
		t.Errorf("root's home: %q", res.Stdout.Bytes())
	}
	if _, err := m.Create(context.Background(), sandbox.Spec{Require: tier,
		Volumes: []sandbox.Volume{{Source: "/nowhere", Target: "/data"}}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a volume that is not there: %v", err)
	}
	_, err := m.Create(context.Background(), sandbox.Spec{})
	if tier == sandbox.TierContainer {
		if err != nil {
			t.Error(err)
		}
		return
	}
	var refusal *sandbox.Refusal
	if !errors.As(err, &refusal) || refusal.Got.Tier != sandbox.TierNamespace || !strings.Contains(err.Error(), "memory, swap are polled") {
		t.Errorf("%v", err)
	}
}

// Polled limits are enforced as well, and the test measures the overshoot.
func TestPlainPolled(t *testing.T) {
	_, m, tier := plainManager(t)
	if tier != sandbox.TierNamespace {
		t.Fatal(tier)
	}
	const limit = 96 * sandbox.MiB
	limits := sandbox.Limits{Memory: limit, Disk: 2 * sandbox.GiB, Processes: 40, Wall: time.Minute}
	py := func(t *testing.T, script string) *sandbox.Result {
		t.Helper()
		return plainRun(t, m, sandbox.Spec{Require: tier, Limits: limits}, "/usr/bin/python3", "-c", script)
	}
	// Each attacker stops by itself at 700 MiB, and reports that on a machine that does not enforce the limit.
	for name, script := range map[string]string{
		"anonymous": `l = []` + "\n" + `for i in range(700): l.append(bytearray(1 << 20))`,
		"at once":   `b = b"x" * (700 << 20)`,
		// The kernel reports a process's memory in its first thread's entry, which is empty after the end of that
		// thread.
		"leaderless": `import ctypes, os, threading, time` + "\n" + `def fill():` + "\n" + ` time.sleep(0.2); l = []` + "\n" +
			` for i in range(700): l.append(bytearray(1 << 20))` + "\n" +
			` print("breached", flush=True); os._exit(0)` + "\n" + `threading.Thread(target=fill).start()` + "\n" +
			`ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)`,
		"shm":     `f = open("/dev/shm/x", "wb")` + "\n" + `for i in range(700): f.write(bytes(1 << 20)); f.flush()`,
		"scratch": `f = open("/workspace/x", "wb")` + "\n" + `for i in range(700): f.write(bytes(1 << 20)); f.flush()`,
		"deleted file": `import os` + "\n" + `f = open("/tmp/x", "wb"); os.unlink("/tmp/x")` + "\n" +
			`for i in range(700): f.write(bytes(1 << 20)); f.flush()`,
		"many children": `import os, time` + "\n" + `for i in range(35):` + "\n" +
			` if os.fork() == 0: b = b"x" * (20 << 20); time.sleep(30)` + "\n" + `time.sleep(30)`,
		"orphans": `import os, time` + "\n" + `for i in range(30):` + "\n" + ` if os.fork() == 0:` + "\n" + `  os.setsid()` + "\n" +
			`  if os.fork(): os._exit(0)` + "\n" + `  b = b"x" * (20 << 20); time.sleep(30)` + "\n" + ` os.wait()` + "\n" + `time.sleep(30)`,
	} {
		t.Run(name, func(t *testing.T) {
			res := py(t, script+"\nprint('breached')")
			if name == "shm" { // /dev/shm is half the limit
				if res.Success() {
					t.Errorf("%s", res.Verdict)
				}
				return
			}
			if res.Verdict != sandbox.VerdictMemoryLimit || res.Metrics.MemoryPeak <= uint64(limit) {
				t.Errorf("%s, peak %d MiB, %q %q", res.Verdict, res.Metrics.MemoryPeak>>20, res.Stdout.Bytes(), res.Stderr.Bytes())
			}
			t.Logf("limit %d MiB, peak %d MiB", limit>>20, res.Metrics.MemoryPeak>>20)
		})
	}
	t.Run("what is shared counts once", func(t *testing.T) {
		res := py(t, "import os, time\nb = b'x' * (60 << 20)\nfor i in range(6):\n if os.fork() == 0: time.sleep(0.5); "+
			"os._exit(0)\nfor i in range(6): os.wait()\nprint('ok')")
		// Counted twice it would be 120 MiB. Each interpreter has some of its own, as far as it has come when it is looked at.
		if peak := res.Metrics.MemoryPeak >> 20; !res.Success() || peak < 60 || peak >= 120 {
			t.Errorf("%s, peak %d MiB, %q", res.Verdict, res.Metrics.MemoryPeak>>20, res.Stderr.Bytes())
		}
	})
	t.Run("the memory of a short program is right, or absent", func(t *testing.T) {
		for range 5 {
			if peak := py(t, "b = b'x' * (60 << 20)").Metrics.MemoryPeak >> 20; peak < 60 || peak > 90 {
				t.Errorf("60 MiB are %d", peak)
			}
			res := plainRun(t, m, sandbox.Spec{Require: tier, Limits: limits}, "/bin/true")
			doc, err := json.Marshal(res)
			if err != nil || res.Metrics.ProcessesPeak != 1 || res.Metrics.MemoryPeak > 4<<20 ||
				strings.Contains(string(doc), `"memory_used"`) != (res.Metrics.MemoryPeak > 0) {
				t.Errorf("%+v, %v\n%s", res.Metrics, err, doc)
			}
		}
	})
	t.Run("what is lent to a child counts once", func(t *testing.T) {
		res := py(t, "import subprocess, threading\nb = b'x' * (60 << 20)\n"+
			"def spawn():\n for i in range(100): subprocess.run(['/bin/true'], check=True)\n"+
			"all = [threading.Thread(target=spawn) for i in range(3)]\nfor t in all: t.start()\nfor t in all: t.join()\nprint('ok')")
		if !res.Success() {
			t.Errorf("%s, peak %d MiB, %q", res.Verdict, res.Metrics.MemoryPeak>>20, res.Stderr.Bytes())
		}
	})
	t.Run("memory that no poll would see is refused", func(t *testing.T) {
		res := py(t, `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(f):
    try: f(); return "done"
    except OSError as e: return e.strerror
print(tried(lambda: os.memfd_create("x")))
print("done" if libc.shmget(0, 1 << 20, 0o1600) >= 0 else os.strerror(ctypes.get_errno()))
print("done" if libc.shmget(0, 56, 0o1600) >= 0 else os.strerror(ctypes.get_errno()))
print(tried(lambda: os.sched_setaffinity(0, range(64))), len(os.sched_getaffinity(0)))
import mmap
print(tried(lambda: mmap.mmap(-1, 4096)), tried(lambda: mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)))
print(tried(lambda: open("/dev/zero", "r+b")), tried(lambda: open("/dev/zero", "rb").read(1)), tried(lambda: open("/dev/null", "r+b")))
f = open("/dev/shm/x", "w+b"); f.truncate(4096)
print(tried(lambda: mmap.mmap(f.fileno(), 4096)))
def called(n): return "done" if n >= 0 else os.strerror(ctypes.get_errno())
print(called(libc.semget(0, 32000, 0o1600)), called(libc.semget(0, 17, 0o1600)), called(libc.msgget(0, 0o1600)))
r, w = os.pipe()
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]
print(called(libc.vmsplice(w, ctypes.byref(iovec(b"x", 1)), ctypes.c_size_t(1), 0)))
`)
		const no = "Operation not permitted"
		const want = no + "\n" + no + "\ndone\n" + no + " 1\n" + no + " done\nPermission denied done done\ndone\n" + no + " done " + no +
			"\n" + no + "\n"
		if got := string(res.Stdout.Bytes()); got != want {
			t.Errorf("%q %q", got, res.Stderr.Bytes())
		}
	})
	t.Run("processes", func(t *testing.T) {
		res := py(t, `
import os, time, threading
n = 0
try:
    while n < 200:
        if os.fork() == 0: time.sleep(10); os._exit(0)
        n += 1
except OSError as e: print(n, e.strerror)
`)
		// The init's runtime may start one more thread after the limit is set, at the program's expense.
		var children int
		got := string(res.Stdout.Bytes())
		if _, err := fmt.Sscanf(got, "%d Resource temporarily unavailable\n", &children); err != nil || children > 39 || children < 36 ||
			res.Metrics.ProcessesPeak > 40 {
			t.Errorf("%q, peak %d", got, res.Metrics.ProcessesPeak)
		}
	})
	t.Run("CPU time", func(t *testing.T) {
		spec := sandbox.Spec{Require: tier, Limits: sandbox.Limits{CPUTime: 300 * time.Millisecond, Wall: 20 * time.Second}}
		res := plainRun(t, m, spec, "/bin/sh", "-c", "while :; do :; done & while :; do :; done")
		if res.Verdict != sandbox.VerdictCPULimit || res.Metrics.CPUTime.Duration() < 250*time.Millisecond {
			t.Errorf("%s after %v", res.Verdict, res.Metrics.CPUTime.Duration())
		}
	})
}
