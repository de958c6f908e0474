package hostile

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// kinds of children that fork makes.
const (
	childPauses = iota // waits for ever
	childLeaves        // in a session of its own, waits for ever
	childForks         // forks again and exits: its child is an orphan
	childExits
	childOrphans // forks a child that exits, and exits
)

// fork clones this process with all its memory and one thread. The child makes raw system calls only, on this
// same stack, and never returns.
//
//go:nosplit
//go:norace
func fork(kind int) (pid int, errno unix.Errno) {
	r, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	if r != 0 {
		return int(r), 0
	}
	switch kind {
	case childLeaves:
		_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	case childForks, childOrphans:
		_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		r, _, e = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
			}
		}
		if r != 0 || kind == childOrphans {
			for {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
	case childExits:
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	for {
		_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// forkBomb forks until the kernel refuses, or it has more children than any limit under test. Then it reports the number of children,
// stays a while if requested, and leaves them behind.
func forkBomb(args []string) {
	runtime.LockOSThread()
	kind := map[string]int{"plain": childPauses, "sessions": childLeaves, "orphans": childForks}[word(args, 0)]
	made := 0
	var errno unix.Errno
	for made < number(args, 1) {
		var pid int
		if pid, errno = fork(kind); errno != 0 {
			break
		}
		if kind == childForks {
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, 0, nil); err == nil && status.ExitStatus() != 0 {
				errno = unix.EAGAIN // every fork failed
				break
			}
		}
		made++
	}
	tell("forks", strconv.Itoa(made), outcome(errno))
	time.Sleep(duration(args, 2))
}

// resist does everything to avoid being ended.
func resist(args []string) {
	every := make([]os.Signal, 0, 64)
	for s := 1; s < 32; s++ {
		every = append(every, syscall.Signal(s))
	}
	signal.Ignore(every...)
	bound := time.Now().Add(duration(args, 1))
	tell("resisting", "ok", "")
	switch word(args, 0) {
	case "stop self":
		_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
	case "stop all":
		runtime.LockOSThread()
		for range 4 {
			_, _ = fork(childLeaves)
		}
		if unix.Getppid() == 1 && word(args, 2) == "alone" { // in its own pid namespace, all processes are its own
			_ = unix.Kill(-1, unix.SIGSTOP)
		}
	}
	for time.Now().Before(bound) {
		time.Sleep(10 * time.Millisecond)
	}
}

// zombies leaves orphans that end at once, for the init to reap, and counts the zombies afterwards. First it counts
// children of its own that it does not reap: those stay zombies.
func zombies(args []string) {
	runtime.LockOSThread()
	var own []int
	for range 8 {
		if pid, errno := fork(childExits); errno == 0 {
			own = append(own, pid)
		}
	}
	for end := time.Now().Add(2 * time.Second); countZombies() < len(own) && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	tellNumber("own", countZombies())
	for _, pid := range own {
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	made := 0
	var errno unix.Errno
	for end := time.Now().Add(8 * time.Second); made < number(args, 0); {
		pid, e := fork(childOrphans)
		if errno = e; errno == 0 {
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, 0, nil); err == nil && status.ExitStatus() != 0 {
				errno = unix.EAGAIN
			}
		}
		switch {
		case errno == 0:
			made++
		case time.Now().After(end):
			end = time.Time{}
		default:
			time.Sleep(time.Millisecond) // the init needs time to reap them
		}
		if end.IsZero() {
			break
		}
	}
	left := countZombies()
	for end := time.Now().Add(8 * time.Second); left > 0 && time.Now().Before(end); left = countZombies() {
		time.Sleep(10 * time.Millisecond)
	}
	tell("orphans", strconv.Itoa(made), outcome(errno))
	tellNumber("zombies", left)
}

func countZombies() (n int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range stats {
		if text, err := os.ReadFile(p); err == nil {
			if _, rest, ok := strings.Cut(string(text), ") "); ok && strings.HasPrefix(rest, "Z") {
				n++
			}
		}
	}
	return n
}

const mib = 1 << 20

// memoryBomb takes memory of some kind, a MiB at a time, until the kernel refuses or it has the requested maximum. It
// reports its progress: it may be killed at any moment.
func memoryBomb(args []string) {
	most := number(args, 1)
	held, err := 0, error(nil)
	took := func(n int) {
		held += n
		if held/mib != (held-n)/mib && held/mib%8 == 0 {
			tellNumber("MiB", held/mib)
		}
	}
	switch word(args, 0) {
	case "anonymous":
		err = takeMapped(most, unix.MAP_PRIVATE|unix.MAP_ANON, -1, took)
	case "shared":
		err = takeMapped(most, unix.MAP_SHARED|unix.MAP_ANON, -1, took)
	case "memfd":
		err = takeFile(most, func() (int, error) { return unix.MemfdCreate("bomb", unix.MFD_CLOEXEC) }, took)
	case "tmpfs":
		err = takeFile(most, func() (int, error) {
			return unix.Open("/dev/shm/bomb", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		}, took)
	case "include": // as a compiler reads an included file
		err = takeRead(most, word(args, 3), took)
	case "sysv":
		err = takeSysV(most, took)
	case "pipes":
		err = takePipes(most, took)
	case "sockets":
		err = takeSockets(most, took)
	case "cache":
		err = takeFile(most, func() (int, error) {
			return unix.Open("/workspace/bomb", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		}, took)
	}
	tell("held", strconv.Itoa(held/mib), outcome(err))
	time.Sleep(duration(args, 2))
}

func takeMapped(most, flags, fd int, took func(int)) error {
	for n := 0; n < most; n += mib {
		page, err := unix.Mmap(fd, 0, mib, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			return err
		}
		for i := 0; i < len(page); i += 4096 {
			page[i] = byte(i>>12) | 1
		}
		took(mib)
	}
	return nil
}

func takeFile(most int, open func() (int, error), took func(int)) error {
	fd, err := open()
	if err != nil {
		return err
	}
	block := make([]byte, mib)
	for i := range block {
		block[i] = byte(i) | 1
	}
	for n := 0; n < most; n += mib {
		if _, err := unix.Write(fd, block); err != nil {
			return err
		}
		took(mib)
	}
	return nil
}

func takeRead(most int, from string, took func(int)) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	var all [][]byte
	for n := 0; n < most; n += mib {
		block := make([]byte, mib)
		if _, err := io.ReadFull(f, block); err != nil {
			return err
		}
		for i := 0; i < mib; i += 4096 {
			block[i] = 1
		}
		all = append(all, block)
		took(mib)
	}
	runtime.KeepAlive(all)
	return nil
}

func takeSysV(most int, took func(int)) error {
	for n := 0; n < most; n += mib {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, mib, unix.IPC_CREAT|0o600)
		if err != nil {
			return err
		}
		page, err := unix.SysvShmAttach(id, 0, 0)
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // removed after its last user
		if err != nil {
			return err
		}
		for i := 0; i < len(page); i += 4096 {
			page[i] = 1
		}
		took(mib)
	}
	return nil
}

func takePipes(most int, took func(int)) error {
	block := make([]byte, 64<<10)
	for n := 0; n < most; {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return err
		}
		_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, mib)
		for {
			w, err := unix.Write(p[1], block)
			if err != nil || w == 0 {
				break
			}
			n += w
			took(w)
		}
	}
	return nil
}

