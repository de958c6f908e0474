package zygote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// Options describe the interpreter to execute, and its root.
type Options struct {
	Root    int            // detached mount of the sandboxes' root, which Start consumes
	Scratch []string       // empty directories that the zygote may write to
	Files   []sandbox.File // the driver, somewhere in those
	Args    []string
	Env     []string // NAME=value
	Dir     string
	// Hostname is the sandboxes'. Modules read it when they are loaded, and forks keep the value.
	Hostname string
	UID      int // of the zygote; no other process has it
	Rlimits  []initproto.Rlimit
	Cgroups  []*os.File // to join
	Sources  []string   // paths of the host that Root shows elsewhere
	Filter   []byte     // BPF program of the zygote; its forks keep it
}

// ForkVariable is set in the environment of an interpreter that is to fork: its control socket is its standard input.
const ForkVariable = "SANDBOX_RUN_FORK"

// readyMessage is the message of a driver that has loaded everything.
const readyMessage = "ready"

// maxSaid bounds the kept output of a zygote: it should print nothing.
const maxSaid = 4 << 10

// Start executes an interpreter and waits until its driver is ready. The caller closes it.
func Start(ctx context.Context, o Options) (*Zygote, error) {
	for _, p := range o.Sources {
		if err := trusted(p); err != nil {
			return nil, err
		}
	}
	z := &Zygote{done: make(chan struct{})}
	files, err := z.connect()
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		z.closeFiles()
		return nil, err
	}
	type born struct {
		pid   int
		mount *os.File
		err   error
	}
	came := make(chan born, 1)
	rootfs.Apart(func() {
		var b born
		b.pid, b.mount, b.err = o.execute(ctx, files)
		came <- b
	})
	b := <-came
	if b.err != nil {
		z.closeFiles()
		return nil, b.err
	}
	z.Mounts = b.mount
	if err := z.bind(b.pid, files[1]); err != nil {
		z.closeFiles() // it ends by itself when its control socket is closed
		go func() { _, _ = unix.Wait4(b.pid, nil, unix.WALL, nil) }()
		_ = z.Mounts.Close()
		return nil, err
	}
	for n, fd := range files { // otherwise its end would not be detected
		_ = unix.Close(fd)
		files[n] = -1
	}
	z.watch()
	if err := z.waitForReady(ctx); err != nil {
		z.Close()
		if said := z.said(); said != "" {
			err = fmt.Errorf("%w; it says: %s", err, said)
		}
		return nil, err
	}
	// Every init does the same for its programs: forks inherit it. A kernel without core dumps has no such file.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/coredump_filter", z.pid), []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		z.Close()
		return nil, fmt.Errorf("leave memory out of core dumps: %w", err)
	}
	if said := z.said(); said != "" {
		z.Close()
		return nil, fmt.Errorf("the interpreter prints at its start, and each of its forks would: %q", said)
	}
	return z, nil
}

// connect makes the three descriptors of a zygote and keeps their other ends: the control socket; a pipe without any
// data, which ends the zygote with the supervisor; and the zygote's output, for errors.
func (z *Zygote) connect() (theirs []int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	theirs = append(theirs, pair[1])
	if z.control, err = pollable(pair[0], "zygote"); err != nil {
		return theirs, err
	}
	for _, end := range []**os.File{&z.life, &z.stderr} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return theirs, err
		}
		theirs = append(theirs, p[1])
		if *end, err = pollable(p[0], "zygote"); err != nil {
			return theirs, err
		}
	}
	return theirs, nil
}

func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// bind makes the kernel kill the zygote when the supervisor's end of the pipe closes, for any reason: the only event at
// the other end of a pipe that is never read.
func (z *Zygote) bind(pid, life int) (err error) {
	if z.pidfd, err = unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err != nil {
		return fmt.Errorf("pidfd: %w", err)
	}
	z.pid = pid
	flags, err := unix.FcntlInt(uintptr(life), unix.F_GETFL, 0)
	for _, set := range [][2]int{{unix.F_SETOWN, pid}, {fSetSig, int(unix.SIGKILL)}, {unix.F_SETFL, flags | unix.O_ASYNC}} {
		if err == nil {
			_, err = unix.FcntlInt(uintptr(life), set[0], set[1])
		}
	}
	if err != nil {
		_ = unix.Close(z.pidfd)
		return fmt.Errorf("bind to the supervisor: %w", err)
	}
	return nil
}

const fSetSig = 10 // F_SETSIG

// execute builds the zygote's root and namespaces on a thread that ends with it, and starts the interpreter from there.
func (o *Options) execute(ctx context.Context, files []int) (pid int, mounts *os.File, err error) {
	fail := func(what string, err error) (int, *os.File, error) {
		return 0, nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS); err != nil {
		return fail("new namespaces", err)
	}
	if err := unix.Sethostname([]byte(o.Hostname)); err != nil {
		return fail("set hostname", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail("make mounts private", err)
	}
	// Before the host's /proc is gone. The zygote sees only its own processes.
	proc, err := rootfs.NewMount("proc", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"hidepid", "invisible"})
	if err != nil {
		return fail("make proc", err)
	}
	defer unix.Close(proc)
	if mounts, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return fail("hold mounts", err)
	}
	defer func() {
		if err != nil {
			_ = mounts.Close()
		}
	}()
	if err := o.enter(proc); err != nil {
		return fail("build root", err)
	}
	if err := o.writeDriver(); err != nil {
		return fail("leave driver", err)
	}
	if err := trusted(o.Args[0]); err != nil {
		return 0, nil, err
	}
	if err := o.trustedImports(ctx); err != nil {
		return 0, nil, err
	}
	program := o.program()
	program.Stdio, program.Keep = [3]int{files[0], files[1], files[2]}, unix.CAP_SYS_ADMIN
	pid, stage, err := clone.StartProgram(program)
	if err != nil {
		return fail("execute "+o.Args[0]+" (stage "+stage.String()+")", err)
	}
	return pid, mounts, nil
}

// program is the interpreter without any capability.
func (o *Options) program() clone.Program {
	p := clone.Program{
		Isolated: true, Rlimits: o.Rlimits, UID: uint32(o.UID), GID: uint32(o.UID), Landlock: -1, Filter: o.Filter,
		Dir: o.Dir, Paths: []string{o.Args[0]}, Args: o.Args, Env: o.Env,
	}
	for _, f := range o.Cgroups {
		p.Cgroups = append(p.Cgroups, int(f.Fd()))
	}
	return p
}

// enter makes the root this thread's, as an init does: see buildRoot in package initproc.
func (o *Options) enter(proc int) error {
	if err := unix.MoveMount(o.Root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	if err := unix.Fchdir(o.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.MoveMount(proc, "", unix.AT_FDCWD, "/proc", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	for _, dir := range o.Scratch {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
			"mode=1777,size=64m,nr_inodes=4096"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// writeDriver puts the driver where only the zygote finds it.
func (o *Options) writeDriver() error {
	for _, f := range o.Files {
		if err := os.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, f.Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
