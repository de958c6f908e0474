package spawn

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Alive reports whether the init has not died yet.
func (i *Init) Alive() bool {
	for {
		fds := []unix.PollFd{{Fd: int32(i.pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) { // signals of the Go runtime interrupt even a call that does not wait
			return err == nil && n == 0
		}
	}
}

// Done closes when the init is exiting or dead.
func (i *Init) Done() <-chan struct{} { return i.done }

// End ends the init and all its descendants, in any state; it may be called twice. Without a pid namespace the init does
// that itself: SIGKILL would orphan its programs.
func (i *Init) End() {
	if i.whole {
		i.Kill()
	} else {
		i.HangUp()
	}
}

// Kill ends the init, and with it everything in its pid namespace. It may be called in any state, and twice.
func (i *Init) Kill() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reaped {
		return
	}
	if i.killAdopted != nil {
		i.killAdopted()
		return
	}
	_ = unix.PidfdSendSignal(i.pidfd, unix.SIGKILL, nil, 0) // ESRCH: it is dead already
}

// HangUp closes the supervisor's end of the socket: the init then ends its descendants and itself. It may be called
// twice.
func (i *Init) HangUp() { i.conn.close() }

// Abandon ends and reaps an init on which Setup was not called, or has failed.
func (i *Init) Abandon() bool {
	i.Kill()
	close(i.done)
	return i.Reap(abandonTimeout, nil)
}

// abandonTimeout is how long a killed init may take to end.
const abandonTimeout = 2 * time.Second

// Reap waits until the init has ended, calls look to read its last state from /proc, and releases it. The init must have
// been ordered to end. If it has not ended within timeout, because the kernel holds one of its processes where no signal
// reaches, Reap returns false and continues in the background. It may be called twice.
func (i *Init) Reap(timeout time.Duration, look func(pid int)) bool {
	deadline := time.Now().Add(timeout)
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-i.done:
		if i.reap(deadline, look) {
			return true
		}
	case <-t.C:
	}
	go func() {
		<-i.done
		for !i.reap(time.Now().Add(time.Minute), nil) {
			i.Kill()
		}
	}()
	return false
}

// reap waits for the process until the deadline. The socket is closed, so the process is ending and this does not block
// for long.
func (i *Init) reap(deadline time.Time, look func(pid int)) bool {
	for {
		i.mu.Lock()
		if i.reaped {
			i.mu.Unlock()
			return true
		}
		fds := []unix.PollFd{{Fd: int32(i.pidfd), Events: unix.POLLIN}}
		i.mu.Unlock()
		n, err := unix.Poll(fds, max(1, int(time.Until(deadline).Milliseconds())))
		if err != nil && err != unix.EINTR || n == 0 && time.Now().After(deadline) {
			return false
		}
		if n > 0 {
			break
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reaped {
		return true
	}
	if look != nil {
		look(i.pid)
	}
	i.reaped = true
	i.wait()
	i.conn.close()
	closeFiles([]*os.File{i.device}) // nil is allowed
	i.device = nil
	return true
}

// wait waits for the process and closes its descriptor.
func (i *Init) wait() {
	if i.last != nil {
		i.last()
	}
	Reap(i.pid)
	_ = unix.Close(i.pidfd)
}

// Reap waits for the end of a child.
func Reap(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != unix.EINTR {
			return
		}
	}
}
