//go:build linux

package delegate

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
)

// These tests use a real systemd, in the virtual machine of scripts/guest-systemd.sh: root logs the user `plain` in, in every
// way, and the test binary acts as a command of that user.

// childEnv makes the test binary a probe, "action args…".
const childEnv = "SANDBOX_RUN_DELEGATE_PROBE"

func TestMain(m *testing.M) {
	if action := os.Getenv(childEnv); action != "" {
		os.Exit(probe(strings.Fields(action)))
	}
	os.Exit(m.Run())
}

func probe(args []string) int {
	number := func() int {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch args[0] {
	case "alloc": // MiB
		mem, err := unix.Mmap(-1, 0, number()<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			fmt.Println(err)
			return 4
		}
		for i := 0; i < len(mem); i += 4096 {
			mem[i] = 1
		}
		fmt.Println("allocated")
	case "fork": // children
		for i := range number() {
			if err := exec.Command("/bin/sleep", "60").Start(); err != nil {
				fmt.Printf("refused after %d: %v\n", i, err)
				return 5
			}
		}
		fmt.Println("forked")
	case "spin": // ms
		for end := time.Now().Add(time.Duration(number()) * time.Millisecond); time.Now().Before(end); {
		}
		fmt.Println("spun")
	case "sleep":
		time.Sleep(time.Minute)
	case "obtain":
		began := time.Now()
		err := Obtain(context.Background())
		took := time.Since(began).Round(time.Millisecond)
		fmt.Printf("obtained: %v, in %v\n", err, took)
		if err == nil {
			run(args[1:], cgroup.Options{MoveToLeaf: true})
		}
	case "open": // as a command does
		run(args[1:], cgroup.Options{MoveToLeaf: true, Ask: func() error {
			err := Obtain(context.Background())
			fmt.Println("asked:", err)
			return err
		}})
	case "look": // as a library does
		run(args[1:], cgroup.Options{})
	}
	return 0
}

// run opens the tree, prints what it has, and tests a group.
func run(args []string, o cgroup.Options) {
	fmt.Println("pid", os.Getpid())
	tree, err := cgroup.Open(o)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	own, err := ownGroup()
	fmt.Println("own", own, err)
	fmt.Println("roots", tree.Roots())
	for _, gap := range tree.Missing() {
		fmt.Printf("missing %s: %s (%s)\n", gap.Control, gap.Reason, gap.Remedy)
	}
	var l cgroup.Limits
	if tree.Has(cgroup.Memory) {
		l.Memory = 64 << 20
	}
	if tree.Has(cgroup.Pids) {
		l.Pids = 16
	}
	if tree.Has(cgroup.CPU) {
		l.CPU = 4
	}
	g := tree.Group("s0000/1/run")
	if l != (cgroup.Limits{}) {
		if err := g.Make(l); err != nil {
			fmt.Println("make:", err)
			return
		}
		for _, action := range []string{"alloc 32", "alloc 96", "fork 20", "spin 1000"} {
			if l.CPU > 0 && action == "spin 1000" { // so little that even a busy machine would give more
				if err := g.Set(cgroup.Limits{CPU: 0.1}); err != nil {
					fmt.Println("set:", err)
				}
			}
			out, err := runIn(g, action)
			fmt.Printf("%s: %s (%v)\n", action, strings.ReplaceAll(strings.TrimSpace(out), "\n", "; "), err)
		}
		s, err := g.Stat()
		fmt.Printf("oom %d, pids hits %v, throttled %v (%v)\n", s.OOMKills, s.PidsLimitHits > 0, s.ThrottledPeriods > 0, err)
	}
	if len(args) > 0 && args[0] == "hold" {
		// A process in the group, as an init would be, that ends with this process.
		sleeper, err := startIn(g, "sleep")
		fmt.Println("holding", err)
		_ = sleeper.Wait()
	}
	if err := tree.Group("s0000").Remove(context.Background()); err != nil {
		fmt.Println("remove:", err)
	}
	if err := tree.Prune(); err != nil {
		fmt.Println("prune:", err)
	}
	tree.Close()
	fmt.Println("done")
}

// startIn starts the probe in g. A process of one thread joins, and then becomes it.
func startIn(g *cgroup.Group, action string) (*exec.Cmd, error) {
	files, err := g.JoinFiles()
	if err != nil {
		return nil, err
	}
	script := `n=$1; fd=3; while [ $fd -lt $((3+n)) ]; do echo 0 >&$fd || exit 3; eval "exec $fd>&-"; fd=$((fd+1)); done; exec "$2"`
	cmd := exec.Command("/bin/sh", "-c", script, "sh", strconv.Itoa(len(files)), "/proc/"+strconv.Itoa(os.Getpid())+"/exe")
	cmd.Env = []string{childEnv + "=" + action, "GOMAXPROCS=1"}
	cmd.ExtraFiles = files
	cmd.Stdout, cmd.Stderr = new(strings.Builder), os.Stderr
	cmd.WaitDelay = 10 * time.Second // should a child of "fork" hold the pipe
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err = cmd.Start()
	for _, f := range files {
		_ = f.Close()
	}
	return cmd, err
}

func runIn(g *cgroup.Group, action string) (string, error) {
	cmd, err := startIn(g, action)
	if err != nil {
		return "", err
	}
	if err = cmd.Wait(); err == exec.ErrWaitDelay { //nolint:errorlint // not wrapped
		err = nil
	}
	out := cmd.Stdout.(*strings.Builder).String()
	if killErr := g.Kill(); killErr != nil {
		return out, killErr
	}
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
		if empty, emptyErr := g.Empty(); empty || emptyErr != nil {
			return out, cmp.Or(err, emptyErr)
		}
	}
	return out, errors.New("killed, and yet there")
}

