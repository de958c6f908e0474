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

// Setup tells the init what file system to build. Descriptors are indices into those of the frame; -1
// is none.
type Setup struct {
	// Namespaced is false for the process backend: then nothing is mounted and only the reaping,
	// limiting and watching part of the init is used.
	Namespaced bool
	// Housed: a container runtime has built the file system, and the init is the first process in it, with
	// the program's own id and no privilege. It says in its answer what it finds.
	Housed bool
	// Inner, of one that is not Namespaced, says that the init is in a container of another runtime, and
	// was born in a user namespace of its own there: it becomes root in it, and no process may look into it.
	Inner bool
	// HostMountNS and HostUserNS are the inodes of the supervisor's own namespaces: the init must
	// not find itself in them.
	HostMountNS, HostUserNS uint64
	// Stay says that the init has the program's own id, for want of a second one, and remains who it is.
	Stay bool
	// KeepGroups says that the user namespace was made by a user who may not drop groups.
	KeepGroups bool
	// Settings are parameters of its own namespaces that the init sets, below /proc/sys.
	Settings []Setting
	// Census asks for descriptors of the sandbox's /proc and /dev/shm, and for a socket that tells about its sockets, for a supervisor that has to count by looking.
	Census bool

	Hostname string
	Root     int      // descriptor of the root's mount tree
	Masked   []string // files of /proc to cover with /dev/null
	Hidden   []string // directories of /proc to cover with an empty one
	ReadOnly []string // directories of /proc to make read-only

	Scratch int      // descriptor of the scratch's mount
	Binds   []Bind   // directories of the scratch and where they appear
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
	Seccomp     []byte // a BPF program; empty is none. One that notifies is answered with a Listener, too, if the kernel has one
	Landlock    Ruleset
	Loopback    bool
	Stdio       [3]int // descriptors; all -1 with a terminal
	Terminal    bool
	Rows, Cols  uint16
	Cgroups     []int // descriptors of the files to join cgroups through
	NewCgroupNS bool
	// NewUserNS gives the program a user namespace of its own, in which the init's one id is UID and GID: where a container
	// runtime insists that the id is called 0.
	NewUserNS  bool
	IntoCgroup int // descriptor of the v2 group's directory to be born in, where that can be, in place of joining; -1 is none
	// Relay names a socket of the sandbox's own, to which a process comes that has the terminal: the program is that one's child. Empty: the
	// init makes the terminal.
	Relay string
	// Probe: between the last wall and the program, the process makes the call of [ProbeMark], and there is no program unless that is refused
	// as the filter refuses it or, if the filter has a listener, answered with [ProbeGo].
	Probe bool
	// Held: with Probe, there is no program either if the filter has no listener.
	Held bool
	// Forbidden is a path, or "". With Probe, the process tries to make a device there that every user may make, which nothing but Landlock refuses.
	Forbidden string
}

// Ruleset is what Landlock enforces; without rules there is none. FS and Net are the rights that the kernel handles, and Scoped what a program
// may do only with programs of the same ruleset; each is 0 where the kernel can not.
type Ruleset struct {
	Rules           []Rule
	FS, Net, Scoped uint64
}

// The probe is seccomp(ProbeMark, errno), where errno is what came of the attempt at Exec.Forbidden (0: it succeeded, or was not made). No
// kernel knows such an operation: without a filter the call fails with EINVAL, and every filter of ours refuses it.
const (
	ProbeMark = 0x70726f62
	ProbeGo   = 1
)

// Rule grants rights below a path.
type Rule struct {
	Path   string
	Access uint64
}

// Signal is for the process with that id, or for everyone when All is set.
type Signal struct {
	ID  uint64
	All bool
	Num uint32
}

// Started says that the program was executed.
type Started struct {
	ID  uint64
	PID uint32 // in the sandbox's own pid namespace
	At  uint64 // nanoseconds of the monotonic clock, which is the supervisor's too
}

// Expect tells an init that a program is going to be forked into its namespaces by a zygote, which has to be given what only
// the init can make: the second wall, of paths as they are inside.
type Expect struct {
	ID       uint64
	Landlock Ruleset // as in Exec
	Loopback bool
}

// Expected answers an Expect, with the ruleset's descriptor if rules were given.
type Expected struct{ ID uint64 }

// Adopt names the program that was expected. It is the init's child by now, and from here on like any that was executed; Started
// does not follow. Nothing else may have been run before.
type Adopt struct {
	ID  uint64
	PID uint32 // in the sandbox's own pid namespace
}

// Listener comes before Started, from the program's own process, with the descriptor that the kernel tells of its refused
// system calls through.
type Listener struct{ ID uint64 }

// Exited says how the process ended, as wait4 puts it.
type Exited struct {
	ID     uint64
	Status uint32
	At     uint64 // as in Started
}

// Failed says where and why the init could not do what it was told. ID is 0 for the setup.
type Failed struct {
	ID     uint64
	Stage  Stage
	Errno  uint32
	Detail string
}

