package attack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func resourceCases() []attackCase {
	return []attackCase{
		{"R1", "fork bombs, and children that stay", forkBombs},
		{"R2", "resist being ended", resistEnding},
		{"R3", "zombies by the hundred", manyZombies},
		{"R4", "take memory of every kind", takeMemory},
		{"R5", "use processors for ever, or sleep for ever", useProcessors},
		{"R6", "use up files, sockets, watches, timers", useUpCounts},
		{"R7", "floods of output", floodOfOutput},
		{"R8", "streams that are not read or not closed", stuckStreams},
		{"R9", "compile bombs", compileBombs},
		{"R10", "core dumps to a handler of the host", coreDumps},
		{"R11", "its own cgroup's limits", ownCgroup},
		{"R12", "have the wrong process signalled", wrongProcess},
		{"R13", "slow down the neighbours", neighbours},
	}
}

func forkBombs(t *trial) {
	const limit, bound = 32, 96
	capped := t.iso.Controls[sandbox.ControlProcesses] != sandbox.Absent
	// The attacker itself has some ten threads.
	allowed := t.run(t.sandbox(func(s *sandbox.Spec) { s.Limits.Processes = 2*bound + limit }),
		t.process("fork", "plain", fmt.Sprint(bound), "0s"), sandbox.IO{})
	control := answers(hostile.Parse(allowed.Stdout.Bytes())).of("forks")
	t.control(control.Got == fmt.Sprint(bound), "the same bomb with more room", say(control))
	attempt := func(name string, wall time.Duration, p sandbox.Process, count func(*sandbox.Result) (int, string)) func() {
		return func() {
			id := t.sandbox(func(s *sandbox.Spec) { s.Limits.Processes, s.Limits.Wall = limit, wall })
			began := time.Now()
			res := t.run(id, p, sandbox.IO{})
			took := time.Since(began)
			made, got := count(res)
			got = fmt.Sprintf("%d processes (%s); back after %v", made, got, took.Round(10*time.Millisecond))
			held := took < wall+5*time.Second
			switch {
			case !capped:
				t.note("the number of processes is not limited here, nor claimed to be")
			case t.polled(sandbox.ControlProcesses) && t.isolated():
				t.note("processes are limited by looking: %d were made where %d may be", made, limit)
			default:
				held = held && made >= 0 && made < limit
			}
			t.judge(held, name, got, control.Got+" with more room")
			t.delete(id)
		}
	}
	own := func(res *sandbox.Result) (int, string) {
		a := answers(hostile.Parse(res.Stdout.Bytes()))
		return a.number("forks"), a.of("forks").Detail
	}
	script := func(res *sandbox.Result) (int, string) {
		lines := strings.Fields(string(res.Stdout.Bytes()))
		made := 0
		for _, l := range lines {
			_, _ = fmt.Sscan(l, &made)
		}
		return made, string(res.Verdict)
	}
	// A bomb that ends by itself prints its count at its end, which takes a while on a slow machine.
	const stays, ends = 3 * time.Second, 30 * time.Second
	parts := []func(){
		attempt("children that wait", ends, t.process("fork", "plain", fmt.Sprint(bound), "0s"), own),
		attempt("children in sessions of their own", ends, t.process("fork", "sessions", fmt.Sprint(bound), "0s"), own),
		attempt("orphans of orphans", ends, t.process("fork", "orphans", fmt.Sprint(bound), "0s"), own),
		attempt("a bomb that stays", stays, t.process("fork", "sessions", fmt.Sprint(bound), "20s"), own),
	}
	for _, s := range []struct{ name, interpreter, flag, text string }{{"in shell", "/bin/sh", "-c", forksShell},
		{"in Python", "/usr/bin/python3", "-c", forksPython}} {
		if hasProgram(s.interpreter) {
			args := []string{s.interpreter, s.flag, s.text}
			if s.interpreter == "/bin/sh" {
				args = append(args, "forks")
			}
			parts = append(parts, attempt(s.name, stays, sandbox.Process{Args: append(args, fmt.Sprint(bound))}, script))
		}
	}
	t.together(parts...)
	left := marked(t.mark)
	for end := time.Now().Add(time.Second); len(left) > 0 && time.Now().Before(end); left = marked(t.mark) {
		time.Sleep(20 * time.Millisecond)
	}
	t.judge(len(left) == 0, "alive a second later", fmt.Sprint(len(left)), "")
}

