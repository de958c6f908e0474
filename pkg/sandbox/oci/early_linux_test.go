package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
)

// earlyVariable makes TestEarlyVictim a supervisor: its value is a directory for TestEarlyOrphan.
const earlyVariable = "SANDBOXTEST_EARLY"

// lateRuntime is a runtime that comes to its config only after its supervisor is dead.
const lateRuntime = `#!/bin/sh
echo $$ > %[1]s/pid.new && mv %[1]s/pid.new %[1]s/pid
while kill -0 %[2]d 2>/dev/null; do sleep 0.05; done
exec %[3]s "$@" > %[1]s/said 2>&1
`

// TestEarlyVictim starts a runtime early, and waits to be killed. It does nothing unless TestEarlyOrphan runs it.
func TestEarlyVictim(t *testing.T) {
	dir := os.Getenv(earlyVariable)
	if dir == "" {
		t.Skip("TestEarlyOrphan runs it")
	}
	b, err := New(Options{Runtime: "runc", CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		t.Fatal(err)
	}
	_, ns, err := b.register()
	if err != nil {
		t.Fatal(err)
	}
	late := filepath.Join(dir, "runtime")
	if err := os.WriteFile(late, fmt.Appendf(nil, lateRuntime, dir, os.Getpid(), b.runtime.path), 0o700); err != nil {
		t.Fatal(err)
	}
	c := &container{ns: ns, kind: byName("runc"), runtime: late, dir: ns.path("b"), id: "early"}
	if err := c.makeBundleDir(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.startRuntime(func(control int) error { return c.execRuntime(control, nil) }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Hour) // a process with nothing to do would end as a deadlock
}

// TestEarlyOrphan: a runtime whose supervisor is killed before the runtime has opened its config ends, and waits for no writer.
func TestEarlyOrphan(t *testing.T) {
	newBackend(t, "runc") // needs what it needs
	dir := t.TempDir()
	victim := exec.Command("/proc/self/exe", "-test.run=^TestEarlyVictim$")
	victim.Env = append(os.Environ(), earlyVariable+"="+dir)
	said := &strings.Builder{}
	victim.Stdout, victim.Stderr = said, said
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	deadline := time.Now().Add(2 * time.Minute)
	var text []byte
	for ; len(text) == 0; time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			t.Fatalf("the supervisor ended by itself: %s", said)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the runtime was not started")
		}
		text, _ = os.ReadFile(filepath.Join(dir, "pid"))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(runtime)
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	gone := []unix.PollFd{{Fd: int32(runtime), Events: unix.POLLIN}}
	for ; gone[0].Revents == 0; _, _ = unix.Poll(gone, 1000) {
		if time.Now().After(deadline) {
			stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
			_ = unix.PidfdSendSignal(runtime, unix.SIGKILL, nil, 0)
			t.Fatalf("the runtime is left, in %s", stack)
		}
	}
	// The control: it was the runtime, and it has looked for its config.
	if text, err := os.ReadFile(filepath.Join(dir, "said")); err != nil || !strings.Contains(string(text), "config.json") && !strings.Contains(string(text), "EOF") {
		t.Errorf("%q, %v", text, err)
	}
}

// TestCollectRuntimes: a runtime that waits for its config, and whose supervisor is dead, is found and ended; those of living supervisors, and
// those of other programs, are left alone.
func TestCollectRuntimes(t *testing.T) {
	b, _ := newBackend(t, "runc")
	s, _, err := b.register()
	if err != nil {
		t.Fatal(err)
	}
	own, err := s.NewDir()
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(own)
	dead := ""
	for n := 0xffff; dead == "" || registry.Alive(supervisor.RuntimeDir(), supervisor.NameOfDir(dead)); n-- { // a free slot
		dead = fmt.Sprintf("/var/tmp/sandbox-run-%d-s%04x", os.Geteuid(), n)
	}
	type waiting struct {
		root  string
		pidfd int
	}
	var all []waiting
	for _, root := range []string{stateDir(dead), stateDir(filepath.Dir(own)), stateDir(t.TempDir())} {
		bundle := t.TempDir()
		if err := unix.Mkfifo(filepath.Join(bundle, "config.json"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := exec.Command(b.runtime.path, "--root", root, "run", "--bundle", bundle, "early")
		p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(p.Process.Pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			_ = p.Wait()
			_ = unix.Close(fd)
			if root == stateDir(dead) {
				_ = os.RemoveAll(dead) // made by runc
			}
		})
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until it is runc
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Process.Pid))
			if strings.Contains(string(text), root) {
				break
			}
			if time.Now().After(end) {
				t.Fatal("runc was not executed")
			}
		}
		all = append(all, waiting{root, fd})
	}
	collectRuntimes(true)
	ended := func(w waiting, wait int) bool {
		gone := []unix.PollFd{{Fd: int32(w.pidfd), Events: unix.POLLIN}}
		_, _ = unix.Poll(gone, wait)
		return gone[0].Revents != 0
	}
	for _, w := range all {
		if ended(w, 0) {
			t.Errorf("%s: a dry run has ended it", w.root)
		}
	}
	collectRuntimes(false)
	if !ended(all[0], 30_000) {
		t.Errorf("%s: it still waits", all[0].root)
	}
	for _, w := range all[1:] {
		if ended(w, 0) {
			t.Errorf("%s: it was ended", w.root)
		}
	}
}
