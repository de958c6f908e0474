package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

// testTimeout is long enough for a busy machine.
const testTimeout = 30 * time.Second

// command makes a command of the executable under test, which is killed after testTimeout.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, binary(t), args...)
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// startWhenReady starts the command and returns when the program has printed "ready".
func startWhenReady(t *testing.T, args ...string) (cmd *exec.Cmd, out io.Reader, stderr *bytes.Buffer) {
	t.Helper()
	// The command would inherit ignored signals from the test process, which may run under nohup.
	cmd = command(t, args...)
	cmd.Path, cmd.Args = "/usr/bin/env", append([]string{"env", "--default-signal=HUP,INT,QUIT,TERM", cmd.Path}, args...)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(pipe, ready); err != nil || string(ready) != "ready\n" {
		cmd.Wait()
		t.Fatalf("%q, %v; stderr: %s", ready, err, stderr)
	}
	return cmd, pipe, stderr
}

func TestSignals(t *testing.T) {
	needRoot(t)
	const polite = `trap 'echo bye; exit 7' TERM; trap 'echo stopped; exit 7' INT; echo ready; while :; do sleep 0.05; done`
	const stubborn = `trap '' TERM INT; echo ready; while :; do sleep 0.05; done`
	const hears = `trap 'echo heard' TERM INT; echo ready; while :; do sleep 0.05; done`
	for _, test := range []struct {
		name    string
		program string
		grace   string
		signals []syscall.Signal
		code    int
		says    string // on stdout, after ready
		why     string // on stderr
		atMost  time.Duration
	}{
		{"Ctrl-C", polite, "20s", []syscall.Signal{syscall.SIGINT}, 130, "stopped\n", "cancelled by Ctrl-C", 10 * time.Second},
		{"SIGTERM", polite, "20s", []syscall.Signal{syscall.SIGTERM}, 143, "bye\n", "cancelled by SIGTERM", 10 * time.Second},
		{"SIGHUP", polite, "20s", []syscall.Signal{syscall.SIGHUP}, 129, "bye\n", "cancelled by SIGHUP", 10 * time.Second},
		{"SIGQUIT", polite, "20s", []syscall.Signal{syscall.SIGQUIT}, 131, "bye\n", "cancelled by SIGQUIT", 10 * time.Second},
		{"Ctrl-C and grace", stubborn, "300ms", []syscall.Signal{syscall.SIGINT}, 130, "", "cancelled by Ctrl-C", 10 * time.Second},
		{"Ctrl-C twice", hears, "20s", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130, "heard\n", "cancelled by Ctrl-C", 10 * time.Second},
		{"SIGTERM, then Ctrl-C", hears, "20s", []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}, 143, "heard\n", "cancelled by SIGTERM",
			10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, out, stderr := startWhenReady(t, "exec", "--grace", test.grace, "--", "sh", "-c", test.program)
			began := time.Now()
			var first []byte
			for i, s := range test.signals {
				if i > 0 { // the kernel merges equal pending signals, and does not keep the order of others
					first = make([]byte, len(test.says))
					if _, err := io.ReadFull(out, first); err != nil {
						t.Fatal(err)
					}
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			rest, _ := io.ReadAll(out)
			rest = append(first, rest...)
			code := exitCode(t, cmd.Wait())
			if took := time.Since(began); took > test.atMost {
				t.Errorf("took %v", took)
			}
			if code != test.code || string(rest) != test.says {
				t.Errorf("exit code %d, want %d; stdout %q, want %q", code, test.code, rest, test.says)
			}
			// The shell may print a message about its sleep that was ended.
			if want := "sandbox-run: cancelled: " + test.why + "\n"; !strings.HasSuffix(stderr.String(), want) {
				t.Errorf("stderr %q, want %q", stderr, want)
			}
		})
	}
}

// A signal to the command is in exit_code of its JSON and of its audit entry.
func TestSignalExitCodeInJSON(t *testing.T) {
	needRoot(t)
	log := filepath.Join(t.TempDir(), "audit.jsonl")
	const polite = `trap 'exit 7' TERM INT; echo ready; while :; do sleep 0.05; done`
	for _, test := range []struct {
		args   []string
		signal syscall.Signal
		code   int
	}{
		{[]string{"exec", "--grace", "1m", "--format", "ndjson", "--audit-log", log, "--", "sh", "-c", polite}, syscall.SIGTERM, 143},
		{[]string{"--grace", "1m", "--format", "ndjson", "--audit-log", log, "-l", "shell", "-c", polite}, syscall.SIGINT, 130},
	} {
		cmd := command(t, test.args...)
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		lines, sent, last := bufio.NewScanner(out), false, ""
		for lines.Scan() {
			if last = lines.Text(); !sent && strings.Contains(last, `"data":"ready`) {
				sent = true
				if err := cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := fmt.Sprintf(`"verdict":"cancelled","exit_code":%d,"program_exit_code":7,`, test.code)
		if code := exitCode(t, cmd.Wait()); code != test.code || !strings.Contains(last, want) {
			t.Errorf("exit code %d, want %d; %.200s", code, test.code, last)
		}
		if entries, err := os.ReadFile(log); err != nil || !strings.Contains(string(entries), want) {
			t.Errorf("%v, no %s in %s", err, want, entries)
		}
	}
}

// A command that nohup started does not end with SIGHUP.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	needRoot(t)
	cmd := exec.Command("nohup", binary(t), "exec", "--", "sh", "-c", "echo ready; sleep 0.5; echo done")
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 6)
	if _, err := io.ReadFull(out, ready); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	if code := exitCode(t, cmd.Wait()); code != 0 || string(rest) != "done\n" {
		t.Errorf("exit code %d, %q", code, rest)
	}
}

