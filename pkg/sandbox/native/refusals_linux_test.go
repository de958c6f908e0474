package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func needNotifications(t *testing.T) {
	t.Helper()
	needRoot(t)
	if err := seccomp.Notifiable(); err != nil {
		t.Skip(err)
	}
}

// refusedCalls are the refused calls of a result, by name.
func refusedCalls(res *sandbox.Result) map[string]sandbox.Violation {
	calls := map[string]sandbox.Violation{}
	for _, v := range res.Violations {
		if v.Kind == sandbox.ViolationSyscall {
			calls[v.Detail] = v
		}
	}
	return calls
}

// outcomes are lines of "name outcome".
func outcomes(text []byte) map[string]string {
	list := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if at := strings.LastIndex(line, " "); at > 0 {
			list[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return list
}

// Each refused call is in the result once, by name, with its count, and is an event when it is first refused. Its errno
// is the same as without counting.
func TestRefusedCallsAreNamed(t *testing.T) {
	needNotifications(t)
	want := map[string]string{
		"mount": "EPERM", "umount2": "EPERM", "chroot": "EPERM", "pivot_root": "EPERM", "unshare(0x1)": "EPERM", "reboot": "EPERM",
		"ptrace(2)": "EPERM", "keyctl": "EPERM", "swapon": "EPERM", "sethostname": "EPERM", "clone(CLONE_NEWUSER)": "EPERM",
		"clone(CLONE_NEWNS|CLONE_NEWPID)": "EPERM", "socket(AF_PACKET)": "EAFNOSUPPORT", "socket(SOCK_RAW)": "EPERM", "ioctl(TIOCSTI)": "EPERM",
		"fcntl(F_SETLEASE)": "EINVAL", "setsockopt(SO_ATTACH_FILTER)": "92", "personality(0x40000)": "EPERM",
	}
	control := outcomes([]byte(onHost(t, "forbidden")))
	var mu sync.Mutex
	events := map[string]int{}
	res := inProbed(t, sandbox.Spec{}, func(e sandbox.Event) {
		if e.Kind == sandbox.EventViolation {
			mu.Lock()
			defer mu.Unlock()
			events[e.Violation.Detail]++
		}
	}, "forbidden")
	inside, counted := outcomes(res.Stdout.Bytes()), refusedCalls(res)
	for call, errno := range want {
		got := strings.TrimPrefix(inside[call], "errno ")
		if call == "setsockopt(SO_ATTACH_FILTER)" {
			got = inside[call+" errno"]
		}
		if got != errno {
			t.Errorf("%s: %q, want %s", call, got, errno)
		}
		if control[call] == errno {
			t.Errorf("control: %s fails with %s without a filter, too", call, errno)
		}
		name, _, _ := strings.Cut(call, "(")
		if v := counted[call]; v != (sandbox.Violation{Kind: "syscall", Name: name, Detail: call, Count: 1}) {
			t.Errorf("%s: counted %+v", call, v)
		}
		if events[call] != 1 {
			t.Errorf("%s: %d events", call, events[call])
		}
	}
	if len(counted) != len(want) || len(events) != len(want) || len(res.Violations) != len(want) || !res.Success() || len(res.Notes) != 0 {
		t.Errorf("%+v, notes %q", res.Violations, res.Notes)
	}
}

func TestRefusedCallsSaturate(t *testing.T) {
	needNotifications(t)
	for _, n := range []int{3, 64, 100} {
		res := inProbed(t, sandbox.Spec{}, nil, "refuse", fmt.Sprint(n))
		got := strings.TrimSpace(string(res.Stdout.Bytes()))
		v := refusedCalls(res)["mount"]
		// A call that a signal of the probe program's own runtime interrupts is reported twice and counted once.
		least, most := min(n, 60), min(n, 64)
		told := fmt.Sprintf("map[EPERM:%d]", v.Count)
		if silent := n - int(v.Count); silent > 0 {
			told = fmt.Sprintf("map[ENOSYS:%d EPERM:%d]", silent, v.Count)
		}
		if got != told || int(v.Count) < least || int(v.Count) > most || v.Saturated != (n != 3) {
			t.Errorf("%d calls: %s, counted %+v", n, got, v)
		}
	}
}

func number(t *testing.T, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// S10: millions of refused calls cost the supervisor no more CPU time than none do.
func TestS10FloodOfRefusedCalls(t *testing.T) {
	needNotifications(t)
	// spent is the CPU time of this process from the moment the program was ready.
	spent := func(args ...string) (time.Duration, *sandbox.Result) {
		var ready time.Duration
		res := inProbed(t, sandbox.Spec{Limits: sandbox.Limits{CPUs: 1}}, func(e sandbox.Event) {
			if e.Kind == sandbox.EventStdout {
				if bytes.HasPrefix(e.Data, []byte("ready")) {
					ready = ownCPU(t)
				} else {
					ready = ownCPU(t) - ready
				}
			}
		}, args...)
		return ready, res
	}
	const length = "2s"
	control, _ := spent("flood", length, "allowed")
	more := control/2 + 20*time.Millisecond // 64 answers, and noise
	for _, kind := range []string{"refused", "pestered"} {
		var cost time.Duration
		var res *sandbox.Result
		for range 3 { // the work of another process may be charged to this one once; that of a flood would be each time
			if cost, res = spent("flood", length, kind); cost < control+more {
				break
			}
		}
		calls := number(t, strings.TrimSpace(strings.TrimPrefix(string(res.Stdout.Bytes()), "ready\n")))
		t.Logf("%d calls %s in %s: %v of our own time, %v when they are allowed; %v of the sandbox's", calls, kind, length, cost, control,
			res.Metrics.CPUTime.Duration())
		if cost >= control+more {
			t.Errorf("%d calls %s cost us %v, allowed ones %v", calls, kind, cost, control)
		}
		v := refusedCalls(res)["mount"]
		if kind == "refused" && (!v.Saturated || v.Count == 0 || calls < 100_000) || v.Count > 64 {
			t.Errorf("%d calls %s: %+v", calls, kind, v)
		}
	}
}

func ownCPU(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Error(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Ordinary programs cause no reports (S8).
func TestOrdinaryProgramsReportNothing(t *testing.T) {
	needNotifications(t)
	_, m := managed(t, Options{})
	for _, argv := range [][]string{
		{"/bin/sh", "-c", "f=$(mktemp); seq 100 | sort -r > $f; cp -a $f $f.2; (sleep 0.01 & wait); tar cf /tmp/a.tar -C /tmp . " +
			"2>/dev/null; ls -l /tmp; df / >/dev/null; ps ax || true; true"},
		{"/usr/bin/python3", "-c", `
import asyncio, concurrent.futures as cf, os, socket, subprocess, tempfile, threading
try: socket.getaddrinfo('localhost', 80)
except OSError: pass
t = threading.Thread(target=lambda: None); t.start(); t.join()
assert subprocess.run(['true']).returncode == 0
async def main():
    p = await asyncio.create_subprocess_exec('true'); await p.wait()
    s = await asyncio.start_server(lambda r, w: None, '127.0.0.1', 0); s.close()
asyncio.run(main())
with cf.ProcessPoolExecutor(2) as e: assert list(e.map(abs, [-1, -2])) == [1, 2]
`},
		{"/usr/bin/node", "-e", "require('fs').writeFileSync('/tmp/x', 'x'); require('child_process').execSync('true'); new " +
			"(require('worker_threads').Worker)('1', {eval: true}); fetch; setTimeout(() => {}, 10)"},
		{"/usr/bin/java", "-XshowSettings:vm", "-version"},
		{"/usr/bin/perl", "-e", "use Socket; fork or exit; wait; system 'true'"},
	} {
		if _, err := exec.LookPath(argv[0]); err != nil {
			t.Logf("%s is not installed", argv[0])
			continue
		}
		id, err := m.Create(context.Background(), sandbox.Spec{Network: sandbox.NetworkLocalhost, Limits: sandbox.Limits{Memory: sandbox.GiB}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: argv}, sandbox.IO{})
		if err != nil {
			t.Fatal(err)
		}
		if !res.Success() || len(res.Violations) != 0 || len(res.Notes) != 0 {
			t.Errorf("%s: %s, violations %+v, notes %q\n%s%s", argv[0], res.Verdict, res.Violations, res.Notes, res.Stdout.Bytes(),
				res.Stderr.Bytes())
		}
		if err := m.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	}
}

// Refused calls of descendants count for their program, those of other programs separately; a terminal makes no
// difference.
func TestRefusedCallsOfNeighbours(t *testing.T) {
	needNotifications(t)
	_, m := managed(t, Options{})
	probe := conformance.Probe(t)
	id, err := m.Create(context.Background(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: filepath.Dir(probe), Target: "/probe"}}})
	if err != nil {
		t.Fatal(err)
	}
	at := "/probe/" + filepath.Base(probe)
	var wg sync.WaitGroup
	for _, c := range []struct {
		script string
		tty    *sandbox.TTY
		want   int
	}{
		{script: "true", want: 0},
		{script: "$P refuse 1; sleep 0.2", want: 1},
		{script: "for i in 1 2 3 4 5; do ( ($P refuse 2; >/tmp/through$i) & ) ; done; while [ $(ls /tmp | grep -c through) -lt 5 ]; " +
			"do sleep 0.05; done; setsid sh -c '$P refuse 1'", want: 11},
		{script: "$P refuse 7", tty: &sandbox.TTY{Rows: 24, Cols: 80}, want: 7},
	} {
		wg.Go(func() {
			res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"sh", "-c", c.script}, TTY: c.tty,
				Env: map[string]string{"P": at}}, sandbox.IO{})
			if err != nil {
				t.Error(err)
				return
			}
			if got := refusedCalls(res)["mount"].Count; int(got) != c.want || len(res.Violations) > 1 {
				t.Errorf("%s: %d refused, want %d; %+v", c.script, got, c.want, res.Violations)
			}
		})
	}
	wg.Wait()
}

