package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Options describe how the init is started.
type Options struct {
	// Namespaces are CLONE_NEW* flags; none for the process backend.
	Namespaces uintptr
	UIDs, GIDs []syscall.SysProcIDMap
	// Owner is the host id that a user namespace among them belongs to; 0 is this process's own.
	Owner uint32
	// Cgroup is the open directory of the v2 cgroup to start the init in where the kernel can, or nil.
	Cgroup *os.File
	// KeepGroups gives up the right to drop groups, which the kernel requires of a process that writes a map without
	// privilege.
	KeepGroups bool
	// Map writes the maps of a user namespace; nil writes them with the rights of this process.
	Map func(pid int, uids, gids []syscall.SysProcIDMap) error
}

// mapIDs writes the id maps of a new user namespace.
func (o *Options) mapIDs(pid int) error {
	if o.Map != nil {
		return o.Map(pid, o.UIDs, o.GIDs)
	}
	if o.KeepGroups {
		if err := writeOf(pid, "setgroups", []byte("deny")); err != nil {
			return err
		}
	}
	// Users last: during its exec the child may be hidden, if this process is, and its files in /proc then belong to the
	// root of its namespace as soon as there is one.
	return errors.Join(writeMap(pid, "gid_map", o.GIDs), writeMap(pid, "uid_map", o.UIDs))
}

// Error is a failure that the init has reported.
type Error struct {
	Stage  initproto.Stage
	Detail string
	Errno  syscall.Errno
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (stage %s)", e.Detail, e.Errno.Error(), e.Stage)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// ErrGone is the error of an init that ended before it could answer.
var ErrGone = errors.New("the sandbox's init is gone")

// ErrStuck is joined to the error of an init that could not be ended.
var ErrStuck = errors.New("the sandbox's init is in the kernel where no signal reaches it")

// Init is a running init. It owns the process and its end of the socket.
type Init struct {
	pid   int
	pidfd int
	conn  *conn
	whole bool // its pid namespace ends with it
	// killAdopted is set if a runtime has started the init and pid is the runtime's: it ends both. See Adopt.
	killAdopted  func()
	last         func()            // the same: called before the process is reaped
	posture      initproto.Posture // after Setup, of an init in a container
	containerPID int               // the same: its pid

	done chan struct{} // closed when the socket has ended: the init is exiting or dead

	mu      sync.Mutex
	waiting map[uint64]chan answer // by exec id: the answer to an exec
	exits   map[uint64]chan exit   // by exec id: how it ended
	reaped  bool
	lost    error    // why its messages are unreadable, or nil
	device  *os.File // frames of the network device, until TakeDevice or Reap

	listeners map[uint64]*os.File      // by exec id: of programs that are being started
	examiners map[uint64]chan *os.File // by exec id: where the listener goes at once
}

// exit is how a program ended, and when by the monotonic clock.
type exit struct {
	status   uint32
	at       uint64
	noRoutes uint64
	maxRSS   uint64
}

type answer struct {
	msg      any
	files    []*os.File
	listener *os.File // or nil
}

func newInit(pid, pidfd int, c *conn) *Init {
	return &Init{
		pid: pid, pidfd: pidfd, conn: c, done: make(chan struct{}),
		waiting: map[uint64]chan answer{}, exits: map[uint64]chan exit{},
		listeners: map[uint64]*os.File{}, examiners: map[uint64]chan *os.File{},
	}
}

// start clones a child with the namespaces, owner and cgroup of the options.
func (o *Options) start(birth clone.Init) (pid, pidfd int, err error) {
	if dir := os.Getenv("GOCOVERDIR"); measured && dir != "" {
		// With coverage, a child writes its counters through a descriptor: the path is not in its root.
		if f, err := os.Open(dir); err == nil {
			defer f.Close()
			birth.Env = append(birth.Env, "GOCOVERDIR=/proc/self/fd/"+strconv.Itoa(len(birth.Files)))
			birth.Files = append(birth.Files, int(f.Fd()))
		}
	}
	birth.Namespaces, birth.Owner = o.Namespaces, o.Owner
	if o.Cgroup != nil {
		birth.Cgroup = int(o.Cgroup.Fd())
	}
	return clone.StartInit(birth)
}

// Start clones an init.
func Start(o Options) (*Init, error) {
	binary, alone, err := protectedInit()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	defer unix.Close(pair[1])
	nothing, err := devNull()
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	weakened := weakenStart(&o)
	pid, pidfd, err := o.start(clone.Init{
		Binary: int(binary.Fd()), Args: []string{initproc.Name}, Env: append(Environ(), weakened...), Alone: alone,
		Files: []int{int(nothing.Fd()), int(nothing.Fd()), int(nothing.Fd()), pair[1]},
	})
	if err != nil {
		unix.Close(pair[0])
		if (errors.Is(err, unix.EACCES) || errors.Is(err, unix.ETXTBSY)) && oneShot.CompareAndSwap(true, false) {
			if err := copyInit(); err != nil {
				return nil, err
			}
			return Start(o)
		}
		return nil, fmt.Errorf("clone init: %w", err)
	}
	c, err := newConn(pair[0])
	i := newInit(pid, pidfd, c)
	i.whole = o.Namespaces&unix.CLONE_NEWPID != 0
	if err == nil && o.Namespaces&unix.CLONE_NEWUSER != 0 {
		err = o.mapIDs(pid)
	}
	if err == nil && spared() {
		err = writeOf(pid, "oom_score_adj", []byte("0"))
	}
	if err != nil {
		i.Kill()
		i.wait()
		if c != nil {
			c.close()
		}
		return nil, err
	}
	return i, nil
}

// spared reports whether the kernel spares this process when memory runs out (oom_score_adj), as it does for marked
// services. Programs must not inherit that.
var spared = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	return err == nil && strings.HasPrefix(string(text), "-")
})

