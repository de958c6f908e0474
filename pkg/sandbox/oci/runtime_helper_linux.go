package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/census"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
)

// A runtime helper is this executable in another process, whose namespaces contain an ordinary user's container: it is
// the first process of a pid namespace, and root of a user namespace in which it has mounts, a network and a runtime of
// its own.
//
//	supervisor → open{…} [control, log, root, scratch, volumes…];  helper → answer{…} [scratch, and for a limit poller: shm, diag]
//	supervisor → loopback{};                                       helper → answer{…}
//
// The helper ends with its runtime, or with its socket, so also with the supervisor, however that ends. Then the kernel
// ends every process of its pid namespace, the container's included, and removes its mounts and the runtime's state: a
// runtime helper leaves nothing.
const helperName = "sandbox-runtime-helper"

// helperOrder is an order to a runtime helper. What names which.
type helperOrder struct {
	What string `json:"what"`

	HostMountNS uint64              `json:"host_mount_ns,omitempty"` // the supervisor's own; the helper must have another
	Place       string              `json:"place,omitempty"`         // a directory that may be covered there
	KeepGroups  bool                `json:"keep_groups,omitempty"`   // the helper may not drop them
	Settings    []initproto.Setting `json:"settings,omitempty"`      // of its namespaces
	Parts       *bundleParts        `json:"parts,omitempty"`
	Loopback    bool                `json:"loopback,omitempty"`
	Census      bool                `json:"census,omitempty"` // limits are polled
	Runtime     string              `json:"runtime,omitempty"`
	Command     []string            `json:"command,omitempty"`
	Stdin       bool                `json:"stdin,omitempty"` // the init's socket is the runtime's standard input
}

// The orders.
const (
	orderOpen     = "open"
	orderLoopback = "loopback"
)

// runtimeHelper is the supervisor's end.
type runtimeHelper struct {
	mu     sync.Mutex // one order at a time
	helper *spawn.Helper
	gone   bool
}

func startRuntimeHelper(o spawn.Options) (*runtimeHelper, error) {
	o.Namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET
	h, err := spawn.StartHelper(helperName, o)
	if err != nil {
		return nil, failure("start runtime helper", "namespaces", err)
	}
	return &runtimeHelper{helper: h}, nil
}

// ask sends an order and waits for the answer, which must have that many descriptors. The caller owns them.
func (h *runtimeHelper) ask(o *helperOrder, send []int, want int) ([]int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil, failure("ask runtime helper", "rootfs", spawn.ErrGone)
	}
	return rootless.Ask(h.helper.Socket(), Name, o, send, want)
}

// closeSocket closes the socket of a helper whose process is reaped as the init's. It may be called twice.
func (h *runtimeHelper) closeSocket() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.gone {
		h.gone = true
		_ = unix.Close(h.helper.Socket())
	}
}

// init makes every program that links this package its own runtime helper, without a line in its main.
func init() {
	if len(os.Args) == 1 && os.Args[0] == helperName {
		serveHelper(spawn.HelperSocket, os.Exit) //nolint:forbidigo // a helper has no main to return to
	}
}

// serveHelper is the main function of a runtime helper. It does not return: exit is os.Exit.
func serveHelper(socket int, exit func(code int)) {
	if kind, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET || os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, helperName+": this program is started by sandbox-run only, as the first process of a pid namespace")
		exit(126)
	}
	runtime := 0
	rootless.Serve(socket, exit, func(text []byte, fds []int) (a rootless.Answer, out []int, then func(), err error) {
		var o helperOrder
		switch err = json.Unmarshal(text, &o); {
		case err != nil:
		case o.What == orderLoopback && runtime != 0:
			err = failure("raise loopback", "network", initproc.RaiseLoopback())
		case o.What == orderOpen && runtime == 0:
			if out, runtime, err = o.open(fds); err == nil {
				then = func() { // called after the answer is sent
					go func() {
						reapUntil(runtime)
						exit(0)
					}()
				}
			}
		default:
			err = fmt.Errorf("unknown order %q", o.What)
		}
		return a, out, then, err
	})
}

// reapUntil reaps every orphaned process until the runtime ends.
func reapUntil(runtime int) {
	for {
		switch pid, err := unix.Wait4(-1, nil, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid == runtime:
			return
		}
	}
}

