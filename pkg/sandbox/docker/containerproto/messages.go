package containerproto

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// Stream is the number of a stream of a request.
func Stream(request uint32, n int) uint32 { return request<<2 | uint32(n) }

// OutputHeader is the size of the header of a piece of output.
const OutputHeader = 4

// PutOutputHeader writes the header of a piece of n bytes of stdout (stream 0) or stderr (1).
func PutOutputHeader(b []byte, stream, n int) { binary.LittleEndian.PutUint32(b, uint32(n<<1|stream)) }

// OutputReader reads pieces of output.
type OutputReader struct {
	From   io.Reader
	stream int
	left   int // of the current piece
}

// ReadOutput reads from the current piece, or waits for the next one.
func (r *OutputReader) ReadOutput(p []byte) (stream, n int, err error) {
	for r.left == 0 {
		var header [OutputHeader]byte
		if _, err := io.ReadFull(r.From, header[:]); err != nil {
			return 0, 0, err
		}
		size := binary.LittleEndian.Uint32(header[:])
		r.stream, r.left = int(size&1), int(size>>1)
	}
	n, err = r.From.Read(p[:min(len(p), r.left)])
	r.left -= n
	return r.stream, n, err
}

// MaxRequest is the highest number of a request.
const MaxRequest = 1<<30 - 1

// Setup is the first message.
type Setup struct {
	Version int `json:"version"`
	// UID and GID are the ids of programs; OuterUID and OuterGID those in the container's user namespace, which may be
	// the machine's. Init is the id of their init, likewise.
	UID      uint32 `json:"uid"`
	GID      uint32 `json:"gid"`
	OuterUID uint32 `json:"outer_uid"`
	OuterGID uint32 `json:"outer_gid"`
	Init     uint32 `json:"init"`
	// Dirs are the scratch's directories, by their names in a scratch.
	Dirs []Dir `json:"dirs"`
	// Volumes are the mount points of the user's volumes.
	Volumes []string `json:"volumes"`
	// ReservedTasks is the part of the process limit for the helper's own tasks.
	ReservedTasks int `json:"reserved_tasks"`
	// Heartbeat, unless it is 0, is the longest silence of the supervisor.
	Heartbeat time.Duration `json:"heartbeat"`
}

// Dir is a directory of the scratch.
type Dir struct {
	Name string `json:"name"`
	At   string `json:"at"`
	Mode uint32 `json:"mode"`
}

// Ready has the helper's measurements: the isolation and the limits in force, for the backend to compare with its request.
// Unknown values are -1, or empty.
type Ready struct {
	Version    int      `json:"version"`
	Problem    string   `json:"problem,omitempty"` // why no program can run
	Stage      string   `json:"stage,omitempty"`
	Arch       string   `json:"arch"`
	PID        int      `json:"pid"`
	UserNS     bool     `json:"user_ns"`      // programs have a user namespace that is not the machine's first
	NoNewPrivs bool     `json:"no_new_privs"` // of the helper already
	Seccomp    int      `json:"seccomp"`      // its mode
	CapBnd     uint64   `json:"cap_bnd"`
	ReadOnly   bool     `json:"read_only"` // the root
	Interfaces []string `json:"interfaces"`
	Cgroup     int      `json:"cgroup"`  // version; 0: none is visible
	Release    string   `json:"release"` // of the kernel that the container runs on
	Memory     int64    `json:"memory"`
	Swap       int64    `json:"swap"` // memory and swap on v1, swap alone on v2
	Pids       int64    `json:"pids"`
	CPUQuota   int64    `json:"cpu_quota"`
	CPUPeriod  int64    `json:"cpu_period"`
	Scratch    []Room   `json:"scratch"`
	Volumes    []Ident  `json:"volumes"`  // of the user's volumes, in their order
	Writable   []string `json:"writable"` // writable mounts that the backend has not requested
}

// Ident identifies a file, whatever its name.
type Ident struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Room is the size of a directory of the scratch.
type Room struct {
	At     string `json:"at"`
	Kind   int64  `json:"kind"` // the magic number of its file system
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
	NoSuid bool   `json:"no_suid"`
}

// Started says that a program runs.
type Started struct {
	// Measured are the controls (package sandbox) that the helper has measured on the program's process before exec.
	Measured []string `json:"measured"`
}

// Exec requests the start of a program.
type Exec struct {
	Phase  string
	Policy seccomp.Policy
	initproto.Exec
}

const (
	denySetID = 1 << iota
	denyUncounted
	denyAffinity
	denyAllocate
	notify
	interfaces
)

// Encode is the frame's body.
func (e *Exec) Encode() []byte {
	var flags byte
	for bit, set := range map[byte]bool{denySetID: e.Policy.DenySetID, denyUncounted: e.Policy.DenyUncounted,
		denyAffinity: e.Policy.DenyAffinity, denyAllocate: e.Policy.DenyAllocate, notify: e.Policy.Notify, interfaces: e.Policy.Interfaces} {
		if set {
			flags |= bit
		}
	}
	b := append([]byte{flags, byte(len(e.Phase))}, e.Phase...)
	return append(b, initproto.Encode(&e.Exec)[initproto.HeaderSize:]...)
}