// A program whose exec fails had a listener; the init waited for the listener of a program that is killed.
func TestListenersAreLetGo(t *testing.T) {
	needNotifications(t)
	_, m := managed(t, Options{})
	probe := conformance.Probe(t)
	id, err := m.Create(context.Background(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: filepath.Dir(probe), Target: "/probe"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	var once sync.Once
	ended := make(chan struct{})
	go func() { // keeps the phase, and its init
		defer close(ended)
		_, _ = m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", "echo ready; sleep 60"}}, sandbox.IO{OnEvent: func(e sandbox.Event) {
			if e.Kind == sandbox.EventStdout {
				once.Do(func() { close(ready) })
			}
		}})
	}()
	<-ready
	listeners := func() (n int) {
		links, _ := filepath.Glob("/proc/self/fd/*")
		for _, l := range links {
			if to, _ := os.Readlink(l); strings.Contains(to, "seccomp") {
				n++
			}
		}
		return n
	}
	if n := listeners(); n != 1 {
		t.Errorf("%d listeners while one program runs", n)
	}
	for range 10 {
		if _, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/nowhere"}}, sandbox.IO{}); !errors.Is(err, sandbox.ErrNotStarted) {
			t.Fatal(err)
		}
		if _, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/probe/" + filepath.Base(probe), "refuse", "1"}}, sandbox.IO{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := listeners(); n != 1 {
		t.Errorf("%d listeners after programs that were not executed, and some that were", n)
	}
	cancel()
	<-ended
	if n := listeners(); n != 0 {
		t.Errorf("%d listeners when nothing runs", n)
	}
}