// open does everything up to the runtime's start. The caller owns the descriptors.
func (o *helperOrder) open(fds []int) (out []int, runtime int, err error) {
	const control, log, root, disk, volumes = 0, 1, 2, 3, 4
	if len(fds) < volumes || o.Parts == nil || len(o.Command) == 0 {
		return nil, 0, failure("make container", "protocol", fmt.Errorf("%d descriptors came", len(fds)))
	}
	defer func() {
		if err != nil {
			rootless.CloseFDs(out)
			out = nil
		}
	}()
	if err := o.prepareNamespaces(); err != nil {
		return nil, 0, err
	}
	b := &bundle{bundleParts: o.Parts}
	if err := os.Mkdir(b.Scratch, 0o711); err != nil {
		return nil, 0, failure("make bundle", "rootfs", err)
	}
	if err := unix.MoveMount(fds[disk], "", unix.AT_FDCWD, b.Scratch, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, 0, failure("mount scratch", "scratch", err)
	}
	again, err := unix.OpenTree(unix.AT_FDCWD, b.Scratch, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, 0, failure("copy scratch", "scratch", err)
	}
	out = append(out, again)
	err = b.makeDir(false)
	if err == nil {
		err = b.fill(fds[root], fds[volumes:])
	}
	if err != nil {
		return out, 0, bundleFailure(err)
	}
	if o.Census {
		if out, err = openForPoller(out, filepath.Join(b.Dir, shmDir)); err != nil {
			return out, 0, failure("prepare limit poller", "limits", err)
		}
	}
	if o.Loopback {
		if err := initproc.RaiseLoopback(); err != nil {
			return out, 0, failure("raise loopback", "network", err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return out, 0, failure("start "+o.Runtime, "runtime", err)
	}
	defer null.Close()
	files := []uintptr{null.Fd(), uintptr(fds[log]), uintptr(fds[log]), uintptr(fds[control])}
	if o.Stdin {
		files[0], files = files[3], files[:3]
	}
	runtime, err = syscall.ForkExec(o.Runtime, o.Command,
		&syscall.ProcAttr{Dir: "/", Env: environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	return out, runtime, failure("start "+o.Runtime, "runtime", err)
}

// openForPoller opens the files that a limit poller reads.
func openForPoller(out []int, shm string) ([]int, error) {
	fd, err := unix.Open(shm, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return out, err
	}
	out = append(out, fd)
	if fd, err = census.NewDiag(); err != nil {
		return out, err
	}
	return append(out, fd), nil
}

// prepareNamespaces makes the mounts that a runtime needs. It first checks that the namespaces are the helper's own.
func (o *helperOrder) prepareNamespaces() error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return failure("look at own mount namespace", "namespaces", err)
	}
	if o.HostMountNS == 0 || st.Ino == o.HostMountNS || supervisor.FirstUserNS() {
		return failure("look at own namespaces", "namespaces", errors.New("they are the supervisor's own"))
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failure("make mounts private", "rootfs", err)
	}
	if !o.KeepGroups {
		if err := syscall.Setgroups(nil); err != nil {
			return failure("drop groups", "identity", err)
		}
	}
	// The runtime looks up itself and its children by their pids in this namespace.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return failure("mount /proc", "rootfs", err)
	}
	for _, s := range o.Settings {
		// A kernel without the counter has no such file.
		if err := os.WriteFile("/proc/sys/"+s.Name, []byte(s.Value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return failure("set "+s.Name, "limits", err)
		}
	}
	// The supervisor's cgroups limit the programs. Cgroups that the runtime would make beside them would stay when it is
	// killed.
	err := unix.MountSetattr(unix.AT_FDCWD, cgroupMount, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) { // EINVAL: there are no cgroup mounts
		return failure("protect "+cgroupMount, "rootfs", err)
	}
	if err := unix.Mount("tmpfs", o.Place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size="+strconv.Itoa(helperRoom)); err != nil {
		return failure("mount "+o.Place, "rootfs", err)
	}
	if err := os.Mkdir(stateDir(o.Place), 0o700); err != nil {
		return failure("make directory", "rootfs", err)
	}
	return nil
}

// helperRoom bounds a bundle and the runtime's state: some ten kilobytes, and a reserve for later runtimes.
const helperRoom = 16 << 20

// buildInHelper makes an ordinary user's container.
func (c *container) buildInHelper(ctx context.Context) (err error) {
	i := c.i
	if err := i.made(); err != nil {
		return err
	}
	plan := c.plan()
	// The helper has an empty network namespace, and the container uses the same one.
	plan.scratch, plan.network = filepath.Join(i.ns.dir, "scratch"), "/proc/self/ns/net"
	if c.Group != nil && !c.kind.whole {
		if err := c.OpenJoinFiles(); err != nil {
			return err
		}
	}
	root, err := i.CopyRoot()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	disk, first, err := i.CopyDisk()
	if err != nil {
		return err
	}
	if !first {
		defer unix.Close(disk)
	}
	volumes, err := i.openVolumes()
	if err != nil {
		return err
	}
	defer closeVolumes(volumes)
	parts, err := plan.bundleParts(volumes)
	if err != nil {
		return failure("make bundle", "rootfs", err)
	}
	order := &helperOrder{
		What: orderOpen, Place: i.ns.dir, KeepGroups: i.helper.KeepGroups, Settings: i.Host.Self.Settings(), Parts: parts,
		Loopback: c.Network.HasLoopback(), Census: i.Host.Counts.Short(),
		Runtime: c.runtime, Command: c.command(), Stdin: c.kind.stdin,
	}
	if order.HostMountNS, err = inode("self", "mnt"); err != nil {
		return failure("look at own mount namespace", "namespaces", err)
	}
	var got []int
	defer func() { rootless.CloseFDs(got) }()
	c.Init, err = c.startRuntime(func(control int) (err error) {
		got, err = c.openHelper(order, append([]int{control, int(c.log.Fd()), root, disk}, mounts(volumes)...))
		return err
	})
	if err != nil {
		return err
	}
	if first {
		i.KeepDisk(got[0])
	} else {
		_ = unix.Close(got[0])
	}
	got = got[1:]
	if err := c.setUp(ctx); err != nil {
		return err
	}
	// The CPU time that the runtime and the helper have used so far is not the program's.
	for _, pid := range []int{c.pid, parent(c.InitPID)} {
		u := box.ProcessUsage(pid)
		c.Before.User, c.Before.System = c.Before.User+u.User, c.Before.System+u.System
	}
	if !order.Census {
		return nil
	}
	// This is the container's own /proc: the path of its init is valid as long as the init has not ended, otherwise this
	// fails.
	proc, err := os.Open("/proc/" + strconv.Itoa(c.InitPID) + "/root/proc")
	if err != nil {
		return failure("look into container", "limits", err)
	}
	c.NewPoller(proc, os.NewFile(uintptr(got[0]), "shm"), os.NewFile(uintptr(got[1]), "diag"))
	got = nil
	return nil
}

// openHelper starts a runtime helper, which makes the container. The caller owns the descriptors.
func (c *container) openHelper(order *helperOrder, send []int) ([]int, error) {
	h, err := c.startHelper()
	if err != nil {
		return nil, err
	}
	want := 1
	if order.Census {
		want = 3
	}
	got, err := h.ask(order, send, want)
	if err != nil {
		h.helper.Close()
		return nil, err
	}
	c.helper = h
	c.pid, c.pidfd = h.helper.Process()
	return got, nil
}

// startHelper starts a runtime helper, in the cgroup of an init, or in the cgroup that limits the runtime and all its
// processes.
func (c *container) startHelper() (h *runtimeHelper, err error) {
	o := c.i.helper
	if !c.kind.whole {
		if o.Cgroup, err = c.Cgroup.OpenInitLeaf(); err != nil {
			return nil, failure("make cgroup of init", "cgroup", err)
		}
	} else if o.Cgroup = c.Group.OpenForClone(); o.Cgroup == nil {
		err = onThread(func() error {
			return c.Group.RunInside(func() (err error) { h, err = startRuntimeHelper(o); return err })
		})
		return h, err
	}
	defer o.Cgroup.Close() // Close of nil is allowed
	return startRuntimeHelper(o)
}

// parent returns the parent of a process; 0 for a process that is gone.
func parent(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	n, _ := strconv.Atoi(statusField(text, "PPid"))
	return n
}
