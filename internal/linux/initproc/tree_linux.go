package initproc

import (
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// namespaceTree is all processes of the pid namespace whose first process is the init.
type namespaceTree struct{}

func (namespaceTree) signal(sig syscall.Signal) {
	if unix.Getpid() != 1 {
		return // -1 would mean the whole machine
	}
	_ = unix.Kill(-1, sig) // in a pid namespace of its own, -1 is every other process
}

// kill has nothing to do: the kernel ends a pid namespace with its first process.
func (namespaceTree) kill() {}

// descendants are the children of a process without a pid namespace of its own: found by walking.
type descendants struct{}

// adoptOrphans makes orphans of the program children of this process, however often the program forks and whichever
// session it moves to, so that this process can end them.
func adoptOrphans() error {
	return failed(initproto.StageNamespaces, "become subreaper", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// of lists the living descendants of a process, parents first.
func (descendants) of(pid int) []int {
	var all []int
	queue := []int{pid}
	for len(queue) > 0 {
		pid, queue = queue[0], queue[1:]
		tasks := "/proc/" + strconv.Itoa(pid) + "/task"
		for _, thread := range names(tasks) {
			for f := range strings.FieldsSeq(contents(tasks + "/" + thread + "/children")) {
				if child, err := strconv.Atoi(f); err == nil {
					all, queue = append(all, child), append(queue, child)
				}
			}
		}
	}
	return all
}

// names lists a directory; a missing one is empty. (Package os would start a thread, and slow the start of this program
// down by a tenth.)
func names(dir string) (all []string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			return all
		}
		_, _, all = unix.ParseDirent(buf[:n], -1, all)
	}
}

// contents reads a file; a missing one is empty.
func contents(file string) string {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil || n <= 0 {
			return string(all)
		}
		all = append(all, buf[:n]...)
	}
}

// signal uses pidfds: between listing and signalling a process may have ended and its pid been reused, so descent is
// checked again once the descriptor is open (R12).
func (d descendants) signal(sig syscall.Signal) {
	for all := d.of(unix.Getpid()); len(all) > 0; {
		// The second check costs the same for one process as for many, and a fork bomb has many.
		some := all[:min(len(all), signalBatch)]
		all = all[len(some):]
		held := make(map[int]int, len(some)) // pidfd by pid
		for _, pid := range some {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				held[pid] = fd
			}
		}
		for _, still := range d.of(unix.Getpid()) {
			if fd, ok := held[still]; ok {
				_ = unix.PidfdSendSignal(fd, sig, nil, 0)
			}
		}
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}
}

// signalBatch is the number of descriptors that are open at a time.
const signalBatch = 256

// kill stops everything first, so that a fork bomb can not outrun the killing, then kills until
// none is left. The reaper goroutine waits for them.
func (d descendants) kill() {
	for deadline := time.Now().Add(900 * time.Millisecond); time.Now().Before(deadline); {
		if len(d.of(unix.Getpid())) == 0 {
			return
		}
		d.signal(unix.SIGSTOP)
		d.signal(unix.SIGKILL)
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}
