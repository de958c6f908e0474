package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// An ordinary user whom systemd serves has the default tier without any further word: the command is given a scope, the
// kernel keeps the limits in it, and nothing of it is left. Run by `make test-all` on a machine that systemd runs.
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
	const forks = "import os, time\nn = 0\ntry:\n while n < 99:\n  if os.fork() == 0: time.sleep(5); os._exit(0)\n  n += 1\nexcept OSError: pass\nprint(n)"
	if r := run("--pids", "10", "--", "python3", "-c", forks); r.Stdout != "9\n" {
		t.Errorf("processes: %+v", r)
	}
	// systemd takes its time to notice.
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

// scopes are those that the user manager has given to this command.
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
