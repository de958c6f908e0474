package hostile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// descriptors reports every descriptor of the attacker, and its position.
func descriptors([]string) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tellErr("list", err)
		return
	}
	for _, e := range entries {
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasSuffix(link, "/fd") || strings.HasPrefix(link, "anon_inode:[event") {
			continue // the one that reads this directory, and the Go runtime's poller
		}
		tell("fd "+e.Name(), "ok", link)
	}
	// A directory among the first three would be a way out, too.
	for fd := range 3 {
		at, err := unix.Openat(fd, "etc", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(at)
		}
		tellErr("openat "+strconv.Itoa(fd), err)
	}
	dir, err := os.Getwd()
	tell("cwd", outcome(err), dir)
}

// tryWrite opens existing files for writing, and makes missing ones. It writes nothing, and removes what it has made.
func tryWrite(paths []string) {
	for _, p := range paths {
		tellErr(p, writable(p))
	}
}

func writable(p string) error {
	st, err := os.Stat(p)
	switch {
	case err == nil && st.IsDir():
		p = filepath.Join(p, ".sandbox-attack")
		fallthrough
	case errors.Is(err, os.ErrNotExist):
		f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_ = os.Remove(p)
		return f.Close()
	case err != nil:
		return err
	}
	fd, err := unix.Open(p, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err == nil {
		var device unix.Stat_t
		covered := p != os.DevNull && unix.Fstat(fd, &device) == nil && device.Rdev == unix.Mkdev(1, 3)
		if err = unix.Close(fd); covered {
			return unix.ENODEV // a mask of the null device accepts every write, and keeps nothing
		}
		return err
	}
	if errors.Is(err, unix.ETXTBSY) {
		return openForWriting(p)
	}
	return err
}

// mostRead suffices to recognise a secret.
const mostRead = 512

// tryRead reads the beginning of files, and the names in directories.
func tryRead(paths []string) {
	for _, p := range paths {
		text, err := readSome(p)
		tell(p, outcome(err), text)
	}
}

func readSome(p string) (string, error) {
	// A FIFO or a device must not block the attacker.
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		names, err := f.Readdirnames(20)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return strings.Join(names, " "), err
	}
	buf := make([]byte, mostRead)
	n, err := unix.Read(fd, buf)
	return string(buf[:max(n, 0)]), err
}

// cat prints a file whole, line by line.
func cat(paths []string) {
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			tellErr(p, err)
			continue
		}
		for line := range strings.Lines(string(text)) {
			tell(p, "ok", strings.TrimSuffix(line, "\n"))
		}
	}
}

// tryStat reports the kind of a file, and of its file system.
func tryStat(paths []string) {
	for _, p := range paths {
		var st unix.Stat_t
		err := unix.Stat(p, &st)
		var fs unix.Statfs_t
		_ = unix.Statfs(p, &fs)
		tell(p, outcome(err), fmt.Sprintf("mode %o device %d:%d read-only %v magic %x", st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev),
			fs.Flags&unix.ST_RDONLY != 0, uint64(fs.Type)))
	}
}

// processes reports all visible processes.
func processes([]string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, _ := os.ReadFile(d + "/cmdline")
		tell(filepath.Base(d), "ok", strings.ReplaceAll(string(line), "\x00", " "))
	}
}

// executable opens executables for writing through /proc, as CVE-2019-5736 did, and by their names. It only opens
// them. It runs from a copy, so that the attacked file is no longer executed. "text file busy" is
// no refusal: it ends with the program.
func executable(args []string) {
	for _, p := range append([]string{"/proc/self/exe", "/proc/1/exe", "/proc/" + strconv.Itoa(os.Getppid()) + "/exe"}, args...) {
		link, _ := os.Readlink(p)
		tell(p, outcome(openForWriting(p)), link)
	}
}

// openForWriting opens a file and writes nothing. If the file is being executed, it
// asks the kernel for write permission instead.
func openForWriting(p string) error {
	fd, err := unix.Open(p, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, unix.ETXTBSY) {
		if refused := unix.Access(p, unix.W_OK); refused != nil {
			return refused
		}
	}
	return err
}

// heldExecutable shows that the technique works where it is allowed: it keeps a running program's file open through /proc,
// and opens that for writing once the program has ended.
func heldExecutable(args []string) {
	err := func() error {
		dir := word(args, 0)
		copied, err := copySelf(dir)
		if err != nil {
			return err
		}
		defer os.Remove(copied)
		cmd := exec.Command(copied, Word, os.Args[2], "sleep", "1m")
		if err := cmd.Start(); err != nil {
			return err
		}
		held, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/exe")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil {
			return err
		}
		defer held.Close()
		f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(held.Fd())), os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		return f.Close()
	}()
	tellErr("overwritten", err)
}

func copySelf(dir string) (string, error) {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, "copy"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	return to.Name(), errors.Join(err, to.Close())
}

// execute copies this executable and runs another attack from the copy.
func execute(args []string) {
	copied, err := copySelf(word(args, 0))
	if err == nil {
		err = syscall.Exec(copied, append([]string{copied, Word, os.Args[2]}, args[1:]...), os.Environ())
	}
	tellErr("execute", err)
}

// swap exchanges two names over and over, while another process resolves one of them.
func swap(args []string) {
	a, b, end := word(args, 0), word(args, 1), time.Now().Add(duration(args, 2))
	n := 0
	for time.Now().Before(end) {
		if unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil {
			n++
		}
	}
	tellNumber("swapped", n)
}

