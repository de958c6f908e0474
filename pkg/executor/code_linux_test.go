package executor

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func codeExecutor(t *testing.T, timeout time.Duration) *CodeExecutor {
	t.Helper()
	testenv.NeedRoot(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	c := NewCodeExecutor(timeout)
	t.Cleanup(func() {
		for range 2 { // twice is fine
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

func TestCodeExecutor(t *testing.T) {
	c := codeExecutor(t, 0)
	r, err := c.Execute(t.Context(), ExecutionRequest{Language: "python", Code: "import sys; print('out'); print('err', file=sys.stderr)"})
	if err != nil || r.Stdout != "out\n" || r.Stderr != "err\n" || r.ExitCode != 0 || r.Error != nil || r.ExecutionTime <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = c.Execute(t.Context(), ExecutionRequest{Language: "javascript", Code: "process.exit(3)"})
	if err != nil || r.ExitCode != 3 || r.Error == nil || !strings.Contains(r.Error.Error(), "exit code 3") {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = c.Execute(t.Context(), ExecutionRequest{Language: "python", Code: "while True: pass", Timeout: 600 * time.Millisecond})
	if err != nil || r.Error == nil || !strings.Contains(r.Error.Error(), "time_limit") || r.ExitCode != 124 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []ExecutionRequest{{}, {Language: "cobol", Code: "x"}, {Language: "python"}} {
		if _, err := c.Execute(t.Context(), bad); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	var all sync.WaitGroup
	for _, word := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			r, err := c.Execute(t.Context(), ExecutionRequest{Language: "shell", Code: "echo " + word})
			if err != nil || r.Stdout != word+"\n" {
				t.Errorf("%s: %+v, %v", word, r, err)
			}
		})
	}
	all.Wait()
}

func TestCodeExecutorTimeout(t *testing.T) {
	c := codeExecutor(t, 500*time.Millisecond)
	r, err := c.Execute(t.Context(), ExecutionRequest{Language: "shell", Code: "sleep 30"})
	if err != nil || r.Error == nil || !strings.Contains(r.Error.Error(), "time_limit") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestExecuteCommand(t *testing.T) {
	c := codeExecutor(t, 0)
	run := func(command string, config SandboxConfig, files ...MountedFile) *CommandResult {
		t.Helper()
		r, err := c.ExecuteCommand(t.Context(), command, config, files...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := run("pwd; cat in.txt /tmp/abs.txt; ls -l tool | cut -c1-10; echo err >&2; id -u", SandboxConfig{},
		MountedFile{Path: "in.txt", Content: []byte("in\n")}, MountedFile{Path: "/tmp/abs.txt", Content: []byte("abs\n")},
		MountedFile{Path: "tool", Mode: 0o755})
	if r.Stdout != "/workspace\nin\nabs\n-rwxr-xr-x\n1000\n" || r.Stderr != "err\n" || r.Error != nil || r.Duration <= 0 {
		t.Errorf("%+v", r)
	}
	if r.ResourceUsage.MaxMemoryMB != 2048 || r.ResourceUsage.MemoryUsageMB <= 0 {
		t.Errorf("%+v", r.ResourceUsage)
	}
	if r := run("exit 7", SandboxConfig{}); r.ExitCode != 7 || r.Error == nil {
		t.Errorf("%+v", r)
	}
	if r := run("pwd; cat x", SandboxConfig{Workdir: "/tmp", MemoryLimit: "64m", CPULimit: "0.5"},
		MountedFile{Path: "x", Content: []byte("x")}); r.Stdout != "/tmp\nx" || r.ResourceUsage.MaxMemoryMB != 64 {
		t.Errorf("%+v", r)
	}
	if r := run("sleep 30", SandboxConfig{Timeout: 400 * time.Millisecond}); r.Error == nil ||
		!strings.Contains(r.Error.Error(), "time_limit") {
		t.Errorf("%+v", r)
	}
	if r := run("head -c 200m /dev/zero | tail", SandboxConfig{MemoryLimit: "32m"}); r.Error == nil ||
		!strings.Contains(r.Error.Error(), "memory_limit") {
		t.Errorf("%+v", r)
	}
	for name, config := range map[string]SandboxConfig{
		"cpus": {CPULimit: "many"}, "no cpus": {CPULimit: "0"}, "NaN": {CPULimit: "NaN"}, "memory": {MemoryLimit: "2 elephants"},
		"no memory": {MemoryLimit: "0"},
		"workdir":   {Workdir: "relative"}, "timeout": {Timeout: -time.Second},
	} {
		if _, err := c.ExecuteCommand(t.Context(), "true", config); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, p := range []string{"../../etc/passwd", "/etc/passwd", "/workspace", "a/../../x"} {
		if _, err := c.ExecuteCommand(t.Context(), "true", SandboxConfig{}, MountedFile{Path: p}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", p, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // when it runs, however long it took to be made
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			if slices.ContainsFunc(c.manager.List(), func(i sandbox.Info) bool { return i.State == sandbox.StateRunning }) {
				cancel()
			}
		}
	}()
	if r, err := c.ExecuteCommand(ctx, "sleep 30", SandboxConfig{}); err != nil || r.Error == nil ||
		!strings.Contains(r.Error.Error(), "cancelled") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestHealthCheck(t *testing.T) {
	c := codeExecutor(t, 0)
	if err := c.HealthCheck(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.HealthCheck(t.Context()); err == nil {
		t.Error("a closed one is healthy")
	}
	closed := NewCodeExecutor(0)
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	if _, err := closed.Execute(t.Context(), ExecutionRequest{Language: "shell", Code: ":"}); err == nil {
		t.Error("one that was never opened runs after Close")
	}
}

// What the library runs is in the user's log, unless that is switched off.
func TestCodeExecutorIsAudited(t *testing.T) {
	c := codeExecutor(t, 0)
	if _, err := c.Execute(t.Context(), ExecutionRequest{Language: "shell", Code: "exit 3"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ExecuteCommand(t.Context(), "kill -9 $$", SandboxConfig{}); err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open("", audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var entries []audit.Entry
	for e, err := range log.Tail(10) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	if len(entries) != 2 {
		t.Fatalf("%+v", entries)
	}
	if e := entries[0]; e.Language != "shell" || e.ExitCode != 3 || e.Who.EntryPoint != audit.EntryLibrary || e.CodeSHA256 == "" {
		t.Errorf("%+v", e)
	}
	if e := entries[1]; e.Verdict != sandbox.VerdictSignaled || !slices.Equal(e.Command, []string{"/bin/sh", "-c", "kill -9 $$"}) ||
		e.Policy.Backend != "native" {
		t.Errorf("%+v", e)
	}
	t.Setenv("SANDBOX_RUN_AUDIT_LOG", "off")
	if log, err := userLog(); log != nil || err != nil {
		t.Errorf("%v, %v", log, err)
	}
	link := t.TempDir() + "/log"
	if err := os.Symlink(os.DevNull, link); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDBOX_RUN_AUDIT_LOG", link)
	if _, err := userLog(); err == nil {
		t.Error("a log that was named and can not be written to was passed over")
	}
}