func resistEnding(t *trial) {
	const wall, grace = 300 * time.Millisecond, 200 * time.Millisecond
	// On the host it survives the signals.
	cmd := exec.Command(t.o.Executable, hostile.Args("", t.mark, "resist", "ignore", "10s")[1:]...)
	cmd.Env = []string{hostile.Variable + "=" + t.mark}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	t.must(err)
	t.must(cmd.Start())
	_, _ = out.Read(make([]byte, 64)) // its line when it is ready
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Process.Signal(syscall.SIGINT)
	time.Sleep(100 * time.Millisecond)
	alive := cmd.Process.Signal(syscall.Signal(0)) == nil
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	t.control(alive, "it survives SIGTERM and SIGINT on the host", fmt.Sprint(alive))
	var parts []func()
	for _, kind := range []string{"ignore", "stop self", "stop all"} {
		parts = append(parts, func() {
			id := t.sandbox(func(s *sandbox.Spec) { s.Limits.Wall, s.Limits.Grace = wall, grace })
			args := []string{kind, "10s"}
			if t.isolated() {
				args = append(args, "alone")
			}
			began := time.Now()
			res := t.run(id, t.process("resist", args...), sandbox.IO{})
			took := time.Since(began)
			t.judge(res.Verdict == sandbox.VerdictTimeLimit && took < wall+grace+3*time.Second, kind,
				fmt.Sprintf("%s after %v", res.Verdict, took.Round(10*time.Millisecond)), "the host's SIGTERM: survived")
		})
	}
	t.together(parts...)
}

func manyZombies(t *trial) {
	const count, limit = 150, 48
	said := t.inside(t.sandbox(func(s *sandbox.Spec) { s.Limits.Processes = limit }), "zombies", fmt.Sprint(count))
	t.control(said.number("own") >= 8, "children that are not reaped stay zombies", fmt.Sprint(said.number("own")))
	t.judge(said.number("orphans") == count, fmt.Sprintf("%d orphans, where %d processes may be", count, limit), say(said.of("orphans")), "")
	t.judge(said.number("zombies") == 0, "zombies afterwards", fmt.Sprint(said.number("zombies")),
		fmt.Sprintf("zombies: %d", said.number("own")))
}

