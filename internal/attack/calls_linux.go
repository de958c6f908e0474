package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "embed" // the scripts

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func callCases() []attackCase {
	return []attackCase{
		{"S1", "mount, and make or join namespaces", func(t *trial) { t.calls("S1") }},
		{"S2", "clone3", func(t *trial) { t.calls("S2") }},
		{"S3", "i386 and x32 system calls", foreignCalls},
		{"S4", "sockets of odd families, raw and netlink sockets", func(t *trial) { t.calls("S4") }},
		{"S5", "io_uring, bpf, keys, modules, clocks and their like", func(t *trial) { t.calls("S5") }},
		{"S6", "trace, read or signal processes outside", reachOutside},
		{"S7", "type into the terminal of another process", typeAhead},
		{"S8", "ordinary programs are not hit by the filter", ordinaryPrograms},
		{"S9", "run foreign code before the filter is there", beforeTheFilter},
		{"S10", "a flood of refused calls", floodOfCalls},
	}
}

// calls makes the system calls of one threat inside, and on the host.
func (t *trial) calls(threat string) {
	id := t.sandbox()
	t.callsOf(threat, "", func(args ...string) *sandbox.Result { return t.run(id, t.process("calls", args...), sandbox.IO{}) })
}

// callsOf judges the calls of one threat that one way to run attackers makes. A call that the filter records is refused only if the
// run's violations list it, whatever its errno: a kernel without a socket family returns the same. A call that is refused without a
// record must have another result than on the host.
func (t *trial) callsOf(threat, where string, attack func(args ...string) *sandbox.Result) {
	control := t.outside("calls", threat, hostile.OnHost)
	allowed, made := 0, 0
	for made < len(control) {
		res := attack(threat, strconv.Itoa(made))
		said := answers(hostile.Parse(res.Stdout.Bytes()))
		if !res.Success() || len(said) == 0 {
			t.abort("the attacker calls %s ended with the verdict %s: %.300q", threat, res.Verdict, res.Stderr.Bytes())
		}
		made += len(said)
		records := map[string]uint64{}
		for _, v := range res.Violations {
			if v.Kind == sandbox.ViolationSyscall {
				records[v.Detail] += v.Count
				if v.Saturated {
					t.abort("the record of refused calls is not complete; the attempts prove nothing")
				}
			}
		}
		recording := len(records) > 0 || t.recordsCalls()
		if !recording {
			t.note("this backend does not record refused calls: errors of the kernel and refusals of the filter look alike")
		}
		for _, a := range said {
			c := control.of(a.Name).Got
			if !isRefusal(c) && c != "no answer" && c != "not made" {
				allowed++
			}
			got, held := a.Got, !a.OK()
			switch {
			case threat == "S2": // libc falls back from clone3 only after ENOSYS
				held = a.Got == "ENOSYS"
			case a.Detail != "" && recording:
				if held = held && records[a.Detail] > 0; held {
					records[a.Detail]--
					got += ", recorded"
				} else if held = t.iso.Backend != "native" && isRefusal(a.Got) && a.Got != c; held {
					got += ", by a filter of the runtime" // which records nothing
				} else {
					got += ", and the filter has not recorded it"
				}
			case a.Detail == "" && recording && isRefusal(a.Got) && a.Got == c:
				t.note("%s: not shown, this kernel refuses it to every process", a.Name)
				continue
			case a.Detail == "":
				held = isRefusal(a.Got)
			default:
				held = held && (isRefusal(a.Got) || a.Got != c)
			}
			t.judge(held, a.Name+where, got, "host: "+c)
		}
	}
	t.control(allowed > 0 || os.Geteuid() != 0, "any of these calls without the filter", "refused")
}

// recordsCalls reports whether the backend's filters have a listener on this kernel, so that every refusal is in the result.
func (t *trial) recordsCalls() bool {
	return t.iso.Backend == "native" && seccomp.Notifiable() == nil
}

func foreignCalls(t *trial) {
	id := t.sandbox()
	controls := 0
	for _, table := range []string{"i386", "x32"} {
		c := t.outside("foreign", table).of(table).Got
		if c == "ok" {
			controls++
		} else {
			c = "none: this kernel takes no " + table + " calls"
		}
		res := t.run(id, t.process("foreign", table), sandbox.IO{})
		a := answers(hostile.Parse(res.Stdout.Bytes())).of(table)
		got, held := a.Got, isRefusal(a.Got)
		if res.Exit.Signal == int(unix.SIGSYS) {
			got, held = "killed by SIGSYS", true
		} else if a.Got == "no answer" && res.Exit.Signal != 0 {
			got, held = "killed by "+sandbox.SignalName(res.Exit.Signal), true
		}
		t.judge(held, table, got, c)
	}
	if controls == 0 && len(t.breaches) == 0 {
		t.skipped = "this kernel takes neither i386 nor x32 calls from any process"
	}
}

