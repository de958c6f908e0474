package conformance

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// status are the fields of a /proc/…/status text.
func status(text string) map[string]string {
	fields := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

// hostStatus is the status, as the host shows it, of the one process with a mark.
func (e *env) hostStatus(mark string) map[string]string {
	e.Helper()
	for _, p := range marked(mark) {
		pid, _, _ := strings.Cut(p, " ")
		if text, err := os.ReadFile("/proc/" + pid + "/status"); err == nil {
			return status(string(text))
		}
	}
	e.Fatal("the process is invisible from outside")
	return nil
}

var isolationRows = []row{
	{"identity: uid 1000, no capabilities, no new privileges, filtered", []Expectation{Isolated, Kernel}, false, func(e *env) {
		id := e.create()
		e.says(e.in(id, e.probe("ids")...), "1000 1000 1000 1000 []")
		s := status(e.ok(e.in(id, e.probe("status")...)))
		for name, want := range map[string]string{
			"CapInh": strings.Repeat("0", 16), "CapPrm": strings.Repeat("0", 16), "CapEff": strings.Repeat("0", 16),
			"CapBnd": strings.Repeat("0", 16), "CapAmb": strings.Repeat("0", 16), "NoNewPrivs": "1", "Seccomp": "2",
			"Groups": "", "SigBlk": strings.Repeat("0", 16), "SigIgn": strings.Repeat("0", 16), "TracerPid": "0",
		} {
			if s[name] != want {
				e.Errorf("%s is %q, want %q", name, s[name], want)
			}
		}
		if n := s["Seccomp_filters"]; n != "1" && (e.has(OneFilter) || n != "2") {
			e.Errorf("%q filters", n)
		}
		own, _ := os.ReadFile("/proc/self/status")
		if h := status(string(own)); h["CapEff"] == strings.Repeat("0", 16) && os.Geteuid() == 0 {
			e.Error("control: the test itself has no capabilities either")
		}
		e.says(e.in(id, "whoami"), "sandbox")
	}},
	{"identity: another user", []Expectation{Isolated}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.User = sandbox.User{UID: 4321, GID: 1234} })
		e.says(e.in(id, e.probe("ids")...), "4321 4321 1234 1234 []")
		e.says(e.in(id, e.probe("put", "/workspace/x", "x")...), "ok")
		e.says(e.in(id, e.probe("stat", "/workspace/x")...), "ok 4321 1234 644")
		for _, u := range []sandbox.User{{UID: 0, GID: 5}, {UID: 5, GID: 0}, {UID: -1, GID: 5}, {UID: 65534, GID: 5}} {
			if err := e.cannotCreate(func(s *sandbox.Spec) { s.User = u }); !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("%+v: %v", u, err)
			}
		}
	}},
	{"identity: every sandbox has host ids of its own", []Expectation{Isolated, Kernel, UniqueIDs}, false, func(e *env) {
		var ids []string
		for range 2 {
			mark := e.mark()
			id := e.create(func(s *sandbox.Spec) { s.Env[markVariable] = mark })
			e.start(id, sandbox.Process{Args: e.probe("ready", "20s", mark)}, sandbox.IO{}).ready()
			s := e.hostStatus(mark)
			uid, gid := strings.Fields(s["Uid"]), strings.Fields(s["Gid"])
			for _, f := range append(uid, gid...) {
				if n := len(f); n < 6 {
					e.Errorf("host ids %q %q", uid, gid)
				}
			}
			ids = append(ids, uid[0])
		}
		if ids[0] == ids[1] {
			e.Errorf("both are %s on the host", ids[0])
		}
	}},
	{"privileges can not be had back", []Expectation{Isolated, Kernel}, false, func(e *env) { // F11, S1
		id := e.create()
		// EINVAL: there is no such id in this user namespace.
		if got := e.ok(e.in(id, e.probe("setuid")...)); got != "EPERM\n" && got != "EINVAL\n" {
			e.Errorf("setuid: %q", got)
		}
		if got := e.ok(e.in(id, e.probe("mount", "/tmp")...)); got != "EPERM\n" && got != "ENOSYS\n" {
			e.Errorf("mount: %q", got)
		}
		for _, cmd := range []string{"su -c id", "unshare -Ur id", "chroot / id"} {
			if res := e.in(id, e.sh(cmd)...); res.Success() {
				e.Errorf("%s: %q", cmd, res.Stdout.Bytes())
			}
		}
		for _, line := range strings.Split(strings.TrimSpace(e.ok(e.in(id, "cat", "/proc/self/mountinfo"))), "\n") {
			f := strings.Fields(line)
			writable := len(f) < 6 || slices.Contains(strings.Split(f[5], ","), "rw")
			// A backend without NoSetUID has at least none where a program could write.
			if !strings.Contains(line, "nosuid") && (e.has(NoSetUID) || writable) {
				e.Errorf("set-uid works here: %s", line)
			}
		}
	}},
	{"refused calls are named, counted and reported", []Expectation{Isolated, Kernel}, false, func(e *env) { // S1, S10
		id := e.create()
		if res := e.in(id, e.probe("args")...); len(res.Violations) != 0 || len(res.Notes) != 0 { // control
			e.Errorf("of a program that makes none: %+v, %q", res.Violations, res.Notes)
		}
		var told []string
		res := e.do(id, sandbox.Process{Args: e.sh(e.probe()[0] + " refuse 3; " + e.probe()[0] + " forbidden")},
			sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Kind == sandbox.EventViolation {
					told = append(told, ev.Violation.Detail)
				}
			}})
		e.ok(res)
		var counted []string
		for _, v := range res.Violations {
			name, _, _ := strings.Cut(v.Detail, "(")
			count := uint64(1)
			if v.Detail == "mount" {
				count = 4
			}
			if v.Kind != sandbox.ViolationSyscall || v.Name != name || v.Count != count || v.Saturated || v.Allow != "" {
				e.Errorf("%+v", v)
			}
			counted = append(counted, v.Detail)
		}
		for _, want := range []string{"mount", "chroot", "ptrace(2)", "socket(AF_PACKET)", "clone(CLONE_NEWUSER)", "ioctl(TIOCSTI)"} {
			if !slices.Contains(counted, want) {
				e.Errorf("%s is not among %q", want, counted)
			}
		}
		if !slices.Equal(told, counted) {
			e.Errorf("reported %q, counted %q", told, counted)
		}
		res = e.in(id, e.probe("refuse", "1000")...)
		if len(res.Violations) != 1 || !res.Violations[0].Saturated {
			e.Fatalf("a flood: %+v", res.Violations)
		}
		// A call that a signal of the probe's own runtime interrupts before it is answered is notified twice and counted once.
		count := res.Violations[0].Count
		if e.says(res, fmt.Sprintf("map[ENOSYS:%d EPERM:%d]", 1000-count, count)); count < 60 || count > 64 {
			e.Errorf("a flood: %+v", res.Violations)
		}
	}},
	{"namespaces are its own", []Expectation{Isolated, Kernel}, false, func(e *env) {
		got := e.ok(e.once(e.probe("namespaces")...))
		for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
			name, rest, _ := strings.Cut(line, " ")
			link, _, _ := strings.Cut(rest, " ")
			own, err := os.Readlink("/proc/self/ns/" + name)
			if err != nil || link == own || !strings.HasPrefix(link, name+":[") {
				e.Errorf("%s, the host's is %s (%v)", line, own, err)
			}
		}
	}},
	{"no process but its own", []Expectation{Isolated}, false, func(e *env) { // F13, S6
		got := e.ok(e.once(e.probe("processes")...))
		most := 2
		if !e.has(Bare) {
			most++ // a helper's
		}
		if n := strings.Count(got, "\n"); n < 1 || n > most || !strings.Contains(got, "probe") {
			e.Errorf("sees %q", got)
		}
		if all, _ := filepath.Glob("/proc/[0-9]*"); len(all) < 5 { // control
			e.Errorf("the host shows only %d processes", len(all))
		}
	}},
	{"no descriptor but its own", []Expectation{Isolated, Kernel}, false, func(e *env) { // F2
		f, err := os.Open("/etc/passwd") // one that must not be inherited
		if err != nil {
			e.Fatal(err)
		}
		defer f.Close()
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_SETFD, 0); errno != 0 {
			e.Fatal(errno)
		}
		id := e.create()
		for _, tty := range []*sandbox.TTY{nil, {}} {
			got := e.ok(e.do(id, sandbox.Process{Args: e.sh("ls -l /proc/self/fd | grep -v '/proc/[0-9]*/fd$'"), TTY: tty}, sandbox.IO{}))
			for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
				name, _, _ := strings.Cut(line[strings.LastIndex(line[:strings.Index(line+"->", "->")], ":")+1:], "->")
				f := strings.Fields(name)
				if len(f) > 1 && !strings.Contains("012", f[len(f)-1]) {
					e.Errorf("inherited: %s", line)
				}
			}
		}
		e.says(e.in(id, e.probe("cwd")...), "/workspace ok")
	}},
	{"cgroup is the root of its world", []Expectation{Isolated, Kernel}, false, func(e *env) { // R11
		got := e.ok(e.once("cat", "/proc/self/cgroup"))
		for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
			parts := strings.SplitN(line, ":", 3)
			// Hierarchies in which the sandbox has no group show the host's own group, which is not the sandbox's.
			if strings.Contains(parts[2], "sandbox-run") || strings.Contains(parts[2], "process_api") {
				e.Errorf("shows the host's tree: %s", line)
			}
			if controller := parts[1]; (controller == "memory" || controller == "pids" || controller == "") && parts[2] != "/" {
				e.Errorf("not the root: %s", line)
			}
		}
		if e.has(Bare) {
			e.says(e.once(e.probe("list", "/sys")...), "ok")
		}
	}},
	{"/proc is masked", []Expectation{Isolated, Kernel}, false, func(e *env) { // F13
		id := e.create()
		for _, f := range []string{"kcore", "keys", "key-users", "kallsyms", "kmsg", "timer_list", "sysrq-trigger", "cmdline", "config.gz",
			"vmallocinfo", "iomem", "interrupts", "softirqs", "pressure/cpu"} {
			got := e.ok(e.in(id, e.probe("get", "/proc/"+f)...))
			masked := got == "ok \"\"\n" || strings.HasPrefix(got, "EACCES") || strings.HasPrefix(got, "ENOENT") || strings.HasPrefix(got, "EPERM")
			if !masked {
				e.Errorf("/proc/%s: %.200q", f, got)
			}
		}
		if b, err := os.ReadFile("/proc/key-users"); err != nil || len(b) == 0 { // control: the host has something to hide
			e.Logf("the host's key-users: %q, %v", b, err)
		}
		for _, f := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
			"/proc/sysrq-trigger"} {
			// A file that is masked by /dev/null accepts every write, and is empty.
			if got := e.ok(e.in(id, e.probe("put", f, "x")...)); got == "ok\n" && e.ok(e.in(id, e.probe("get", f)...)) != "ok \"\"\n" {
				e.Errorf("%s is writable", f)
			}
		}
		e.says(e.in(id, e.probe("put", "/proc/self/comm", "control")...), "ok")
		if got := e.ok(e.in(id, e.probe("get", "/proc/self/comm")...)); !strings.Contains(got, "probe") { // control
			e.Errorf("/proc/self/comm: %q", got)
		}
	}},
	{"secrets of the host are not there", []Expectation{Isolated}, false, func(e *env) { // F13
		id := e.create()
		for _, p := range []string{"/etc/shadow", "/root", "/run", "/var", "/boot", "/sys/class", "/etc/ssh", "/home/../root/.ssh", "/mnt",
			"/srv"} {
			if got := e.ok(e.in(id, e.probe("stat", p)...)); strings.HasPrefix(got, "ENOENT") {
				continue
			} else if e.has(Bare) {
				e.Errorf("%s: %q", p, got)
			} else if got := e.ok(e.in(id, e.probe("list", p)...)); got != "ok\n" && !strings.HasPrefix(got, "EACCES") && p != "/run" &&
				p != "/var" { // it is there, and shows nothing
				e.Errorf("%s: %q", p, got)
			}
		}
		if got := e.ok(e.in(id, e.probe("stat", "/etc/passwd")...)); !strings.HasPrefix(got, "ok") { // control
			e.Errorf("/etc/passwd: %q", got)
		}
	}},
	{"read-only everywhere but in the scratch", []Expectation{Isolated}, false, func(e *env) { // F12
		id := e.create()
		for _, p := range []string{"/x", "/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/proc/x", "/proc/sys/x", "/sys/x", "/dev/x",
			"/home/x", "/lib/x"} {
			got := e.ok(e.in(id, e.probe("put", p, "x")...))
			if got != "EROFS\n" && got != "EACCES\n" && got != "EPERM\n" && !(got == "ENOENT\n" && strings.HasPrefix(p, "/proc")) {
				e.Errorf("%s: %q", p, got)
			}
		}
		for _, p := range []string{"/workspace/x", "/tmp/x", "/home/sandbox/x", "/dev/shm/x", "/dev/null"} { // control
			e.says(e.in(id, e.probe("put", p, "x")...), "ok")
		}
		e.says(e.in(id, e.sh("mkdir /workspace/a /tmp/b && echo 1 > /workspace/a/f && mv /workspace/a/f /workspace/g && ln -s g /workspace/l "+
			"&& cat /workspace/l && mv /workspace/a /workspace/b && rmdir /workspace/b && echo ok")...), "1\nok")
	}},
	{"nothing of one run is in the next sandbox", []Expectation{Isolated, Kernel}, false, func(e *env) { // W1
		id := e.create()
		e.ok(e.in(id, e.sh("for d in /workspace /tmp $HOME /dev/shm; do echo x > $d/left; done")...))
		other := e.create()
		e.says(e.in(other, e.sh("ls -A /workspace /tmp $HOME /dev/shm | grep left; echo none")...), "none")
		if got := e.ok(e.in(id, e.sh("ls /workspace")...)); got != "left\n" { // control
			e.Errorf("got %q", got)
		}
	}},
	{"/dev is minimal", []Expectation{Isolated, Kernel}, false, func(e *env) { // F4
		id := e.create()
		want := "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
		if got := e.ok(e.in(id, e.sh("ls -A /dev | sort | tr '\\n' ' '")...)); e.has(Bare) && got != want {
			e.Errorf("/dev has %q", got)
		} else { // what every engine makes: a link to a file that is masked, and a directory for message queues
			for _, name := range strings.Fields(got) {
				if !strings.Contains(want+"core mqueue console ", name+" ") {
					e.Errorf("/dev has %q", name)
				}
			}
		}
		e.says(e.in(id, e.sh("stat -c '%t %T %a' /dev/null /dev/zero /dev/full /dev/urandom")...), "1 3 666\n1 5 666\n1 7 666\n1 9 666")
		e.says(e.in(id, e.sh("head -c 4 /dev/zero | od -An -tx1; echo x > /dev/full 2>/dev/null || echo full; "+
			"head -c 8 /dev/urandom | wc -c")...), " 00 00 00 00\nfull\n8")
	}},
	{"hostname", []Expectation{Isolated}, false, func(e *env) {
		e.says(e.once(e.probe("hostname")...), "sandbox ok")
		e.says(e.in(e.create(func(s *sandbox.Spec) { s.Hostname = "box-7.example" }), e.probe("hostname")...), "box-7.example ok")
	}},
	{"network: none", []Expectation{Network}, false, func(e *env) { // N1
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			e.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		abstract, err := net.Listen("unix", "@sandboxtest-"+e.mark())
		if err != nil {
			e.Fatal(err)
		}
		defer abstract.Close()
		id := e.create()
		for _, to := range [][2]string{{"tcp", l.Addr().String()}, {"unix", abstract.Addr().String()}} {
			if c, err := net.Dial(to[0], to[1]); err != nil { // control: from here it answers
				e.Errorf("control: %v", err)
			} else {
				c.Close()
			}
			if got := e.ok(e.in(id, e.probe("dial", to[0], to[1])...)); got == "ok\n" {
				e.Errorf("%v can be reached", to)
			}
			if got := e.ok(e.do(id, sandbox.Process{Phase: "net", Args: e.probe("dial", to[0], to[1]), Network: sandbox.NetworkLocalhost},
				sandbox.IO{})); got == "ok\n" {
				e.Errorf("%v can be reached from localhost", to)
			}
		}
		if got := e.ok(e.in(id, e.probe("loopback")...)); got == "ok\n" {
			e.Error("loopback works without a network")
		}
		for _, protocol := range []string{"tcp", "udp"} {
			res := e.in(id, e.probe("dial", protocol, "127.0.0.1:9")...)
			if e.ok(res) == "ok\n" {
				e.Errorf("%s works without a network", protocol)
			}
			e.countsAttempts(res, 1, "--network localhost")
		}
		e.countsAttempts(e.in(id, e.probe("args")...), 0, "")
	}},
	{"network: rules are refused", []Expectation{Network}, false, func(e *env) {
		if e.has(Rules) {
			return // Networks has the cases
		}
		rules := network.Policy{Allow: []string{"good.example"}}
		_, started := e.try(e.create(), sandbox.Process{Phase: "net", Args: e.probe("args"), Network: rules}, sandbox.IO{})
		for _, err := range []error{e.cannotCreate(func(s *sandbox.Spec) { s.Network = rules }), started} {
			if refusal := new(sandbox.Error); !errors.Is(err, sandbox.ErrUnsupported) || !errors.As(err, &refusal) || refusal.Hint == "" {
				e.Errorf("%v", err)
			}
		}
	}},
	{"network: localhost", []Expectation{Network}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Network = sandbox.NetworkLocalhost })
		res := e.in(id, e.probe("loopback")...)
		e.says(res, "ok")
		e.countsAttempts(res, 0, "")
		e.says(e.in(id, e.probe("interfaces")...), "ok\nlo true")
		for _, to := range [][2]string{{"udp", "192.0.2.1:9"}, {"tcp", "192.0.2.1:9"}, {"tcp", "[2001:db8::1]:9"}} { // of documents
			e.countsAttempts(e.in(id, e.probe("dial", to[0], to[1])...), 1, "")
		}
		e.says(e.in(id, e.sh("cat /proc/net/dev | grep : | cut -d: -f1 | tr -d ' '")...), "lo")
	}},
}

// countsAttempts compares how many attempts to reach a network a result has, and the flag that would allow them.
func (e *env) countsAttempts(res *sandbox.Result, want uint64, allow string) {
	e.Helper()
	var got []sandbox.Violation
	for _, v := range res.Violations {
		if v.Kind == sandbox.ViolationNetwork {
			got = append(got, v)
		}
	}
	if want == 0 && len(got) == 0 {
		return
	}
	if len(got) != 1 || got[0].Count != want || got[0].Allow != allow {
		e.Errorf("attempts to reach a network: %+v, want %d", got, want)
	}
}
