// Package netproc starts and ends the process that is the network of a phase (sandbox-net).
//
// Place in the flow. Backends that have a device for programs (internal/linux/netdev) start a Process for each phase with rules;
// pkg/network has its messages. It links no part of the network stack.
//
// Lifecycle. Start executes sandbox-net with the privileges of an ordinary program; Connect hands it the device; Close ends it and
// returns its report. If the supervisor dies, the process reads end of file and exits; the kernel then removes the device.
//
// Concurrency. A Process may be used from several goroutines.
//
// Limits. The process is in the cgroups of the phase's programs: memory and processor time of the network are the sandbox's. Close
// waits for at most a second.
package netproc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Name is the name of the executable.
const Name = "sandbox-net"

// ErrMissing is the error of an installation without the executable.
var ErrMissing = errors.New(Name + " is not beside sandbox-run; make build makes it")

// Options are the privileges of a process.
type Options struct {
	Cgroups []int  // descriptors of the files to join cgroups through
	UID     uint32 // 0: that of the supervisor, which is no root
	Filter  []byte // a BPF program
}

// Process is a running network.
type Process struct {
	pid    int
	pidfd  int
	socket *os.File

	first   chan network.Refused // the first refusal of each kind
	ready   chan error
	ended   chan struct{} // the process has closed its side
	report  *network.Report
	closing sync.Once
	err     error
}

// find returns the path of the executable.
func find() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), Name)
	if _, err := os.Stat(path); err != nil {
		return "", ErrMissing
	}
	return path, nil
}

// Start executes the process. The caller calls Close.
func Start(o Options) (*Process, error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	p := &Process{
		socket: os.NewFile(uintptr(pair[0]), Name), first: make(chan network.Refused, 1<<10), ready: make(chan error, 1),
		ended: make(chan struct{}),
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = p.socket.Close()
		return nil, err
	}
	defer func() { _ = null.Close() }()
	pid, stage, err := clone.StartProgram(clone.Program{
		Isolated: true, Cgroups: o.Cgroups, Stdio: [3]int{pair[1], int(null.Fd()), int(null.Fd())}, UID: o.UID, GID: o.UID,
		Landlock: -1, Filter: o.Filter, Dir: "/", Paths: []string{path}, Args: []string{Name},
		Env: []string{"GOMAXPROCS=2", "GODEBUG=containermaxprocs=0,updatemaxprocs=0", "PATH=/nonexistent"},
	})
	if err != nil {
		_ = p.socket.Close()
		return nil, fmt.Errorf("execute %s (stage %s): %w", Name, stage, err)
	}
	p.pid = pid
	if p.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		_ = p.socket.Close() // the process then ends by itself
		return nil, fmt.Errorf("open %s: %w", Name, err)
	}
	go p.read()
	return p, nil
}

// Connect hands the device to the process. It does not wait: packets wait in the device.
func (p *Process) Connect(c network.Config, device *os.File) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(int(p.socket.Fd()), append(line, '\n'), unix.UnixRights(int(device.Fd())), nil, 0); err != nil {
		return fmt.Errorf("hand over the device: %w", err)
	}
	return nil
}

// Ready yields nil when the process handles packets, or the reason why it can not.
func (p *Process) Ready() <-chan error { return p.ready }

// First yields the first refusal of each kind when it occurs, and is closed at the end of the process.
func (p *Process) First() <-chan network.Refused { return p.first }

func (p *Process) read() {
	defer close(p.ended)
	defer close(p.first)
	lines := bufio.NewScanner(p.socket)
	lines.Buffer(nil, network.MaxMessage)
	for lines.Scan() {
		var m network.Message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			return
		}
		switch {
		case m.Error != "":
			p.ready <- errors.New(m.Error)
			return
		case m.Ready:
			p.ready <- nil
		case m.Refused != nil:
			select {
			case p.first <- *m.Refused:
			default: // the report has it
			}
		case m.Report != nil:
			p.report = m.Report
			return
		}
	}
}

// endTimeout is how long the process may take to report.
const endTimeout = time.Second

// Close ends the process and returns its report, or nil if there is none. It may be called twice.
func (p *Process) Close() (*network.Report, error) {
	p.closing.Do(func() {
		_ = unix.Shutdown(int(p.socket.Fd()), unix.SHUT_WR)
		select {
		case <-p.ended:
		case <-time.After(endTimeout):
			p.err = errors.New(Name + " did not report in time")
		}
		_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
		var info unix.Siginfo
		for {
			if err := unix.Waitid(unix.P_PIDFD, p.pidfd, &info, unix.WEXITED, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		_ = unix.Close(p.pidfd)
		_ = p.socket.Close()
		<-p.ended
	})
	return p.report, p.err
}
