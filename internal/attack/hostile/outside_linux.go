package hostile

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dial tries to reach the host's servers: pairs of network and address. They answer with the mark, which no other server knows.
func dial(args []string) {
	for i := 0; i+1 < len(args); i += 2 {
		answer, err := reach(args[i], args[i+1])
		if name := args[i] + " " + args[i+1]; err == nil && answer != os.Getenv(Variable) {
			tell(name, AnotherAnswer, answer)
		} else {
			tellErr(name, err)
		}
	}
	text, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		tellErr("interfaces", err)
	}
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			tell("interface", strings.TrimSpace(name), "")
		}
	}
}

// reach returns the first bytes that a server answers. Only datagrams need an answer to count as sent: a connection without one, and a
// raw socket, are answered with nothing.
func reach(network, address string) (answer string, err error) {
	c, err := net.DialTimeout(network, address, 500*time.Millisecond)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if from := c.LocalAddr(); from != nil && from.String() == address {
		return reach(network, address) // the kernel chose this very port: the socket would hear itself, and not the host
	}
	_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if _, datagrams := c.(net.PacketConn); datagrams && !strings.HasPrefix(network, "unix") {
		if _, err := c.Write([]byte("hello")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 256)
	n, err := c.Read(buf)
	if strings.HasPrefix(network, "tcp") || strings.HasPrefix(network, "ip") {
		err = nil
	}
	return string(buf[:n]), err
}

// terminal attacks the other users of its terminal.
func terminal([]string) {
	sid, _ := unix.Getsid(0)
	tell("session", strconv.Itoa(sid), strconv.Itoa(os.Getpid()))
	_, err := unix.IoctlGetTermios(0, unix.TCGETS)
	tellErr("is one", err)
	// Text into the input of the next reader; a zero byte does no harm.
	tellErr("TIOCSTI", unix.IoctlSetPointerInt(0, unix.TIOCSTI, 0))
	tellErr("TIOCLINUX", unix.IoctlSetPointerInt(0, 0x541c, 2))
	tellErr("TIOCCONS", unix.IoctlSetInt(0, unix.TIOCCONS, 0))
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
	tellErr("/dev/tty", err)
	if err == nil {
		name := make([]byte, 0)
		if link, err := os.Readlink("/proc/self/fd/0"); err == nil {
			name = append(name, link...)
		}
		tell("name", "ok", string(name))
		unix.Close(fd)
	}
	names, _ := readSome("/dev/pts")
	tell("others", "ok", names)
}

// outside tries to reach resources of processes outside of the sandbox: signals, memory, SysV objects, by their real
// numbers.
func outside(args []string) {
	for _, a := range args {
		kind, value, _ := strings.Cut(a, "=")
		n, _ := strconv.Atoi(value)
		switch kind {
		case "pid":
			// Signal 0 only checks the permission.
			tellErr("kill "+value, unix.Kill(n, 0))
			fd, err := unix.PidfdOpen(n, 0)
			if err == nil {
				unix.Close(fd)
			}
			tellErr("pidfd_open "+value, err)
			_, err = readSome("/proc/" + value + "/cmdline")
			tellErr("/proc/"+value, err)
		case "signal":
			tellErr("signal", unix.Kill(n, 0))
		case "abstract":
			_, err := reach("unix", value)
			tellErr("abstract socket", err)
		case "shmid":
			_, err := unix.SysvShmAttach(n, 0, unix.SHM_RDONLY)
			tellErr("shmat", err)
		case "file":
			_, err := os.Stat(value)
			tellErr("file in "+filepath.Dir(value), err)
		case "shm":
			_, err := unix.SysvShmGet(n, 0, 0)
			tellErr("shmget", err)
		}
	}
}
