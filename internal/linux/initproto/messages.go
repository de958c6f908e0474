package initproto

import "encoding/binary"

// Kind is the first byte of a frame.
type Kind byte

// The kinds of frame.
const (
	KindSetup Kind = iota + 1
	KindExec
	KindSignal
	KindReady
	KindStarted
	KindExited
	KindFailed
	KindListener
	KindExpect
	KindExpected
	KindAdopt
	KindDevice
	KindTake
)

// Stage names the step of the init that failed.
type Stage uint32

// The stages, in the order they are passed.
const (
	StageProtocol Stage = iota + 1
	StageNamespaces
	StageRootfs
	StageScratch
	StageVolumes
	StageNetwork
	StageLandlock
	StageTerminal
	StageFork
	StageCgroup
	StageSession
	StageStdio
	StageLimits
	StageIdentity
	StageSeccomp
	StageWorkdir
	StageProbe
	StageExec
)

var stageNames = [...]string{
	StageProtocol: "protocol", StageNamespaces: "namespaces", StageRootfs: "rootfs", StageScratch: "scratch",
	StageVolumes: "volumes", StageNetwork: "network", StageLandlock: "landlock", StageTerminal: "terminal",
	StageFork: "fork", StageCgroup: "cgroup", StageSession: "session", StageStdio: "stdio", StageLimits: "limits",
	StageIdentity: "identity", StageSeccomp: "seccomp", StageWorkdir: "workdir", StageProbe: "probe", StageExec: "exec",
}

func (s Stage) String() string {
	if s > 0 && int(s) < len(stageNames) {
		return stageNames[s]
	}
	return "unknown"
}

// Setup describes the file system that the init builds. Descriptors are indices into those of the frame; -1 is none.
type Setup struct {
	// Namespaced is false for the process backend: the init then mounts nothing and only reaps, limits and supervises.
	Namespaced bool
	// Housed: a container runtime has built the file system, and the init is its first process, with the program's own
	// id and no privilege. Its answer has its posture.
	Housed bool
	// Inner, for a setup that is not Namespaced: the init is in a container of another runtime, in a user namespace of
	// its own there. It becomes root in it, and no process may inspect it.
	Inner bool
	// HostMountNS and HostUserNS are the inodes of the supervisor's own namespaces: the init must be in others.
	HostMountNS, HostUserNS uint64
	// Stay says that the init has the program's own id, for lack of a second one, and keeps it.
	Stay bool
	// KeepGroups says that the user namespace was made by a user who may not drop groups.
	KeepGroups bool
	// Settings are parameters of its own namespaces that the init sets, below /proc/sys.
	Settings []Setting
	// Census asks for descriptors of the sandbox's /proc and /dev/shm, and for a socket that reports its sockets, for a
	// supervisor that polls limits.
	Census bool

	Hostname string
	Root     int      // descriptor of the root's mount tree
	Masked   []string // files of /proc to cover with /dev/null
	Hidden   []string // directories of /proc to cover with an empty one
	ReadOnly []string // directories of /proc to make read-only

	Scratch int      // descriptor of the scratch's mount
	Binds   []Bind   // directories of the scratch and their mount points
	Volumes []Volume // further mounts
	ShmSize uint64   // bytes of /dev/shm
}

// Setting is a kernel parameter.
type Setting struct{ Name, Value string }

// Bind shows a directory of the scratch.
type Bind struct{ From, To string }

// Volume attaches a mount.
type Volume struct {
	FD   int
	To   string
	File bool // the mount is a file, not a directory
}

// Rlimit is one resource limit.
type Rlimit struct {
	Resource  uint32
	Soft, Max uint64
}

