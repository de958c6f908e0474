package conformance

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// victimVariable makes the test binary a supervisor that is about to be killed. Its value has the mark of
// its processes and the tier to ask for.
const victimVariable = "SANDBOXTEST_VICTIM"

// CrashNetworkVariable has the rule of a network that the sandboxes of victims have.
const CrashNetworkVariable = "SANDBOXTEST_VICTIM_NETWORK"

// victimWorkers make sandboxes in parallel, more than most machines have idle cores.
const victimWorkers = 3

// victim makes, uses and deletes sandboxes until it is killed.
func victim(plan string, newBackend func() (sandbox.Backend, error)) int {
	mark, tier, _ := strings.Cut(plan, " ")
	b, err := newBackend()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	spec := sandbox.Spec{Limits: small(), Require: sandbox.Tier(tier), Env: map[string]string{markVariable: mark}}
	if rule := os.Getenv(CrashNetworkVariable); rule != "" {
		spec.Network = network.Policy{Allow: []string{rule}}
	}
	failed := make(chan error)
	for worker := range victimWorkers {
		go func() {
			for n := worker; ; n++ {
				if err := useSandbox(m, spec, n%2 == 1); err != nil {
					failed <- err
				}
			}
		}()
	}
	fmt.Println(<-failed)
	return 1
}

// useSandbox makes and uses one sandbox of a victim.
func useSandbox(m *sandbox.Manager, spec sandbox.Spec, remove bool) error {
	ctx := context.Background()
	fmt.Println("creating")
	id, err := m.Create(ctx, spec)
	if err != nil {
		return err
	}
	// A program that does not end, with children in sessions of their own that ignore signals as well.
	go func() {
		// The mark is in their command lines, too: not every process may read an environment.
		const stay = `trap '' TERM HUP INT; setsid sh -c 'sleep 300; :' "$0" & sh -c 'sleep 300; :' "$0" & head -c 1000000 /dev/zero ` +
			`> $HOME/x; while :; do sleep 1; done`
		_, _ = m.Run(ctx, id, sandbox.Process{Phase: "stays", Args: []string{"/bin/sh", "-c", stay, spec.Env[markVariable]}}, sandbox.IO{})
	}()
	if _, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/true"}}, sandbox.IO{}); err != nil {
		return err
	}
	fmt.Println("ran")
	if remove {
		return m.Delete(ctx, id)
	}
	return nil
}

// Crash kills supervisors at random times, under load. Their programs must end within
// a second, by themselves; the next Collect must remove the other leftovers; and a running supervisor
// must not be affected (W6). The test's Main must have newBackend.
func Crash(t *testing.T, b sandbox.Backend, tier sandbox.Tier) {
	instants := 8
	switch {
	case testenv.All() && os.Geteuid() == 0: // eight suites have these: each backend and runtime, forks, pooled sandboxes, networks
		instants = 60
	case testenv.All(): // each runtime runs in several ways as an ordinary user
		instants = 20
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	ctx := context.Background()
	id, err := m.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{Wall: time.Hour}, Require: tier})
	if err != nil {
		t.Fatal(err)
	}
	survivor := make(chan *sandbox.Result, 1)
	go func() {
		res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c", "while :; do :; done"}}, sandbox.IO{}) // the load
		if err != nil {
			t.Error(err)
		}
		survivor <- res
	}()
	hit, files := 0, 0
	for n := range instants {
		if crashOnce(t, b, tier, n) {
			hit++
		}
		if n == 0 {
			files = open() // the load runs by now
		}
		if t.Failed() {
			break
		}
	}
	if t.Logf("%d of %d supervisors had programs running when they were killed", hit, instants); hit < instants/2 {
		t.Error("most were killed before they had a program")
	}
	// Collecting from many supervisors must not leak descriptors.
	if now := open(); now > files+8 {
		t.Errorf("%d descriptors after %d crashes, %d before", now, instants, files)
	}
	select {
	case res := <-survivor:
		t.Fatalf("a running supervisor was affected: %+v", res)
	default:
	}
	if err := m.Kill(id); err != nil {
		t.Error(err)
	}
	<-survivor
}

