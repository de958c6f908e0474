package detached

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The descriptors of a supervisor at its start.
//
//	create ── supervise ──► supervisor    it takes the lock and opens its socket
//	create ◄── "ready" or an error ────   (readyDescriptor), then closed
//	create ── creates the session over the socket
//	create ── "keep" ────────────────►    (keepDescriptor); closed without it, the supervisor ends
const (
	readyDescriptor = 3
	keepDescriptor  = 4
	readyWord       = "ready"
	keepWord        = "keep"
)

// Process is a supervisor that was started and has no session yet.
type Process struct {
	keep *os.File
	cmd  *exec.Cmd
}

// Start starts a supervisor by its executable and arguments, and waits until it serves. Its error is the supervisor's own. The caller calls
// Keep or Abandon.
func Start(path string, args []string) (*Process, error) {
	if err := closeOnExec(); err != nil {
		return nil, err
	}
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyRead.Close()
	defer readyWrite.Close()
	keepRead, keepWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer keepRead.Close()
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{readyWrite, keepRead}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = keepWrite.Close()
		return nil, err
	}
	_ = readyWrite.Close()
	p := &Process{keep: keepWrite, cmd: cmd}
	word, err := io.ReadAll(io.LimitReader(readyRead, 64<<10))
	if text := strings.TrimSpace(string(word)); err != nil || text != readyWord {
		p.Abandon()
		if text == "" {
			text = "it has ended"
		}
		return nil, errors.New(text)
	}
	return p, nil
}

// closeOnExec keeps the descriptors that this process has inherited from the supervisor.
func closeOnExec() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// Keep lets the supervisor live: its session was created.
func (p *Process) Keep() error {
	_, err := p.keep.WriteString(keepWord + "\n")
	return errors.Join(err, p.keep.Close(), p.cmd.Process.Release())
}

// Abandon ends the supervisor and waits for its end.
func (p *Process) Abandon() {
	_ = p.keep.Close()
	_ = p.cmd.Wait() // its exit code says no more
}

// Parent is the process that has started this supervisor.
type Parent struct{ ready, keep *os.File }

// OpenParent returns the parent of this process; false if it was not started by Start. Files of a supervisor are private from then on.
func OpenParent() (*Parent, bool) {
	for _, fd := range []int{readyDescriptor, keepDescriptor} {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			return nil, false
		}
		unix.CloseOnExec(fd)
	}
	unix.Umask(0o077)
	return &Parent{ready: os.NewFile(readyDescriptor, "ready"), keep: os.NewFile(keepDescriptor, "keep")}, true
}

// Ready tells the parent that the supervisor serves or, with an error, that it ends.
func (p *Parent) Ready(failed error) {
	text := readyWord
	if failed != nil {
		text = failed.Error()
	}
	_, _ = p.ready.WriteString(text + "\n") // a parent that is gone is seen by Await
	_ = p.ready.Close()
}

// Await waits until the parent has created the session; false if it has not, and is gone.
func (p *Parent) Await() bool {
	defer p.keep.Close()
	word, _ := bufio.NewReader(p.keep).ReadString('\n')
	return strings.TrimSpace(word) == keepWord
}