// frame finishes a message: header, kind, body.
func frame(kind Kind, body func(*writer)) []byte {
	w := writer{b: make([]byte, HeaderSize, 512)}
	w.b = append(w.b, byte(kind))
	body(&w)
	binary.LittleEndian.PutUint32(w.b, uint32(len(w.b)-HeaderSize))
	return w.b
}

// Accompany notes in a frame's header how many descriptors travel with it.
func Accompany(frame []byte, descriptors int) { frame[4] = byte(descriptors) }

// Inbox puts frames back together from what was read, however that was cut or joined, with the
// descriptors that came along. D is what the reader calls a descriptor.
type Inbox[D any] struct {
	data        []byte
	descriptors []D
}

// Put adds what was read.
func (b *Inbox[D]) Put(data []byte, descriptors ...D) {
	b.data = append(b.data, data...)
	b.descriptors = append(b.descriptors, descriptors...)
}

// Take returns the next message and its descriptors, which are the caller's; nil while there is no
// whole one.
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

// Encode renders m as a frame, header included.
func (m *Setup) Encode() []byte {
	return frame(KindSetup, func(w *writer) {
		w.uint(Version)
		w.bool(m.Namespaced)
		w.bool(m.Housed)
		w.bool(m.Inner)
		w.uint(m.HostMountNS)
		w.uint(m.HostUserNS)
		w.bool(m.Stay)
		w.bool(m.KeepGroups)
		w.uint(uint64(len(m.Settings)))
		for _, s := range m.Settings {
			w.string(s.Name)
			w.string(s.Value)
		}
		w.bool(m.Census)
		w.string(m.Hostname)
		w.int(int64(m.Root))
		w.strings(m.Masked)
		w.strings(m.Hidden)
		w.strings(m.ReadOnly)
		w.int(int64(m.Scratch))
		w.uint(uint64(len(m.Binds)))
		for _, b := range m.Binds {
			w.string(b.From)
			w.string(b.To)
		}
		w.uint(uint64(len(m.Volumes)))
		for _, v := range m.Volumes {
			w.int(int64(v.FD))
			w.string(v.To)
			w.bool(v.File)
		}
		w.uint(m.ShmSize)
	})
}

func (r *reader) setup() *Setup {
	if v := r.uint(); v != Version {
		if !r.bad {
			r.version = versionError(v)
		}
		r.fail()
	}
	m := &Setup{Namespaced: r.bool(), Housed: r.bool(), Inner: r.bool(), HostMountNS: r.uint(), HostUserNS: r.uint(), Stay: r.bool(), KeepGroups: r.bool()}
	r.list(func() {
		m.Settings = append(m.Settings, Setting{Name: r.string(), Value: r.string()})
	})
	m.Census = r.bool()
	m.Hostname, m.Root = r.string(), r.fd()
	m.Masked, m.Hidden, m.ReadOnly = r.strings(), r.strings(), r.strings()
	m.Scratch = r.fd()
	r.list(func() {
		m.Binds = append(m.Binds, Bind{From: r.string(), To: r.string()})
	})
	r.list(func() {
		m.Volumes = append(m.Volumes, Volume{FD: r.fd(), To: r.string(), File: r.bool()})
	})
	m.ShmSize = r.uint()
	return m
}

// Encode renders m as a frame, header included.
func (m *Exec) Encode() []byte {
	return frame(KindExec, func(w *writer) {
		w.uint(m.ID)
		w.strings(m.Paths)
		w.strings(m.Args)
		w.strings(m.Env)
		w.string(m.Dir)
		w.uint(uint64(m.UID))
		w.uint(uint64(m.GID))
		w.bool(m.KeepGroups)
		w.uint(uint64(len(m.Rlimits)))
		for _, l := range m.Rlimits {
			w.uint(uint64(l.Resource))
			w.uint(l.Soft)
			w.uint(l.Max)
		}
		w.bytes(m.Seccomp)
		w.ruleset(m.Landlock)
		w.bool(m.Loopback)
		for _, fd := range m.Stdio {
			w.int(int64(fd))
		}
		w.bool(m.Terminal)
		w.uint(uint64(m.Rows))
		w.uint(uint64(m.Cols))
		w.uint(uint64(len(m.Cgroups)))
		for _, fd := range m.Cgroups {
			w.int(int64(fd))
		}
		w.bool(m.NewCgroupNS)
		w.bool(m.NewUserNS)
		w.int(int64(m.IntoCgroup))
		w.string(m.Relay)
		w.bool(m.Probe)
		w.bool(m.Held)
		w.string(m.Forbidden)
	})
}

func (r *reader) exec() *Exec {
	m := &Exec{ID: r.uint(), Paths: r.strings(), Args: r.strings(), Env: r.strings(), Dir: r.string(), UID: r.uint32(), GID: r.uint32(), KeepGroups: r.bool()}
	r.list(func() {
		m.Rlimits = append(m.Rlimits, Rlimit{Resource: r.uint32(), Soft: r.uint(), Max: r.uint()})
	})
	m.Seccomp = r.bytes()
	m.Landlock = r.ruleset()
	m.Loopback = r.bool()
	for i := range m.Stdio {
		m.Stdio[i] = r.fd()
	}
	m.Terminal = r.bool()
	m.Rows, m.Cols = uint16(r.uint32()), uint16(r.uint32())
	r.list(func() {
		m.Cgroups = append(m.Cgroups, r.fd())
	})
	m.NewCgroupNS = r.bool()
	m.NewUserNS = r.bool()
	m.IntoCgroup = r.fd()
	m.Relay = r.string()
	m.Probe, m.Held, m.Forbidden = r.bool(), r.bool(), r.string()
	return m
}

