package hostile

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// restricted tries what only Landlock refuses: a whiteout, which any user may make in a writable directory, and TCP.
func restricted(args []string) {
	whiteout := word(args, 0) + "/whiteout"
	err := unix.Mknod(whiteout, unix.S_IFCHR|0o600, 0)
	tellErr("whiteout", err)
	if err == nil {
		_ = os.Remove(whiteout)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tellErr("bind", err)
		return
	}
	defer unix.Close(fd)
	tellErr("bind", unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
}

// neighbour makes resources that processes can share, by a name and a key, has a child of its own try to reach them, and waits.
func neighbour(args []string) {
	name, key := word(args, 0), number(args, 1)
	l, err := net.Listen("unix", "@"+name)
	if err == nil {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("reached"))
				_ = c.Close()
			}
		}()
	}
	shm, shmErr := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o666)
	err = errors.Join(err, shmErr, os.WriteFile("/dev/shm/"+name, []byte(name), 0o666), os.WriteFile("/tmp/"+name, []byte(name), 0o666))
	pid, id := strconv.Itoa(os.Getpid()), strconv.Itoa(shm)
	tell("pid", pid, "")
	tell("shmid", id, "")
	tellErr("prepared", err)
	child := exec.Command("/proc/self/exe", append(os.Args[1:3:3],
		append([]string{"outside", "signal=" + pid}, Shared(name, key, id)...)...)...)
	child.Stdout = os.Stdout
	_ = child.Run()
	tell("waiting", "ok", "")
	select {}
}

// Shared are the attempts of an attacker outside at the resources of a neighbour.
func Shared(name string, key int, shmid string) []string {
	return []string{"abstract=@" + name, "shm=" + strconv.Itoa(key), "shmid=" + shmid, "file=/dev/shm/" + name, "file=/tmp/" + name}
}