// plant makes entries in a directory that lead elsewhere, or block for ever.
func plant(args []string) {
	dir, outside := word(args, 0), word(args, 1)
	at := func(name string) string { return filepath.Join(dir, name) }
	tellErr("symlink", os.Symlink(outside, at("symlink")))
	tellErr("directory", os.Mkdir(at("directory"), 0o755))
	tellErr("symlinked directory", os.Symlink(filepath.Dir(outside), at("symlinked")))
	tellErr("fifo", unix.Mkfifo(at("fifo"), 0o644))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: at("socket")})
	}
	tellErr("socket", err)
	tellErr("device", unix.Mknod(at("device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	tellErr("hard link", os.Link("/etc/passwd", at("hardlink")))
	tellErr("file", os.WriteFile(at("file"), []byte("plain"), 0o644))
}

// unpack is a careless unpacker of a hostile archive: names that climb, links to write through, and
// an entry that grows a thousandfold. The bound is the size of the last one if nothing stops it.
func unpack(args []string) {
	dir, most := word(args, 0), number(args, 1)
	_ = os.MkdirAll(dir, 0o755)
	for _, name := range []string{"../../../../../../etc/slipped", "/usr/slipped", "../../proc/sys/kernel/slipped"} {
		p := name
		if !filepath.IsAbs(name) {
			p = dir + "/" + name
		}
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		tellErr("slip "+name, writable(p))
	}
	tellErr("link", os.Symlink("/etc", filepath.Join(dir, "link")))
	tellErr("through link", writable(filepath.Join(dir, "link", "slipped")))
	tellErr("inside", writable(filepath.Join(dir, "inside")))
	n, err := pour(filepath.Join(dir, "bomb"), most)
	tell("bomb", outcome(err), strconv.Itoa(n))
}

// pour writes a file up to a length, or until a write fails.
func pour(p string, most int) (written int, err error) {
	f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	block := make([]byte, 256<<10)
	for i := range block {
		block[i] = byte(i) | 1
	}
	for written < most && err == nil {
		var n int
		n, err = f.Write(block)
		written += n
	}
	return written, errors.Join(err, f.Sync(), f.Close())
}

// setID tries to become another user.
func setID(args []string) {
	for _, nr := range []struct {
		name string
		call uintptr
	}{{"setuid", unix.SYS_SETUID}, {"setgid", unix.SYS_SETGID}} {
		_, _, errno := unix.RawSyscall(nr.call, 0, 0, 0)
		tellErr(nr.name, errno)
	}
	if dir := word(args, 0); dir != "" {
		p := filepath.Join(dir, "own")
		err := os.WriteFile(p, nil, 0o755)
		if err == nil {
			// cap_sys_admin, permitted and effective
			capability := []byte{1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			err = unix.Setxattr(p, "security.capability", capability, 0)
		}
		tellErr("file capability", err)
		tellErr("give away", unix.Chown(p, 0, 0))
	}
	for _, program := range args[min(1, len(args)):] {
		var said strings.Builder
		cmd := exec.Command(program, Word, os.Args[2], "status")
		cmd.Stdout = &said
		err := cmd.Run()
		uids := ""
		for _, a := range Parse([]byte(said.String())) {
			if a.Name == "Uid" {
				uids = a.Detail
			}
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			tell("run "+program, outcome(err), "")
			continue
		}
		tell("run "+program, "ok", uids)
	}
}

// deep makes nested directories. Their path is far longer than the kernel's maximum.
func deep(args []string) {
	made := 0
	var err error
	fd, err := unix.Open(word(args, 0), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for ; err == nil && made < number(args, 1); made++ {
		if err = unix.Mkdirat(fd, "d", 0o755); err != nil {
			break
		}
		var next int
		if next, err = unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
			fd = next
		}
	}
	tell("deep", outcome(err), strconv.Itoa(made))
}

// many makes directories side by side.
func many(args []string) {
	made := 0
	var err error
	for ; err == nil && made < number(args, 1); made++ {
		err = os.Mkdir(filepath.Join(word(args, 0), "m"+strconv.Itoa(made)), 0o755)
	}
	tell("many", outcome(err), strconv.Itoa(made))
}

// fill uses up a disk: its blocks, its inodes, or the size of a sparse file. It stops at a bound of its own. It
// fails when it can not continue, as a program would.
func fill(args []string) {
	dir, most := word(args, 1), number(args, 2)
	var n int
	var err error
	switch word(args, 0) {
	case "bytes":
		n, err = pour(filepath.Join(dir, "fill"), most)
	case "files":
		for err == nil && n < most {
			part := 0
			part, err = pour(filepath.Join(dir, "fill"+strconv.Itoa(n)), 1<<20)
			n += part
		}
	case "inodes":
		for n < most {
			var fd int
			if fd, err = unix.Open(filepath.Join(dir, "i"+strconv.Itoa(n)), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644); err != nil {
				break
			}
			unix.Close(fd)
			n++
		}
	case "sparse":
		var f *os.File
		if f, err = os.Create(filepath.Join(dir, "sparse")); err == nil {
			_ = f.Truncate(1 << 40) // may exceed the file system's maximum
			block := make([]byte, 1<<20)
			for n < most {
				if _, err = f.WriteAt(block, int64(n)*4); err != nil {
					break
				}
				n += len(block)
			}
			err = errors.Join(err, f.Sync())
		}
	}
	tell("fill", outcome(err), strconv.Itoa(n))
	if err != nil {
		os.Exit(1)
	}
}