func takeSockets(most int, took func(int)) error {
	block := make([]byte, 64<<10)
	for n := 0; n < most; {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(p[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4*mib)
		for {
			w, err := unix.Write(p[0], block)
			if err != nil || w == 0 {
				break
			}
			n += w
			took(w)
		}
	}
	return nil
}

// spinTimeout ends a spinner that gets no processor.
const spinTimeout = 10 * time.Second

// spin uses processors: in one thread, in many, or in children, until each process has used the requested time.
func spin(args []string) {
	bound := duration(args, 2)
	tell("spinning", "ok", "")
	busy := func() {
		for end := time.Now().Add(spinTimeout); time.Now().Before(end); {
			var used unix.Rusage
			if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil && used.Utime.Nano()+used.Stime.Nano() > int64(bound) {
				return
			}
			for range 100000 {
			}
		}
	}
	switch word(args, 0) {
	case "threads":
		var all sync.WaitGroup
		for range number(args, 1) {
			all.Go(busy)
		}
		all.Wait()
	case "children":
		var all []*exec.Cmd
		for range number(args, 1) {
			cmd := exec.Command("/proc/self/exe", Word, os.Args[2], "spin", "one", "1", bound.String())
			if cmd.Start() == nil {
				all = append(all, cmd)
			}
		}
		for _, cmd := range all {
			_ = cmd.Wait()
		}
	default:
		busy()
	}
	tell("spun", "ok", "")
}

func sleep(args []string) {
	tell("sleeping", "ok", "")
	time.Sleep(duration(args, 0))
}

// exhaust takes of some countable resource until the kernel refuses, or it has the requested maximum.
func exhaust(args []string) {
	take := map[string]func() error{
		"open files": func() error { _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); return err },
		"sockets":    func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"inotify":    func() error { _, err := unix.InotifyInit1(0); return err },
		"epoll":      func() error { _, err := unix.EpollCreate1(0); return err },
		"timers": func() error {
			var id int32
			_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
			return refusal(errno)
		},
		"locked memory": func() error {
			page, err := unix.Mmap(-1, 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return err
			}
			return unix.Mlock(page)
		},
		"queued signals": func() error {
			// A signal that is blocked by this thread stays queued.
			_, _, errno := unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(unix.Getpid()), uintptr(unix.Gettid()), 40,
				uintptr(unsafe.Pointer(&queued)), 0, 0)
			return refusal(errno)
		},
	}[word(args, 0)]
	if take == nil {
		tell(word(args, 0), "none", "")
		return
	}
	runtime.LockOSThread()
	if word(args, 0) == "queued signals" {
		var set unix.Sigset_t
		set.Val[0] = 1 << 39
		_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
	}
	n, err := 0, error(nil)
	for n < number(args, 1) {
		if err = take(); err != nil {
			break
		}
		n++
	}
	tell(word(args, 0), strconv.Itoa(n), outcome(err))
}

