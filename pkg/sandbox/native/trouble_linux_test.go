package native

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// faultVariable makes the test binary a supervisor that a fault happens to: the fault's name and its arguments. It is a
// process of its own, because the fault affects all of it: its mount namespace, its descriptors, its cgroup.
const faultVariable = "SANDBOXTEST_FAULT"

// attempt is the outcome of one sandbox, as the faulty supervisor reports it: a line of JSON.
type attempt struct {
	Fault   string // what was done, this time
	Step    string // that failed; empty when none has
	Error   string
	Verdict sandbox.Verdict
	Output  string
	Notes   []string
	Gaps    []string // of the isolation that was achieved
	Left    string   // the leftovers of the attempt in this process
	Claim   string   // nothing but the name under which the supervisor is registered: a line of its own
}

// faultsByName are the faults of a supervisor, by name.
var faultsByName = map[string]func(args []string) error{
	"read-only-cgroups": readOnlyCgroups,
	"read-only-midway":  readOnlyMidway,
	"full-runtime":      fullRuntime,
	"full-cache":        fullCache,
	"too-large-disk":    tooLargeDisk,
	"few-descriptors":   fewDescriptors,
	"fewer-later":       fewerLater,
	"little-memory":     littleMemory,
	"killed-settled":    killedSettled,
	"collecting":        collecting,
}

// runFault is the main function of the faulty supervisor.
func runFault(fault string) int {
	args := strings.Fields(fault)
	if err := faultsByName[args[0]](args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "setting up", fault+":", err)
		return 3
	}
	return 0
}

func tell(a attempt) {
	line, _ := json.Marshal(a)
	fmt.Println(string(line))
}

// try makes a sandbox, uses it and deletes it, as far as the fault permits.
func try(fault string, spec sandbox.Spec, script string) attempt {
	return tryWith(Options{}, fault, spec, script)
}

func tryWith(o Options, fault string, spec sandbox.Spec, script string) attempt {
	a := attempt{Fault: fault}
	note := func(step string, err error) bool {
		if err != nil && a.Step == "" {
			a.Step, a.Error = step, err.Error()
		}
		return err == nil
	}
	o.CacheDir = os.Getenv(cacheVariable)
	b, err := New(o)
	if !note("new", err) {
		return a
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	ctx := context.Background()
	spec.Env = map[string]string{"SANDBOXTEST_MARK": os.Getenv("SANDBOXTEST_MARK")}
	id, err := m.Create(ctx, spec)
	if b.inits != nil {
		tell(attempt{Claim: filepath.Dir(b.inits.supervisor.NewGroup().Path())})
	}
	if note("create", err) {
		res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c", script}}, sandbox.IO{})
		if note("run", err) {
			a.Verdict, a.Output, a.Notes = res.Verdict, string(res.Stdout.Bytes())+string(res.Stderr.Bytes()), res.Notes
			for _, g := range res.Isolation.Missing {
				a.Gaps = append(a.Gaps, g.Reason)
			}
		}
		note("delete", m.Delete(ctx, id))
	}
	note("close manager", m.Close())
	note("close", b.Close())
	return a
}

// runWithFault runs a supervisor with a fault and returns its reports and its exit. The supervisor must end by itself,
// unless the kernel ends it, must not panic, and leaves nothing after a collection.
func runWithFault(t *testing.T, private bool, fault string, args ...string) ([]attempt, *os.ProcessState) {
	t.Helper()
	needRoot(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf("fault-%d-%d", os.Getpid(), rand.Uint64())
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGQUIT) } // prints the stacks of a supervisor that hangs
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), faultVariable+"="+strings.Join(append([]string{fault}, args...), " "), "SANDBOXTEST_MARK="+mark, "GODEBUG=")
	if os.Getenv(cacheVariable) == "" {
		cmd.Env = append(cmd.Env, cacheVariable+"="+cacheDir(t))
	}
	if private {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %q: %v", fault, args, err)
	}
	ended := time.Now()
	if ctx.Err() != nil {
		t.Fatalf("%s %q hangs:\n%s", fault, args, complaints.String())
	}
	if strings.Contains(complaints.String(), "goroutine ") || cmd.ProcessState.ExitCode() > 0 {
		t.Fatalf("%s %q: %v\n%.4000s\n%s", fault, args, cmd.ProcessState, complaints.String(), out.Bytes()[max(0, out.Len()-1000):])
	}
	var told []attempt
	var claims []string
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		var a attempt
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatalf("%s %q says %q", fault, args, lines.Text())
		}
		if a.Claim != "" {
			claims = append(claims, a.Claim)
			continue
		}
		told = append(told, a)
	}
	if alive := conformance.Outliving(mark, ended); len(alive) > 0 {
		t.Errorf("%s %q: alive a second after their supervisor: %q", fault, args, alive)
	}
	next, err := New(Options{CacheDir: cacheDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	// Another collector may remove the same leftovers at this moment.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := next.Collect(context.Background(), false); err != nil {
			t.Error(err)
		}
		if len(conformance.Left(claims)) == 0 || time.Now().After(end) {
			break
		}
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if left := conformance.Left(claims); len(left) > 0 {
		t.Errorf("%s %q: left after the next start: %q", fault, args, left)
	}
	return told, cmd.ProcessState
}

// running is a supervisor with a fault that continues until it is stopped.
type running struct {
	cmd *exec.Cmd
	out *bytes.Buffer
}

func startFault(t *testing.T, fault string) *running {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: exec.Command(exe), out: &bytes.Buffer{}}
	r.cmd.Env = append(os.Environ(), faultVariable+"="+fault, cacheVariable+"="+cacheDir(t))
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.stop() })
	return r
}

// stop kills the supervisor and returns its reports. It may be called twice.
func (r *running) stop() string {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	return r.out.String()
}

// nextStep matches the remedy in an error.
var nextStep = regexp.MustCompile(`(; |\n  )(try|fix): \S|; (free some|use a|raise|remount) `)

// isClear fails unless an attempt either succeeded or reports the cause and the next step.
func isClear(t *testing.T, a attempt) {
	t.Helper()
	switch {
	case a.Step == "" && (a.Verdict != sandbox.VerdictOK || a.Output != "hello\n"):
		t.Errorf("%s: %s, says %q", a.Fault, a.Verdict, a.Output)
	case a.Step != "" && !nextStep.MatchString(a.Error):
		t.Errorf("%s: %s: no next step: %s", a.Fault, a.Step, a.Error)
	}
	if a.Left != "" {
		t.Errorf("%s: %s", a.Fault, a.Left)
	}
}

// failures are the attempts that failed; at least one must.
func failures(t *testing.T, told []attempt) (failed []attempt) {
	t.Helper()
	seen := map[string]bool{}
	for _, a := range told {
		isClear(t, a)
		if a.Step != "" {
			failed = append(failed, a)
			if !seen[a.Error] {
				t.Logf("%s: %s: %s", a.Fault, a.Step, a.Error)
			}
			seen[a.Error] = true
		}
	}
	if len(failed) == 0 {
		t.Errorf("nothing has failed: %+v", told)
	}
	return failed
}
