package helper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// Name is the name of the helper's executable.
const Name = "sandbox-helper"

// Exit codes of a helper that can not work.
const (
	exitRefused  = 126
	exitProtocol = 125
)

// server is the state of the helper.
type server struct {
	conn       *containerproto.Conn
	setup      containerproto.Setup
	fileWorker *fileWorker
	counts     *counter
	heard      atomic.Int64 // time of the last data from the supervisor, in nanoseconds

	mu       sync.Mutex
	phases   map[string]*phase
	ended    marks       // the start of the phase that ended last
	spare    *spawn.Init // a spare init, for the first phase
	programs map[uint32]*program
	filters  map[seccomp.Policy][]byte
}

// Main runs the helper until its input ends. It returns the exit code.
func Main() int {
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString(Name + ": start: this is not the first process of a container; only sandbox-run starts it\n")
		return exitRefused
	}
	spawn.Ready() // copies the executable while /proc/self is still readable
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		_, _ = os.Stderr.WriteString(Name + ": undumpable: " + err.Error() + "\n")
		return exitRefused
	}
	s := &server{
		conn: containerproto.NewConn(os.Stdout), phases: map[string]*phase{}, programs: map[uint32]*program{},
		filters: map[seccomp.Policy][]byte{},
	}
	if err := s.conn.Serve(&listener{os.Stdin, &s.heard}, s.handle); err != nil {
		_, _ = os.Stderr.WriteString(Name + ": " + err.Error() + "\n")
		return exitProtocol
	}
	// The supervisor has ended, or has closed the input. The kernel would kill the other processes, but only after our output is closed;
	// the reader of the output relies on its end for knowing that no process runs.
	_ = unix.Kill(-1, unix.SIGKILL)
	reapOrphans()
	return 0
}

// listener records the time of each read.
type listener struct {
	io.Reader
	heard *atomic.Int64
}

func (l *listener) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	l.heard.Store(time.Now().UnixNano())
	return n, err
}

// exitAfterSilence ends this process, and with it the container, if no data arrives for too long: the connection to a remote daemon
// may be lost without a notice.
func (s *server) exitAfterSilence(limit time.Duration) {
	for {
		silence := time.Since(time.Unix(0, s.heard.Load()))
		if silence >= limit {
			_, _ = os.Stderr.WriteString(Name + ": no heartbeat of the supervisor for " + silence.String() + "\n")
			os.Exit(exitRefused)
		}
		time.Sleep(limit - silence)
	}
}

// handle serves a request. Requests that take time get a goroutine.
func (s *server) handle(kind containerproto.Kind, id uint32, body []byte) error {
	if (s.counts == nil) != (kind == containerproto.KindSetup) || id > containerproto.MaxRequest {
		return containerproto.ErrMalformed
	}
	switch kind {
	case containerproto.KindSetup:
		return s.setUp(body)
	case containerproto.KindBeat:
		return nil
	case containerproto.KindExec:
		e, err := containerproto.DecodeExec(body)
		if err != nil {
			return err
		}
		go s.exec(id, e)
	case containerproto.KindSignal:
		if len(body) != 2 {
			return containerproto.ErrMalformed
		}
		if p := s.program(id); p != nil {
			sig := syscall.Signal(body[0])
			if body[1] == containerproto.ToHandler {
				_ = p.SignalHandler(sig) // fails if the init has ended
			} else {
				_ = p.Signal(sig, body[1] == containerproto.ToTree)
			}
		}
	case containerproto.KindResize:
		if len(body) != 4 {
			return containerproto.ErrMalformed
		}
		if p := s.program(id); p != nil {
			_ = p.Resize(binary.LittleEndian.Uint16(body), binary.LittleEndian.Uint16(body[2:]))
		}
	case containerproto.KindKill:
		if p := s.program(id); p != nil {
			go s.killPhase(p.phase)
		}
	case containerproto.KindFinish:
		go s.finish(id)
	case containerproto.KindSample:
		go func() { _ = s.conn.Send(containerproto.KindSampled, id, containerproto.Message(s.sample())) }()
	case containerproto.KindMeasure:
		go func() {
			ready := containerproto.Ready{Version: containerproto.Version, Arch: runtime.GOARCH, PID: os.Getpid(), UserNS: true}
			measureContainer(&ready, &s.setup, s.counts)
			_ = s.conn.Send(containerproto.KindReady, id, containerproto.Message(&ready))
		}()
	case containerproto.KindCreate, containerproto.KindOpen, containerproto.KindList, containerproto.KindRemove:
		mode, p, err := containerproto.ParsePath(body)
		if err != nil {
			return err
		}
		var in *containerproto.Inlet
		if kind == containerproto.KindCreate {
			in = s.conn.Inlet(containerproto.Stream(id, 0)) // before the data arrives
		}
		go s.serveFile(kind, id, mode, p, in)
	default:
		return containerproto.ErrMalformed
	}
	return nil
}