// Encode renders m as a frame, header included.
func (m *Signal) Encode() []byte {
	return frame(KindSignal, func(w *writer) {
		w.uint(m.ID)
		w.bool(m.All)
		w.uint(uint64(m.Num))
	})
}

// Encode renders m as a frame, header included.
func (m *Ready) Encode() []byte {
	return frame(KindReady, func(w *writer) {
		p := &m.Posture
		w.uint(uint64(p.PID))
		w.uint(uint64(p.UID))
		w.uint(uint64(p.GID))
		w.bool(p.NoNewPrivs)
		w.uint(uint64(p.Seccomp))
		w.uint(p.Capabilities)
		w.uint(p.Bounding)
		w.string(p.Release)
	})
}

func (r *reader) ready() *Ready {
	return &Ready{Posture{
		PID: r.uint32(), UID: r.uint32(), GID: r.uint32(), NoNewPrivs: r.bool(), Seccomp: r.uint32(),
		Capabilities: r.uint(), Bounding: r.uint(), Release: r.string(),
	}}
}

// Encode renders m as a frame, header included.
func (m *Started) Encode() []byte {
	return frame(KindStarted, func(w *writer) {
		w.uint(m.ID)
		w.uint(uint64(m.PID))
		w.uint(m.At)
	})
}

// Encode renders m as a frame, header included.
func (m *Expect) Encode() []byte {
	return frame(KindExpect, func(w *writer) {
		w.uint(m.ID)
		w.ruleset(m.Landlock)
		w.bool(m.Loopback)
	})
}

// Encode renders m as a frame, header included.
func (m *Expected) Encode() []byte { return frame(KindExpected, func(w *writer) { w.uint(m.ID) }) }

// Encode renders m as a frame, header included.
func (m *Adopt) Encode() []byte {
	return frame(KindAdopt, func(w *writer) {
		w.uint(m.ID)
		w.uint(uint64(m.PID))
	})
}

func (w *writer) ruleset(s Ruleset) {
	w.uint(uint64(len(s.Rules)))
	for _, l := range s.Rules {
		w.string(l.Path)
		w.uint(l.Access)
	}
	for _, n := range []uint64{s.FS, s.Net, s.Scoped} {
		w.uint(n)
	}
}

func (r *reader) ruleset() (s Ruleset) {
	r.list(func() { s.Rules = append(s.Rules, Rule{Path: r.string(), Access: r.uint()}) })
	s.FS, s.Net, s.Scoped = r.uint(), r.uint(), r.uint()
	return s
}

// Encode renders m as a frame, header included.
func (m *Listener) Encode() []byte { return frame(KindListener, func(w *writer) { w.uint(m.ID) }) }

// Encode renders m as a frame, header included.
func (m *Exited) Encode() []byte {
	return frame(KindExited, func(w *writer) {
		w.uint(m.ID)
		w.uint(uint64(m.Status))
		w.uint(m.At)
	})
}

// Encode renders m as a frame, header included.
func (m *Failed) Encode() []byte {
	return frame(KindFailed, func(w *writer) {
		w.uint(m.ID)
		w.uint(uint64(m.Stage))
		w.uint(uint64(m.Errno))
		w.string(m.Detail)
	})
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
	if len(body) == 0 {
		return nil, ErrMalformed
	}
	r := &reader{b: body[1:]}
	var m any
	switch Kind(body[0]) {
	case KindSetup:
		m = r.setup()
	case KindExec:
		m = r.exec()
	case KindSignal:
		m = &Signal{ID: r.uint(), All: r.bool(), Num: r.uint32()}
	case KindReady:
		m = r.ready()
	case KindStarted:
		m = &Started{ID: r.uint(), PID: r.uint32(), At: r.uint()}
	case KindListener:
		m = &Listener{ID: r.uint()}
	case KindExpect:
		m = &Expect{ID: r.uint(), Landlock: r.ruleset(), Loopback: r.bool()}
	case KindExpected:
		m = &Expected{ID: r.uint()}
	case KindAdopt:
		m = &Adopt{ID: r.uint(), PID: r.uint32()}
	case KindExited:
		m = &Exited{ID: r.uint(), Status: r.uint32(), At: r.uint()}
	case KindFailed:
		m = &Failed{ID: r.uint(), Stage: Stage(r.uint32()), Errno: r.uint32(), Detail: r.string()}
	default:
		return nil, ErrMalformed
	}
	switch {
	case r.version != nil:
		return nil, r.version
	case r.bad || len(r.b) != 0:
		return nil, ErrMalformed
	}
	return m, nil
}
