package attack

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func doorCases() []attackCase {
	return []attackCase{
		{"A6", "terminal escapes in output", terminalEscapes},
		{"A7", "hostile names", hostileNames},
		{"W1", "what another sandbox has, or has left", earlierRuns},
		{"W3", "warm forks and pooled sandboxes with less isolation", warmStarts},
		{"W6", "the supervisor is killed", killedSupervisor},
	}
}

// hostileText would control a terminal, or deceive its reader.
const hostileText = "\x1b[2J\x1b]0;title\a\x1b]52;c;aGk=\a\x1bPq\x1b\\ red\x1b[31m\rover\bwritten\x00\x07\x7f \xff\xfe\xc3( " +
	"\u202egnol\u2066 \u0085\u009b31m \u2028 end\r\nline\ttab\n"

func terminalEscapes(t *trial) {
	id := t.sandbox()
	p := t.process("print", strconv.Quote(hostileText), strconv.Quote(strings.Repeat("x", 300<<10)))
	p.Args[len(p.Args)-1] = strconv.Quote(strings.Repeat("x", 100<<10)) // near the longest argument
	res := t.run(id, p, sandbox.IO{})
	want := hostileText + strings.Repeat("x", 100<<10)
	got := string(res.Stdout.Bytes())
	t.control(strings.ContainsRune(hostileText, 0x1b) && !utf8.ValidString(hostileText), "the text has escapes and is no UTF-8", "it has not")
	t.judge(got == want, "the library's result", map[bool]string{true: "exact", false: "changed"}[got == want], "")
	text, err := json.Marshal(res)
	t.must(err)
	var back struct {
		Stdout   string `json:"stdout"`
		Encoding string `json:"stdout_encoding"`
	}
	t.must(json.Unmarshal(text, &back))
	if back.Encoding == "base64" {
		raw, err := base64.StdEncoding.DecodeString(back.Stdout)
		t.must(err)
		back.Stdout = string(raw)
	}
	t.judge(back.Stdout == want, "JSON", map[bool]string{true: "exact", false: "changed"}[back.Stdout == want], "")
	controls := func(s string) int { return strings.Count(s, "\x1b") }
	t.judge(controls(string(text)) == 0, "escapes in the JSON itself", fmt.Sprint(controls(string(text))),
		fmt.Sprintf("the text: %d", controls(want)))
	if t.o.Escape == nil {
		t.note("only the library: no terminal to write to")
		return
	}
	safe := t.o.Escape(want)
	bad := ""
	for i, r := range safe {
		reorders := r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
		lone := r == '\r' && !strings.HasPrefix(safe[i:], "\r\n")
		if r < 0x20 && r != '\n' && r != '\t' && r != '\r' || lone || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || reorders {
			bad = fmt.Sprintf("%U at %d", r, i)
			break
		}
	}
	t.judge(bad == "", "what a terminal is sent", map[bool]string{true: "nothing that steers it", false: bad}[bad == ""],
		"unescaped: "+strconv.Quote(want[:12]))
	t.judge(strings.Contains(safe, "line\ttab\n"), "ordinary text on a terminal", "unchanged", "")
}

func hostileNames(t *trial) {
	t.note("names are those of volumes, directories, phases, hosts, variables and files")
	dir := t.dir()
	long := "/" + strings.Repeat("d/", 2100) + "x"
	plain := func(change func(*sandbox.Spec)) error {
		return t.refused(t.spec(change))
	}
	target := func(name string) func(*sandbox.Spec) {
		return func(s *sandbox.Spec) { s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: name}) }
	}
	source := func(name string) func(*sandbox.Spec) {
		return func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: name, Target: "/data"})
		}
	}
	if t.isolated() {
		t.control(plain(target("/data")) == nil, "an ordinary target", fmt.Sprint(plain(target("/data"))))
		both := func(s *sandbox.Spec) { target("/Data")(s); target("/data")(s) }
		t.judge(plain(both) == nil, "two targets that differ in case", fmt.Sprint(plain(both)), "one: ok")
	}
	ordinary := func(s *sandbox.Spec) { s.Workdir, s.Hostname = "/tmp", "box" }
	t.control(plain(ordinary) == nil, "an ordinary working directory and host name", fmt.Sprint(plain(ordinary)))
	for _, n := range []struct {
		name, value string
		change      func(*sandbox.Spec)
	}{
		{"target with ..", "/data/../etc", target("/data/../etc")}, {"relative target", "data", target("data")},
		{"target with NUL", "/a\x00b", target("/a\x00b")},
		{"target of 4 KiB", long[:20], target(long)}, {"target with a name of 300 bytes", "/nnn", target("/" + strings.Repeat("n", 300))},
		{"empty target", "", target("")},
		{"target in /dev", "/dev/null", target("/dev/null")}, {"target in /proc", "/proc/self", target("/proc/self")},
		{"target /", "/", target("/")},
		{"source with ..", dir + "/../x", source(dir + "/../x")}, {"relative source", "x", source("x")},
		{"source with NUL", "/a\x00b", source("/a\x00b")}, {"source of 4 KiB", long[:20], source(long)},
		{"the same target twice", "/data", func(s *sandbox.Spec) { target("/data")(s); target("/data")(s) }},
		{"working directory with ..", "/tmp/../etc", func(s *sandbox.Spec) { s.Workdir = "/tmp/../etc" }},
		{"relative working directory", "tmp", func(s *sandbox.Spec) { s.Workdir = "tmp" }},
		{"host name with an escape", "a\x1b[31m", func(s *sandbox.Spec) { s.Hostname = "a\x1b[31m" }},
		{"variable with =", "a=b", func(s *sandbox.Spec) { s.Env["a=b"] = "c" }},
		{"root with ..", "/usr/../etc", func(s *sandbox.Spec) { s.Root.Dir = "/usr/../etc" }},
	} {
		err := plain(n.change)
		got := fmt.Sprint(err)
		quoted := strings.Trim(strconv.Quote(n.value), `"`)
		held := errors.Is(err, sandbox.ErrInvalid) && strings.Contains(got, quoted) && !strings.ContainsAny(got, "\x00\x1b")
		t.judge(held, n.name, fmt.Sprintf("%.120s", got), "an ordinary one: ok")
	}
	id := t.sandbox()
	for _, phase := range []string{"../x", "Run", "a/b", strings.Repeat("p", 40)} {
		p := t.process("sleep", "0s")
		p.Phase = phase
		_, err := t.manager.Run(t.ctx, id, p, sandbox.IO{})
		t.judge(errors.Is(err, sandbox.ErrInvalid), fmt.Sprintf("phase %.20q", phase), fmt.Sprintf("%.120v", err), "")
	}
	if !t.copiesFiles(id) {
		return
	}
	err := t.putIn(id, "/workspace/CON", "x") // a device name on other systems
	t.control(err == nil, "a file with an ordinary name", fmt.Sprint(err))
	for _, name := range []string{"/workspace/../etc/x", "x", "../x", "/etc/x", "/proc/self/mem", "/dev/null", "/workspace/a\x00b",
		"/workspace/" + strings.Repeat("n", 300), "/workspace" + long} {
		err, out := t.putIn(id, name, "x"), t.takeOut(id, name).err
		got := fmt.Sprintf("%v; %v", err, out)
		held := errors.Is(err, sandbox.ErrInvalid) && errors.Is(out, sandbox.ErrInvalid) && !strings.ContainsAny(got, "\x00\x1b")
		t.judge(held, fmt.Sprintf("file %.20q", name), fmt.Sprintf("%.120s", got), "an ordinary one: ok")
	}
}

