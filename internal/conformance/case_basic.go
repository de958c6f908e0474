package conformance

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var basicRows = []row{
	{"hello", nil, false, func(e *env) {
		res := e.once(e.probe("say", "hello")...)
		e.says(res, "hello")
		if len(res.Stderr.Bytes()) != 0 || res.Exit != (sandbox.Exit{}) || !res.Success() || len(res.Violations) != 0 {
			e.Errorf("%+v", res)
		}
		if res.Isolation.Backend != e.b.Name() || !res.Isolation.Tier.AtLeast(e.expect.Tier) {
			e.Errorf("isolation %+v", res.Isolation)
		}
		if res.Phase != sandbox.DefaultPhase || res.Metrics.WallTime <= 0 || res.Metrics.StartupTime <= 0 {
			e.Errorf("phase %q, metrics %+v", res.Phase, res.Metrics)
		}
	}},
	{"a shell, found in PATH", []Expectation{Programs}, false, func(e *env) {
		e.says(e.once("sh", "-c", "echo $((6*7))"), "42")
	}},
	{"exit codes", nil, false, func(e *env) {
		id := e.create()
		for _, code := range []int{0, 1, 2, 42, 124, 126, 127, 137, 255} {
			res := e.in(id, e.probe("exit", strconv.Itoa(code))...)
			want := sandbox.VerdictNonzeroExit
			if code == 0 {
				want = sandbox.VerdictOK
			}
			e.verdict(res, want)
			if res.Exit != (sandbox.Exit{Code: code}) || sandbox.CLICode(res.Verdict, res.Exit) != code {
				e.Errorf("exit %d became %+v", code, res.Exit)
			}
		}
	}},
	{"signals", nil, false, func(e *env) {
		id := e.create()
		for _, sig := range []int{1, 9, 15} {
			res := e.in(id, e.probe("die", strconv.Itoa(sig))...)
			e.verdict(res, sandbox.VerdictSignaled)
			if res.Exit.Signal != sig || sandbox.CLICode(res.Verdict, res.Exit) != 128+sig {
				e.Errorf("signal %d became %+v", sig, res.Exit)
			}
		}
	}},
	{"signals of a crash", []Expectation{Programs}, false, func(e *env) {
		id := e.create()
		for _, sig := range []int{3, 4, 6, 7, 8, 11, 31} {
			res := e.in(id, e.sh(fmt.Sprintf("kill -%d $$", sig))...)
			e.verdict(res, sandbox.VerdictSignaled)
			if res.Exit.Signal != sig {
				e.Errorf("signal %d became %+v", sig, res.Exit)
			}
		}
	}},
	{"program not found", nil, false, func(e *env) {
		id := e.create()
		_, err := e.try(id, sandbox.Process{Args: []string{"no-such-program"}}, sandbox.IO{})
		if !errors.Is(err, sandbox.ErrNotStarted) || !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "no-such-program") {
			e.Errorf("got %v", err)
		}
		var se *sandbox.Error
		if !errors.As(err, &se) || se.Stage != "exec" {
			e.Errorf("stage of %+v", se)
		}
		e.says(e.in(id, e.probe("say", "control")...), "control") // the sandbox still works
	}},
	{"program not executable", []Expectation{Programs}, false, func(e *env) {
		id := e.create()
		e.ok(e.in(id, e.sh("cd $HOME; echo 'exit 0' > script; echo '#!/bin/sh\nexit 3' > good; chmod +x good; echo '#!/nowhere' > lost; chmod "+
			"+x lost; pwd > /dev/null")...))
		home := strings.TrimSpace(e.ok(e.in(id, e.sh("echo $HOME")...)))
		for name, want := range map[string]error{"/script": syscall.EACCES, "/lost": syscall.ENOENT, "/none": syscall.ENOENT,
			"": syscall.EACCES} {
			_, err := e.try(id, sandbox.Process{Args: []string{home + name}}, sandbox.IO{})
			if !errors.Is(err, sandbox.ErrNotStarted) || !errors.Is(err, want) {
				e.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		if res := e.in(id, home+"/good"); res.Exit.Code != 3 {
			e.Errorf("control: %+v", res.Exit)
		}
	}},
	{"arguments with odd bytes", nil, false, func(e *env) {
		args := []string{"", " ", "\n", "a b", `"quoted"`, "'", "\\", "$HOME", "*", "-", "--", "\x01\x7f\xff\xfe", "ü€😀",
			strings.Repeat("x", 100<<10)}
		res := e.once(e.probe(append([]string{"args"}, args...)...)...)
		var want strings.Builder
		for _, a := range args {
			want.WriteString(strconv.Quote(a) + "\n")
		}
		if e.ok(res) != want.String() {
			e.Errorf("got %.300q", res.Stdout.Bytes())
		}
	}},
	{"environment is clean, and what was added is there", nil, false, func(e *env) {
		e.needEnvironment()
		id := e.create(func(s *sandbox.Spec) { s.Env["ADDED"] = "by the sandbox"; s.Env["BOTH"] = "sandbox" })
		res := e.do(id, sandbox.Process{Args: e.probe("env"), Env: map[string]string{"ODD": "a=b\n\xff", "BOTH": "process", "EMPTY": ""}},
			sandbox.IO{})
		var names []string
		for _, line := range strings.Split(strings.TrimSpace(e.ok(res)), "\n") {
			entry, err := strconv.Unquote(line)
			if err != nil {
				e.Fatal(err)
			}
			name, value, _ := strings.Cut(entry, "=")
			names = append(names, name)
			for n, want := range map[string]string{"ADDED": "by the sandbox", "BOTH": "process", "ODD": "a=b\n\xff", "EMPTY": "",
				"USER": "sandbox"} {
				if n == name && value != want {
					e.Errorf("%s=%q, want %q", n, value, want)
				}
			}
		}
		want := []string{"ADDED", "BOTH", "EMPTY", "HOME", "LANG", "LOGNAME", "ODD", "PATH", markVariable, "USER"}
		names = slices.DeleteFunc(names, func(n string) bool { return n == "TMPDIR" }) // where /tmp is not the sandbox's own
		slices.Sort(want)
		slices.Sort(names)
		if !slices.Equal(names, want) {
			e.Errorf("variables %q, want %q", names, want)
		}
	}},
	{"working directory", []Expectation{Programs}, false, func(e *env) {
		id := e.create()
		if e.has(Isolated) {
			e.says(e.in(id, e.probe("cwd")...), "/workspace ok")
			e.says(e.do(id, sandbox.Process{Args: e.probe("cwd"), Workdir: "/tmp"}, sandbox.IO{}), "/tmp ok")
		}
		e.says(e.do(id, sandbox.Process{Args: e.probe("cwd"), Workdir: "/usr/bin"}, sandbox.IO{}), "/usr/bin ok")
		for _, dir := range []string{"/nowhere", "/etc/hostname"} {
			_, err := e.try(id, sandbox.Process{Args: e.probe("cwd"), Workdir: dir}, sandbox.IO{})
			var se *sandbox.Error
			if !errors.Is(err, sandbox.ErrInvalid) || !errors.As(err, &se) || se.Stage != "workdir" || !strings.Contains(err.Error(), dir) {
				e.Errorf("%s: %v", dir, err)
			}
		}
	}},
	{"requests that are wrong", nil, false, func(e *env) {
		id := e.create()
		for _, p := range []sandbox.Process{
			{},
			{Args: []string{""}},
			{Args: []string{"a\x00b"}},
			{Args: []string{"x"}, Phase: "../x"},
			{Args: []string{"x"}, Workdir: "relative"},
			{Args: []string{"x"}, Network: network.Policy{Mode: "internet"}},
			{Args: []string{"x"}, Env: map[string]string{"A=B": ""}},
			{Args: []string{"x"}, Limits: sandbox.Limits{Disk: sandbox.GiB}},
			{Args: []string{"x"}, Limits: sandbox.Limits{Processes: -1}},
			{Args: []string{"x", strings.Repeat("y", 1<<20)}},
		} {
			if _, err := e.try(id, p, sandbox.IO{}); !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("%.200v: %v", p, err)
			}
		}
		if _, err := e.try("absent", sandbox.Process{Args: e.probe("exit", "0")}, sandbox.IO{}); !errors.Is(err, sandbox.ErrNotFound) {
			e.Errorf("%v", err)
		}
	}},
}

// needEnvironment is the control of that case: the test process must have an environment that could be inherited.
func (e *env) needEnvironment() {
	e.Helper()
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "PATH=") {
			return
		}
	}
	e.Fatal("this process has an empty environment: the case would prove nothing")
}