const (
	plainUser  = "plain"
	plainID    = "1001"
	runtimeDir = "/run/user/" + plainID
	userSlice  = "/sys/fs/cgroup/user.slice/user-" + plainID + ".slice"
	userGroup  = userSlice + "/user@" + plainID + ".service"
)

// realSystemd skips where no systemd may be used.
func realSystemd(t *testing.T) {
	t.Helper()
	if os.Getenv("SANDBOXTEST_GUEST") != "systemd" || os.Geteuid() != 0 {
		t.Skip("needs a systemd of its own: go test -exec scripts/guest-systemd.sh")
	}
	linger(t)
}

// linger starts the user's manager; it stays when a session ends.
func linger(t *testing.T) {
	t.Helper()
	command(t, "loginctl", "enable-linger", plainID)
	eventually(t, "the user's manager", func() bool {
		_, err := os.Stat(runtimeDir + "/systemd/private")
		_, busErr := os.Stat(runtimeDir + "/bus")
		return err == nil && busErr == nil
	})
}

// eventually waits: under emulation everything takes its time.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, args, err, out)
	}
}

// login is the probe, as the user, by one of the ways in.
func login(t *testing.T, way string, action string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env = append(env, childEnv+"="+action)
	clean := []string{"--reuid", plainUser, "--regid", plainUser, "--init-groups", "env", "-i", "PATH=" + os.Getenv("PATH"),
		"HOME=/home/" + plainUser}
	var cmd *exec.Cmd
	switch way {
	case "manager":
		args := append(clean, "XDG_RUNTIME_DIR="+runtimeDir, "systemd-run", "--user", "--quiet", "--wait", "--pipe", "--collect")
		for _, e := range env {
			args = append(args, "-E", e)
		}
		cmd = exec.Command("setpriv", append(args, self)...)
	case "session":
		line := ""
		for _, e := range env {
			line += "export '" + e + "'; "
		}
		cmd = exec.Command("su", "-l", plainUser, "-c", line+"exec '"+self+"'")
	case "none":
		cmd = exec.Command("setpriv", append(append(clean, env...), self)...)
	}
	cmd.Stderr = os.Stderr
	return cmd
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	return string(out)
}

