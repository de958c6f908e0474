package initproc

import (
	"errors"
	"math"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Name is the argv[0] under which an executable of this project is the init.
const Name = "sandbox-init"

// controlFD is the init's end of the socket, unless ControlVariable says otherwise.
const controlFD = 3

// ControlVariable names another descriptor for the socket: some container runtimes pass on only the first three.
const ControlVariable = "SANDBOX_INIT_CONTROL"

// control is the descriptor of the socket.
func control() int {
	if text, ok := syscall.Getenv(ControlVariable); ok {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			return n
		}
	}
	return controlFD
}

// exitRefused is the exit code of an init that was not started by a supervisor.
const exitRefused = 126

// failure is an error with the stage it belongs to.
type failure struct {
	stage  initproto.Stage
	detail string
	err    error
}

func (f *failure) Error() string { return f.stage.String() + ": " + f.detail + ": " + f.err.Error() }

func failed(stage initproto.Stage, detail string, err error) error {
	if err == nil {
		return nil
	}
	return &failure{stage, detail, err}
}

// server is the running init. The main thread serves the socket; the reaper's thread waits for children. Both sleep in
// system calls: an idle sandbox costs two sleeping threads.
type server struct {
	socket *socket
	tree   tree // all processes of this sandbox
	leave  func(code int)
	housed bool // in a container that a runtime has made
	census bool // the supervisor counts memory without a cgroup
	// relay: this process is a terminal relay, and this is the socket of its init.
	relay bool
	where string

	device bool // the network device exists

	bell int // an eventfd that wakes the reaper at a program's start

	mu       sync.Mutex
	routes   routeCounters
	maxRSS   int64          // highest of a reaped child, in KiB
	running  map[int]uint64 // pid → id of the programs asked for
	starting bool           // another one is being started
	early    map[int]end    // children that ended meanwhile
	// terminals of programs, kept open while they live: a program that closes its terminal, and opens it again, has not
	// hung up.
	terminals map[int]int
	relays    map[int]*socket // pid → socket of the program's terminal relay
}

// tree is all descendants of this process.
type tree interface {
	signal(syscall.Signal)
	kill() // ends it all before this process exits
}

// Main is the main function of the init. It does not return: leave is to exit. It must be called from a package's init
// function: there the runtime keeps the main goroutine on the main thread by itself, and new threads inherit that
// thread's attributes. (runtime.LockOSThread would do the first, at the price of one more thread.)
func Main(leave func(code int)) {
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&append([]byte(Name), 0)[0])), 0, 0, 0) // otherwise ps shows a descriptor's number
	s := &server{socket: &socket{fd: control()}, leave: leave, running: map[int]uint64{}, terminals: map[int]int{}, relays: map[int]*socket{}}
	s.where, s.relay = syscall.Getenv(RelayVariable)
	err := s.serve()
	code := 0
	if err != nil {
		code = s.report(0, err)
	}
	s.exit(code)
}

// exit ends the process, with both threads.
func (s *server) exit(code int) {
	if s.tree != nil {
		s.tree.kill()
	}
	s.leave(code)
}

// report sends a failure to the supervisor; without a supervisor it prints the failure, for a user who runs the init by
// hand.
func (s *server) report(id uint64, err error) int {
	msg := initproto.Failed{ID: id, Stage: initproto.StageProtocol, Errno: uint32(unix.EPROTO), Detail: err.Error()}
	var f *failure
	if errors.As(err, &f) {
		msg.Stage, msg.Detail = f.stage, f.detail
		var errno syscall.Errno
		if errors.As(f.err, &errno) {
			msg.Errno = uint32(errno)
		} else {
			msg.Detail += ": " + f.err.Error()
		}
	}
	if s.socket.send(initproto.Encode(&msg)) != nil {
		_, _ = unix.Write(2, []byte(Name+": "+err.Error()+"\n"))
		return exitRefused
	}
	return 1
}