func crashOnce(t *testing.T, b sandbox.Backend, tier sandbox.Tier, n int) (hit bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf("victim-%d-%d-%d", os.Getpid(), n, time.Now().UnixNano())
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), victimVariable+"="+mark+" "+string(tier))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	mounts := ourMounts()
	earlier := registered() // the victim itself may collect, and then has these open as well
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A quarter of them is killed in its first sandbox, the others at any time.
	said := make(chan string, 1000)
	go func() {
		defer close(said)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case said <- s.Text():
			default:
			}
		}
	}()
	awaited, instant := "creating", rand.N(30*time.Millisecond)
	if n%4 != 0 {
		awaited, instant = "ran", rand.N(150*time.Millisecond)
	}
	for line := range said {
		if line == awaited {
			break
		}
		if line != "creating" && line != "ran" {
			t.Errorf("the victim prints %q", line)
		}
	}
	// A busy machine needs time to start the program.
	for end := time.Now().Add(5 * time.Second); n%4 != 0 && tier != sandbox.TierGVisor && len(marked(mark)) < 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(instant)
	hit = len(marked(mark)) > 1 // the supervisor itself is one
	names := slices.DeleteFunc(registrationsOf(cmd.Process.Pid), func(n string) bool { return slices.Contains(earlier, n) })
	groups := groupsOf(names)
	if tier == sandbox.TierGVisor { // its programs are invisible from outside; its kernel, which exists for them only, is not
		pids, _ := inhabitants(groups)
		hit = len(pids) > 0
	}
	networks := networkProcesses(cmd.Process.Pid)
	if os.Getenv(CrashNetworkVariable) != "" && hit && len(networks) == 0 {
		t.Logf("instant %d: no process of a network yet", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	// The supervisor is dead when its last thread is: a thread that waits in the kernel for a disk, or for a kernel worker of a busy
	// machine, keeps the whole process's descriptors open.
	ordered := time.Now()
	spare, stop := busyness(time.Second)
	defer stop()
	_ = cmd.Wait()
	killed := time.Now()
	if took := killed.Sub(ordered); took > time.Second {
		t.Logf("instant %d: the kernel took %v to end the supervisor", n, took)
	}
	running := func() []string { return append(marked(mark), stillNetworks(networks)...) }
	alive := running()
	for ; len(alive) > 0 && time.Since(killed) < time.Second+spare(); alive = running() {
		time.Sleep(5 * time.Millisecond)
	}
	if len(alive) > 0 {
		for left := alive; len(left) > 0 && time.Since(killed) < 30*time.Second; left = running() {
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("instant %d, %v after %q: alive a second after their supervisor, and ended after %v: %q", n, instant, awaited,
			time.Since(killed), alive)
	}
	for range said { // until it ends
	}
	// Collecting kills the remaining processes, and waits a second for them. It can not speed up dead processes whose many threads the
	// kernel has not ended yet, as those of a gVisor on a busy machine.
	for ; time.Since(killed) < 30*time.Second; time.Sleep(5 * time.Millisecond) {
		if pids, dead := inhabitants(groups); len(pids) == 0 || !dead && time.Since(killed) > time.Second+spare() {
			break
		}
	}
	found, err := b.Collect(context.Background(), false)
	if err != nil {
		t.Error(err)
	}
	for _, r := range found {
		if r.Removed || !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(r.Name, n) }) {
			continue
		}
		// A killed init that waits in the kernel, for a disk or a processor, can outlast one Collect on a busy machine.
		if spare() < time.Second {
			t.Errorf("instant %d: %+v", n, r)
		} else {
			t.Logf("instant %d, on a busy machine: %+v", n, r)
		}
	}
	// Another process may be collecting now; and a runtime that was still at work may have made something, for the next Collect.
	for end := time.Now().Add(30 * time.Second); len(leftOf(names)) > 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := b.Collect(context.Background(), false); err != nil {
			t.Error(err)
		}
	}
	for _, left := range leftOf(names) {
		t.Errorf("instant %d, %v after %q: left after Collect: %s", n, instant, awaited, left)
	}
	for line := range ourMounts() {
		if !mounts[line] {
			t.Errorf("instant %d, %v after %q: a mount: %s", n, instant, awaited, line)
		}
	}
	return hit
}

// networkProcesses are the pids of the processes that are the networks of a supervisor's sandboxes.
func networkProcesses(supervisor int) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(supervisor) && isNetwork(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isNetwork(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasPrefix(string(line), network.ProcessName+"\x00")
}

// stillNetworks are those of the processes that still run.
func stillNetworks(pids []int) (list []string) {
	for _, pid := range pids {
		if isNetwork(pid) {
			list = append(list, fmt.Sprintf("%d %s", pid, network.ProcessName))
		}
	}
	return list
}