// bystander is an idle process of the host, in a session of its own.
func (t *trial) bystander(group bool) (pid int) {
	cmd := exec.Command(t.o.Executable, hostile.Args("", t.mark, "sleep", "1m")[1:]...)
	cmd.Env = []string{hostile.Variable + "=" + t.mark}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: !group}
	t.must(cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.later(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return cmd.Process.Pid
}

func reachOutside(t *trial) {
	t.calls("S6")
	id := t.sandbox()
	pid := t.bystander(false)
	args := []string{"pid=" + strconv.Itoa(pid)}
	if self := os.Getpid(); self > 300 { // lower pids exist in the sandbox itself
		args = append(args, "pid="+strconv.Itoa(self))
	}
	const key = 0x5ab0dace
	if shm, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o666); err == nil {
		t.later(func() { _, _ = unix.SysvShmCtl(shm, unix.IPC_RMID, nil) })
		args = append(args, "shm="+strconv.Itoa(key))
	} else {
		t.fault("control failed: a piece of shared memory on the host: %v", err)
	}
	control := t.outside("outside", args...)
	for _, a := range t.inside(id, "outside", args...) {
		c := control.of(a.Name)
		t.control(c.OK(), a.Name+" on the host", c.Got)
		t.judge(!a.OK(), a.Name, a.Got, c.Got)
	}
	t.neighbours()
}

func typeAhead(t *trial) {
	t.calls("S7")
	id := t.sandbox()
	p := t.process("terminal")
	p.TTY = &sandbox.TTY{Rows: 24, Cols: 80}
	res := t.run(id, p, sandbox.IO{})
	said := answers(hostile.Parse(bytes.ReplaceAll(res.Stdout.Bytes(), []byte("\r\n"), []byte("\n"))))
	t.control(said.of("is one").OK(), "it has a terminal", say(said.of("is one")))
	session := said.of("session")
	t.judge(session.Got == session.Detail && session.Got != "0", "a session of its own", say(session), "")
	for _, name := range []string{"TIOCSTI", "TIOCLINUX", "TIOCCONS"} {
		t.judge(!said.of(name).OK() && said.of(name).Got != "no answer", name+" on its terminal", said.of(name).Got,
			"a terminal: "+said.of("is one").Got)
	}
	others := strings.Fields(said.of("others").Detail)
	t.judge(len(others) <= 2, "terminals that it sees", strings.Join(others, " "), "")
}

var (
	//go:embed scripts/ordinary.sh
	ordinaryShell string
	//go:embed scripts/ordinary.py
	ordinaryPython string
	//go:embed scripts/ordinary.js
	ordinaryNode string
	//go:embed scripts/forks.sh
	forksShell string
	//go:embed scripts/forks.py
	forksPython string
	//go:embed scripts/hook.sh
	hookShell string
	//go:embed scripts/hook.py
	hookPython string
)