func takeMemory(t *trial) {
	const limit, most = 64 * sandbox.MiB, 128 * sandbox.MiB
	polled := t.polled(sandbox.ControlMemory)
	hold := "0s"
	if polled {
		hold = "1s" // long enough to be measured
	}
	box := func(memory sandbox.Size) string {
		return t.sandbox(func(s *sandbox.Spec) {
			s.Limits.Memory, s.Limits.Disk, s.Scratch = memory, sandbox.GiB, sandbox.ScratchAuto
		})
	}
	control := t.inside(box(384*sandbox.MiB), "memory", "anonymous", fmt.Sprint(int(most)), "0s")
	t.control(control.number("held") == int(most/sandbox.MiB), "the same with more room", say(control.of("held")))
	var parts []func()
	for _, kind := range []string{"anonymous", "shared", "memfd", "tmpfs", "sysv", "pipes", "sockets", "cache"} {
		parts = append(parts, func() {
			id := box(limit)
			res := t.run(id, t.process("memory", kind, fmt.Sprint(int(most)), hold), sandbox.IO{})
			a := answers(hostile.Parse(res.Stdout.Bytes())).of("held")
			held := 0
			_, _ = fmt.Sscan(a.Got, &held)
			peak := sandbox.Size(res.Metrics.MemoryPeak)
			got := fmt.Sprintf("verdict %s, peak %s", res.Verdict, peak)
			if a.Got != "no answer" {
				got += fmt.Sprintf(", %d MiB held (%s)", held, a.Detail)
			}
			within := peak <= limit+sandbox.MiB
			if polled {
				if peak > limit {
					t.note("memory is limited by looking: %s overshot to %s where %s may be", kind, peak, limit)
				}
				within = true
			}
			switch {
			case res.Verdict == sandbox.VerdictMemoryLimit:
				t.judge(within, kind, got, "with more room: ok")
			case (res.Success() || res.Verdict == sandbox.VerdictTimeLimit) &&
				kind == "cache": // pages of a file can be given back, which takes its time
				t.judge(within, kind, got, "with more room: ok")
			case polled && kind == "pipes" && held <= pipesUnseen():
				t.note("memory is limited by looking, and what pipes buffer is not seen: %d MiB, of %d that a user may have", held, pipesUnseen())
				t.judge(true, kind, got, "with more room: ok")
			default:
				t.judge(within && res.Success() && held < int(limit/sandbox.MiB), kind, got, "with more room: ok")
			}
			t.delete(id)
		})
	}
	t.together(parts...)
	if t.iso.Controls[sandbox.ControlSwap] == sandbox.Absent {
		t.note("swap is not limited on this machine")
	}
}

// pipesUnseen is how many MiB the pipes of a user may buffer: beyond that, new ones get two pages each.
func pipesUnseen() int {
	pages := 16384
	if text, err := os.ReadFile("/proc/sys/fs/pipe-user-pages-soft"); err == nil {
		_, _ = fmt.Sscan(string(text), &pages)
	}
	return pages*os.Getpagesize()>>20 + 8
}

func useProcessors(t *trial) {
	const budget = 250 * time.Millisecond
	spinning := func(wall, cpu time.Duration) string {
		return t.sandbox(func(s *sandbox.Spec) { s.Limits.CPUs, s.Limits.CPUTime, s.Limits.Wall = 1, cpu, wall })
	}
	control := t.inside(spinning(5*time.Second, 5*time.Second), "spin", "one", "1", "30ms").of("spun")
	t.control(control.OK(), "spin for a moment", say(control))
	t.shareOfProcessors()
	if t.iso.Controls[sandbox.ControlCPUTime] == sandbox.Absent {
		t.note("processor time is not limited here, nor claimed to be")
	} else {
		most := time.Duration(0)
		for _, kind := range []string{"one", "threads", "children"} {
			id := spinning(8*time.Second, budget)
			res := t.run(id, t.process("spin", kind, "3", "700ms"), sandbox.IO{})
			used := res.Metrics.CPUTime.Duration()
			if res.Verdict == sandbox.VerdictTimeLimit && used < budget {
				t.control(false, "spin: "+kind, fmt.Sprintf("only %v of processor time in 8 s, as the machine is busy", used))
				continue
			}
			if res.Verdict == sandbox.VerdictOK && used < 3*budget { // by the clock of a kernel of its own it has taken more
				t.note("spin: %s: it ended by itself after %v of the host's processor time", kind, used.Round(time.Millisecond))
				continue
			}
			t.judge(res.Verdict == sandbox.VerdictCPULimit && used < 3*budget+t.host.canary.spare(), "spin: "+kind,
				fmt.Sprintf("%s after %v of processor time", res.Verdict, used.Round(time.Millisecond)), "a moment: ok")
			most = max(most, used)
		}
		if t.polled(sandbox.ControlCPUTime) {
			t.note("processor time is limited by looking: at most %v used where %v may be", most.Round(time.Millisecond), budget)
		}
	}
	began := time.Now()
	res := t.run(spinning(300*time.Millisecond, 0), t.process("sleep", "10s"), sandbox.IO{})
	t.judge(res.Verdict == sandbox.VerdictTimeLimit && time.Since(began) < 4*time.Second, "sleep", string(res.Verdict), "")
}