// A closed reader of the output ends the run, silently and soon.
func TestBrokenPipe(t *testing.T) {
	needRoot(t)
	for name, args := range map[string][]string{
		"output": {"exec", "--", "sh", "-c", "echo ready; exec yes"},
		"errors": {"exec", "--", "sh", "-c", "echo ready; exec yes >&2"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, args...)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout, cmd.Stderr = w, w
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if _, err := io.ReadFull(r, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			r.Close()
			began := time.Now()
			if code := exitCode(t, cmd.Wait()); code != CodeBrokenPipe || time.Since(began) > 10*time.Second {
				t.Errorf("exit code %d after %v, want %d soon", code, time.Since(began), CodeBrokenPipe)
			}
		})
	}
	t.Run("json", func(t *testing.T) {
		cmd := command(t, "exec", "--json", "--", "sh", "-c", "head -c 1000000 /dev/zero")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		cmd.Stdout = w
		err = cmd.Run()
		w.Close()
		if code := exitCode(t, err); code != CodeBrokenPipe {
			t.Errorf("exit code %d, want %d", code, CodeBrokenPipe)
		}
	})
}

// A reader that stops reading without closing blocks the program, but not its time limit.
func TestStuckReader(t *testing.T) {
	needRoot(t)
	cmd := command(t, "exec", "--timeout", "500ms", "--grace", "100ms", "--", "sh", "-c", "exec yes")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	began := time.Now()
	err = cmd.Run()
	w.Close()
	if code := exitCode(t, err); code != 124 || time.Since(began) > 10*time.Second {
		t.Errorf("exit code %d after %v", code, time.Since(began))
	}
}