// hasProgram reports whether the host has a program, and so a sandbox.
func hasProgram(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

func ordinaryPrograms(t *trial) {
	want := t.outside("threads")
	id := t.sandbox()
	res := t.run(id, t.process("threads"), sandbox.IO{})
	got := answers(hostile.Parse(res.Stdout.Bytes()))
	t.judge(res.Success(), "Go", string(res.Verdict), "")
	for _, c := range want {
		t.control(c.OK() || c.Name == "threads", c.Name+" on the host", say(c))
		a := got.of(c.Name)
		t.judge(a == c, "Go: "+c.Name, say(a), say(c))
	}
	sharing := "anonymous"
	if t.polled(sandbox.ControlMemory) {
		sharing = "file"
		t.note("where memory is limited by looking, shared memory without a file is refused")
	}
	var parts []func()
	for _, p := range []struct {
		name string
		args []string
	}{
		{"shell", []string{"/bin/sh", "-c", ordinaryShell}},
		{"Python", []string{"/usr/bin/python3", "-I", "-c", ordinaryPython, sharing}},
		{"Node", []string{"/usr/bin/node", "-e", ordinaryNode}},
		{"Java", []string{"/usr/bin/java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-version"}},
		{"Perl", []string{"/usr/bin/perl", "-e", `my $p = fork(); if (!$p) { exit 3 } waitpid($p, 0); print(($? >> 8) == 3 ? ` +
			`"ordinary\n" : "odd\n")`}},
		{"C compiler", []string{"/bin/sh", "-c", "command -v cc >/dev/null || { echo ordinary; exit 0; }; cd $HOME; echo 'int main(void) { " +
			"return 0; }' > a.c && cc -o a a.c && ./a && echo ordinary"}},
	} {
		if !hasProgram(p.args[0]) {
			continue
		}
		parts = append(parts, func() {
			control := exec.CommandContext(t.ctx, p.args[0], p.args[1:]...)
			dir := t.dir()
			control.Dir, control.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
			said, err := control.Output()
			if err != nil {
				t.note("%s does not work on the host either", p.name)
				return
			}
			box := t.sandbox(func(s *sandbox.Spec) { s.Limits.Memory, s.Limits.Processes = 512*sandbox.MiB, 100 })
			res, err := t.manager.Run(t.ctx, box, sandbox.Process{Args: p.args}, sandbox.IO{})
			if err != nil && t.iso.Backend == "docker" && strings.Contains(err.Error(), "no such file or directory") {
				t.note("the image has no %s", p.name)
				return
			}
			if err != nil {
				t.abort("run %s: %v", p.name, err)
			}
			same := res.Success() && bytes.Equal(res.Stdout.Bytes(), said)
			t.judge(same, p.name, fmt.Sprintf("%s %.60q %.100q", res.Verdict, res.Stdout.Bytes(), res.Stderr.Bytes()), fmt.Sprintf("%.60q", said))
		})
	}
	t.together(parts...)
}

// hooks are variables that make a program run other code first.
func hooks() map[string]string {
	return map[string]string{
		"LD_PRELOAD": "/workspace/hook.so", "LD_AUDIT": "/workspace/hook.so", "LD_LIBRARY_PATH": "/workspace", "GCONV_PATH": "/workspace",
		"PYTHONPATH":    "/workspace",
		"PYTHONSTARTUP": "/workspace/sitecustomize.py", "NODE_OPTIONS": "--require=/workspace/hook.js",
		"JAVA_TOOL_OPTIONS": "-javaagent:/workspace/hook.jar", "BASH_ENV": "/workspace/hook.sh",
		"ENV": "/workspace/hook.sh", "PERL5OPT": "-Mhook", "RUBYOPT": "-rhook", "GODEBUG": "inittrace=0", "GOTRACEBACK": "all",
	}
}

func beforeTheFilter(t *trial) {
	id := t.sandbox()
	p := t.process("status")
	p.Env = hooks()
	res := t.run(id, p, sandbox.IO{})
	first := answers(hostile.Parse(res.Stdout.Bytes()))
	outside := t.outside("status").of("Seccomp").Detail
	t.control(outside == "0", "no filter on the host", "Seccomp "+outside)
	for name, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1"} {
		t.judge(first.of(name).Detail == want, name+" at the program's first instruction, with every hook set", first.of(name).Detail,
			"host: "+outside)
	}
	// Code that interpreters run first is behind the filter.
	for _, hook := range []struct {
		name, file, text string
		args             []string
	}{
		{"BASH_ENV", "hook.sh", hookShell, []string{"/bin/bash", "-c", "true"}},
		{"ENV", "hook.sh", hookShell, []string{"/bin/sh", "-i", "-c", "true"}},
		{"sitecustomize", "sitecustomize.py", hookPython, []string{"/usr/bin/python3", "-c", "pass"}},
	} {
		if !hasProgram(hook.args[0]) {
			continue
		}
		dir := t.dir()
		t.file(dir+"/"+hook.file, hook.text, 0o644)
		env := map[string]string{"BASH_ENV": dir + "/hook.sh", "ENV": dir + "/hook.sh", "PYTHONPATH": dir}
		control := exec.CommandContext(t.ctx, hook.args[0], hook.args[1:]...)
		control.Env = []string{"PATH=/usr/bin:/bin"}
		for k, v := range env {
			control.Env = append(control.Env, k+"="+v)
		}
		control.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		said, _ := control.Output()
		if !bytes.Contains(said, []byte("hooked 0")) {
			t.note("%s is not followed on this host", hook.name)
			continue
		}
		box := t.sandbox(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: dir})
		})
		res := t.run(box, sandbox.Process{Args: hook.args, Env: env}, sandbox.IO{})
		t.judge(strings.Contains(string(res.Stdout.Bytes()), "hooked 2"), "code by way of "+hook.name, fmt.Sprintf("%.80q", res.Stdout.Bytes()),
			fmt.Sprintf("%.40q", said))
	}
	// The init, which runs before the filter is installed, has none of these variables.
	pid, done := t.background(id, sandbox.Process{Args: hostile.Args(t.attacker(), t.mark, "sleep", "1m"), Env: hooks()})
	defer done()
	init := parentOf(pid)
	environ, err := os.ReadFile("/proc/" + init + "/environ")
	if err != nil {
		t.note("the init's environment can not be read by this user")
		return
	}
	attackers, _ := os.ReadFile("/proc/" + pid + "/environ")
	t.control(bytes.Contains(attackers, []byte("LD_PRELOAD=")), "the program has the hooks", "it has not")
	found := ""
	for name := range hooks() {
		if bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+name+"=/workspace")) {
			found = name
		}
	}
	t.judge(found == "", "hooks in the init's environment", map[bool]string{true: "none", false: found}[found == ""], "the program's: there")
}