func killedSupervisor(t *trial) {
	if t.o.Victim == nil {
		t.abort("no supervisor to kill: Options.Victim is not set")
	}
	// At these times after its first process is seen; at the first it has none yet.
	for _, instant := range []time.Duration{-1, 0, 15 * time.Millisecond, 60 * time.Millisecond} {
		t.killOnce(instant)
	}
}

func (t *trial) killOnce(instant time.Duration) {
	mark := newMark()
	t.mu.Lock()
	t.others = append(t.others, mark)
	t.mu.Unlock()
	cmd := t.o.Victim(mark)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // signals of the terminal do not reach it
	var said strings.Builder
	cmd.Stderr, cmd.WaitDelay = &said, 100*time.Millisecond // a surviving process may have it open
	t.must(cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	end := func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	var inside []string // processes that are not the supervisor itself
	look := func() []string {
		return slices.DeleteFunc(markedPIDs(mark), func(p string) bool { return p == pid })
	}
	// A forked child that has not executed a program yet has the supervisor's command line, with the mark: counting it as
	// a program would kill the supervisor too early, and prove nothing on a busy machine.
	own, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	programs := func() []string {
		return slices.DeleteFunc(look(), func(p string) bool {
			line, err := os.ReadFile("/proc/" + p + "/cmdline")
			return err != nil || bytes.Equal(line, own)
		})
	}
	var claims []string
	registers := t.iso.Backend != "docker" // its supervisors register elsewhere
	for limit := time.Now().Add(20 * time.Second); registers && len(claims) == 0 || instant >= 0 &&
		len(inside) == 0; time.Sleep(2 * time.Millisecond) {
		claims, inside = claimsOf(pid), programs()
		if time.Now().After(limit) || t.ctx.Err() != nil {
			end()
			t.abort("control failed: the supervisor to be killed does not get to work: %.200s", said.String())
		}
	}
	if instant > 0 {
		time.Sleep(instant)
	}
	name := "while it makes its first sandbox"
	if instant >= 0 {
		name = fmt.Sprintf("%v after its program began", instant)
	}
	claims = claimsOf(pid)
	places := map[string][]string{} // cgroups of a registration, while it is known
	for _, c := range claims {
		places[c] = append(groupOf(c), c)
	}
	end()
	killed := time.Now() // its last thread has ended
	alive := look()
	for ; len(alive) > 0 && time.Since(killed) < time.Second+t.host.canary.spare(); alive = look() {
		time.Sleep(5 * time.Millisecond)
	}
	t.judge(len(alive) == 0, "killed "+name+": processes a second later", fmt.Sprint(len(alive)), fmt.Sprintf("before: %d", len(inside)))
	left := ""
	// The next start collects first; it is repeated, because another process may be collecting now.
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := t.o.Backend.Collect(context.WithoutCancel(t.ctx), false); err != nil {
			t.fault("collect: %v", err)
		}
		left = ""
		for claim, where := range places {
			for _, p := range where {
				if _, err := os.Lstat(p); err == nil && !claimed(claim) {
					left = p
				}
			}
		}
		if left == "" || time.Now().After(until) {
			break
		}
	}
	t.judge(left == "", "killed "+name+": what is left after collecting", map[bool]string{true: "nothing", false: left}[left == ""],
		fmt.Sprintf("before: %d registered", len(claims)))
}
