// Package netproc starts and ends the process that is the network of a phase (sandbox-net).
//
// Place in the flow. Package box starts a Process for each phase with rules; pkg/network has its messages. It links no part of the
// network stack, except in executables that contain sandbox-net.
//
// Lifecycle. Start executes sandbox-net with fewer rights than a program of a sandbox; Connect hands it the device; Report ends it and
// returns what it did; Close waits for its end. If the supervisor dies, the process reads end of file and exits; the kernel then removes the device.
//
// Concurrency. A Process may be used from several goroutines.
//
// Limits. The process is in the cgroups of the phase's programs: memory and processor time of the network are the sandbox's. It can not
// execute, write a file, or read one other than those that name resolution needs. Report waits for at most a second.
package netproc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Name is the name of the executable.
const Name = network.ProcessName

// ErrMissing is the error of an installation without the executable.
var ErrMissing = errors.New(Name + " is not beside sandbox-run, and not on PATH")

// Options are the rights of a process.
type Options struct {
	Cgroups    []int  // descriptors of the files to join cgroups through
	IntoCgroup int    // descriptor of the cgroup to start in, instead; 0: none
	UID        uint32 // 0: that of the supervisor, which is no root
	Filter     []byte // a BPF program
	Ended      func() // called if the process ends before Close
}

// Process is a running network.
type Process struct {
	pid    int
	pidfd  int
	socket *os.File

	first   chan network.Refused // the first refusal of each kind
	soFar   chan *network.Report // answers to SoFar
	asking  sync.Mutex           // held during SoFar
	news    chan error           // nil: all its threads exist; or the reason why not
	ended   chan struct{}        // the process has closed its side
	report  *network.Report      // readable when ended is closed, as is failed
	failed  error                // why it could not handle packets
	closing atomic.Bool
	once    sync.Once
}

// find opens the executable: beside this one, or this one itself if it contains it, or on PATH.
func find() (*os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	candidates := []string{filepath.Join(filepath.Dir(self), Name)}
	if network.Contained {
		candidates = append(candidates, "/proc/self/exe")
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			candidates = append(candidates, filepath.Join(dir, Name))
		}
	}
	for _, path := range candidates {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil && unix.Faccessat(fd, "", unix.X_OK, unix.AT_EMPTY_PATH) == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if err == nil {
			_ = unix.Close(fd)
		}
	}
	return nil, ErrMissing
}