// An input that never ends does not delay the end of a program that does not read it.
func TestUnreadInput(t *testing.T) {
	needRoot(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := command(t, "exec", "-i", "--", "echo", "done")
	cmd.Stdin = r
	out, err := cmd.Output()
	r.Close()
	if err != nil || string(out) != "done\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// Both streams arrive complete and in order, beyond the size that is kept for the result.
func TestLargeOutputIsExact(t *testing.T) {
	needRoot(t)
	const lines = 3_000_000
	program := fmt.Sprintf("seq %d & seq %d >&2; wait", lines, lines)
	cmd := command(t, "exec", "--", "sh", "-c", program)
	out, errs := sha256.New(), sha256.New()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	want := sha256.New()
	reference := exec.Command("seq", fmt.Sprint(lines))
	reference.Stdout = want
	if err := reference.Run(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Sum(nil), want.Sum(nil)) || !bytes.Equal(errs.Sum(nil), want.Sum(nil)) {
		t.Error("output differs")
	}
}

// Without a terminal, every byte value passes unchanged in both directions.
func TestBytesAreExact(t *testing.T) {
	needRoot(t)
	all := make([]byte, 0, 256*300)
	for i := range 256 * 300 {
		all = append(all, byte(i*7+i/256))
	}
	cmd := command(t, "exec", "-i", "--", "cat")
	cmd.Stdin = bytes.NewReader(all)
	got, err := cmd.Output()
	if err != nil || !bytes.Equal(got, all) {
		t.Errorf("%v; %d bytes of %d", err, len(got), len(all))
	}
}

// A full disk for the output is a failure of sandbox-run, not of the program.
func TestFullDisk(t *testing.T) {
	needRoot(t)
	for _, args := range [][]string{{"exec", "--", "echo", "hello"}, {"exec", "--json", "--", "true"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip("needs /dev/full: ", err)
		}
		cmd := command(t, args...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &stderr
		code := exitCode(t, cmd.Run())
		full.Close()
		if code != codeOurs || (args[1] != "--json" && !strings.Contains(stderr.String(), "no space left on device")) {
			t.Errorf("%q: exit code %d, stderr %q", args, code, stderr.String())
		}
	}
}

// Arguments can have any bytes but NUL, and reach the program unchanged.
func TestGarbageArguments(t *testing.T) {
	needRoot(t)
	garbage := []string{"\x1b[31m", "\xff\xfe", "", " ", "a\nb", "--json", "$(id)", "漢字", strings.Repeat("x", 100_000)}
	cmd := command(t, append([]string{"exec", "--", "printf", "%s|"}, garbage...)...)
	got, err := cmd.Output()
	if want := strings.Join(garbage, "|") + "|"; err != nil || string(got) != want {
		t.Errorf("%v: %d bytes, want %d", err, len(got), len(want))
	}
	// In messages of sandbox-run they are escaped.
	cmd = command(t, "exec", "--", "/no/such/\x1b[31mprogram\r\xff")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	unsafe := func(r rune) bool { return r < ' ' && r != '\n' || r == utf8.RuneError }
	if code := exitCode(t, cmd.Run()); code != codeNoProgram || bytes.ContainsFunc(stderr.Bytes(), unsafe) {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

// gc removes the leftovers of a killed supervisor. The program ends without gc.
func TestGCAfterKill(t *testing.T) {
	needRoot(t)
	cmd, out, _ := startWhenReady(t, "exec", "--", "sh", "-c", "echo ready; sleep 60")
	var claims []string // the leftovers of this supervisor, not of others on this machine
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "/run/sandbox-run/s") {
			claims = append(claims, filepath.Base(to))
		}
	}
	if len(claims) == 0 {
		t.Error("it is registered nowhere: this proves nothing")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, _ = io.ReadAll(out)
	_ = cmd.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("our end of the output stayed open for %v", took)
	}
	// Another process may collect the same leftovers at this moment.
	for end := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
		if text, err := command(t, "gc").CombinedOutput(); err != nil {
			t.Errorf("gc: %v\n%s", err, text)
		}
		var report struct{ Found []struct{ Name string } }
		text, err := command(t, "gc", "--dry-run", "--json").Output()
		if err == nil {
			err = json.Unmarshal(text, &report)
		}
		left := slices.ContainsFunc(report.Found, func(f struct{ Name string }) bool {
			return slices.ContainsFunc(claims, func(c string) bool { return strings.HasSuffix(f.Name, c) })
		})
		if err != nil || left && time.Now().After(end) {
			t.Errorf("%v: %s", err, text)
		}
		if err != nil || !left {
			return
		}
	}
}

// Without root, exec refuses what can not be enforced, and its hint names a tier that exists.
func TestNotRoot(t *testing.T) {
	needRoot(t)
	asNobody := func(args ...string) (int, string) {
		cmd := command(t, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if errors.Is(err, os.ErrPermission) {
			t.Skip("needs an executable that everybody can reach: ", err)
		}
		return exitCode(t, err), string(out)
	}
	code, text := asNobody("exec", "--", "true")
	if code != codeRefused || !strings.Contains(text, `tier "container" is required`) || strings.Contains(text, "--require none") {
		t.Errorf("exec: exit code %d\n%s", code, text)
	}
	code, text = asNobody("doctor")
	if code != CodeUnhealthy || !strings.Contains(text, "\nnot ok: ") || !strings.Contains(text, "\nnative has gaps:\n") {
		t.Errorf("doctor: exit code %d\n%s", code, text)
	}
}

// A sandbox is the same on hosts with low limits, a strict umask, a /proc with only processes, or ignored signals.
func TestUnusualHosts(t *testing.T) {
	needRoot(t)
	const look = `; exec "$0" exec --quiet -- sh -c 'test ! -s /proc/cmdline && test ! -s /proc/kallsyms &&
		! touch /proc/sys/kernel/hostname 2>/dev/null && ls /etc/passwd'`
	for name, host := range map[string]string{
		"ordinary":    ":",
		"low limits":  "ulimit -c 0; ulimit -i 1500; ulimit -n 512; ulimit -s 8192; ulimit -l 64",
		"umask":       "umask 077",
		"proc subset": "mount -t proc -o subset=pid none /proc",
		"ignores":     "trap '' HUP INT TERM QUIT PIPE CHLD",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			out, err := exec.CommandContext(ctx, "unshare", "-m", "--propagation", "private", "bash", "-c", host+look, binary(t)).CombinedOutput()
			if err != nil || string(out) != "/etc/passwd\n" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// A command whose own streams are one pipe passes the program's output on in the order of its writes.
func TestOneStream(t *testing.T) {
	needRoot(t)
	const script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo $i >&2; done"
	const want = "1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n6\n6\n7\n7\n8\n8\n9\n9\n"
	for name, args := range map[string][]string{
		"exec": {"exec", "-q", "--", "sh", "-c", script}, "run": {"-q", "-l", "shell", "-c", script},
		"not streamed": {"-q", "--no-stream", "-l", "shell", "-c", script},
	} {
		if out, err := command(t, args...).CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	// Two pipes, of which the program writes to each once.
	out, err := command(t, "exec", "-q", "--no-merge-output", "--", "sh", "-c", "echo 1 >&2; echo 2").CombinedOutput()
	if err != nil || string(out) != "1\n2\n" {
		t.Errorf("%q, %v", out, err)
	}
}
