//go:build linux

package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// childEnv makes the test binary a probe, "action args…", that does something a limit may stop.
const childEnv = "SANDBOX_RUN_CGROUP_PROBE"

// join becomes the probe from within the group, as the child of the sandbox's init does: a process of one thread writes
// "0" into each of the descriptors 3…3+$1-1 and then executes. A Go program has several threads from the start.
const join = `n=$1; fd=3; while [ $fd -lt $((3+n)) ]; do echo 0 >&$fd || exit 3; eval "exec $fd>&-"; fd=$((fd+1)); done; exec "$2"`

func TestMain(m *testing.M) {
	if plan := os.Getenv(childEnv); plan != "" {
		os.Exit(probe(strings.Fields(plan)))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if t, err := Open(); err == nil {
			if err := t.Prune(); err != nil {
				fmt.Fprintln(os.Stderr, "prune after tests:", err)
			}
		}
		os.Exit(code)
	}))
}

func probe(args []string) int {
	fmt.Println("joined")
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch args[0] {
	case "alloc": // MiB
		mem, err := unix.Mmap(-1, 0, number(1)<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			fmt.Println(err)
			return 4
		}
		touch(mem)
		fmt.Println("allocated")
		runtime.KeepAlive(mem)
	case "fork": // children
		for i := range number(1) {
			if err := exec.Command("/bin/sleep", "60").Start(); err != nil {
				fmt.Printf("refused after %d: %v\n", i, err)
				return 5
			}
		}
		fmt.Println("forked")
	case "spin": // ms of wall time
		for end := time.Now().Add(time.Duration(number(1)) * time.Millisecond); time.Now().Before(end); {
		}
		fmt.Println("spun")
	case "bomb":
		bomb()
	case "headless":
		headless()
	case "clone": // uid
		return cloneInto(number(1))
	case "sleep":
		time.Sleep(time.Minute)
	case "rootless":
		rootless(args[1:])
	}
	return 0
}

//go:norace
func touch(mem []byte) { // the race detector's shadow memory would be charged to the group too
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
}

// bomb forks without end, in every copy, and takes no refusal: a shell's bomb gives up at the first one. The copies have one
// thread and never leave this loop, so they need no Go runtime.
//
//go:norace
func bomb() {
	for end := rawSeconds() + bombTime; rawSeconds() < end; {
		_, _, _ = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	}
	unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
}

// bombTime ends a bomb that no test has killed: left alone it would starve the whole machine, its kernel threads too.
const bombTime = 20 // seconds

//go:norace
func rawSeconds() int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Sec
}

func init() {
	if os.Getenv(childEnv) == "headless" {
		runtime.LockOSThread() // main stays on the first thread
	}
}

// headless ends its first thread; another goes on and uses CPU time.
func headless() {
	go func() {
		for {
			_ = time.Now()
		}
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// start runs the probe in g. It returns when the probe has joined; output is read by finish.
func start(t *testing.T, g *Group, action string) *probeProcess {
	t.Helper()
	files, err := g.JoinFiles()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &probeProcess{t: t, cmd: exec.Command("/bin/sh", "-c", join, "sh", strconv.Itoa(len(files)), self)}
	p.cmd.Env = []string{childEnv + "=" + action, "GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0"}
	p.cmd.ExtraFiles = files
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	buf := make([]byte, 4096)
	p.read = func() string { n, _ := out.Read(buf); return string(buf[:n]) }
	for !strings.Contains(p.output, "joined\n") {
		more := p.read()
		if more == "" {
			t.Fatalf("the probe ended before it joined: %q, %v", p.output, p.cmd.Wait())
		}
		p.output += more
	}
	t.Cleanup(func() {
		if !p.waited {
			_ = g.Kill() // its children hold the pipe that finish reads
			p.kill()
		}
	})
	return p
}

type probeProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	read   func() string
	output string
	waited bool
}

// finish reads the rest of the output and waits. Children that hold the pipe open must be dead by then.
func (p *probeProcess) finish() (string, *os.ProcessState) {
	for more := p.read(); more != ""; more = p.read() {
		p.output += more
	}
	_ = p.cmd.Wait()
	p.waited = true
	return p.output, p.cmd.ProcessState
}

func (p *probeProcess) kill() {
	if !p.waited {
		_ = p.cmd.Process.Kill()
		p.finish()
	}
}