// shareOfProcessors has many threads that want a processor each, where all together may have a small part of one. It is so small that
// a busy machine still leaves them more than that.
func (t *trial) shareOfProcessors() {
	cores, most, spin := 0.05, 0.1, 60*time.Millisecond
	switch {
	case t.iso.Controls[sandbox.ControlCPU] == sandbox.Absent:
		t.note("processors are not limited here, nor claimed to be")
		return
	case t.polled(sandbox.ControlCPU) && t.isolated(): // bound to whole processors
		if cores, most, spin = 1, 1.3, 400*time.Millisecond; runtime.NumCPU() == 1 {
			t.note("processors are limited by being bound to some, and this machine has one")
			return
		}
	}
	id := t.sandbox(func(s *sandbox.Spec) { s.Limits.CPUs = cores })
	res := t.run(id, t.process("spin", "threads", "4", spin.String()), sandbox.IO{})
	used, wall := res.Metrics.CPUTime.Duration(), res.Metrics.WallTime.Duration()
	t.control(used >= spin/2, "threads that spin", fmt.Sprintf("%s, %v used", res.Verdict, used))
	share := used.Seconds() / max(wall, time.Millisecond).Seconds()
	t.judge(share <= most, fmt.Sprintf("4 threads that may use %g processors", cores), fmt.Sprintf("%.2f used", share), "")
}

func useUpCounts(t *trial) {
	const files = 64
	instances := files
	if os.Geteuid() != 0 { // the kernel counts them per user: a sandbox has fewer than open files
		instances = 32
	}
	id := t.sandbox(func(s *sandbox.Spec) { s.Limits.OpenFiles, s.Limits.Memory = files, 256*sandbox.MiB })
	for _, c := range []struct {
		kind        string
		tried, most int // most is the limit of a sandbox
	}{
		{"open files", 256, files}, {"sockets", 256, files}, {"epoll", 256, files}, {"inotify", 256, instances},
		{"timers", 12000, 5000}, {"queued signals", 12000, 5000}, {"locked memory", 64, 16},
	} {
		control := t.outside("exhaust", c.kind, fmt.Sprint(c.most+1))
		reached := control.number(c.kind)
		if os.Geteuid() == 0 || !slices.Contains([]string{"timers", "queued signals", "locked memory", "inotify"}, c.kind) {
			t.control(reached == c.most+1, "more of it on the host: "+c.kind, say(control.of(c.kind)))
		}
		a := t.inside(id, "exhaust", c.kind, fmt.Sprint(c.tried)).of(c.kind)
		n := -1
		_, _ = fmt.Sscan(a.Got, &n)
		t.judge(n >= 0 && n <= c.most && a.Detail != "ok", c.kind, fmt.Sprintf("%d, then %s", n, a.Detail), fmt.Sprintf("host: %d", reached))
	}
	// The host still has enough of each.
	for _, a := range t.outside("exhaust", "inotify", "4") {
		t.judge(a.Got == "4", "the host meanwhile: "+a.Name, say(a), "")
	}
}