// otherFilter is a backend whose sandboxes have another filter.
type otherFilter struct {
	*Backend
	filter []byte
}

func (f *otherFilter) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	i, err := f.Backend.Create(ctx, spec)
	if err == nil {
		i.(*instance).Filter = f.filter
	}
	return i, err
}

// Without a listener the same calls fail with the same errno, and the result has a note that they were not counted.
func TestRefusedCallsUncounted(t *testing.T) {
	needNotifications(t)
	plain, err := seccomp.Compile(seccomp.Policy{}, "")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := managed(t, Options{})
	m := sandbox.NewManager(&otherFilter{b, plain}, sandbox.Options{}) // like a kernel without listeners
	defer m.Close()
	probe := conformance.Probe(t)
	id, err := m.Create(context.Background(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: filepath.Dir(probe), Target: "/probe"}}})
	if err != nil {
		t.Fatal(err)
	}
	res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"/probe/" + filepath.Base(probe), "refuse", "100"}},
		sandbox.IO{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(res.Stdout.Bytes())); got != "map[EPERM:100]" {
		t.Errorf("said %s", got)
	}
	if len(res.Violations) != 0 || !slices.ContainsFunc(res.Notes,
		func(n string) bool { return strings.Contains(n, "refused system calls were not counted") }) {
		t.Errorf("violations %+v, notes %q", res.Violations, res.Notes)
	}
	if res.Isolation.Tier != sandbox.TierContainer || res.Isolation.Controls[sandbox.ControlSeccomp] != sandbox.Declared {
		t.Errorf("%+v", res.Isolation)
	}
}