// Exec tells the init to run a program.
type Exec struct {
	ID       uint64
	Paths    []string // candidates for the program, tried in order as execvp does
	Args     []string
	Env      []string
	Dir      string
	UID, GID uint32
	// KeepGroups is as in Setup.
	KeepGroups  bool
	Rlimits     []Rlimit
	Seccomp     []byte // a BPF program; empty is none. For one that notifies, the init also sends a Listener, if the kernel has one
	Landlock    Ruleset
	Loopback    bool
	Device      Device
	Stdio       [3]int // descriptors; all -1 with a terminal
	Merged      bool   // stdout and stderr are one pipe: for the process that makes Stdio
	Socket      bool   // standard input is a socket: likewise
	Terminal    bool
	Rows, Cols  uint16
	Cgroups     []int // descriptors of the files to join cgroups through
	NewCgroupNS bool
	// NewUserNS gives the program a user namespace of its own, in which the init's single id is UID and GID: for
	// container runtimes that map the id to 0.
	NewUserNS  bool
	IntoCgroup int // descriptor of the v2 cgroup's directory to start in, where possible, instead of joining; -1 is none
	// Relay names a socket in the sandbox to which the process with the terminal connects: the program is that process's
	// child. Empty: the init makes the terminal.
	Relay string
	// Probe: between the filter and the exec, the process makes the call of [ProbeMark]. The program is executed only if
	// that call is refused as the filter refuses it or, if the filter has a listener, is answered with [ProbeGo].
	Probe bool
	// Held: with Probe, the program is not executed either if the filter has no listener.
	Held bool
	// Forbidden is a path, or "". With Probe, the process tries to make a device there that every user may make, and
	// that only Landlock refuses.
	Forbidden string
}

// Ruleset is the Landlock ruleset; without rules there is none. FS and Net are the rights that the kernel handles, and
// Scoped the operations that are limited to programs of the same ruleset; each is 0 where the kernel can not.
type Ruleset struct {
	Rules           []Rule
	FS, Net, Scoped uint64
}

// The probe is seccomp(ProbeMark, errno), where errno is the result of the attempt at Exec.Forbidden (0: it succeeded,
// or was not made). No kernel has such an operation: without a filter the call fails with EINVAL, and every filter of
// this project refuses it.
const (
	ProbeMark = 0x70726f62
	ProbeGo   = 1
)

// Rule grants rights below a path.
type Rule struct {
	Path   string
	Access uint64
}

// Signal is for the process with that id, or for all processes if All is set.
type Signal struct {
	ID  uint64
	All bool
	Num uint32
}

// Started reports that the program was executed.
type Started struct {
	ID  uint64
	PID uint32 // in the sandbox's own pid namespace
	At  uint64 // nanoseconds of the monotonic clock, which is the supervisor's too
}

// Expect tells an init that a zygote is going to fork a program into its namespaces. The zygote needs the Landlock
// ruleset, which only the init can make, because its paths are those inside. An init that runs programs makes the loopback and the device
// for them, or opens the device again.
type Expect struct {
	ID       uint64
	Landlock Ruleset // as in Exec
	Loopback bool
	Device   Device
}

// Device is the network device that programs of the phase need, with its addresses and the gateways of its routes, as bytes; without
// addresses there is none. The init makes it once, before the first program that needs it, and sends a Made.
type Device struct{ Addresses, Gateways [][]byte }

// Made comes before Started, and before Expected, with the descriptor of the device's frames.
type Made struct{ ID uint64 }

// Expected answers an Expect, with the ruleset's descriptor if rules were given.
type Expected struct{ ID uint64 }

// Adopt names the expected program. It is the init's child by now, and from here on like any executed one; Started does
// not follow. No other program may have run before.
type Adopt struct {
	ID  uint64
	PID uint32 // in the sandbox's own pid namespace
}

// Take names a process that a program has made, whose parent has ended. The init checks that the process is its child, and answers with
// Started and a pidfd; the process is then like any executed program.
type Take struct {
	ID  uint64
	PID uint32 // in the sandbox's own pid namespace
}

// Listener comes before Started, from the program's own process, with the descriptor by which the kernel reports its
// refused system calls.
type Listener struct{ ID uint64 }

// Exited reports how the process ended, as a status of wait4.
type Exited struct {
	ID     uint64
	Status uint32
	At     uint64 // as in Started
	// NoRoutes is how many connections and packets of the init's programs had no route so far; 0 from an init in the network namespace of
	// another process.
	NoRoutes uint64
	// MaxRSS is the highest resident memory of one process, in bytes, of all that the init has reaped; 0 if it may be the init's own, which
	// a process shares until its exec, and from an init that was not asked for a census.
	MaxRSS uint64
}

// Failed reports the stage and the cause of a failure of the init. ID is 0 for the setup.
type Failed struct {
	ID     uint64
	Stage  Stage
	Errno  uint32
	Detail string
}