func floodOfOutput(t *trial) {
	small := t.run(t.sandbox(), t.process("output", "0"), sandbox.IO{})
	t.control(small.Success() && !small.Stdout.Truncated(), "a program that says nothing", string(small.Verdict))
	text := t.run(t.sandbox(), t.process("print", `"hello"`), sandbox.IO{})
	t.control(string(text.Stdout.Bytes()) == "hello" && !text.Stdout.Truncated(), "a short word", fmt.Sprintf("%.40q", text.Stdout.Bytes()))
	const mebibytes = 96
	for _, stream := range []string{"output", "errors"} {
		id := t.sandbox(func(s *sandbox.Spec) { s.Limits.Output, s.Limits.Wall = 64*sandbox.KiB, 5*time.Minute })
		before := residentMemory()
		res := t.run(id, t.process("output", fmt.Sprint(mebibytes), stream), sandbox.IO{})
		grown := residentMemory() - before
		out := res.Stdout
		if stream == "errors" {
			out = res.Stderr
		}
		kept := len(out.Bytes())
		held := res.Success() && out.Truncated() && kept <= 80<<10 && out.Total >= mebibytes<<20 && grown < 48<<20
		t.judge(held, fmt.Sprintf("%d MiB of %s without a newline", mebibytes, stream),
			fmt.Sprintf("%s, %d KiB kept, truncated %v, %d MiB more memory", res.Verdict, kept>>10, out.Truncated(),
				max(0, grown)>>20), "a short word: whole")
	}
	began := time.Now()
	res := t.run(t.sandbox(), t.process("background", "20s"), sandbox.IO{})
	took := time.Since(began)
	left := answers(hostile.Parse(res.Stdout.Bytes())).of("left")
	t.control(left.OK(), "leave a child that holds the output", say(left))
	t.judge(took < 5*time.Second, "a child that holds the output open",
		fmt.Sprintf("%s after %v", res.Verdict, took.Round(10*time.Millisecond)), "")
}

// silence is an input without data, until it is closed.
type silence struct{ closed chan struct{} }

func (s silence) Read([]byte) (int, error) {
	<-s.closed
	return 0, io.EOF
}

// endless is an input without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func stuckStreams(t *trial) {
	echo := t.run(t.sandbox(), t.process("stdin", "echo"), sandbox.IO{Stdin: bytes.NewReader(make([]byte, 100000))})
	read := answers(hostile.Parse(echo.Stdout.Bytes())).of("read")
	t.control(read.Detail == "100000", "input that is read", say(read))
	quiet := silence{make(chan struct{})}
	t.later(func() { close(quiet.closed) })
	var parts []func()
	for _, s := range []struct {
		name string
		verb string
		in   io.Reader
	}{
		{"input without end that is never read", "ignore", endless{}}, {"input that never comes and is never closed", "ignore", quiet},
		{"output closed early", "close", nil},
	} {
		parts = append(parts, func() {
			id := t.sandbox()
			began := time.Now()
			res := t.run(id, t.process("stdin", s.verb, "200ms"), sandbox.IO{Stdin: s.in})
			took := time.Since(began)
			t.judge(res.Success() && took < 4*time.Second, s.name, fmt.Sprintf("%s after %v", res.Verdict, took.Round(10*time.Millisecond)),
				"read: whole")
		})
	}
	t.together(parts...)
}

