package attack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// landlockABI is this kernel's version of Landlock if the backend uses it; 0 is none.
func (t *trial) landlockABI() int {
	if t.iso.Controls[sandbox.ControlLandlock] != sandbox.Enforced {
		t.note("there is no Landlock here")
		return 0
	}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// landlockedFiles makes a file that only Landlock refuses to a program that may write to the directory.
func (t *trial) landlockedFiles(where string, attack func(verb string, args ...string) answers) {
	if t.landlockABI() == 0 {
		return
	}
	control := t.outside("restricted", t.dir()).of("whiteout")
	if !control.OK() {
		t.note("whiteouts can not be made in /var/tmp on this host")
	}
	got := attack("restricted", sandbox.WorkspaceDir).of("whiteout")
	t.judge(got.Got == "EACCES", "make a device file that only Landlock refuses"+where, got.Got, "host: "+control.Got)
}

// landlockedNetwork binds a TCP port, which only Landlock refuses to a program without a network.
func (t *trial) landlockedNetwork(where string, attack func(verb string, args ...string) answers) {
	if t.landlockABI() < 4 {
		return
	}
	control := t.inside(t.sandbox(func(s *sandbox.Spec) { s.Network = sandbox.NetworkLocalhost }), "restricted",
		sandbox.WorkspaceDir).of("bind")
	t.control(control.OK(), "bind a TCP port with a loopback", control.Got)
	got := attack("restricted", sandbox.WorkspaceDir).of("bind")
	t.judge(got.Got == "EACCES", "bind a TCP port without a network"+where, got.Got, "with a loopback: "+control.Got)
}

// sealed are the mounts that are read-only whatever the modes of their files. The list is written by hand.
var sealed = []string{"/", "/dev", "/usr", "/etc", "/proc/sys"}

func (t *trial) sealedMounts(where string, attack func(verb string, args ...string) answers) {
	said := attack("stat", append([]string{sandbox.WorkspaceDir, "/tmp", "/dev/shm"}, sealed...)...)
	for _, a := range said[:3] {
		t.control(strings.Contains(a.Detail, "read-only false"), a.Name+" can be written to", say(a))
	}
	for _, a := range said[3:] {
		t.judge(strings.Contains(a.Detail, "read-only true"), a.Name+" is mounted read-only"+where, a.Detail, "/tmp: "+said.of("/tmp").Detail)
	}
}

// coveredFiles are masked with the null device in every sandbox: writing to them harms the machine.
func (t *trial) coveredFiles(where string, attack func(verb string, args ...string) answers) {
	host := t.outside("stat", "/proc/kcore", "/proc/sysrq-trigger")
	for _, a := range attack("stat", "/proc/kcore", "/proc/sysrq-trigger") {
		c := host.of(a.Name)
		if !c.OK() && !a.OK() {
			t.note("this kernel has no %s", a.Name)
			continue
		}
		t.judge(strings.Contains(a.Detail, "device 1:3 "), a.Name+" is covered"+where, say(a), "host: "+say(c))
	}
}

// hiddenInit searches for the init from inside, and checks from outside whether a process with its id could trace it.
func (t *trial) hiddenInit(id string) {
	if t.iso.Backend == "docker" { // /proc is the engine's: F13 counts the processes of the supervision
		return
	}
	pid, end := t.background(id, t.process("sleep", "1m"))
	defer end()
	said := t.inside(id, "stat", "/proc/self", "/proc/1") // by the same init, which has thus started the other
	t.control(said.of("/proc/self").OK(), "/proc has its own process", say(said.of("/proc/self")))
	t.judge(said.of("/proc/1").Got == "ENOENT", "the init in /proc", say(said.of("/proc/1")), "its own: "+said.of("/proc/self").Got)
	init := parentOf(pid)
	// The kernel gives the files of an undumpable process to the root of its user namespace, and those of any other to its own
	// ids. Threads of the init that still have the supervisor's group show which it is.
	main := statusOf(init, "Gid")
	tasks, _ := filepath.Glob("/proc/" + init + "/task/*")
	for _, task := range tasks {
		var st unix.Stat_t
		group := statusOf(init+"/task/"+filepath.Base(task), "Gid")
		if group == main || unix.Stat(task+"/status", &st) != nil {
			continue
		}
		t.judge(strconv.Itoa(int(st.Gid)) != group, "look into the init", fmt.Sprintf("files of group %d", st.Gid),
			"of one that can be looked into: "+group)
		return
	}
	t.note("whether the init can be traced is not shown: all its threads have one group")
}

// statusOf is the first word of a field of /proc/PID/status.
func statusOf(pid, field string) string {
	text, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.Fields(v)[0]
		}
	}
	return ""
}

