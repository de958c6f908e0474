package spawn

import (
	"fmt"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Adopted is an init that a container runtime starts. The runtime is a child of this process and stays until the init
// and all processes of its pid namespace have ended.
type Adopted struct {
	PID, PIDFD int // the runtime's; Reap waits for it
	Socket     int // the supervisor's end of the init's socket, which Adopt owns
	// Kill ends the init, or the runtime if there is none yet. It may be called at any time until Reap has returned true.
	Kill func()
	// Last is called after the end of the runtime, before it is reaped and its pid may be reused.
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
	i := newInit(a.PID, a.PIDFD, c)
	i.whole, i.killAdopted, i.last = true, a.Kill, a.Last
	return i, nil
}

// ContainerPID is the init's pid in this process's pid namespace, as the kernel reports it; with a user-space kernel,
// the pid of that kernel. It is 0 before Setup has returned, and valid while the init lives.
func (i *Init) ContainerPID() int { return i.containerPID }

// Posture is the state that the init of a container found.
func (i *Init) Posture() initproto.Posture { return i.posture }

// Name is the argv[0] of an init.
const Name = initproc.Name

// ControlVariable tells an init the descriptor of its socket, if that is not 3.
const ControlVariable = initproc.ControlVariable

// RelayVariable tells an executable that it is a terminal relay, and names its init's socket (initproto.Exec.Relay).
const RelayVariable = initproc.RelayVariable

// Environ is the environment of an init.
func Environ() []string {
	// Two processors: one for the thread that reads the socket, one for the thread that waits for children; with one,
	// the second would wait for the runtime to notice that the first sleeps. The second variable keeps the runtime from
	// opening the host's cgroup files to follow its limits. The last one is for a test binary that is its own init:
	// built with -race, it would sleep a second before it exits.
	return []string{"GOMAXPROCS=2", "GODEBUG=containermaxprocs=0,updatemaxprocs=0,memprofilerate=0", "GORACE=atexit_sleep_ms=0"}
}

// RelayEnviron is the environment of a terminal relay: it must not print on the terminal that its coverage directory is
// missing.
func RelayEnviron() []string {
	env := Environ()
	if measured {
		env = append(env, "GOCOVERDIR=/tmp")
	}
	return env
}
