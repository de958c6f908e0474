package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// An ordinary user has the default tier on a machine with systemd: the command gets a scope, the kernel enforces the limits in it, and
// the scope is removed. `make test-all` runs this test on such a machine.
func TestOrdinaryUserUnderSystemd(t *testing.T) {
	var fs unix.Statfs_t
	_, noSystemd := os.Stat("/run/systemd/system")
	if os.Geteuid() == 0 || noSystemd != nil || unix.Statfs("/sys/fs/cgroup", &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Skip("needs an ordinary user on a machine that systemd runs, with cgroup v2 alone")
	}
	if out, err := command(t, "doctor").CombinedOutput(); err != nil {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	run := func(args ...string) (r struct {
		Verdict   sandbox.Verdict
		Stdout    string
		Isolation sandbox.Isolation
	}) {
		t.Helper()
		out, err := command(t, append([]string{"exec", "--json"}, args...)...).Output()
		if json.Unmarshal(out, &r) != nil {
			t.Fatalf("%q: %v, %q", args, err, out)
		}
		return r
	}
	r := run("--", "id", "-u")
	if r.Verdict != sandbox.VerdictOK || r.Stdout != "1000\n" || r.Isolation.Tier != sandbox.TierContainer {
		t.Errorf("%+v", r)
	}
	for _, c := range []sandbox.Control{sandbox.ControlMemory, sandbox.ControlProcesses, sandbox.ControlCPU} {
		if r.Isolation.Controls[c] != sandbox.Enforced {
			t.Errorf("%s is %s", c, r.Isolation.Controls[c])
		}
	}
	if r := run("--memory", "64m", "--", "python3", "-c", "b = b'x' * (256 << 20)"); r.Verdict != sandbox.VerdictMemoryLimit {
		t.Errorf("memory: %+v", r)
	}
	const forks = "import os, time\nn = 0\ntry:\n while n < 99:\n  if os.fork() == 0: time.sleep(5); os._exit(0)\n  n += 1\n" +
		"except OSError: pass\nprint(n)"
	if r := run("--pids", "10", "--", "python3", "-c", forks); r.Stdout != "9\n" {
		t.Errorf("processes: %+v", r)
	}
	// systemd removes the scope asynchronously.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		left := scopes()
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left: %q", left)
		}
	}
}

// scopes lists the scopes of sandbox-run.
func scopes() (names []string) {
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "sandbox-run-") && strings.HasSuffix(e.Name(), ".scope") {
				names = append(names, dir+"/"+e.Name())
			}
			if e.IsDir() && depth < 6 {
				walk(dir+"/"+e.Name(), depth+1)
			}
		}
	}
	walk("/sys/fs/cgroup", 0)
	return names
}