func (s *server) serve() error {
	var err error
	if s.relay {
		err = s.becomeRelay()
	} else {
		err = isSupervised(s.socket.fd)
	}
	if err != nil {
		return err
	}
	if err := clone.Awaken(); err != nil {
		return failed(initproto.StageLimits, "awaken", err)
	}
	if s.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return failed(initproto.StageProtocol, "wake reaper", err)
	}
	go s.reap()
	if !s.relay {
		if err := s.setUp(); err != nil {
			return err
		}
	}
	for {
		m, fds, err := s.socket.receive()
		if err != nil {
			return nil // the supervisor is gone, or has closed the socket: the init ends
		}
		if err := s.handle(m, fds); err != nil {
			return err
		}
	}
}

// setUp carries out the supervisor's first message.
func (s *server) setUp() error {
	m, fds, err := s.socket.receive()
	if err != nil {
		return failed(initproto.StageProtocol, "receive setup", err)
	}
	setup, ok := m.(*initproto.Setup)
	if !ok {
		return failed(initproto.StageProtocol, "receive setup", initproto.ErrMalformed)
	}
	s.housed = setup.Housed
	s.census = setup.Census
	s.routes.own = setup.Namespaced || setup.Housed || setup.Inner
	if setup.Namespaced || setup.Housed {
		s.tree = namespaceTree{}
	} else {
		s.tree = descendants{}
	}
	var answer initproto.Ready
	ready, err := prepare(setup, fds, &answer.Posture)
	if err != nil {
		return err
	}
	if err := s.socket.send(initproto.Encode(&answer), ready...); err != nil {
		return failed(initproto.StageProtocol, "send ready", err)
	}
	closeAll(ready)
	return nil
}

func (s *server) handle(m any, fds []int) error {
	defer closeAll(fds)
	switch m := m.(type) {
	case *initproto.Exec:
		defer s.openRoutes()
		return s.start(m, fds)
	case *initproto.Expect:
		return s.expect(m)
	case *initproto.Adopt:
		defer s.openRoutes()
		return s.adopt(m)
	case *initproto.Take:
		return s.take(m)
	case *initproto.Signal:
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.All {
			s.tree.signal(syscall.Signal(m.Num))
			return nil
		}
		for pid, id := range s.running {
			if id == m.ID {
				// The pid belongs to an unreaped child: it is not reused.
				_ = unix.Kill(pid, syscall.Signal(m.Num))
			}
		}
		return nil
	}
	return failed(initproto.StageProtocol, "request", initproto.ErrMalformed)
}

// ownRSS is the highest resident memory of this process, in KiB. (That of getrusage includes the memory of the supervisor, which this
// process shared until its exec.)
func (s *server) ownRSS() uint64 {
	fd := openCounters("/proc/self/status")
	if fd < 0 {
		return math.MaxUint64
	}
	defer unix.Close(fd)
	buf := make([]byte, 4<<10)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return math.MaxUint64
	}
	return numberAfter(buf[:n], "VmHWM:")
}

// openRoutes opens the counters while the program runs.
func (s *server) openRoutes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes.open()
}

