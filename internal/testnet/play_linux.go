package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/netdev"
)

// Words on the command line: the process that has the servers, and the one that becomes the supervisor.
const (
	internetWord   = "play-the-internet"
	supervisorWord = "play-the-supervisor"
)

// exitFailed is the exit code of a process that could not make the namespaces. Its message begins with failedText.
const (
	exitFailed = 98
	failedText = "no network namespaces for a test internet: "
)

// Prefix are the words in front of a command line that run it in a test internet, for a process in a network namespace without devices.
func Prefix(executable string) []string { return []string{executable, internetWord} }

// Wrap changes a command so that it runs in a test internet. executable links this package.
func Wrap(executable string, cmd *exec.Cmd) {
	cmd.Args = append(Prefix(executable), append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = executable
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWNET
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_ADMIN}
	}
}

// Unavailable returns why a wrapped command could not begin, if its exit code and what it wrote to stderr say so.
func Unavailable(err error, stderr string) (why string, unavailable bool) {
	if exit, ran := errors.AsType[*exec.ExitError](err); ran {
		_, after, found := strings.Cut(stderr, failedText)
		line, _, _ := strings.Cut(after, "\n")
		return line, found && exit.ExitCode() == exitFailed
	}
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSPC, unix.EINVAL, unix.EUSERS, unix.EACCES} {
		if errors.Is(err, errno) {
			return err.Error(), true
		}
	}
	return "", false
}

// Play runs a part of the test internet if this process was started as one, and then does not return. Programs that link this
// package do so before main.
func Play() {
	var err error
	code := 0
	switch {
	case len(os.Args) > 2 && os.Args[1] == internetWord:
		code, err = beInternet(os.Args[2:])
	case len(os.Args) > 3 && os.Args[1] == supervisorWord:
		err = becomeSupervisor(os.Args[2], os.Args[3:])
	default:
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", failedText, err)
		code = exitFailed
	}
	os.Exit(code)
}

func init() { Play() }

// serverAddresses are all addresses of servers, beside the gateway's.
var serverAddresses = []string{
	Public, Public6, Other, Other6, Resolver, Private, Private6, Metadata, Metadata6, Carrier, Translate, SixToFour,
}

// beInternet makes both namespaces and the servers, and runs the command.
func beInternet(command []string) (code int, err error) {
	if all, err := net.Interfaces(); err != nil || len(all) != 1 {
		return 0, fmt.Errorf("this is no network namespace without devices (%d interfaces, %w)", len(all), err)
	}
	var raw [][]byte
	for _, a := range serverAddresses {
		raw = append(raw, netip.MustParseAddr(a).AsSlice())
	}
	if err := errors.Join(netdev.Up("lo"), netdev.AddLoopback(raw...)); err != nil {
		return 0, fmt.Errorf("give servers their addresses: %w", err)
	}
	// The thread of this goroutine stays in the servers' namespace. The command is started from another one, which enters the
	// supervisor's.
	runtime.LockOSThread()
	joined, served := make(chan int), make(chan error)
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		code, err = inSupervisor(command, joined, served)
		ended <- err
	}()
	select {
	case err := <-ended:
		return 0, err
	case ns := <-joined:
		err := netdev.Connect(ns, internetDevice, supervisorDevice)
		if err == nil {
			err = attach(internetDevice, []string{Gateway, Gateway6}, []string{Supervisor, Supervisor6})
		}
		if err == nil {
			err = new(internet).start(append([]string{Gateway, Gateway6}, serverAddresses...))
		}
		served <- err
	}
	err = <-ended
	return code, err
}

const internetDevice, supervisorDevice = "testnet-inet", "testnet-uplink"

func attach(device string, own, gateways []string) error {
	var c netdev.Config
	for i := range own {
		c.Addresses = append(c.Addresses, netip.MustParseAddr(own[i]).AsSlice())
		c.Gateways = append(c.Gateways, netip.MustParseAddr(gateways[i]).AsSlice())
	}
	return netdev.Attach(device, c)
}

// inSupervisor makes the supervisor's namespace for the calling thread, and runs the command in it when the servers are there.
func inSupervisor(command []string, joined chan<- int, served <-chan error) (code int, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("make the supervisor's namespace: %w", err)
	}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	joined <- ns
	if err := <-served; err != nil {
		return 0, err
	}
	if err := errors.Join(netdev.Up("lo"), attach(supervisorDevice, []string{Supervisor, Supervisor6}, []string{Gateway, Gateway6})); err != nil {
		return 0, fmt.Errorf("connect the supervisor: %w", err)
	}
	resolv, err := os.CreateTemp("", "sandbox-run-resolv-")
	if err == nil {
		_, err = resolv.WriteString("nameserver " + Gateway + "\noptions timeout:5 attempts:2\n")
	}
	if err == nil {
		err = errors.Join(resolv.Chmod(0o644), resolv.Close())
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(resolv.Name()) }()
	cmd := exec.Command("/proc/self/exe", append([]string{supervisorWord, resolv.Name()}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	// The signals of a terminal reach the command as well.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the supervisor: %w", err)
	}
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	_ = cmd.Wait()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// becomeSupervisor gives the command the name server of the test's internet, in a mount namespace of its own, and executes it.
func becomeSupervisor(resolv string, command []string) error {
	real, err := filepath.EvalSymlinks("/etc/resolv.conf") //nolint:forbidigo // the mount is for the file that the link leads to
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(resolv, real, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", real, err)
	}
	_ = os.Remove(resolv)
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, command, os.Environ()))
}
