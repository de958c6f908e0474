package idmap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxNamespaces is how many mappings are kept: about the number of owners of volumes times uid slots in use.
const maxNamespaces = 32

// namespaces are the user namespaces made so far. A namespace exists as long as its descriptor.
var namespaces cache

type cache struct {
	mu      sync.Mutex
	entries []entry // the one used last comes last
}

type entry struct {
	mapping Mapping
	fd      int
}

// with calls use with a user namespace that has the mapping. The lock is held meanwhile, so that the descriptor is not closed
// and reused; use is one system call.
func (c *cache) with(m Mapping, use func(userns int) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.entries {
		if e.mapping == m {
			c.entries = append(append(c.entries[:i], c.entries[i+1:]...), e)
			return use(e.fd)
		}
	}
	fd, err := newUserNamespace(m)
	if err != nil {
		return err
	}
	if len(c.entries) >= maxNamespaces {
		_ = unix.Close(c.entries[0].fd)
		c.entries = append(c.entries[:0], c.entries[1:]...)
	}
	c.entries = append(c.entries, entry{m, fd})
	return use(fd)
}

// newUserNamespace makes a namespace by starting a child in one. A Go program has many threads and can not unshare one
// itself. The child is traced, so the kernel stops it at the end of exec, before the first instruction of the program. Any
// program would do; this one is sure to exist.
func newUserNamespace(m Mapping) (int, error) {
	for _, id := range []uint32{m.FromUID, m.ToUID, m.FromGID, m.ToGID} {
		if id == ^uint32(0) {
			return -1, fmt.Errorf("make a user namespace for %+v: id -1 is not valid: %w", m, unix.EINVAL)
		}
	}
	if err := spareDescriptors(); err != nil {
		return -1, fmt.Errorf("make a user namespace for %+v: %w", m, err)
	}
	// The file system's ids are those inside of the namespace, the processes' ids those outside.
	uids := []syscall.SysProcIDMap{{ContainerID: int(m.FromUID), HostID: int(m.ToUID), Size: 1}}
	gids := []syscall.SysProcIDMap{{ContainerID: int(m.FromGID), HostID: int(m.ToGID), Size: 1}}
	if m.Keep != 0 {
		same := syscall.SysProcIDMap{ContainerID: int(m.Keep), HostID: int(m.Keep), Size: 1}
		uids, gids = append(uids, same), append(gids, same)
	}
	runtime.LockOSThread() // the tracer is this thread, and it must not end before the child
	defer runtime.UnlockOSThread()
	pidfd := -1
	child, err := os.StartProcess("/proc/self/exe", []string{"idmap"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: uids,
			GidMappings: gids,
			Ptrace:      true,
			Pdeathsig:   syscall.SIGKILL,
			PidFD:       &pidfd,
		},
	})
	if err != nil {
		return -1, fmt.Errorf("make a user namespace for %+v: %w; check user.max_user_namespaces and kernel.yama.ptrace_scope", m, err)
	}
	defer func() {
		_ = child.Kill() // by its pidfd
		_, _ = child.Wait()
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
	}()
	fd, err := unix.Open("/proc/"+strconv.Itoa(child.Pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the user namespace of the child made for it: %w", err)
	}
	// If the child still exists, its pid was valid when the file was opened. A process that reaps every child could have freed
	// it before.
	err = unix.EBADF
	if pidfd >= 0 {
		err = unix.PidfdSendSignal(pidfd, 0, nil, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("the child made for its user namespace died: %w", errors.Join(err, unix.ECHILD))
	}
	return fd, nil
}

// spareDescriptors fails if there are too few descriptors to start a child: package syscall would not close the
// pipe through which the child waits for its mappings.
func spareDescriptors() error {
	var spare [8]int
	var err error
	taken := 0
	for ; taken < len(spare) && err == nil; taken++ {
		spare[taken], err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	for _, fd := range spare[:taken] {
		_ = unix.Close(fd) // -1 for the one that failed
	}
	return err
}