// queued is a siginfo_t by which a process may signal itself.
var queued = [128]byte{0: 40, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff} // si_signo, si_code SI_QUEUE

func refusal(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// output writes that many MiB without a newline.
func output(args []string) {
	block := make([]byte, mib)
	for i := range block {
		block[i] = 'x'
	}
	to := os.Stdout
	if word(args, 1) == "errors" {
		to = os.Stderr
	}
	for range number(args, 0) {
		if _, err := to.Write(block); err != nil {
			os.Exit(1)
		}
	}
}

// printText prints its arguments as they are, quoted as Go does.
func printText(args []string) {
	for _, a := range args {
		if text, err := strconv.Unquote(a); err == nil {
			_, _ = io.WriteString(os.Stdout, text)
		}
	}
}

// background leaves a child behind that has the output open.
func background(args []string) {
	cmd := exec.Command("/proc/self/exe", Word, os.Args[2], "sleep", word(args, 0))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	tellErr("left", cmd.Start())
}

// stdin misuses its streams.
func stdin(args []string) {
	switch word(args, 0) {
	case "echo":
		text, err := io.ReadAll(os.Stdin)
		tell("read", outcome(err), strconv.Itoa(len(text)))
	case "ignore":
		time.Sleep(duration(args, 1))
	case "close":
		_ = unix.Close(1)
		_ = unix.Close(2)
		time.Sleep(duration(args, 1))
	}
}

// crash lets a child die in a way that leaves a core, and reports whether it did.
func crash(args []string) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &limit)
	tell("limit", outcome(err), strconv.FormatUint(limit.Max, 10))
	limit.Cur = limit.Max
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &limit)
	tellErr("raise", unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: mib, Max: unix.RLIM_INFINITY}))
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &limit)
	if word(args, 0) == "look" {
		return
	}
	// Children inherit it: a core without memory is written at once, however busy the disk is.
	_ = os.WriteFile("/proc/self/coredump_filter", []byte("0"), 0)
	cmd := exec.Command("/proc/self/exe", Word, os.Args[2], "abort")
	cmd.Dir = word(args, 0)
	if err := cmd.Start(); err != nil {
		tellErr("crash", err)
		return
	}
	err = cmd.Wait()
	dumped := "no"
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.CoreDump() {
			dumped = "yes"
		}
	}
	files, _ := filepath.Glob(filepath.Join(word(args, 0), "core*"))
	for _, f := range files {
		_ = os.Remove(f)
	}
	tell("dumped", dumped, strings.Join(files, " "))
}

// abort dies of a signal that leaves a core. It takes the signal from Go's runtime, which would pass it on to each thread, and wait for up
// to ten seconds for a thread that does not get it.
func abort([]string) {
	var byDefault [4]uint64 // a struct sigaction of the kernel
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGABRT), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), unix.SIGABRT)
	time.Sleep(time.Minute) // until the signal has come
}

// threads does what ordinary programs do: threads, children, files, timers, pipes.
func threads([]string) {
	var all sync.WaitGroup
	var mu sync.Mutex
	sum := 0
	for n := range 16 {
		all.Go(func() {
			runtime.LockOSThread()
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			sum += n
		})
	}
	all.Wait()
	tellNumber("threads", sum)
	said, err := exec.Command("/proc/self/exe", Word, os.Args[2], "print", `"child"`).Output()
	tell("subprocess", outcome(err), string(said))
	dir, err := os.MkdirTemp("", "ordinary")
	if err == nil {
		p := filepath.Join(dir, "file")
		err = errors.Join(os.WriteFile(p, []byte("x"), 0o600), os.Rename(p, p+"2"), os.Chmod(p+"2", 0o644), os.RemoveAll(dir))
	}
	tellErr("files", err)
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		_, err = unix.Write(p[0], []byte("x"))
	}
	tellErr("socketpair", err)
}
