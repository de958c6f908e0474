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
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/census"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootless"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
)

// A lodge is where a plain user's container lives: this very program in another process, the first one of a pid namespace, and root of a
// user namespace in which it has mounts, a network and a runtime of its own.
//
//	supervisor → open{…} [control, log, root, scratch, volumes…];  lodge → told{…} [scratch, and for a census: shm, diag]
//	supervisor → loopback{};                                       lodge → told{…}
//
// It ends when its runtime does, or its socket: with the supervisor, however that ends. Then the kernel ends whatever is in its pid
// namespace, the container's in it, and its mounts and the runtime's state with them: a lodge leaves nothing.
const lodgeName = "sandbox-lodge"

// lodging is an order to a lodge. What names which.
type lodging struct {
	What string `json:"what"`

	HostMountNS uint64              `json:"host_mount_ns,omitempty"` // the supervisor's own, which a lodge must not find itself in
	Place       string              `json:"place,omitempty"`         // a directory that may be covered there
	KeepGroups  bool                `json:"keep_groups,omitempty"`   // there is no right to drop them
	Settings    []initproto.Setting `json:"settings,omitempty"`      // of its namespaces
	Furniture   *furniture          `json:"furniture,omitempty"`
	Loopback    bool                `json:"loopback,omitempty"`
	Census      bool                `json:"census,omitempty"` // somebody has to count by looking
	Runtime     string              `json:"runtime,omitempty"`
	Command     []string            `json:"command,omitempty"`
	Stdin       bool                `json:"stdin,omitempty"` // the init's socket is the runtime's standard input
}

// The orders there are.
const (
	lodgeOpen     = "open"
	lodgeLoopback = "loopback"
)

// told is a lodge's answer.
type told struct {
	Error *rootless.Packed `json:"error,omitempty"`
}

// cgroupMount is where every runtime looks for cgroups.
const cgroupMount = "/sys/fs/cgroup"

// lodge is the supervisor's end.
type lodge struct {
	mu     sync.Mutex // one order at a time
	helper *spawn.Helper
	gone   bool
}

// newLodge starts one.
func newLodge(o spawn.Options) (*lodge, error) {
	o.Namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET
	h, err := spawn.StartHelper(lodgeName, o)
	if err != nil {
		return nil, failure("start lodge", "namespaces", err)
	}
	return &lodge{helper: h}, nil
}

// ask sends an order and waits for what comes of it: that many descriptors, which are the caller's.
func (l *lodge) ask(o *lodging, send []int, want int) ([]int, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, failure("ask lodge", "rootfs", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil, failure("ask lodge", "rootfs", spawn.ErrGone)
	}
	if err := rootless.SendMessage(l.helper.Socket(), text, send); err != nil {
		return nil, failure("ask lodge", "rootfs", err)
	}
	reply, fds, err := rootless.ReceiveMessage(l.helper.Socket(), make([]byte, 64<<10))
	var a told
	if err == nil {
		err = json.Unmarshal(reply, &a)
	}
	switch {
	case err != nil:
		err = failure("ask lodge", "rootfs", err)
	case a.Error != nil:
		err = a.Error.Unpack(Name)
	case len(fds) != want:
		err = failure("ask lodge", "rootfs", fmt.Errorf("%d descriptors came, not %d", len(fds), want))
	default:
		return fds, nil
	}
	rootless.CloseFDs(fds)
	return nil, err
}

// leave hangs up on one whose process somebody else buries. Twice is fine.
func (l *lodge) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone {
		l.gone = true
		_ = unix.Close(l.helper.Socket())
	}
}

// init makes every program that links this package able to be its own lodge, with no word in its main.
func init() {
	if len(os.Args) == 1 && os.Args[0] == lodgeName {
		keepLodge(spawn.HelperSocket, os.Exit) //nolint:forbidigo // a lodge has no main to return to
	}
}

