package spawn

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
)

// HelperSocket is the descriptor of a helper's socket to its supervisor.
const HelperSocket = 3

// helperTimeout bounds an answer of a helper, and its end.
const helperTimeout = 20 * time.Second

// Helper is this executable, started once more in namespaces of its own for work that this process may not do. It has no
// descriptor of this process but its socket, and ends with it.
type Helper struct {
	pid, pidfd int
	socket     int
}

// StartHelper executes this program under another name. An init function that checks os.Args decides what it does then.
func StartHelper(name string, o Options) (*Helper, error) {
	self, err := os.OpenFile("/proc/self/exe", unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer self.Close()
	null, err := devNull()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(pair[1])
	pid, pidfd, err := o.start(clone.Init{
		Binary: int(self.Fd()), Args: []string{name}, Env: []string{"GOMAXPROCS=2", "GORACE=atexit_sleep_ms=0"},
		Files: []int{int(null.Fd()), int(null.Fd()), int(null.Fd()), pair[1]},
	})
	if err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("clone: %w", err)
	}
	h := &Helper{pid: pid, pidfd: pidfd, socket: pair[0]}
	timeout := unix.NsecToTimeval(helperTimeout.Nanoseconds())
	if err = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err == nil {
		err = o.mapIDs(pid)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Socket is the supervisor's end. The helper owns it until Close.
func (h *Helper) Socket() int { return h.socket }

// Process is the helper itself. A caller that hands it to Adopt, which then owns it, closes the Socket instead of
// calling Close.
func (h *Helper) Process() (pid, pidfd int) { return h.pid, h.pidfd }

// Kill ends the helper with SIGKILL; the caller still calls Close.
func (h *Helper) Kill() { _ = unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0) }

// Close ends the helper and waits for it. It is called once.
func (h *Helper) Close() {
	_ = unix.Close(h.socket)
	fds := []unix.PollFd{{Fd: int32(h.pidfd), Events: unix.POLLIN}}
	for end := time.Now().Add(time.Second); time.Now().Before(end); { // it ends by itself; with coverage it writes its counters first
		if n, err := unix.Poll(fds, int(time.Until(end).Milliseconds())+1); n > 0 || err != nil && err != unix.EINTR {
			break
		}
	}
	_ = unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0) // ESRCH: it is dead already
	Reap(h.pid)
	_ = unix.Close(h.pidfd)
}