// Start executes the process, and returns when all its threads exist. The caller calls Close.
func Start(ctx context.Context, o Options) (*Process, error) {
	executable, err := find()
	if err != nil {
		return nil, err
	}
	defer func() { _ = executable.Close() }()
	ruleset, err := readOnly(executable)
	if err != nil {
		return nil, err
	}
	if ruleset >= 0 {
		defer func() { _ = unix.Close(ruleset) }()
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	_ = unix.SetNonblock(pair[0], true)
	p := &Process{
		socket: os.NewFile(uintptr(pair[0]), Name), first: make(chan network.Refused, 1<<10), news: make(chan error, 1),
		soFar: make(chan *network.Report, 1),
		ended: make(chan struct{}),
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = p.socket.Close()
		return nil, err
	}
	defer func() { _ = null.Close() }()
	// A supervisor that is no root may make a cgroup namespace in a user namespace only, which has this one id.
	ownNamespace, uid, gid := o.UID == 0, o.UID, o.UID
	if ownNamespace {
		uid, gid = uint32(os.Geteuid()), uint32(os.Getegid()) //nolint:gosec // ids
	}
	pid, stage, err := clone.StartProgram(clone.Program{
		Isolated: true, Renamed: ownNamespace, Cgroups: o.Cgroups, IntoCgroup: o.IntoCgroup, Stdio: [3]int{pair[1], int(null.Fd()), int(null.Fd())},
		UID: uid, GID: gid, Landlock: ruleset, Filter: o.Filter, Dir: "/",
		Paths: []string{"/proc/self/fd/" + strconv.Itoa(int(executable.Fd()))}, Args: []string{Name},
		Env: append(weakenEnvironment(), "GOMAXPROCS=2", "GODEBUG=containermaxprocs=0,updatemaxprocs=0", "PATH=/nonexistent"),
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
	go func() {
		p.read()
		if !p.closing.Load() && o.Ended != nil {
			o.Ended()
		}
	}()
	if err := p.wait(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// readOnly is a Landlock ruleset for the process; -1 if the kernel has no Landlock. An executable that is not sandbox-net itself, but contains
// it, may need libraries.
func readOnly(executable *os.File) (int, error) {
	const read = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	rules := initproto.Ruleset{FS: 1<<13 - 1} // of the first version
	paths := []string{
		"/etc", "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf", "/run/connman",
	}
	access := uint64(read)
	if network.Contained {
		paths, access = append(paths, "/lib", "/lib64", "/usr/lib"), access|unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	for _, path := range paths {
		if real, err := filepath.EvalSymlinks(path); err == nil { //nolint:forbidigo // links of the host's own; no sandbox can change them
			rules.Rules = append(rules.Rules, initproto.Rule{Path: real, Access: access})
		}
	}
	return initproc.Ruleset(rules, int(executable.Fd()))
}

// wait waits for the next news.
func (p *Process) wait(ctx context.Context) error {
	select {
	case err := <-p.news:
		return err
	case <-p.ended:
		select {
		case err := <-p.news:
			return err
		default:
			return errors.New(Name + " has ended")
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Connect hands the process its device, and the listeners of published ports. It does not wait: packets wait in the device. A process that can
// not handle them ends, and Close returns the reason.
func (p *Process) Connect(c network.Config, files []*os.File) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	line = append(line, '\n')
	raw, err := p.socket.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(fds...)
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		for len(line) > 0 {
			n, err := unix.SendmsgN(int(fd), line, rights, nil, unix.MSG_NOSIGNAL)
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			if failed = err; err != nil && !errors.Is(err, unix.EINTR) {
				return true
			}
			line = line[max(n, 0):]
			if n > 0 {
				rights = nil
			}
		}
		return true
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("hand over the device: %w", err)
	}
	return nil
}

// First yields the first refusal of each kind when it occurs, and ends with the process.
func (p *Process) First() iter.Seq[network.Refused] {
	return func(yield func(network.Refused) bool) {
		for r := range p.first {
			if !yield(r) {
				return
			}
		}
	}
}

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
			p.failed = errors.New(m.Error)
			p.tell(p.failed)
			return
		case m.Started:
			p.tell(nil)
		case m.Refused != nil:
			select {
			case p.first <- *m.Refused:
			default: // the report has it
			}
		case m.SoFar != nil:
			select {
			case p.soFar <- m.SoFar:
			default: // the question was given up
			}
		case m.Report != nil:
			p.report = m.Report
			return
		}
	}
}

// tell reports news; a process that has more of it than there is gets no attention.
func (p *Process) tell(err error) {
	select {
	case p.news <- err:
	default:
	}
}

// endTimeout is how long the process may take to report.
const endTimeout = time.Second

// Threads is how many threads the process has.
func (p *Process) Threads() int { return spawn.Threads(p.pid) }

// PID is the process, until Close.
func (p *Process) PID() int { return p.pid }

// Report asks the process to end, and returns its report, which is nil if there is none. The error is of a process that could not handle
// packets. The caller still calls Close.
func (p *Process) Report() (*network.Report, error) {
	p.closing.Store(true)
	if raw, err := p.socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	late := time.NewTimer(endTimeout)
	defer late.Stop()
	select {
	case <-p.ended:
		return p.report, p.failed
	case <-late.C:
		return nil, nil
	}
}

// SoFar returns what the network did so far; nil if it does not answer.
func (p *Process) SoFar() *network.Report {
	p.asking.Lock()
	defer p.asking.Unlock()
	select {
	case <-p.soFar: // the late answer to an earlier question
	default:
	}
	if _, err := p.socket.Write([]byte{'\n'}); err != nil {
		return nil
	}
	late := time.NewTimer(endTimeout)
	defer late.Stop()
	select {
	case r := <-p.soFar:
		return r
	case <-p.ended:
	case <-late.C:
	}
	return nil
}

// Close ends the process, and waits for its end. It may be called twice.
func (p *Process) Close() {
	p.once.Do(func() {
		p.closing.Store(true)
		_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
		for {
			if err := unix.Waitid(unix.P_PIDFD, p.pidfd, nil, unix.WEXITED, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		_ = unix.Close(p.pidfd)
		_ = p.socket.Close()
		<-p.ended
	})
}