// background starts a process, waits until the host sees it, and returns its pid on the host and a function that ends it.
func (t *trial) background(id string, p sandbox.Process) (pid string, end func()) {
	return t.backgroundIn(t.manager, id, p, sandbox.IO{})
}

func (t *trial) backgroundIn(m *sandbox.Manager, id string, p sandbox.Process, io sandbox.IO) (pid string, end func()) {
	ended := make(chan struct{})
	before := markedPIDs(t.mark)
	go func() {
		defer close(ended)
		_, _ = m.Run(t.ctx, id, p, io)
	}()
	end = func() {
		_ = m.Kill(id)
		<-ended
	}
	for limit := time.Now().Add(15 * time.Second); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		for _, pid := range markedPIDs(t.mark) {
			if !slices.Contains(before, pid) {
				return pid, end
			}
		}
	}
	end()
	t.abort("what runs in the sandbox is not seen from outside")
	return "", end
}

func parentOf(pid string) string {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// cpuOf is the processor time that a process has used.
func cpuOf(pid string) (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("odd stat")
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * (time.Second / 100), nil
}

func floodOfCalls(t *trial) {
	const span = time.Second
	// The CPU time of the supervisor and the init, while a program runs.
	measure := func(verb string) (outside time.Duration, res *sandbox.Result) {
		runtime.GC()
		id := t.sandbox()
		var init time.Duration
		before, _ := cpuOf("self")
		stop := make(chan struct{})
		looked := make(chan struct{})
		go func() { // the init ends with the program
			defer close(looked)
			parent := ""
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				if parent == "" { // reading every process costs more than what is measured
					if pids := markedPIDs(t.mark); len(pids) > 0 {
						parent = parentOf(pids[0])
					}
				} else if used, err := cpuOf(parent); err == nil {
					init = max(init, used)
				}
			}
		}()
		defer func() {
			close(stop)
			<-looked
			after, _ := cpuOf("self")
			outside = after - before + init
		}()
		return 0, t.run(id, t.process(verb, span.String()), sandbox.IO{})
	}
	var more, quiet, inside, bound time.Duration
	var res *sandbox.Result
	for range 3 { // other work of this process may be counted once; the work of a flood would be each time
		var noisy time.Duration
		quiet, _ = measure("sleep")
		noisy, res = measure("flood")
		more, inside = noisy-quiet, res.Metrics.CPUTime.Duration()
		// Two runs differ by up to the work of one run, which takes longer on a slow machine.
		if bound = max(60*time.Millisecond, quiet) + inside/5; more < bound {
			break
		}
	}
	said := answers(hostile.Parse(res.Stdout.Bytes()))
	refused := said.number("refused")
	t.control(refused > 50000, "calls that were refused", fmt.Sprintf("%d of %d", refused, said.number("calls")))
	t.judge(more < bound, "processor time outside the sandbox",
		fmt.Sprintf("%v more, for %d refused calls that took %v inside", max(0, more), refused,
			inside.Round(time.Millisecond)), fmt.Sprintf("quiet: %v", quiet))
	counted, saturated := uint64(0), false
	for _, v := range res.Violations {
		if v.Kind == sandbox.ViolationSyscall {
			counted, saturated = counted+v.Count, saturated || v.Saturated
		}
	}
	if counted == 0 {
		t.note("refused calls are not counted on this machine")
		return
	}
	const most = 1000 // far above the number that is counted, and far below the number of refused calls
	t.judge(saturated && counted < most, "the count of refused calls", fmt.Sprintf("%d, saturated %v", counted, saturated),
		fmt.Sprintf("refused: %d", refused))
}