// keepLodge is the whole life of a lodge. It does not return: leave is to exit.
func keepLodge(socket int, leave func(code int)) {
	if kind, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET || os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, lodgeName+": this program is started by sandbox-run only, as the first process of a pid namespace")
		leave(126)
	}
	buf := make([]byte, rootless.MaxMessage)
	runtime := 0
	for {
		text, fds, err := rootless.ReceiveMessage(socket, buf)
		if err != nil {
			leave(0) // the supervisor is gone: so are we, and all that is here
		}
		var o lodging
		var a told
		var out []int
		if err = json.Unmarshal(text, &o); err == nil {
			switch {
			case o.What == lodgeLoopback && runtime != 0:
				err = failure("raise loopback", "network", raiseLoopback())
			case o.What == lodgeOpen && runtime == 0:
				out, runtime, err = o.open(fds)
			default:
				err = fmt.Errorf("unknown order %q", o.What)
			}
		}
		if err != nil {
			a.Error = rootless.Pack(err)
		}
		rootless.CloseFDs(fds)
		text, _ = json.Marshal(a) // strings and numbers
		err = rootless.SendMessage(socket, text, out)
		rootless.CloseFDs(out)
		if err != nil {
			leave(0)
		}
		if o.What == lodgeOpen && runtime != 0 {
			go func() {
				bury(runtime)
				leave(0)
			}()
		}
	}
}

// bury waits for the end of the runtime, and meanwhile for that of everybody who has lost their parent.
func bury(runtime int) {
	for {
		switch pid, err := unix.Wait4(-1, nil, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil || pid == runtime:
			return
		}
	}
}

