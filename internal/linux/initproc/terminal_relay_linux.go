package initproc

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Where a terminal can be passed neither into a sandbox nor out of it, the runtime starts a process on it: this
// executable once more, as a terminal relay. It connects to the init in the sandbox, and runs the one program on its
// terminal as its child. To the supervisor that is an ordinary program: the init forwards the messages.

// RelayVariable tells an executable that it is a terminal relay, and the name of its init's abstract socket.
const RelayVariable = "SANDBOX_INIT_CONSOLE"

// relayTimeout is how long, in milliseconds, a terminal relay and its init wait for each other. The supervisor waits longer.
const relayTimeout = 20_000

// becomeRelay makes this process a terminal relay: it connects to its init. The program will be in this session and in
// this process group, which have the terminal; keys that interrupt the program must not end this process.
func (s *server) becomeRelay() error {
	ignoreAll()
	if err := hide(); err != nil {
		return err
	}
	var found initproto.Posture
	if err := look(&found); err != nil {
		return err
	}
	if found.Capabilities|found.Bounding != 0 {
		return failed(initproto.StageIdentity, "terminal relay", errors.New("it has capabilities"))
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed(initproto.StageProtocol, "terminal relay", err)
	}
	const pause = 2 // milliseconds
	for waited := 0; ; waited += pause {
		if err = unix.Connect(fd, address(s.where)); err == nil {
			break
		}
		if err != unix.ECONNREFUSED && err != unix.EINTR || waited > relayTimeout {
			return failed(initproto.StageProtocol, "find the init", err)
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: pause * 1e6}, nil)
	}
	s.socket, s.housed, s.tree = &socket{fd: fd}, true, noTree{}
	return nil
}

// noTree is the empty tree of a terminal relay. Its init has all processes.
type noTree struct{}

func (noTree) signal(syscall.Signal) {}
func (noTree) kill()                 {}

func address(name string) unix.Sockaddr { return &unix.SockaddrUnix{Name: "@" + name} }

// ignoreAll makes this process ignore all signals that can be ignored, except SIGCHLD: the kernel would then not report
// the ends of children.
func ignoreAll() {
	ignore := [4]uint64{1} // struct sigaction: SIG_IGN, no flags, no mask
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig != uintptr(unix.SIGCHLD) {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0)
		}
	}
}

// runOnRelay makes a terminal relay run a program, and returns the results of exec.
func (s *server) runOnRelay(m *initproto.Exec, began *unix.Timespec) (int, error) {
	fd, err := acceptRelay(m.Relay)
	if err != nil {
		return 0, failed(initproto.StageTerminal, "wait for the terminal relay", err)
	}
	there := &socket{fd: fd}
	if err = there.send(initproto.Encode(m)); err == nil {
		err = readable(fd)
	}
	var answer any
	if err == nil {
		answer, _, err = there.receive()
	}
	switch a := answer.(type) {
	case *initproto.Started:
		*began = unix.NsecToTimespec(int64(a.At))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.relays[int(a.PID)] = there
		return int(a.PID), nil
	case *initproto.Failed:
		err = &failure{a.Stage, a.Detail, syscall.Errno(a.Errno)}
	default:
		if err == nil {
			err = initproto.ErrMalformed
		}
		err = failed(initproto.StageTerminal, "terminal relay", err)
	}
	unix.Close(fd)
	return 0, err
}

// acceptRelay accepts the first connection to a socket of that name.
func acceptRelay(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, address(name)); err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, 1); err != nil {
		return -1, err
	}
	if err := readable(fd); err != nil {
		return -1, err
	}
	there, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	return there, err
}

// readable waits until there is data to read.
func readable(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, relayTimeout)
		switch {
		case err == unix.EINTR:
		case err == nil && n == 0:
			return unix.ETIMEDOUT
		default:
			return err
		}
	}
}

// follow waits for the end of a program on a terminal relay. A terminal relay can be killed, by other programs or by its
// own: then the program becomes a child of the init, and the reaper reports its end, unless it has ended already.
func (s *server) follow(pid int, there *socket) {
	m, _, err := there.receive()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		unix.Close(there.fd)
		delete(s.relays, pid)
		_, _ = unix.Write(s.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
	if _, ok := s.running[pid]; !ok {
		return
	}
	exited, ok := m.(*initproto.Exited)
	switch {
	case err == nil && ok:
		s.ended(pid, end{unix.WaitStatus(exited.Status), exited.At})
	case unix.Kill(pid, 0) == unix.ESRCH:
		s.ended(pid, end{unix.WaitStatus(unix.SIGKILL), Monotonic()})
	}
}
