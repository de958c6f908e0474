// Package procstate reads the kernel's view of a process: its filters, privileges, namespaces, cgroups and root.
//
// Place in the flow. Backends call Read for a process that waits between its last isolation step and its program
// (internal/linux/seccomp.Probe).
//
// Lifecycle. A State is a value; nothing stays open.
//
// Concurrency. Everything may be called from any goroutine.
//
// Limits. The caller makes sure that the pid is not reused while Read runs. The kernel shows namespaces and root only to
// callers that may trace the process.
package procstate

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Namespaces are the kinds that are read, by their names below /proc/PID/ns.
var Namespaces = [...]string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"}

// State is the kernel's view of a process.
type State struct {
	Seccomp      int    // mode: 2 is a filter
	Filters      int    // how many; 0 where the kernel does not report it
	NoNewPrivs   bool   // PR_SET_NO_NEW_PRIVS
	Capabilities uint64 // in any of its sets: inheritable, permitted, effective, bounding or ambient
	OpenFiles    uint64 // RLIMIT_NOFILE, the soft limit
	Processes    uint64 // RLIMIT_NPROC, the soft limit
	Place
}

// Place is the cgroups, namespaces and root of a process. A process without privileges can not leave them.
type Place struct {
	Cgroups []byte // /proc/PID/cgroup

	// Hidden is the reason why namespaces and root are unknown; nil when they are known.
	Hidden     error
	Namespaces [len(Namespaces)]uint64 // inodes, in the order of Namespaces
	Root       Root
}

// Root is the root directory of a process.
type Root struct {
	Device, Inode           uint64
	ReadOnly, NoSuid, NoDev bool
	SharedMemory            bool // its /dev/shm is a tmpfs that every user may write to
}

// Self is the state of this process, read once.
var Self = sync.OnceValues(func() (State, error) { return Read(unix.Getpid(), nil) })

// Read reads the state of a process. known is the process's place where the caller has it, so that it is not read again; nil
// is unknown. An error says that the process has ended, or that /proc is unusable.
func Read(pid int, known *Place) (s State, err error) {
	err = withProc(pid, func(proc int) error {
		if s, err = readStatus(proc); err == nil {
			err = s.readLimits(proc)
		}
		if known != nil {
			s.Place = *known
		} else if err == nil {
			err = s.Place.read(proc)
		}
		return err
	})
	return s, err
}

// ReadPlace reads the place of a process.
func ReadPlace(pid int) (p Place, err error) {
	err = withProc(pid, func(proc int) error { return p.read(proc) })
	return p, err
}

// withProc calls read with the directory of a process below /proc.
func withProc(pid int, read func(proc int) error) error {
	proc, err := open(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		err = read(proc)
		_ = unix.Close(proc)
	}
	if err != nil {
		return fmt.Errorf("read process %d: %w", pid, err)
	}
	return nil
}

// bufferSize has room for the longest file that is read here.
const bufferSize = 8 << 10

func readStatus(proc int) (s State, err error) {
	var buf [bufferSize]byte
	text, err := read(proc, "status", buf[:])
	if err == nil {
		err = s.parseStatus(text)
	}
	return s, err
}

// readLimits reads a file, because prlimit would need a capability.
func (s *State) readLimits(proc int) error {
	var buf [bufferSize]byte
	text, err := read(proc, "limits", buf[:])
	if err == nil {
		s.OpenFiles, err = parseLimit(text, "open files")
	}
	if err == nil {
		s.Processes, err = parseLimit(text, "processes")
	}
	return err
}

func (p *Place) read(proc int) error {
	var buf [bufferSize]byte
	text, err := read(proc, "cgroup", buf[:])
	if err != nil {
		return err
	}
	p.Cgroups = bytes.Clone(text)
	if p.Hidden = p.readNamespaces(proc); p.Hidden == nil {
		p.Hidden = p.Root.read(proc)
	}
	return nil
}

func (p *Place) readNamespaces(proc int) error {
	for n, name := range Namespaces {
		var st unix.Stat_t
		if err := unix.Fstatat(proc, "ns/"+name, &st, 0); err != nil {
			return err
		}
		p.Namespaces[n] = st.Ino
	}
	return nil
}

// read reads the root of a process by its directory below /proc.
func (r *Root) read(proc int) error {
	root, err := open(proc, "root", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(root, &st), unix.Fstatfs(root, &fs)); err != nil {
		return err
	}
	r.Device, r.Inode = st.Dev, st.Ino
	r.ReadOnly, r.NoSuid, r.NoDev = fs.Flags&unix.ST_RDONLY != 0, fs.Flags&unix.ST_NOSUID != 0, fs.Flags&unix.ST_NODEV != 0
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS}
	shm, err := unix.Openat2(root, "dev/shm", &how)
	if err != nil {
		return nil //nolint:nilerr // a root without one
	}
	defer unix.Close(shm)
	if unix.Fstat(shm, &st) == nil && unix.Fstatfs(shm, &fs) == nil {
		r.SharedMemory = fs.Type == unix.TMPFS_MAGIC && st.Mode&0o777 == 0o777 && fs.Flags&unix.ST_RDONLY == 0
	}
	return nil
}

// parseStatus reads /proc/PID/status.
func (s *State) parseStatus(text []byte) error {
	seen := 0
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		var err error
		switch string(name) {
		case "Seccomp":
			s.Seccomp, err = strconv.Atoi(string(value))
			seen++
		case "Seccomp_filters": // since Linux 5.9
			s.Filters, err = strconv.Atoi(string(value))
		case "NoNewPrivs":
			s.NoNewPrivs = string(value) == "1"
			seen++
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
			var set uint64
			set, err = strconv.ParseUint(string(value), 16, 64)
			s.Capabilities |= set
			seen++
		}
		if err != nil {
			return fmt.Errorf("status: %s: %w", name, err)
		}
	}
	if seen != 7 {
		return errors.New("status: fields are missing")
	}
	return nil
}

// parseLimit reads a line of /proc/PID/limits.
func parseLimit(text []byte, name string) (uint64, error) {
	_, after, _ := bytes.Cut(text, []byte("\nMax "+name))
	fields := bytes.Fields(after)
	if len(fields) == 0 {
		return 0, fmt.Errorf("limits: %s are missing", name)
	}
	if string(fields[0]) == "unlimited" {
		return 1<<64 - 1, nil
	}
	return strconv.ParseUint(string(fields[0]), 10, 64)
}

func open(at int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// read returns a file of /proc. A large enough buffer gets all of it in the first read, so the read that would only return
// "end of file" is saved.
func read(at int, name string, buf []byte) ([]byte, error) {
	fd, err := open(at, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == len(buf):
			return nil, unix.EFBIG
		}
		return buf[:n], nil
	}
}

// SetName sets the name of the calling thread, and of the process if that is its first.
func SetName(name string) {
	text := append([]byte(name), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&text[0])), 0, 0, 0)
}