// DecodeExec reads what Encode writes.
func DecodeExec(b []byte) (*Exec, error) {
	if len(b) < 2 || len(b) < 2+int(b[1]) {
		return nil, ErrMalformed
	}
	e := &Exec{Phase: string(b[2 : 2+int(b[1])])}
	flags := b[0]
	e.Policy = seccomp.Policy{DenySetID: flags&denySetID != 0, DenyUncounted: flags&denyUncounted != 0, DenyAffinity: flags&denyAffinity != 0,
		DenyAllocate: flags&denyAllocate != 0, Notify: flags&notify != 0, Interfaces: flags&interfaces != 0}
	m, err := initproto.Decode(append([]byte(nil), b[2+int(b[1]):]...)) // a copy: Decode keeps its argument
	if err != nil {
		return nil, err
	}
	inner, ok := m.(*initproto.Exec)
	if !ok {
		return nil, ErrMalformed
	}
	e.Exec = *inner
	return e, nil
}

// Exited reports how a program ended.
type Exited struct {
	Code   int           `json:"code"`
	Signal int           `json:"signal"`
	Took   time.Duration `json:"took"`
	Lost   bool          `json:"lost,omitempty"`
	// NoRoutes is how many connections and packets had no route.
	NoRoutes uint64 `json:"no_routes,omitempty"`
}

// Counters are what the container's programs have used, without the helper's own share. The type has none of the methods of a sample,
// whose JSON is for people: its times are seconds.
type Counters monitor.Sample

// Sample returns the counters as a sample without a time: the container does not decide when it was taken.
func (c Counters) Sample() monitor.Sample {
	c.At = time.Time{}
	return monitor.Sample(c)
}

// Finished is the last message about a program.
type Finished struct {
	Counters  Counters          `json:"counters"`
	Refusals  []seccomp.Refusal `json:"refusals,omitempty"`
	Saturated bool              `json:"saturated,omitempty"`
	Unknown   string            `json:"unknown,omitempty"` // why refusals were not counted
	Problem   string            `json:"problem,omitempty"` // which processes did not end
}

// Message encodes a body as JSON: for messages that a container sends once or twice.
func Message(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // of our own plain structs
		panic(err)
	}
	return b
}

// Parse reads a Message.
func Parse(b []byte, v any) error {
	if json.Unmarshal(b, v) != nil {
		return ErrMalformed
	}
	return nil
}

// The receivers of a signal, as sandbox.Scope numbers them.
const (
	ToProgram byte = iota
	ToTree
	ToHandler
)

// Signal is the body of a signal.
func Signal(num int, to byte) []byte { return []byte{byte(num), to} }

// Size is the body of a resize.
func Size(rows, cols uint16) []byte {
	return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, rows), cols)
}

// LinkMode is the mode of a request to create a symbolic link; the content is its target.
const LinkMode = 0o120000

// Path is the body of a request about a file, with the mode of a new file.
func Path(mode uint32, p string) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, mode), p...)
}

// ParsePath reads a Path.
func ParsePath(b []byte) (mode uint32, p string, err error) {
	if len(b) < 4 {
		return 0, "", ErrMalformed
	}
	return binary.LittleEndian.Uint32(b), string(b[4:]), nil
}

// Done is the answer to a request about a file; 0 is success. The numbers are Linux's.
func Done(errno syscall.Errno) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(errno)) }

// ParseDone reads a Done.
func ParseDone(b []byte) (syscall.Errno, error) {
	if len(b) != 4 {
		return 0, ErrMalformed
	}
	return syscall.Errno(binary.LittleEndian.Uint32(b)), nil
}

// Opened is the body of an answer with type and size.
func Opened(mode fs.FileMode, size int64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, uint32(mode)), uint64(size))
}

// ParseOpened reads an Opened.
func ParseOpened(b []byte) (mode fs.FileMode, size int64, err error) {
	if len(b) != 12 {
		return 0, 0, ErrMalformed
	}
	size = int64(binary.LittleEndian.Uint64(b[4:]))
	if size < 0 {
		return 0, 0, ErrMalformed
	}
	return fs.FileMode(binary.LittleEndian.Uint32(b)), size, nil
}

// AppendEntry adds a directory's entry to a body.
func AppendEntry(b []byte, mode fs.FileMode, name string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(mode))
	return append(append(b, byte(len(name))), name...)
}

// EachEntry passes the entries that AppendEntry has written to want until it returns false.
func EachEntry(b []byte, want func(mode fs.FileMode, name string) bool) error {
	for len(b) > 0 {
		if len(b) < 5 || len(b) < 5+int(b[4]) {
			return ErrMalformed
		}
		n := 5 + int(b[4])
		if !want(fs.FileMode(binary.LittleEndian.Uint32(b)), string(b[5:n])) {
			return nil
		}
		b = b[n:]
	}
	return nil
}
