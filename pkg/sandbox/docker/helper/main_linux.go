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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// Name is what the helper is called.
const Name = "sandbox-helper"

// Exit codes of a helper that can not do its work.
const (
	exitRefused  = 126
	exitProtocol = 125
)

// server is the helper at work.
type server struct {
	conn   *wire.Conn
	setup  wire.Setup
	clerk  *clerk
	counts *counter
	heard  atomic.Int64 // when the supervisor was last heard, in nanoseconds

	mu       sync.Mutex
	phases   map[string]*phase
	ended    marks       // where the last phase that has ended began
	spare    *spawn.Init // made ahead, for the first phase
	programs map[uint32]*program
	filters  map[seccomp.Policy][]byte
}

// Main is the whole life of the helper. It returns an exit code.
func Main() int {
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString(Name + ": this is not the first process of a container; it is started by sandbox-run only\n")
		return exitRefused
	}
	spawn.Ready() // it is copied while /proc/self is still readable
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		_, _ = os.Stderr.WriteString(Name + ": undumpable: " + err.Error() + "\n")
		return exitRefused
	}
	s := &server{
		conn: wire.NewConn(os.Stdout), phases: map[string]*phase{}, programs: map[uint32]*program{},
		filters: map[seccomp.Policy][]byte{},
	}
	if err := s.conn.Serve(&listener{os.Stdin, &s.heard}, s.handle); err != nil {
		_, _ = os.Stderr.WriteString(Name + ": " + err.Error() + "\n")
		return exitProtocol
	}
	// The supervisor is gone, or is done with us. The kernel would end what is left, but only after our output is closed, and whoever
	// reads that is to know that nobody lives.
	_ = unix.Kill(-1, unix.SIGKILL)
	buryStrays()
	return 0
}

// listener notes when something was heard.
type listener struct {
	io.Reader
	heard *atomic.Int64
}

func (l *listener) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	l.heard.Store(time.Now().UnixNano())
	return n, err
}

// watchSupervisor ends this process, and with it the container, after too long a silence: the connection to a remote daemon may
// be gone without anybody having said so.
func (s *server) watchSupervisor(patience time.Duration) {
	for {
		silence := time.Since(time.Unix(0, s.heard.Load()))
		if silence >= patience {
			_, _ = os.Stderr.WriteString(Name + ": the supervisor has not been heard for " + silence.String() + "\n")
			os.Exit(exitRefused)
		}
		time.Sleep(patience - silence)
	}
}

// handle takes a request. What may take time is done beside.
func (s *server) handle(kind wire.Kind, id uint32, body []byte) error {
	if (s.counts == nil) != (kind == wire.KindSetup) || id > wire.MaxRequest {
		return wire.ErrMalformed
	}
	switch kind {
	case wire.KindSetup:
		return s.begin(body)
	case wire.KindBeat:
		return nil
	case wire.KindExec:
		e, err := wire.DecodeExec(body)
		if err != nil {
			return err
		}
		go s.exec(id, e)
	case wire.KindSignal:
		if len(body) != 2 {
			return wire.ErrMalformed
		}
		if p := s.program(id); p != nil {
			_ = p.Signal(syscall.Signal(body[0]), body[1] != 0) // an init that is gone has nobody to signal
		}
	case wire.KindResize:
		if len(body) != 4 {
			return wire.ErrMalformed
		}
		if p := s.program(id); p != nil {
			_ = p.Resize(binary.LittleEndian.Uint16(body), binary.LittleEndian.Uint16(body[2:]))
		}
	case wire.KindKill:
		if p := s.program(id); p != nil {
			go s.kill(p.phase)
		}
	case wire.KindFinish:
		go s.finish(id)
	case wire.KindSample:
		go func() { _ = s.conn.Send(wire.KindSampled, id, wire.Message(s.sample())) }()
	case wire.KindLook:
		go func() {
			ready := wire.Ready{Version: wire.Version, Arch: runtime.GOARCH, PID: os.Getpid(), UserNS: true}
			lookAround(&ready, &s.setup, s.counts)
			_ = s.conn.Send(wire.KindReady, id, wire.Message(&ready))
		}()
	case wire.KindCreate, wire.KindOpen, wire.KindList, wire.KindRemove:
		mode, p, err := wire.ParsePath(body)
		if err != nil {
			return err
		}
		var in *wire.Inlet
		if kind == wire.KindCreate {
			in = s.conn.Inlet(wire.Stream(id, 0)) // now: data is on its way
		}
		go s.file(kind, id, mode, p, in)
	default:
		return wire.ErrMalformed
	}
	return nil
}

// begin is the setup: the scratch is made the user's, the first init is started, and the walls are looked at.
func (s *server) begin(body []byte) error {
	if err := wire.Parse(body, &s.setup); err != nil {
		return err
	}
	ready := wire.Ready{Version: wire.Version, Arch: runtime.GOARCH, PID: os.Getpid()}
	if s.setup.Version != wire.Version {
		ready.Problem = "the helper speaks another version of the protocol"
		return s.conn.Send(wire.KindReady, 0, wire.Message(&ready))
	}
	s.counts = newCounter(&s.setup)
	var err error
	if s.clerk, err = newClerk(&s.setup); err != nil {
		ready.Problem, ready.Stage = err.Error(), "scratch"
	} else if s.spare, err = s.newInit(context.Background()); err != nil {
		ready.Problem, ready.Stage = err.Error(), "namespaces"
	} else {
		ready.UserNS = true
	}
	if err := dropAllBut(keptCapabilities...); err != nil && ready.Problem == "" {
		ready.Problem, ready.Stage = "drop capabilities: "+err.Error(), "identity"
	}
	lookAround(&ready, &s.setup, s.counts)
	s.counts.rest()
	if s.setup.Heartbeat > 0 {
		s.heard.Store(time.Now().UnixNano())
		go s.watchSupervisor(s.setup.Heartbeat)
	}
	return s.conn.Send(wire.KindReady, 0, wire.Message(&ready))
}

// terminalGroup owns terminals in a container's devpts; unless it is mapped, nobody inside may give one away.
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
	// The helper is the last to go when memory runs out. To be likelier than one was takes no privilege, nor does it to be
	// again as one was; what is born between is likelier for good.
	mine, _ := os.ReadFile(oomScore)
	_ = os.WriteFile(oomScore, []byte("500"), 0)
	i, err := spawn.Start(o)
	_ = os.WriteFile(oomScore, mine, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if _, err := i.Setup(ctx, &initproto.Setup{Inner: true, Root: -1, Scratch: -1}, nil); err != nil {
		return nil, err
	}
	return i, nil
}

const oomScore = "/proc/self/oom_score_adj"

const startPatience = 10 * time.Second

// filter is the policy as this machine's kernel takes it.
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
