package seccomp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const listenerTo = 3 // the child's end of the socket that its listener is sent through

func number(variable string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		return otherwise
	}
	return n
}

// installWatched filters this thread, with everything it will execute, and sends its listener to the parent.
func installWatched(p Policy) error {
	p.Notify = true
	prog, err := Compile(p, "")
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog) / InstructionSize), Filter: (*unix.SockFilter)(unsafe.Pointer(&prog[0]))}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	defer unix.Close(listenerTo)
	return unix.Sendmsg(listenerTo, []byte{0}, unix.UnixRights(int(fd)), nil, 0)
}

// countRefusals serves the listener of a command as soon as it arrives. The returned function is called after the command has
// ended and returns the refusals.
func countRefusals(t *testing.T, cmd *exec.Cmd, p Policy) (refused func() []Refusal) {
	t.Helper()
	if err := Notifiable(); err != nil {
		t.Skip(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "listener")
	cmd.ExtraFiles = []*os.File{theirs}
	// Go's own signals would interrupt calls that take long to be answered, and have them made again.
	cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	watches := make(chan *RefusalCounter, 1)
	go func() {
		defer close(watches)
		defer unix.Close(pair[0])
		oob := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		messages, parseErr := unix.ParseSocketControlMessage(oob[:n])
		if err := errors.Join(err, parseErr); err != nil || len(messages) == 0 {
			return
		}
		fds, _ := unix.ParseUnixRights(&messages[0])
		if err := unix.SetNonblock(fds[0], true); err != nil {
			t.Error(err)
		}
		w, err := NewRefusalCounter(os.NewFile(uintptr(fds[0]), "listener"), p)
		if err != nil {
			t.Error(err)
			return
		}
		watches <- w
	}()
	return func() []Refusal {
		_ = theirs.Close()
		w := <-watches
		if w == nil {
			t.Fatal("no listener came")
		}
		<-w.done // by itself: everything under the filter is gone
		w.Close()
		w.Close()
		list, saturated := w.Refusals()
		if saturated {
			list = append(list, Refusal{Name: "saturated"})
		}
		first := map[string]bool{}
		for r := range w.First() {
			first[r.Call] = true
		}
		for _, r := range list {
			if r.Name != "saturated" && !first[r.Call] {
				t.Errorf("%s was refused for the first time, but First did not report it", r.Call)
			}
		}
		return list
	}
}

// Every counted refusal has the errno of the plain filter, and is counted by name unless it is quiet.
func TestRefusalCounterRefuses(t *testing.T) {
	quiet := strings.Fields(`clone3 io_uring_setup
		mbind io_setup future mptcp sync syncfs setflags
		x32-getpid x32-mount x32-ptrace`)
	names := map[string]string{ // where the probe's name is not the call's
		"umount2": "umount2", "seccomp-filter": "seccomp", "seccomp-listener": "seccomp", "prctl-filter": "prctl(PR_SET_SECCOMP)",
		"clone-newns": "clone(CLONE_NEWNS)", "clone-newcgroup": "clone(CLONE_NEWCGROUP)", "clone-newuts": "clone(CLONE_NEWUTS)",
		"clone-newipc": "clone(CLONE_NEWIPC)", "clone-newuser": "clone(CLONE_NEWUSER)", "clone-newpid": "clone(CLONE_NEWPID)",
		"clone-newnet": "clone(CLONE_NEWNET)", "clone-newuser-high": "clone(CLONE_NEWUSER)", "unshare": "unshare(0x1)", "setns": "setns",
		"packet": "socket(AF_PACKET)", "alg": "socket(AF_ALG)", "alg-high": "socket(AF_ALG)", "vsock": "socket(AF_VSOCK)",
		"xdp":           "socket(AF_XDP)",
		"netlink-route": "socket(AF_NETLINK)", "netlink-generic": "socket(AF_NETLINK)", "socketpair-netlink": "socketpair(AF_NETLINK)",
		"raw4": "socket(SOCK_RAW)", "raw4-flags": "socket(SOCK_RAW)", "raw6": "socket(SOCK_RAW)", "sock-packet": "socket(SOCK_PACKET)",
		"sctp": "socket(IPPROTO_SCTP)", "tiocsti": "ioctl(TIOCSTI)", "tiocsti-high": "ioctl(TIOCSTI)", "tioclinux": "ioctl(TIOCLINUX)",
		"tiocsetd": "ioctl(TIOCSETD)", "nsgetuserns": "ioctl(0xb701)", "lease": "fcntl(F_SETLEASE)", "notify": "fcntl(F_NOTIFY)",
		"personality-aslr": "personality(0x40000)",
		"socket-filter":    "setsockopt(SO_ATTACH_FILTER)", "socket-reuseport-filter": "setsockopt(SO_ATTACH_REUSEPORT_CBPF)",
		"ptrace":     "ptrace(2)",
		"oob-sendto": "sendto(MSG_OOB)", "oob-sendmsg": "sendmsg(MSG_OOB)", "oob-sendmmsg": "sendmmsg(MSG_OOB)",
	}
	const step = 50 // fewer than are answered
	for from := 0; from < len(probes); from += step {
		part := probes[from:min(from+step, len(probes))]
		cmd := childCommand(t, "probe", "counted")
		cmd.Env = append(cmd.Env, fmt.Sprintf("SECCOMP_TEST_FROM=%d", from), fmt.Sprintf("SECCOMP_TEST_TO=%d", from+len(part)))
		refused := countRefusals(t, cmd, Policy{Notify: true})
		got := answersOf(t, cmd)
		want := map[string]uint64{}
		for _, p := range part {
			if got[p.name] != p.want {
				t.Errorf("%s: errno %d (%v), want %d (%v)", p.name, int(got[p.name]), got[p.name], int(p.want), p.want)
			}
			if slices.Contains(quiet, p.name) {
				continue
			}
			call := names[p.name]
			if call == "" {
				call = p.name
			}
			want[call]++
		}
		for _, r := range refused() {
			if want[r.Call] != r.Count || !strings.HasPrefix(r.Call, r.Name) || r.Name == "" {
				t.Errorf("counted %+v, want %d", r, want[r.Call])
			}
			delete(want, r.Call)
		}
		for call, n := range want {
			t.Errorf("%s was refused %d times, and not counted", call, n)
		}
	}
}

func TestRefusalCounterRefusesSetID(t *testing.T) {
	cmd := childCommand(t, "setid", "counted-setid")
	refused := countRefusals(t, cmd, Policy{DenySetID: true, Notify: true})
	got := answersOf(t, cmd)
	for _, p := range setIDProbes {
		if got[p.name] != p.want {
			t.Errorf("%s: %v, want %v", p.name, got[p.name], p.want)
		}
	}
	var calls []string
	for _, r := range refused() {
		calls = append(calls, r.Call)
	}
	for _, want := range []string{"fchmodat(S_ISUID)", "fchmodat(S_ISGID)", "fchmod(S_ISUID)", "openat(S_ISUID)", "mkdirat(S_ISGID)",
		"mknodat(S_ISUID)"} {
		if !slices.Contains(calls, want) {
			t.Errorf("%s is not among %q", want, calls)
		}
	}
}

// S10: after MaxNotifications the kernel refuses by itself, and no call is counted.
func TestRefusalCounterSaturates(t *testing.T) {
	for _, n := range []int{MaxNotifications - 1, MaxNotifications, MaxNotifications + 1, 5000} {
		cmd := childCommand(t, "flood", "counted")
		cmd.Env = append(cmd.Env, fmt.Sprintf("SECCOMP_TEST_TO=%d", n))
		refused := countRefusals(t, cmd, Policy{Notify: true})
		for i, errno := range answersOf(t, cmd) {
			want := unix.EPERM
			if k, _ := strconv.Atoi(i); k >= MaxNotifications {
				want = unix.ENOSYS
			}
			if errno != want {
				t.Errorf("call %s of %d: %v, want %v", i, n, errno, want)
			}
		}
		want := []Refusal{{Name: "mount", Call: "mount", Count: uint64(min(n, MaxNotifications))}}
		if n >= MaxNotifications {
			want = append(want, Refusal{Name: "saturated"})
		}
		if got := refused(); !slices.Equal(got, want) {
			t.Errorf("%d calls: %+v, want %+v", n, got, want)
		}
	}
}

// listInterfaces makes netlink sockets: any number one after another, as many at one time as it may, and of other kinds.
func listInterfaces() {
	open := func(kind, protocol int) (int, int) {
		fd, err := unix.Socket(unix.AF_NETLINK, kind|unix.SOCK_CLOEXEC, protocol)
		return fd, int(errnoOf(err))
	}
	for n := range freeAdmits + 20 {
		fd, errno := open(unix.SOCK_RAW, unix.NETLINK_ROUTE)
		fmt.Printf("series-%d %d\n", n, errno)
		_ = unix.Close(fd)
	}
	interfaces, err := net.Interfaces()
	fmt.Printf("list %d\n", len(interfaces))
	if err != nil {
		fmt.Println("failed", 1)
	}
	for n := range maxInterfaceSockets + 5 {
		_, errno := open(unix.SOCK_DGRAM, unix.NETLINK_ROUTE)
		fmt.Printf("held-%d %d\n", n, errno)
	}
	_, errno := open(unix.SOCK_RAW, unix.NETLINK_GENERIC)
	fmt.Printf("generic %d\n", errno)
	_, err = unix.Socketpair(unix.AF_NETLINK, unix.SOCK_RAW, 0)
	fmt.Printf("pair %d\n", int(errnoOf(err)))
}

// With Interfaces, programs may list the interfaces of their namespace, and nothing else of netlink. Few sockets may be open at one time:
// what they keep in the kernel is not counted as memory of the program.
func TestRefusalCounterAdmitsInterfaces(t *testing.T) {
	for _, p := range []Policy{{Notify: true, Interfaces: true}, {Notify: true}} {
		cmd := childCommand(t, "interfaces", "counted")
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNET
		refused := countRefusals(t, cmd, p)
		got, allowed := answersOf(t, cmd), 0
		for name, errno := range got {
			switch kind, number, _ := strings.Cut(name, "-"); {
			case kind == "list":
				if p.Interfaces != (errno == 1) { // the loopback
					t.Errorf("%+v: %d interfaces", p, int(errno))
				}
			case kind == "failed":
				if p.Interfaces {
					t.Errorf("%+v: interfaces can not be listed", p)
				}
			case kind == "series" && p.Interfaces, kind == "held" && p.Interfaces && len(number) == 1:
				if errno != 0 {
					t.Errorf("%+v: %s: %v", p, name, errno)
				}
			case kind == "held" && errno == 0:
				allowed++
			case errno != unix.EAFNOSUPPORT && (p.Interfaces || errno != unix.ENOSYS): // after MaxNotifications
				t.Errorf("%+v: %s: %v", p, name, errno)
			}
		}
		list := refused()
		if !p.Interfaces {
			if want := (Refusal{Name: "socket", Call: "socket(AF_NETLINK)", Count: MaxNotifications}); len(list) == 0 || list[0] != want {
				t.Errorf("%+v, want %+v", list, want)
			}
			continue
		}
		want := []Refusal{{Name: "socket", Call: "socket(AF_NETLINK)", Count: 6}, {Name: "socketpair", Call: "socketpair(AF_NETLINK)", Count: 1}}
		if allowed+10 != maxInterfaceSockets || !slices.Equal(list, want) {
			t.Errorf("%d sockets at one time, refused %+v, want %+v", allowed+10, list, want)
		}
	}
}

// Notifications that were never received count as well: the kernel's numbers show them.
func TestRefusalCounterSpendsWhatItMissed(t *testing.T) {
	w := &RefusalCounter{left: MaxNotifications}
	const begin = ^uint64(0) - 1 // numbers start anywhere, and wrap
	for i, want := range []int{63, 62, 52} {
		w.spend(begin + []uint64{0, 1, 11}[i])
		if w.left != want {
			t.Errorf("left %d, want %d", w.left, want)
		}
	}
	w.spend(1 << 60)
	if w.left > 0 {
		t.Errorf("left %d", w.left)
	}
}

// A closed counter does not allow calls, nor does it keep them waiting.
func TestRefusalCounterClosed(t *testing.T) {
	cmd := childCommand(t, "flood", "counted")
	cmd.Env = append(cmd.Env, "SECCOMP_TEST_TO=3")
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "")
	defer theirs.Close()
	cmd.ExtraFiles = []*os.File{theirs}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(pair[0]), Events: unix.POLLIN}}, 20_000)
		time.Sleep(100 * time.Millisecond) // the first call waits by now
		_ = unix.Close(pair[0])            // with the listener in it, which no process has received
	}()
	for i, errno := range answersOf(t, cmd) {
		if errno != unix.ENOSYS {
			t.Errorf("call %s: %v, want ENOSYS", i, errno)
		}
	}
	<-closed
}

// A file that is no listener is closed, and counts nothing.
func TestRefusalCounterOfNoListener(t *testing.T) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	w, err := NewRefusalCounter(os.NewFile(uintptr(fd[0]), "pipe"), Policy{Notify: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	<-w.done
	w.Close()
	if list, saturated := w.Refusals(); len(list) != 0 || saturated {
		t.Errorf("%+v, %v", list, saturated)
	}
	if _, err := unix.Write(fd[1], []byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the descriptor is still open: %v", err)
	}
	_ = unix.Close(fd[1])
}