func compileBombs(t *trial) {
	t.note("nothing is compiled for a program; tried: compilers as the program")
	const limit = 64 * sandbox.MiB
	box := func(change ...func(*sandbox.Spec)) string {
		return t.sandbox(append([]func(*sandbox.Spec){func(s *sandbox.Spec) {
			s.Limits.Memory, s.Limits.Wall, s.Limits.Output = limit, 3*time.Second, 64*sandbox.KiB
		}}, change...)...)
	}
	hold := "0s"
	if t.polled(sandbox.ControlMemory) {
		hold = "1s" // long enough to be measured
	}
	include := func(file string, most sandbox.Size) *sandbox.Result {
		return t.run(box(), t.process("memory", "include", fmt.Sprint(int(most)), hold, file), sandbox.IO{})
	}
	small := answers(hostile.Parse(include("/dev/zero", 4*sandbox.MiB).Stdout.Bytes())).of("held")
	t.control(small.Got == "4", "include 4 MiB", say(small))
	res := include("/dev/zero", 2*limit)
	t.judge(res.Verdict == sandbox.VerdictMemoryLimit, "include /dev/zero",
		fmt.Sprintf("%s, peak %s", res.Verdict, sandbox.Size(res.Metrics.MemoryPeak)), "4 MiB: ok")
	hosts, _ := os.ReadFile("/etc/passwd")
	var own strings.Builder
	for _, a := range t.inside(box(), "cat", "/etc/passwd") {
		own.WriteString(a.Detail + "\n")
	}
	t.judge(own.Len() > 0 && own.String() != string(hosts), "include /etc/passwd", fmt.Sprintf("%d bytes, of its own", own.Len()),
		fmt.Sprintf("the host's: %d bytes", len(hosts)))
	res = t.run(box(), t.process("output", "16", "errors"), sandbox.IO{})
	t.judge((res.Success() || res.Verdict == sandbox.VerdictTimeLimit) && res.Stderr.Truncated(), "error messages without end",
		fmt.Sprintf("%s, truncated %v", res.Verdict, res.Stderr.Truncated()), "")
	res = t.run(box(func(s *sandbox.Spec) { s.Limits.Wall = 300 * time.Millisecond }), t.process("spin", "threads", "4", "3s"), sandbox.IO{})
	t.judge(res.Verdict == sandbox.VerdictTimeLimit, "compile for ever", string(res.Verdict), "")
	for _, cc := range []string{"/usr/bin/cc", "/usr/bin/gcc"} {
		if !hasProgram(cc) {
			continue
		}
		res := t.run(box(func(s *sandbox.Spec) { s.Limits.Memory, s.Limits.Wall = 128*sandbox.MiB, 2*time.Second }),
			sandbox.Process{Args: []string{"/bin/sh", "-c",
				`printf '#include "/dev/zero"\n' > a.c; exec ` + cc + ` -c a.c`}}, sandbox.IO{})
		t.judge(!res.Success(), filepath.Base(cc)+" that includes /dev/zero", string(res.Verdict), "")
		break
	}
}

func coreDumps(t *trial) {
	id := t.sandbox()
	said := t.inside(id, "crash", "/workspace")
	limit := said.of("limit").Detail
	t.judge(limit == "0" || limit == "1", "limit of a core", limit, "")
	t.judge(!said.of("raise").OK(), "raise it", said.of("raise").Got, "")
	var control string
	pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
	var own unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_CORE, &own)
	switch p := strings.TrimSpace(string(pattern)); {
	case own.Max <= 1:
		control = "this process may leave none either"
		t.note("no crash was made on the host: its own limit forbids cores")
	case strings.ContainsAny(p, "|/") || p == "":
		control = "none was made"
		t.note("no crash was made on the host: cores there go to %.60q", p)
	default:
		a := t.outside("crash", t.dir()).of("dumped")
		control = "host: " + say(a)
		t.control(a.Got == "yes", "a crash on the host leaves a core", say(a))
	}
	t.judge(said.of("dumped").Got == "no", "crash", "dumped: "+said.of("dumped").Got, control)
}

func ownCgroup(t *trial) {
	id := t.sandbox()
	pid, end := t.background(t.sandbox(), t.process("sleep", "1m"))
	seen, err := os.ReadFile("/proc/" + pid + "/cgroup")
	end()
	t.must(err)
	ours := regexp.MustCompile("sandbox-run")
	if t.iso.Backend == "docker" {
		ours = regexp.MustCompile("[0-9a-f]{64}") // engines name them by the container's id
	}
	has := ours.Match(seen)
	if t.iso.Controls[sandbox.ControlMemory] == sandbox.Enforced {
		t.control(has, "the host sees its cgroup", fmt.Sprintf("%.200q", seen))
	} else {
		t.note("there is no cgroup for it on this machine")
	}
	for _, a := range t.inside(id, "cat", "/proc/self/cgroup") {
		parts := strings.SplitN(a.Detail, ":", 3)
		t.judge(len(parts) == 3 && !ours.MatchString(parts[2]), "its place, as it sees it", a.Detail, "the host sees "+ours.String())
	}
	found := ""
	for _, a := range t.inside(id, "cat", "/proc/self/mountinfo") {
		if strings.Contains(a.Detail, " - cgroup") {
			found = a.Detail
		}
	}
	t.judge(found == "", "cgroup file systems", map[bool]string{true: "none", false: found}[found == ""], "")
	for _, a := range t.inside(id, "write",
		"/sys/fs/cgroup", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/memory/release_agent",
		"/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/pids/pids.max", "/proc/self/oom_adj/../../1/cgroup") {
		t.judge(!a.OK(), "write to "+a.Name, a.Got, "")
	}
}