// start runs a program and answers. During a start no other program is started: it could stop the new one (SIGSTOP), and
// the reaper has other programs to report.
func (s *server) start(m *initproto.Exec, fds []int) error {
	s.mu.Lock()
	s.starting = true
	s.mu.Unlock()
	var began unix.Timespec
	pid, master, slave, err := s.exec(m, fds, &began)
	s.mu.Lock()
	defer s.mu.Unlock()
	early := s.early
	s.starting, s.early = false, nil
	if err != nil {
		s.report(m.ID, err)
		if len(s.running) == 0 {
			s.exit(1) // the sandbox has no other program
		}
		return nil
	}
	s.running[pid] = m.ID
	if slave >= 0 {
		s.terminals[pid] = slave
	}
	started := initproto.Encode(&initproto.Started{ID: m.ID, PID: uint32(pid), At: uint64(began.Nano())})
	if master >= 0 {
		err = s.socket.send(started, master)
		unix.Close(master)
	} else {
		err = s.socket.send(started)
	}
	if err != nil {
		return failed(initproto.StageProtocol, "send started", err)
	}
	if end, ok := early[pid]; ok {
		s.ended(pid, end)
	} else if there := s.relays[pid]; there != nil {
		go s.follow(pid, there)
	}
	_, err = unix.Write(s.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return failed(initproto.StageProtocol, "wake reaper", err)
}

// end is how a child ended, and when.
type end struct {
	status unix.WaitStatus
	at     uint64
}

// ended reports the end of a program, and ends the sandbox with the last one. If that was on a terminal relay, the
// supervisor ends the sandbox: the runtime's exec must end first, otherwise it would print on the terminal that the
// sandbox is gone. With mu held.
func (s *server) ended(pid int, e end) {
	id := s.running[pid]
	delete(s.running, pid)
	if slave, ok := s.terminals[pid]; ok {
		unix.Close(slave)
		delete(s.terminals, pid)
	}
	exited := &initproto.Exited{ID: id, Status: uint32(e.status), At: e.at, NoRoutes: s.routes.noRoutes()}
	if s.census && uint64(s.maxRSS)/3 > s.ownRSS()/2 { // the kernel's figures are not exact
		exited.MaxRSS = uint64(s.maxRSS) << 10
	}
	err := s.socket.send(initproto.Encode(exited))
	if err != nil || len(s.running) == 0 && !s.starting && s.relays[pid] == nil {
		s.exit(0)
	}
}

// reap waits for all children: programs, and orphans. It ends the sandbox with the last program. It runs from the
// beginning: at the first child its thread already sleeps in the kernel, and does not depend on the Go scheduler.
func (s *server) reap() {
	bell := make([]byte, 8)
	_, _ = unix.Read(s.bell, bell) // after an interruption, Wait4 finds no children
	for {
		var status unix.WaitStatus
		var used unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WUNTRACED, &used)
		if err == unix.EINTR {
			continue
		}
		if err != nil { // no children at the moment
			s.mu.Lock()
			more := len(s.relays) > 0
			s.mu.Unlock()
			if more { // orphans of a relay's program become children of the init without any notification
				_ = unix.Nanosleep(&unix.Timespec{Nsec: orphanReapInterval}, nil)
			} else {
				_, _ = unix.Read(s.bell, bell)
			}
			continue
		}
		if status.Stopped() {
			s.continueStopped(pid)
			continue
		}
		e := end{status, Monotonic()}
		s.mu.Lock()
		s.maxRSS = max(s.maxRSS, used.Maxrss)
		if _, ok := s.running[pid]; ok {
			s.ended(pid, e)
		} else if s.starting { // possibly the program in start: its pid is known after its exec
			if s.early == nil {
				s.early = map[int]end{}
			}
			s.early[pid] = e
		}
		s.mu.Unlock()
	}
}

// orphanReapInterval is how long, in nanoseconds, the orphans of a program on a terminal relay may stay zombies.
const orphanReapInterval = 50e6

// continueStopped continues a child that was stopped before its exec: by another program, which could prevent the start for ever. A
// program that is stopped after its exec stays stopped.
func (s *server) continueStopped(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.running[pid]; !ok && s.starting {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
}

// Monotonic is the clock of run times: the init reads it when a program starts or ends, and not when the supervisor
// learns of it.
func Monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // can not fail with this clock
	return uint64(t.Nano())
}

// isSupervised returns an error if no supervisor is at the other end: run by hand, an init that mounts and pivots would
// replace the root of its machine.
func isSupervised(fd int) error {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return failed(initproto.StageProtocol, "descriptor "+strconv.Itoa(fd),
			errors.New("is not a supervisor's socket; this program is started by sandbox-run only"))
	}
	return nil
}
