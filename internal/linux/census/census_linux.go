package census

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Count is the present and past use of resources of the processes of a namespace. Its first process, the init, is not
// counted, but the CPU time of the processes that it has reaped is.
type Count struct {
	CPUUser, CPUSystem time.Duration // to the tick, a hundredth of a second
	// Memory is the processes' memory and swap, the content of /dev/shm, and the buffers of sockets. Shared memory
	// counts for each process.
	Memory    uint64
	Processes int
	Tasks     int // threads included
}

// Census counts the processes of one pid namespace.
type Census struct {
	proc, shm, diag *os.File
	asking          sync.Mutex // one question at a time
}

// Open returns a Census that owns these directories, a /proc of the namespace and its /dev/shm, and a socket of
// [NewDiag] that was made in the processes' network namespace; nil is none.
func Open(proc, shm, diag *os.File) *Census { return &Census{proc: proc, shm: shm, diag: diag} }

// Close closes all of them. It may be called twice.
func (c *Census) Close() error {
	if err := errors.Join(c.proc.Close(), c.shm.Close(), c.diag.Close()); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// tick is the unit of times in /proc. Linux has reported the same value to user space since long before namespaces.
const tick = time.Second / 100

// Take counts. A process that ends meanwhile may or may not be counted.
func (c *Census) Take() (Count, error) {
	var n Count
	used, err := c.shared()
	if err != nil {
		return n, err
	}
	n.Memory = used + c.sockets()
	return n, c.each(func(at int, pid string) {
		st, ok := parseStat(read(at, pid+"/stat"))
		if !ok {
			return
		}
		n.CPUUser += st.childUser
		n.CPUSystem += st.childSystem
		if pid == "1" {
			return
		}
		n.CPUUser += st.user
		n.CPUSystem += st.system
		n.Processes++
		n.Tasks += st.threads
		_, status := holder(at, pid, st.threads)
		n.Memory += held(status)
	})
}

// Memory is the Memory of a Count with shared memory divided among its processes: exact, and expensive.
func (c *Census) Memory() (uint64, error) {
	total, err := c.shared()
	if err != nil {
		return 0, err
	}
	total += c.sockets()
	var twice uint64 // of it
	err = c.each(func(at int, pid string) {
		if pid == "1" {
			return
		}
		st, _ := parseStat(read(at, pid+"/stat"))
		who, status := holder(at, pid, st.threads)
		shares := read(at, who+"/smaps_rollup")
		if shares == nil { // gone, or not readable: memory that can not be divided counts in full
			total += held(status)
			return
		}
		own := sumKiB(shares, "Pss_Anon", "Pss_Shmem", "SwapPss") + sumKiB(status, "VmPTE")
		total += own
		twice += own * lent(at, pid)
	})
	return total - min(total, twice), err
}

// lent is the number of children that share this process's memory until their exec (vfork, posix_spawn): each of them
// shows all of it as well. For each, a thread of the parent sleeps in the call that made it.
func lent(at int, pid string) (n uint64) {
	tasks, err := unix.Openat(at, pid+"/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(tasks)
	_ = numbers(tasks, func(tid string) bool {
		stat := read(tasks, tid+"/stat")
		end := bytes.LastIndexByte(stat, ')')
		if end >= 0 && bytes.HasPrefix(stat[end+1:], []byte(" D ")) {
			call, _, _ := bytes.Cut(read(tasks, tid+"/syscall"), []byte(" "))
			if slices.Contains(lending, string(call)) {
				n++
			}
		}
		return true
	})
	return n
}

// lending are the numbers of the calls that lend memory, as /proc shows them.
var lending = func() []string {
	calls := []string{strconv.Itoa(unix.SYS_CLONE), strconv.Itoa(unix.SYS_CLONE3)}
	if runtime.GOARCH == "amd64" {
		calls = append(calls, "58") // vfork, which newer architectures do not have
	}
	return calls
}()

// holder returns the directory with a process's memory figures, and the status there: its own, unless its first thread
// has ended before the others, and with it the kernel's figures there.
func holder(at int, pid string, threads int) (who string, status []byte) {
	who, status = pid, read(at, pid+"/status")
	if threads < 2 || hasMemory(status) {
		return who, status
	}
	tasks, err := unix.Openat(at, pid+"/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return who, status
	}
	defer unix.Close(tasks)
	_ = numbers(tasks, func(tid string) bool {
		who = pid + "/task/" + tid
		status = read(at, who+"/status")
		return !hasMemory(status)
	})
	return who, status
}

func hasMemory(status []byte) bool { return bytes.Contains(status, []byte("\nRssAnon:")) }

// held is the memory in a process's status.
func held(status []byte) uint64 { return sumKiB(status, "RssAnon", "RssShmem", "VmSwap", "VmPTE") }

// shared is the content of /dev/shm.
func (c *Census) shared() (uint64, error) {
	var st unix.Statfs_t
	conn, err := c.shm.SyscallConn()
	if err == nil {
		err = errors.Join(conn.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &st) }), err)
	}
	return (st.Blocks - min(st.Blocks, st.Bfree)) * uint64(st.Bsize), err
}

// each calls f for every process.
func (c *Census) each(f func(at int, pid string)) error {
	conn, err := c.proc.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(conn.Control(func(proc uintptr) {
		// A descriptor of its own: two concurrent counts would share the position in the directory.
		var dir int
		if dir, err = unix.Openat(int(proc), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(dir)
		err = numbers(dir, func(pid string) bool {
			f(int(proc), pid)
			return true
		})
	}), err)
}

// numbers calls f with the names in a directory that are numbers, until it returns false.
func numbers(dir int, f func(name string) bool) error {
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n <= 0 {
			return err
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if name[0] >= '1' && name[0] <= '9' && !f(name) {
				return nil
			}
		}
	}
}

// read returns a small file, or nothing.
func read(at int, name string) []byte {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, 4<<10)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

type stat struct {
	user, system, childUser, childSystem time.Duration
	threads                              int
}

// parseStat reads /proc/N/stat. The name of the program is in parentheses and may contain any character: the other
// fields come after the last parenthesis.
func parseStat(text []byte) (s stat, ok bool) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return s, false
	}
	fields := bytes.Fields(text[end+1:])
	const first = 3 // the number of the field that follows the name
	number := func(nth int) int64 {
		if nth-first >= len(fields) {
			ok = false
			return 0
		}
		n, err := strconv.ParseInt(string(fields[nth-first]), 10, 64)
		if err != nil || n < 0 || n > int64(1<<63-1)/int64(tick) {
			ok = false
			return 0
		}
		return n
	}
	ok = true
	s.user, s.system = time.Duration(number(14))*tick, time.Duration(number(15))*tick
	s.childUser, s.childSystem = time.Duration(number(16))*tick, time.Duration(number(17))*tick
	s.threads = int(number(20))
	return s, ok
}

// sumKiB adds up lines such as "RssAnon:     123 kB", in bytes.
func sumKiB(text []byte, names ...string) (sum uint64) {
	for line := range bytes.Lines(text) {
		name, rest, found := bytes.Cut(line, []byte(":"))
		if !found {
			continue
		}
		for _, want := range names {
			if string(name) != want {
				continue
			}
			value, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
			if n, err := strconv.ParseUint(string(value), 10, 44); err == nil {
				sum += n << 10
			}
		}
	}
	return sum
}