// setUp applies the setup: it chowns the scratch, starts the first init, and measures the container.
func (s *server) setUp(body []byte) error {
	if err := containerproto.Parse(body, &s.setup); err != nil {
		return err
	}
	ready := containerproto.Ready{Version: containerproto.Version, Arch: runtime.GOARCH, PID: os.Getpid()}
	if s.setup.Version != containerproto.Version {
		ready.Problem = "the helper speaks another version of the protocol"
		return s.conn.Send(containerproto.KindReady, 0, containerproto.Message(&ready))
	}
	s.counts = newCounter(&s.setup)
	var err error
	if s.fileWorker, err = newFileWorker(&s.setup); err != nil {
		ready.Problem, ready.Stage = err.Error(), "scratch"
	} else if s.spare, err = s.newInit(context.Background()); err != nil {
		ready.Problem, ready.Stage = err.Error(), "namespaces"
	} else {
		ready.UserNS = true
	}
	if err := dropAllBut(keptCapabilities...); err != nil && ready.Problem == "" {
		ready.Problem, ready.Stage = "drop capabilities: "+err.Error(), "identity"
	}
	measureContainer(&ready, &s.setup, s.counts)
	s.counts.measureOwn()
	if s.setup.Heartbeat > 0 {
		s.heard.Store(time.Now().UnixNano())
		go s.exitAfterSilence(s.setup.Heartbeat)
	}
	return s.conn.Send(containerproto.KindReady, 0, containerproto.Message(&ready))
}

// terminalGroup owns terminals in a container's devpts; unless it is mapped, no process inside can chown one.
const terminalGroup = 5

// newInit starts an init in namespaces within the container's own.
func (s *server) newInit(ctx context.Context) (*spawn.Init, error) {
	one := func(inside, outside uint32) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: int(inside), HostID: int(outside), Size: 1}
	}
	o := spawn.Options{
		Namespaces: unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		UIDs:       []syscall.SysProcIDMap{one(0, s.setup.Init), one(s.setup.UID, s.setup.OuterUID)},
		GIDs:       []syscall.SysProcIDMap{one(0, s.setup.Init), one(s.setup.GID, s.setup.OuterGID)},
	}
	if s.setup.GID != terminalGroup && s.setup.OuterGID != terminalGroup {
		o.GIDs = append(o.GIDs, one(terminalGroup, terminalGroup))
	}
	// The OOM killer shall choose the helper last. Raising and restoring the own score needs no privilege;
	// processes that are forked in between keep the raised score.
	mine, _ := os.ReadFile(oomScore)
	_ = os.WriteFile(oomScore, []byte("500"), 0)
	i, err := spawn.Start(o)
	_ = os.WriteFile(oomScore, mine, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := i.Setup(ctx, &initproto.Setup{Inner: true, Root: -1, Scratch: -1}, nil); err != nil {
		return nil, err
	}
	return i, nil
}

const oomScore = "/proc/self/oom_score_adj"

const startTimeout = 10 * time.Second

// filter compiles the policy for this machine's kernel.
func (s *server) filter(p seccomp.Policy) ([]byte, error) {
	if f := s.filters[p]; f != nil {
		return f, nil
	}
	f, err := seccomp.Compile(p, "")
	if err == nil {
		s.filters[p] = f
	}
	return f, err
}

func (s *server) program(id uint32) *program {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programs[id]
}

// errnoOf is the errno in an error; EIO where there is none.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	}
	return unix.EIO
}