// Encode encodes a message as a frame: header, kind, fields.
func Encode(m Message) []byte {
	c := codec{b: make([]byte, HeaderSize+1, 512)}
	kind := m.fields(&c) // may replace c.b
	c.b[HeaderSize] = byte(kind)
	binary.LittleEndian.PutUint32(c.b, uint32(len(c.b)-HeaderSize))
	return c.b
}

// Accompany records in a frame's header how many descriptors travel with it.
func Accompany(frame []byte, descriptors int) { frame[4] = byte(descriptors) }

// Inbox reassembles frames from reads of any size, with their descriptors. D is the reader's type of a descriptor.
type Inbox[D any] struct {
	data        []byte
	descriptors []D
}

// Put adds the result of a read.
func (b *Inbox[D]) Put(data []byte, descriptors ...D) {
	b.data = append(b.data, data...)
	b.descriptors = append(b.descriptors, descriptors...)
}

// Take returns the next message and its descriptors, which the caller owns; nil while no complete message has arrived.
func (b *Inbox[D]) Take() (m any, descriptors []D, err error) {
	if len(b.data) < HeaderSize {
		return nil, nil, nil
	}
	length, n := binary.LittleEndian.Uint32(b.data), int(b.data[4])
	if length == 0 || length > MaxFrame || n > MaxDescriptors {
		return nil, nil, ErrMalformed
	}
	total := HeaderSize + int(length)
	if len(b.data) < total {
		return nil, nil, nil
	}
	if n > len(b.descriptors) { // they come no later than the frame's first byte
		return nil, nil, ErrMalformed
	}
	m, err = Decode(b.data[HeaderSize:total:total])
	descriptors = b.descriptors[:n:n]
	b.data, b.descriptors = b.data[total:], b.descriptors[n:]
	return m, descriptors, err
}

// Message is a pointer to one of the message types. fields visits its fields in one order, for Encode and Decode, and returns its kind.
type Message interface{ fields(c *codec) Kind }

// newMessage makes a message of each kind.
var newMessage = [...]func() Message{
	KindSetup: func() Message { return new(Setup) }, KindExec: func() Message { return new(Exec) },
	KindSignal: func() Message { return new(Signal) }, KindReady: func() Message { return new(Ready) },
	KindStarted: func() Message { return new(Started) }, KindExited: func() Message { return new(Exited) },
	KindFailed: func() Message { return new(Failed) }, KindListener: func() Message { return new(Listener) },
	KindExpect: func() Message { return new(Expect) }, KindExpected: func() Message { return new(Expected) },
	KindAdopt: func() Message { return new(Adopt) }, KindDevice: func() Message { return new(Made) },
	KindTake: func() Message { return new(Take) },
}

func (m *Setup) fields(c *codec) Kind {
	version := uint64(Version)
	if c.uint(&version); version != Version {
		if !c.bad {
			c.version = versionError(version)
		}
		c.fail()
	}
	c.bool(&m.Namespaced)
	c.bool(&m.Housed)
	c.bool(&m.Inner)
	c.uint(&m.HostMountNS)
	c.uint(&m.HostUserNS)
	c.bool(&m.Stay)
	c.bool(&m.KeepGroups)
	list(c, &m.Settings, func(s *Setting) { c.string(&s.Name); c.string(&s.Value) })
	c.bool(&m.Census)
	c.string(&m.Hostname)
	c.fd(&m.Root)
	c.strings(&m.Masked)
	c.strings(&m.Hidden)
	c.strings(&m.ReadOnly)
	c.fd(&m.Scratch)
	list(c, &m.Binds, func(b *Bind) { c.string(&b.From); c.string(&b.To) })
	list(c, &m.Volumes, func(v *Volume) { c.fd(&v.FD); c.string(&v.To); c.bool(&v.File) })
	c.uint(&m.ShmSize)
	return KindSetup
}