func wrongProcess(t *trial) {
	// One in this process's own group, for a signal to number 0; one in another session.
	near, far := t.bystander(true), t.bystander(false)
	alive := func(pid int) bool { return unix.Kill(pid, 0) == nil }
	doomed := t.bystander(false)
	t.must(unix.Kill(doomed, unix.SIGTERM))
	gone := false
	for end := time.Now().Add(10 * time.Second); !gone && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		gone = !alive(doomed)
	}
	t.control(gone, "a process like these does end by a signal", fmt.Sprint(gone))
	const rounds = 12
	for n := range rounds {
		id := t.sandbox()
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(t.ctx)
		go func() {
			defer close(ended)
			// It forks, so that pids are used up while it is killed.
			_, _ = t.manager.Run(ctx, id, t.process("fork", []string{"plain", "orphans"}[n%2], "16", []string{"0s", "1m"}[n/2%2]), sandbox.IO{})
		}()
		time.Sleep(time.Duration(n%6) * 10 * time.Millisecond)
		// Every way to end it, also after it has ended.
		switch n % 3 {
		case 0:
			_ = t.manager.Kill(id)
		case 1:
			_ = t.manager.Stop(t.ctx, id)
		default:
			cancel()
		}
		_ = t.manager.Kill(id)
		t.delete(id)
		_ = t.manager.Kill(id)
		cancel()
		<-ended
	}
	for name, pid := range map[string]int{"a process of this process group": near, "a process of another session": far} {
		t.judge(alive(pid), fmt.Sprintf("%s, after %d sandboxes were ended in every way", name, rounds),
			map[bool]string{true: "alive", false: "ended"}[alive(pid)], "a signal ends it")
	}
}

func neighbours(t *trial) {
	once := func() time.Duration {
		began := time.Now()
		id, err := t.manager.Create(t.ctx, t.spec())
		if err != nil {
			t.abort("no sandbox: %v", err)
		}
		t.run(id, t.process("sleep", "0s"), sandbox.IO{})
		t.delete(id)
		return time.Since(began)
	}
	median := func(count int) time.Duration {
		all := make([]time.Duration, count)
		for i := range all {
			all[i] = once()
		}
		slices.Sort(all)
		return all[count/2]
	}
	once() // makes what is made at first use
	quiet := median(7)
	const factor, spare = 8, 300 * time.Millisecond // generous: other processes use this machine as well, and it may be emulated
	for _, noise := range []struct {
		name string
		p    sandbox.Process
	}{
		{"fork bomb", t.process("fork", "sessions", "200", "1m")}, {"refused calls", t.process("flood", "1m")},
		{"output", t.process("output", "100000")},
		{"processors", t.process("spin", "threads", "8", "1m")},
	} {
		id := t.sandbox(func(s *sandbox.Spec) { s.Limits.Wall, s.Limits.Output, s.Limits.CPUs = time.Minute, 64*sandbox.KiB, 1 })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = t.manager.Run(t.ctx, id, noise.p, sandbox.IO{})
		}()
		time.Sleep(50 * time.Millisecond)
		loud := median(5)
		_ = t.manager.Kill(id)
		<-ended
		t.delete(id)
		if loud >= factor*quiet+spare { // other processes may have made the machine busy since
			quiet = max(quiet, median(7))
		}
		t.judge(loud < factor*quiet+spare, "beside "+noise.name, fmt.Sprintf("%v", loud.Round(100*time.Microsecond)),
			fmt.Sprintf("quiet: %v", quiet.Round(100*time.Microsecond)))
	}
	t.note("a sandbox takes %v when it is quiet; the bound is %d times that and %v (make bench measures)", quiet.Round(100*time.Microsecond),
		factor, spare)
}