// open does everything up to the runtime's start. The descriptors are the caller's.
func (o *lodging) open(fds []int) (out []int, runtime int, err error) {
	const control, log, root, disk, volumes = 0, 1, 2, 3, 4
	if len(fds) < volumes || o.Furniture == nil || len(o.Command) == 0 {
		return nil, 0, failure("open lodge", "protocol", fmt.Errorf("%d descriptors came", len(fds)))
	}
	defer func() {
		if err != nil {
			rootless.CloseFDs(out)
			out = nil
		}
	}()
	if err := o.settle(); err != nil {
		return nil, 0, err
	}
	b := &bundle{furniture: o.Furniture}
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
	err = b.lay(false)
	if err == nil {
		err = b.make(fds[root], fds[volumes:])
	}
	if err != nil {
		return out, 0, failedToMake(err)
	}
	if o.Census {
		if out, err = look(out, filepath.Join(b.Dir, shmDir)); err != nil {
			return out, 0, failure("prepare census", "limits", err)
		}
	}
	if o.Loopback {
		if err := raiseLoopback(); err != nil {
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
	runtime, err = syscall.ForkExec(o.Runtime, o.Command, &syscall.ProcAttr{Dir: "/", Env: environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	return out, runtime, failure("start "+o.Runtime, "runtime", err)
}

// look opens what somebody needs who counts from outside.
func look(out []int, shm string) ([]int, error) {
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

// settle makes the namespaces a place to work in. Nothing is mounted before it is clear that they are the lodge's own.
func (o *lodging) settle() error {
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
	// The runtime looks for itself, and for what it has started, by the numbers that they have here.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return failure("mount /proc", "rootfs", err)
	}
	for _, s := range o.Settings {
		// A kernel that was built without what is counted has no such file.
		if err := os.WriteFile("/proc/sys/"+s.Name, []byte(s.Value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return failure("set "+s.Name, "limits", err)
		}
	}
	// Programs are limited by groups of ours. What the runtime would make beside them, where it may, would stay behind when it is killed.
	err := unix.MountSetattr(unix.AT_FDCWD, cgroupMount, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) { // the latter: there are none
		return failure("protect "+cgroupMount, "rootfs", err)
	}
	if err := unix.Mount("tmpfs", o.Place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size="+strconv.Itoa(lodgeRoom)); err != nil {
		return failure("mount "+o.Place, "rootfs", err)
	}
	if err := os.Mkdir(stateDir(o.Place), 0o700); err != nil {
		return failure("make directory", "rootfs", err)
	}
	return nil
}

// lodgeRoom is what a bundle and the runtime's state may take: some ten kilobytes, and what a runtime of tomorrow may want.
const lodgeRoom = 16 << 20

// lodge makes a plain user's container.
func (p *phase) lodge(ctx context.Context) (err error) {
	i := p.i
	if err := i.made(); err != nil {
		return err
	}
	print := p.blueprint()
	// The lodge has an empty network, and the container is to have that very one.
	print.scratch, print.network = filepath.Join(i.work.dir, "scratch"), "/proc/self/ns/net"
	if p.group != nil && !p.c.kind.whole {
		if p.join, err = p.group.JoinFiles(); err != nil {
			return failure("open cgroup", "cgroup", err)
		}
	}
	root, err := i.copyRoot()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	disk, first := i.mount, !i.inhabited
	if !first {
		if disk, err = i.twin(&i.mount); err != nil {
			return err
		}
		defer unix.Close(disk)
	}
	volumes, err := i.openVolumes()
	if err != nil {
		return err
	}
	defer closeVolumes(volumes)
	f, err := print.furnish(volumes)
	if err != nil {
		return failure("make bundle", "rootfs", err)
	}
	order := &lodging{
		What: lodgeOpen, Place: i.work.dir, KeepGroups: i.lodging.KeepGroups, Settings: i.b.self.Settings(), Furniture: f,
		Loopback: p.network == sandbox.NetworkLocalhost, Census: i.b.counts.Short(), Runtime: p.c.runtime, Command: p.c.command(), Stdin: p.c.kind.stdin,
	}
	if order.HostMountNS, err = inode("self", "mnt"); err != nil {
		return failure("look at own mount namespace", "namespaces", err)
	}
	var got []int
	defer func() { rootless.CloseFDs(got) }()
	p.init, err = p.c.start(func(control int) (err error) {
		got, err = p.open(order, append([]int{control, int(p.c.log.Fd()), root, disk}, mounts(volumes)...))
		return err
	})
	if err != nil {
		return err
	}
	if first {
		_ = unix.Close(i.mount)
		i.mount, i.inhabited = got[0], true
	} else {
		_ = unix.Close(got[0])
	}
	got = got[1:]
	if err := p.setUp(ctx); err != nil {
		return err
	}
	p.before = p.usage()
	if !order.Census {
		return nil
	}
	// The container's own /proc: by its init, which has not ended since, or this fails.
	proc, err := os.Open("/proc/" + strconv.Itoa(p.init.Inmate()) + "/root/proc")
	if err != nil {
		return failure("look into container", "limits", err)
	}
	p.watch = watch.New(watch.Options{
		Backend: Name, Counts: i.b.counts, NProc: i.b.self.NProc, Scratch: i.scratch, Init: p.init.Inmate(), Kill: func() { _ = p.Kill() },
		Proc: proc, Shm: os.NewFile(uintptr(got[0]), "shm"), Diag: os.NewFile(uintptr(got[1]), "diag"),
	})
	got = nil
	return nil
}

// open starts a lodge and has it make the container. The descriptors are the caller's.
func (p *phase) open(order *lodging, send []int) ([]int, error) {
	l, err := p.startLodge()
	if err != nil {
		return nil, err
	}
	want := 1
	if order.Census {
		want = 3
	}
	got, err := l.ask(order, send, want)
	if err != nil {
		l.helper.Close()
		return nil, err
	}
	p.c.lodge = l
	p.c.pid, p.c.pidfd = l.helper.Process()
	return got, nil
}

// startLodge starts one, in the group of its own that an init has, or in the one that limits the runtime and all that it runs.
func (p *phase) startLodge() (l *lodge, err error) {
	o := p.i.lodging
	if !p.c.kind.whole {
		if o.Cgroup, err = p.nest.OpenInitLeaf(); err != nil {
			return nil, failure("make cgroup of init", "cgroup", err)
		}
	} else if o.Cgroup = p.group.OpenForClone(); o.Cgroup == nil {
		err = onThread(func() error {
			return p.group.RunInside(func() (err error) { l, err = newLodge(o); return err })
		})
		return l, err
	}
	defer o.Cgroup.Close() // nil is fine
	return newLodge(o)
}

// parent of a process; 0 of one that is gone.
func parent(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	n, _ := strconv.Atoi(statusField(text, "PPid"))
	return n
}

// usage is processor time.
type usage struct{ user, system time.Duration }

// usage of a plain user's runtime and lodge so far, by the kernel's ticks: it is not the program's.
func (p *phase) usage() (sum usage) {
	for _, pid := range []int{p.c.pid, parent(p.init.Inmate())} {
		user, system := launch.ProcessTime(pid)
		sum.user, sum.system = sum.user+user, sum.system+system
	}
	return sum
}