// The units of deploy/ work when they are installed as their comments say: the first request starts the server, a reload keeps it, a killed
// server is restarted, and neither a kill nor a stop leaves anything behind. `make test-all` runs this test on a disposable machine.
func TestUnits(t *testing.T) {
	if os.Getenv("SANDBOXTEST_GUEST") != "systemd" || os.Geteuid() != 0 {
		t.Skip("installs services: for a machine that is thrown away")
	}
	sh := func(script string) string {
		t.Helper()
		out, err := exec.Command("bash", "-euc", script).CombinedOutput()
		if err != nil {
			status, _ := exec.Command("systemctl", "status", "--no-pager", "--full", "sandbox-run.service", "sandbox-run.socket").CombinedOutput()
			t.Fatalf("%s: %v\n%s\n%s", script, err, out, status)
		}
		return strings.TrimSpace(string(out))
	}
	bin := filepath.Dir(binary(t))
	sh("cp " + bin + "/sandbox-* /usr/local/bin/")
	service, err := os.ReadFile("../../deploy/systemd/sandbox-run.service")
	if err != nil {
		t.Fatal(err)
	}
	installed := 0
	for line := range strings.Lines(string(service)) { // run the commands of the comment
		if do, ok := strings.CutPrefix(strings.TrimSpace(line), "#   "); ok {
			sh("cd ../..; " + strings.ReplaceAll(do, "enable --now", "start")) // not enabled for the next boot
			installed++
		}
	}
	if installed != 3 {
		t.Fatalf("%d lines say how to install it", installed)
	}
	if out := sh("systemd-analyze verify --man=no /etc/systemd/system/sandbox-run.{service,socket} 2>&1"); out != "" {
		t.Errorf("systemd says: %s", out)
	}
	const socket = "/run/sandbox-run/server.sock"
	got := sh("stat -c %a%U " + socket + " /run/sandbox-run; systemctl is-active sandbox-run.service || true")
	if got != "600root\n700root\ninactive" {
		t.Errorf("before the first request: %q", got)
	}
	run := func(args ...string) (r struct {
		Verdict   sandbox.Verdict
		Stdout    string
		Isolation sandbox.Isolation
	}) {
		t.Helper()
		out, err := command(t, append([]string{"--server", "unix://" + socket, "--json"}, args...)...).Output()
		if json.Unmarshal(out, &r) != nil || r.Verdict == sandbox.VerdictInternalError {
			t.Fatalf("%q: %v, %s\n%s", args, err, out, sh("systemctl status --no-pager --full sandbox-run.service || true"))
		}
		return r
	}
	shell := func(code string) string {
		t.Helper()
		r := run("--lang", "shell", "--code", code)
		if r.Verdict != sandbox.VerdictOK || r.Isolation.Tier != sandbox.TierContainer {
			t.Errorf("%s: %+v", code, r)
		}
		return r.Stdout
	}
	if got := shell("id -u; echo hello"); got != "1000\nhello\n" {
		t.Errorf("%q", got)
	}
	if r := run("--lang", "python", "--code", "print(6 * 7)"); r.Stdout != "42\n" {
		t.Errorf("%+v", r)
	}
	if r := run("--lang", "python", "--memory", "64m", "--code", "b = b'x' * (256 << 20)"); r.Verdict != sandbox.VerdictMemoryLimit {
		t.Errorf("memory: %+v", r)
	}
	const fill = "df --output=fstype . | tail -1; head -c 64m /dev/zero > x"
	r := run("--lang", "shell", "--scratch", "disk", "--disk", "32m", "--code", fill)
	if r.Verdict != sandbox.VerdictDiskLimit || r.Stdout != "ext4\n" {
		t.Errorf("disk: %+v", r)
	}
	show := func(property string) string {
		return sh("systemctl show --value -p " + property + " sandbox-run.service")
	}
	first := show("MainPID")
	if state := show("ActiveState"); state != "active" {
		t.Errorf("it is %s", state)
	}
	sh("systemctl reload sandbox-run.service")
	if got := shell("echo again"); got != "again\n" || show("MainPID") != first {
		t.Errorf("after a reload: %q, pid %s, was %s", got, show("MainPID"), first)
	}

	// Kill the server while a program runs.
	group := "/sys/fs/cgroup" + show("ControlGroup")
	long := command(t, "--server", "unix://"+socket, "--lang", "shell", "--code", "exec sleep 4711.5")
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	sleeping := func() bool { return exec.Command("pgrep", "-f", "^sleep 4711.5$").Run() == nil }
	waitUntil := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not within a minute\n%s", what, sh("systemctl status --no-pager --full sandbox-run.service || true"))
			}
		}
	}
	waitUntil("the program runs", sleeping)
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	server, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = long.Wait() // it fails, because the connection is lost
	waitUntil("the program is gone", func() bool { return !sleeping() })
	waitUntil("another server", func() bool {
		pid := show("MainPID")
		return pid != first && pid != "0" && show("ActiveState") == "active"
	})
	if got := shell("echo anew"); got != "anew\n" || show("NRestarts") != "1" {
		t.Errorf("after a kill: %q, %s restarts", got, show("NRestarts"))
	}
	sh("systemctl stop sandbox-run.socket sandbox-run.service")
	if result := show("Result"); result != "success" {
		t.Errorf("it ended with %s", result)
	}
	left, _ := filepath.Glob("/var/tmp/sandbox-run-*")
	if _, err := os.Stat(group); err == nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	// The ledger of scratches, a few bytes in /run, stays: it is locked in place, and removing it would race with other supervisors.
	if got := sh("stat -c %a /var/lib/sandbox-run; ls -A -I disks /run/sandbox-run 2>/dev/null || true"); got != "700" {
		t.Errorf("places: %q", got)
	}
}