// neighbourOf starts a program that shares what it can, and waits until it has.
func (t *trial) neighbourOf(id string, key int) (said answers, pid string, end func()) {
	var mu sync.Mutex
	var out bytes.Buffer
	ready := make(chan struct{})
	watch := func(e sandbox.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == sandbox.EventStdout {
			before := bytes.Contains(out.Bytes(), []byte("waiting\t"))
			out.Write(e.Data)
			if !before && bytes.Contains(out.Bytes(), []byte("waiting\t")) {
				close(ready)
			}
		}
	}
	pid, end = t.backgroundIn(t.manager, id, t.process("neighbour", t.mark, strconv.Itoa(key)), sandbox.IO{OnEvent: watch})
	select {
	case <-ready:
	case <-t.ctx.Done():
		end()
		t.abort("the neighbour is not ready: %.200q", out.Bytes())
	}
	mu.Lock()
	defer mu.Unlock()
	return hostile.Parse(out.Bytes()), pid, end
}

const sharedKey = 0x5ab0dacf

// neighbours tries sandboxes of two tenants side by side, and two programs of one.
func (t *trial) neighbours() {
	one, other := t.sandbox(), t.sandbox()
	own, pid, end := t.neighbourOf(one, sharedKey)
	defer end()
	t.control(own.of("prepared").OK(), "share something within a sandbox", own.of("prepared").Got)
	shared := hostile.Shared(t.mark, sharedKey, own.of("shmid").Got)
	for _, a := range t.inside(other, "outside", append(shared, "pid="+pid)...) {
		c := "its host process"
		if in := own.of(a.Name); in.Got != "no answer" {
			c = "within one sandbox: " + in.Got
			t.control(in.OK(), a.Name+" within one sandbox", in.Got)
		}
		t.judge(!a.OK(), "another tenant's: "+a.Name, a.Got, c)
	}
	if t.landlockABI() < 6 {
		t.note("programs of one phase reach each other: Landlock has no scopes here")
		return
	}
	c := own.of("signal").Got + ", " + own.of("abstract socket").Got
	t.control(own.of("signal").OK(), "signal a process of its own program", own.of("signal").Got)
	for _, a := range t.inside(one, "outside", "signal="+own.of("pid").Got, "abstract=@"+t.mark) {
		t.judge(a.Got == "EPERM", "another program of the phase: "+a.Name, a.Got, "its own: "+c)
	}
}

// keysOf is how many kernel keys an id of the host has.
func keysOf(uid string) int {
	text, _ := os.ReadFile("/proc/key-users")
	for line := range strings.Lines(string(text)) {
		var usage, keys int
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == uid {
			_, _ = fmt.Sscan(rest, &usage, &keys)
			return keys
		}
	}
	return 0
}

// ownKeyring checks from outside whether a program, or the init that forked it, has a session keyring of its own: nothing else of it is
// visible.
func (t *trial) ownKeyring(pid, where string) {
	if keysOf("0") == 0 {
		t.note("this kernel shows no keys")
		return
	}
	keys := keysOf(statusOf(parentOf(pid), "Uid")) + keysOf(statusOf(pid, "Uid"))
	t.judge(keys > 0, "a session keyring of its own"+where, fmt.Sprintf("%d keys of its ids", keys), fmt.Sprintf("root: %d", keysOf("0")))
}

// earlierRuns searches for resources of another sandbox, running or deleted: its host ids, and all that is stored by them.
func earlierRuns(t *trial) {
	one := t.sandbox()
	own, pid, end := t.neighbourOf(one, sharedKey)
	ended := false
	defer func() {
		if !ended {
			end()
		}
	}()
	t.control(own.of("prepared").OK() && own.of("file in /tmp").OK() && own.of("shmget").OK(), "leave something", say(own.of("prepared")))
	ids := statusOf(pid, "Uid") + " " + statusOf(pid, "Gid")
	whole := os.Geteuid() == 0 && t.iso.Backend == "native"
	if whole {
		other, endOther := t.background(t.sandbox(), t.process("sleep", "1m"))
		theirs := statusOf(other, "Uid") + " " + statusOf(other, "Gid")
		t.judge(theirs != ids && statusOf(other, "Uid") != "0", "host ids of two sandboxes", theirs, "the other: "+ids)
		t.ownKeyring(other, "")
		endOther()
	} else {
		t.note("host ids are of each sandbox's own only where root gives them")
	}
	ended = true
	end()
	t.delete(one)
	// The lowest free ids are assigned first.
	for tries := 0; ; tries++ {
		id := t.sandbox()
		next, endNext := t.background(id, t.process("sleep", "1m"))
		same := statusOf(next, "Uid")+" "+statusOf(next, "Gid") == ids
		if !same && whole && tries < 4 {
			endNext()
			continue
		}
		name := map[bool]string{true: "in the next sandbox with the same ids", false: "in the next sandbox"}[same]
		for _, a := range t.inside(id, "outside", hostile.Shared(t.mark, sharedKey, own.of("shmid").Got)...) {
			t.judge(!a.OK(), a.Name+" "+name, a.Got, "where it was left: "+own.of(a.Name).Got)
		}
		found := t.inside(id, "read", "/tmp", sandbox.WorkspaceDir, "/dev/shm", sandbox.HomeDir)
		for _, a := range found {
			t.judge(a.OK() && !strings.Contains(a.Detail, t.mark), a.Name+" "+name, say(a), "")
		}
		endNext()
		return
	}
}
