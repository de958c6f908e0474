package spawn

import (
	"fmt"
	"os"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Adopted is an init that a container runtime starts, which is a child of ours and stays until the init and
// all in its pid namespace have ended.
type Adopted struct {
	PID, PIDFD int // the runtime's; Reap waits for it
	Socket     int // our end of the init's socket, which is taken over
	// Kill ends the init, or the runtime if there is none yet. It may be called at any time until Reap has returned true.
	Kill func()
	// Last is called when the runtime has ended, before it is waited for and its pid may become another's.
	Last func()
}

// Adopt wraps an init process that an OCI runtime started. Call Setup with Housed set, then Reap, as for Start.
func Adopt(a Adopted) (*Init, error) {
	c, err := newConn(a.Socket)
	if err != nil {
		return nil, err
	}
	if err := c.identify(1); err != nil {
		c.close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &Init{
		pid: a.PID, pidfd: a.PIDFD, conn: c, whole: true, killAdopted: a.Kill, last: a.Last, done: make(chan struct{}),
		waiting: map[uint64]chan answer{}, exits: map[uint64]chan exit{}, listeners: map[uint64]*os.File{}, examiners: map[uint64]chan *os.File{},
	}, nil
}

// ContainerPID is the init itself in our pid namespace, as the kernel says; of a kernel that is a program, that program. It is 0
// before Setup has returned, and valid while the init lives.
func (i *Init) ContainerPID() int { return i.containerPID }

// Posture is what an init that is housed found itself to be.
func (i *Init) Posture() initproto.Posture { return i.posture }

// Name is the argv[0] of an init.
const Name = initproc.Name

// ControlVariable tells an init where its socket is, if that is not descriptor 3.
const ControlVariable = initproc.ControlVariable

// RelayVariable tells an executable of ours that it is a terminal relay, and where its init is (initproto.Exec.Relay).
const RelayVariable = initproc.RelayVariable

// Environ is the environment of an init.
func Environ() []string {
	// Two processors: one for the thread that listens to us, one for the one that waits for children;
	// with one, the second would wait for the runtime to notice that the first sleeps. And no host
	// cgroup files are to be kept open by a runtime that wants to follow its limits.
	// The last one is for a test binary that is its own init: built with -race, it would sleep a second before it exits.
	return []string{"GOMAXPROCS=2", "GODEBUG=containermaxprocs=0,updatemaxprocs=0,memprofilerate=0", "GORACE=atexit_sleep_ms=0"}
}

// RelayEnviron is what an init on a terminal has: it may not complain there that no directory was named for its coverage data.
func RelayEnviron() []string {
	env := Environ()
	if measured {
		env = append(env, "GOCOVERDIR=/tmp")
	}
	return env
}