func contains(t *testing.T, out string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// enforced is the output of run where all limits are enforced, with a positive control of each.
var enforced = []string{
	"alloc 32: allocated (<nil>)", "alloc 96:  (signal: killed)", "fork 20: refused after ", "spin 1000: spun (<nil>)",
	"oom 1, pids hits true, throttled true (<nil>)",
}

// left lists the scopes or groups of this package below the user's slice.
func left(t *testing.T) (found []string) {
	t.Helper()
	_ = filepath.WalkDir(userSlice, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "sandbox-run") {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// gone waits for systemd to notice that a scope is empty.
func gone(t *testing.T) {
	t.Helper()
	began := time.Now()
	for len(left(t)) > 0 {
		if time.Since(began) > 10*time.Second {
			t.Errorf("left behind: %v", left(t))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("gone %v later", time.Since(began).Round(10*time.Millisecond))
	out, err := exec.Command("setpriv", "--reuid", plainUser, "--clear-groups", "env", "XDG_RUNTIME_DIR="+runtimeDir,
		"systemctl", "--user", "list-units", "--all", "--no-legend", "sandbox-run-*").CombinedOutput()
	if err != nil || len(strings.TrimSpace(string(out))) != 0 {
		t.Errorf("units left behind: %s (%v)", out, err)
	}
}

func TestScope(t *testing.T) {
	realSystemd(t)
	inScope := regexp.MustCompile(`own (/\S+)/(sandbox-run-(\d+)-[0-9a-f]{8}\.scope)/sandbox-run/supervisor <nil>\n`)
	onlyBus := []string{"XDG_RUNTIME_DIR=/nonexistent", "DBUS_SESSION_BUS_ADDRESS=unix:path=" + runtimeDir + "/bus"}
	for _, c := range []struct {
		name, way, action string
		env               []string
	}{
		{"from a unit", "manager", "obtain", nil},
		{"from a session", "session", "open", nil}, // nothing is delegated there, so it asks
		{"from a session, over the bus", "session", "obtain", onlyBus},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := output(t, login(t, c.way, c.action, c.env...))
			contains(t, out, enforced...)
			contains(t, out, "done\n")
			m := inScope.FindStringSubmatch(out)
			if m == nil || !strings.HasPrefix("/sys/fs/cgroup"+m[1], userGroup) || !strings.Contains(out, "pid "+m[3]+"\n") ||
				!strings.Contains(out, m[2]+"/sandbox-run]\n") {
				t.Errorf("not in a scope: %v", m)
			}
			if strings.Contains(out, "missing") {
				t.Error("something is missing in a delegated scope")
			}
			gone(t)
		})
	}
}

// Within the user manager's own tree a usable group exists: no process is moved, and the manager is not asked.
func TestUnitNeedsNoScope(t *testing.T) {
	realSystemd(t)
	out := output(t, login(t, "manager", "open"))
	contains(t, out, enforced...)
	if strings.Contains(out, "asked") || !strings.Contains(out, "roots ["+userGroup) {
		t.Error("asked for a scope, or got no place")
	}
	gone(t)
}

// A library does not move processes: it reports what is missing and what to do.
func TestLibraryStays(t *testing.T) {
	realSystemd(t)
	out := output(t, login(t, "session", "look"))
	contains(t, out, "missing memory: "+userGroup+" is this user's, but this process is in "+userSlice+"/session-",
		"systemd-run --user --scope -p Delegate=yes", "done")
	if strings.Contains(out, "alloc") || !regexp.MustCompile(`own /\S+/session-\w+\.scope <nil>`).MatchString(out) {
		t.Error("it was moved, or has limits")
	}
	gone(t)
}

// Killed without a chance to clean up: the scope goes, with all that was below.
func TestKilled(t *testing.T) {
	realSystemd(t)
	cmd := login(t, "session", "open hold")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, scope := 0, ""
	lines := bufio.NewScanner(pipe)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "holding") {
		if n, ok := strings.CutPrefix(lines.Text(), "pid "); ok {
			pid, _ = strconv.Atoi(n)
		}
		if own, ok := strings.CutPrefix(lines.Text(), "roots ["); ok {
			scope = strings.TrimSuffix(own, "/sandbox-run]")
		}
	}
	if lines.Text() != "holding <nil>" || pid <= 1 {
		t.Fatalf("%q, pid %d", lines.Text(), pid)
	}
	eventually(t, "a process in the group", func() bool {
		procs, err := os.ReadFile(scope + "/sandbox-run/s0000/1/run/cgroup.procs")
		return err == nil && len(strings.Fields(string(procs))) == 1
	})
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone(t)
}

func TestNoManagerAtAll(t *testing.T) {
	realSystemd(t)
	command(t, "loginctl", "disable-linger", plainID)
	_ = exec.Command("loginctl", "terminate-user", plainID).Run() // it may have ended already
	eventually(t, "the end of the user's manager", func() bool {
		_, err := os.Stat(runtimeDir)
		return os.IsNotExist(err)
	})
	out := output(t, login(t, "none", "open"))
	contains(t, out, "asked: "+ErrNoManager.Error()+": "+runtimeDir+"/systemd/private: no such file or directory",
		"missing memory: ", "; "+ErrNoManager.Error(), "loginctl enable-linger "+plainID, "done")
	if strings.Contains(out, "alloc") {
		t.Error("there are limits where none can be")
	}

	// The remedy in the message works.
	linger(t)
	out = output(t, login(t, "none", "open"))
	contains(t, out, append([]string{"asked: <nil>"}, enforced...)...)
	gone(t)
}

// Managers that were not given the cpu controller: memory and processes are limited all the same, and the advice helps.
func TestPartialDelegation(t *testing.T) {
	realSystemd(t)
	const dir = "/etc/systemd/system/user@.service.d"
	delegate := func(controllers string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/10-less.conf", []byte("[Service]\nDelegate=\nDelegate="+controllers+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		command(t, "systemctl", "daemon-reload")
		command(t, "systemctl", "restart", "user@"+plainID+".service")
	}
	delegate("memory pids")
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		command(t, "systemctl", "daemon-reload")
		command(t, "systemctl", "restart", "user@"+plainID+".service")
	})
	out := output(t, login(t, "none", "open", "XDG_RUNTIME_DIR="+runtimeDir))
	contains(t, out, "asked: <nil>", "missing cpu: ", "/etc/systemd/system/user@.service.d", "oom 1, pids hits true, throttled false (<nil>)")
	if strings.Contains(out, "missing memory") || strings.Contains(out, "missing pids") {
		t.Error("more is missing than was withheld")
	}
	gone(t)

	advice := regexp.MustCompile(`missing cpu: .* \(.*as root: (.*)\)\n`).FindStringSubmatch(out)
	if advice == nil {
		t.Fatal("no advice")
	}
	command(t, "sh", "-c", advice[1])
	out = output(t, login(t, "none", "open", "XDG_RUNTIME_DIR="+runtimeDir))
	contains(t, out, append([]string{"asked: <nil>"}, enforced...)...)
	gone(t)
}