func (m *Exec) fields(c *codec) Kind {
	c.uint(&m.ID)
	c.strings(&m.Paths)
	c.strings(&m.Args)
	c.strings(&m.Env)
	c.string(&m.Dir)
	c.uint32(&m.UID)
	c.uint32(&m.GID)
	c.bool(&m.KeepGroups)
	list(c, &m.Rlimits, func(l *Rlimit) { c.uint32(&l.Resource); c.uint(&l.Soft); c.uint(&l.Max) })
	c.bytes(&m.Seccomp)
	m.Landlock.fields(c)
	c.bool(&m.Loopback)
	m.Device.fields(c)
	for i := range m.Stdio {
		c.fd(&m.Stdio[i])
	}
	c.bool(&m.Merged)
	c.bool(&m.Socket)
	c.bool(&m.Terminal)
	c.uint16(&m.Rows)
	c.uint16(&m.Cols)
	list(c, &m.Cgroups, c.fd)
	c.bool(&m.NewCgroupNS)
	c.bool(&m.NewUserNS)
	c.fd(&m.IntoCgroup)
	c.string(&m.Relay)
	c.bool(&m.Probe)
	c.bool(&m.Held)
	c.string(&m.Forbidden)
	return KindExec
}

func (s *Ruleset) fields(c *codec) {
	list(c, &s.Rules, func(r *Rule) { c.string(&r.Path); c.uint(&r.Access) })
	c.uint(&s.FS)
	c.uint(&s.Net)
	c.uint(&s.Scoped)
}

func (m *Signal) fields(c *codec) Kind {
	c.uint(&m.ID)
	c.bool(&m.All)
	c.uint32(&m.Num)
	return KindSignal
}

func (m *Ready) fields(c *codec) Kind {
	p := &m.Posture
	c.uint32(&p.PID)
	c.uint32(&p.UID)
	c.uint32(&p.GID)
	c.bool(&p.NoNewPrivs)
	c.uint32(&p.Seccomp)
	c.uint(&p.Capabilities)
	c.uint(&p.Bounding)
	c.string(&p.Release)
	return KindReady
}

func (m *Started) fields(c *codec) Kind {
	c.uint(&m.ID)
	c.uint32(&m.PID)
	c.uint(&m.At)
	return KindStarted
}

func (m *Expect) fields(c *codec) Kind {
	c.uint(&m.ID)
	m.Landlock.fields(c)
	c.bool(&m.Loopback)
	m.Device.fields(c)
	return KindExpect
}

func (d *Device) fields(c *codec) {
	list(c, &d.Addresses, c.bytes)
	list(c, &d.Gateways, c.bytes)
}

func (m *Made) fields(c *codec) Kind { c.uint(&m.ID); return KindDevice }

func (m *Expected) fields(c *codec) Kind { c.uint(&m.ID); return KindExpected }

func (m *Adopt) fields(c *codec) Kind { c.uint(&m.ID); c.uint32(&m.PID); return KindAdopt }

func (m *Take) fields(c *codec) Kind { c.uint(&m.ID); c.uint32(&m.PID); return KindTake }

func (m *Listener) fields(c *codec) Kind { c.uint(&m.ID); return KindListener }

func (m *Exited) fields(c *codec) Kind {
	c.uint(&m.ID)
	c.uint32(&m.Status)
	c.uint(&m.At)
	c.uint(&m.NoRoutes)
	c.uint(&m.MaxRSS)
	return KindExited
}

func (m *Failed) fields(c *codec) Kind {
	c.uint(&m.ID)
	c.uint32((*uint32)(&m.Stage))
	c.uint32(&m.Errno)
	c.string(&m.Detail)
	return KindFailed
}

// Ready is the answer to a setup.
type Ready struct{ Posture Posture }

// Posture is what a housed init finds itself to be. Others leave it out.
type Posture struct {
	PID, UID, GID uint32
	NoNewPrivs    bool
	Seccomp       uint32 // 2: a filter
	Capabilities  uint64 // effective, permitted or inheritable
	Bounding      uint64
	Release       string // of the kernel
}

// Decode reads the body of a frame (without its header) and returns a pointer to one of the
// message types. Slices may share memory with body.
func Decode(body []byte) (any, error) {
	if len(body) == 0 || body[0] == 0 || int(body[0]) >= len(newMessage) {
		return nil, ErrMalformed
	}
	c := &codec{b: body[1:], decoding: true}
	m := newMessage[body[0]]()
	m.fields(c)
	switch {
	case c.version != nil:
		return nil, c.version
	case c.bad || len(c.b) != 0:
		return nil, ErrMalformed
	}
	return m, nil
}