// writeMap writes the map of ids between the init's user namespace and the one outside.
func writeMap(pid int, name string, maps []syscall.SysProcIDMap) error {
	var text []byte
	for _, m := range maps {
		text = fmt.Appendf(text, "%d %d %d\n", m.ContainerID, m.HostID, m.Size)
	}
	return writeOf(pid, name, text)
}

// writeOf writes to a file in /proc of a child. The child is not reaped, so its pid is not reused.
func writeOf(pid int, name string, text []byte) error {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// null stays open: every init needs it. A failure to open it is not kept: the next call tries again.
var null struct {
	mu   sync.Mutex
	file *os.File
}

func devNull() (f *os.File, err error) {
	null.mu.Lock()
	defer null.mu.Unlock()
	if null.file == nil {
		null.file, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	return null.file, err
}

// PID is the init's pid in this process's pid namespace. It is valid until Reap.
func (i *Init) PID() int { return i.pid }

// Threads is the number of threads of the init.
func (i *Init) Threads() int { return Threads(i.pid) }

// Threads is the number of threads of a process, for an init that is another process's child.
func Threads(pid int) int {
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return 1
	}
	return len(tasks)
}

// Setup sends the init the description of its root and waits until the init has built it. It returns the descriptors of
// the answer, which the caller owns. After an error the init is dead and reaped.
func (i *Init) Setup(ctx context.Context, m *initproto.Setup, files []int) ([]*os.File, error) {
	stop := context.AfterFunc(ctx, func() {
		i.Kill()
		i.conn.close() // an init that no signal reaches must not block this call
	})
	defer stop()
	files = weakenSetup(m, files)
	err := i.conn.send(initproto.Encode(m), files)
	var msg any
	var got []*os.File
	if err == nil {
		msg, got, err = i.conn.receive()
	}
	switch m := msg.(type) {
	case *initproto.Ready:
		if stop() {
			i.posture = m.Posture
			if i.killAdopted != nil {
				i.containerPID = i.conn.peer
				_ = i.conn.identify(0) // no longer needed, and it costs time
			}
			go i.listen()
			return got, nil
		}
		err = ctx.Err()
	case *initproto.Failed:
		err = &Error{Stage: m.Stage, Detail: m.Detail, Errno: syscall.Errno(m.Errno)}
	default:
		if ctx.Err() != nil {
			err = ctx.Err()
		} else if err == nil {
			err = initproto.ErrMalformed
		} else {
			err = errors.Join(ErrGone, err)
		}
	}
	closeFiles(got)
	if !i.Abandon() {
		err = errors.Join(err, ErrStuck)
	}
	return nil, err
}

// listen dispatches the init's messages until the socket ends.
func (i *Init) listen() {
	defer i.notifyWaiting()
	for {
		msg, files, err := i.conn.receive()
		if err != nil {
			i.markUnreadable(err)
			return
		}
		i.mu.Lock()
		switch m := msg.(type) {
		case *initproto.Started:
			i.answerLocked(m.ID, msg, files)
		case *initproto.Expected:
			i.answerLocked(m.ID, msg, files)
		case *initproto.Failed:
			i.answerLocked(m.ID, msg, files)
		case *initproto.Listener:
			i.keepLocked(m.ID, files)
		case *initproto.Made:
			closeFiles([]*os.File{i.device}) // an init sends one; nil is allowed
			if i.device = nil; len(files) == 1 {
				i.device, files = files[0], nil
			}
			closeFiles(files)
		case *initproto.Exited:
			if c := i.exits[m.ID]; c != nil {
				c <- exit{m.Status, m.At, m.NoRoutes, m.MaxRSS}
				delete(i.exits, m.ID)
			}
			closeFiles(files)
		default:
			closeFiles(files)
		}
		i.mu.Unlock()
	}
}

// markUnreadable records why the messages of a living init are unreadable, and ends it: its programs are not supervised.
// An init that is gone needs no reason.
func (i *Init) markUnreadable(err error) {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, initproto.ErrMalformed) {
		return
	}
	i.mu.Lock()
	i.lost = err
	i.mu.Unlock()
	i.End()
}

// keepLocked keeps the listener of a program until its start has succeeded or failed. There is at most one, and only for
// a waiting caller.
func (i *Init) keepLocked(id uint64, files []*os.File) {
	if len(files) == 1 && i.waiting[id] != nil && i.listeners[id] == nil {
		i.listeners[id] = files[0]
		if c := i.examiners[id]; c != nil { // the channel has a buffer of one, and gets no more
			c <- files[0]
		}
		return
	}
	closeFiles(files)
}

func (i *Init) answerLocked(id uint64, msg any, files []*os.File) {
	listener := i.listeners[id]
	delete(i.listeners, id)
	c := i.waiting[id]
	if _, started := msg.(*initproto.Started); listener != nil && (c == nil || !started) {
		_ = listener.Close()
		listener = nil
	}
	if c == nil {
		closeFiles(files)
		return
	}
	delete(i.waiting, id)
	c <- answer{msg, files, listener}
}

// notifyWaiting tells all waiting callers that no more messages will come.
func (i *Init) notifyWaiting() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id, c := range i.waiting {
		close(c)
		delete(i.waiting, id)
	}
	for id, c := range i.exits {
		close(c)
		delete(i.exits, id)
	}
	for id, f := range i.listeners {
		_ = f.Close()
		delete(i.listeners, id)
	}
	close(i.done)
}

// TakeDevice returns the descriptor of the network device that the init has made for a program; nil if there is none, or if it was taken
// before. The caller owns it.
func (i *Init) TakeDevice() *os.File {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.device
	i.device = nil
	return f
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // Close of nil is harmless
	}
}
