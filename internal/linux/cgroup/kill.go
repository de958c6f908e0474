//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxDepth    = 16              // levels below a group that are searched
	maxGroups   = 4096            // groups below a group that are searched
	killTime    = 2 * time.Second // how long Kill repeats for a group that keeps forking
	stopForking = 4               // rounds after which the group may not fork any more
	pidfdBatch  = 64              // descriptors that Kill has open at once
)

// Kill sends SIGKILL to every process in the group and in groups below it, in every hierarchy, until every listed process
// has had one. It does not wait until they are gone (Remove does), and may be called in any state and twice. Only removal
// may follow: a group without cgroup.kill that forks faster than Kill signals gets a process limit of 0.
func (g *Group) Kill() error {
	if g.err != nil {
		return g.err
	}
	return g.kill(time.Now().Add(killTime))
}

func (g *Group) kill(deadline time.Time) error {
	whole := false
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		if !h.v2 || !g.tree.canKill {
			continue
		}
		switch err := writeFile(h.at, g.rel+"/cgroup.kill", "1"); {
		case err == nil:
			whole = true
		case errors.Is(err, unix.ENOENT), err == unix.ENODEV: //nolint:errorlint // raw errno
		default:
			return g.fail("kill", i, g.rel+"/cgroup.kill", err)
		}
	}
	// The lists are gone through even after cgroup.kill, for processes that it does not reach:
	//   - A process can be in a v1 group and not in the v2 one: a join is several writes, and the joiner may have been
	//     stopped in between.
	//   - A process whose first thread has ended: cgroup.kill signals that thread, which no longer takes signals, and not
	//     the process (seen with Linux 6.1).
	return g.killListed(whole, deadline)
}

func (g *Group) killListed(whole bool, deadline time.Time) error {
	var before []int
	for round := 0; ; round++ {
		var listed []int
		var errs []error
		for i := range g.tree.hierarchies {
			h := &g.tree.hierarchies[i]
			dirs, err := listSubtree(h.at, g.rel)
			if err != nil {
				errs = append(errs, g.fail("kill", i, g.rel, err))
			}
			for _, dir := range dirs {
				if round >= stopForking && h.roles&rolePids != 0 {
					_ = writeFile(h.at, dir+"/pids.max", "0")
				}
				pids, err := killDir(h.at, dir, whole && h.v2)
				if err != nil {
					errs = append(errs, g.fail("kill", i, dir+"/cgroup.procs", err))
				}
				listed = append(listed, pids...)
			}
		}
		slices.Sort(listed)
		listed = slices.Compact(listed)
		// Every listed process was signalled in this round. One that was listed in the last round too is dying; only a
		// new one may have children that were forked after the list was read.
		fresh := slices.ContainsFunc(listed, func(pid int) bool {
			_, found := slices.BinarySearch(before, pid)
			return !found
		})
		switch {
		case len(errs) > 0:
			return errors.Join(errs...)
		case !fresh:
			return nil
		case time.Now().After(deadline):
			return &Error{Op: "kill", Group: g.path, Err: fmt.Errorf("%d processes keep forking: %w", len(listed), unix.ETIMEDOUT)}
		}
		before = listed
	}
}

// Signal sends a signal to every process in the group and in groups below it, but for one (0: none), once each, and returns how many there
// were. Processes that are forked meanwhile may be left out.
func (g *Group) Signal(sig unix.Signal, except int) (n int, err error) {
	pids, err := g.Procs()
	if err != nil {
		return 0, err
	}
	for batch := range slices.Chunk(pids, pidfdBatch) {
		fds := map[int]int{}
		for _, pid := range batch {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil && pid != except && pid != unix.Getpid() {
				fds[pid] = fd
			}
		}
		still, listErr := g.Procs() // see killDir
		for pid, fd := range fds {
			if _, member := slices.BinarySearch(still, pid); member && unix.PidfdSendSignal(fd, sig, nil, 0) == nil {
				n++
			}
			_ = unix.Close(fd)
		}
		err = errors.Join(err, listErr)
	}
	return n, err
}

// KillOthers does for all processes but one what Kill does for all: it repeats until none is left.
func (g *Group) KillOthers(except int) error {
	for deadline := time.Now().Add(killTime); ; {
		n, err := g.Signal(unix.SIGKILL, except)
		if n == 0 || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return &Error{Op: "kill", Group: g.path, Err: fmt.Errorf("%d processes keep forking: %w", n, unix.ETIMEDOUT)}
		}
		time.Sleep(time.Millisecond)
	}
}

// killDir signals the processes of one directory and returns those it listed. whole says that cgroup.kill was written.
//
// A number in cgroup.procs may mean another process by the time it is used. So: open a pidfd for each number, read the
// list again, and signal only numbers that are still on it. If such a number's pidfd is some other process, that other
// process must have ended for the number to be on the list again, and signalling it through the pidfd has no effect.
func killDir(at int, dir string, whole bool) (seen []int, err error) {
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	listed, err := readPids(at, dir, buf, nil)
	if err != nil {
		return nil, err
	}
	self := unix.Getpid()
	var errs []error
	fds := make([]int, 0, min(len(listed), pidfdBatch))
	var still []int
	for batch := range slices.Chunk(listed, pidfdBatch) {
		fds = fds[:0]
		for _, pid := range batch {
			fd := -1
			if pid == self { // a thread of this process: see RunInside
			} else if pid == 0 { // a process of an invisible pid namespace: kill(0) would signal this process's own group
				if !whole {
					errs = append(errs, errors.New("a process of a foreign pid namespace is in the group and can not be signalled"))
				}
			} else if fd, err = unix.PidfdOpen(pid, 0); err != nil {
				fd = -1
				// ESRCH: gone. EINVAL, ENOENT: a leader already reaped while threads end. All are seen again if alive.
				if err != unix.ESRCH && err != unix.EINVAL && err != unix.ENOENT { //nolint:errorlint // raw errnos
					errs = append(errs, fmt.Errorf("pidfd_open %d: %w", pid, err))
				}
			}
			fds = append(fds, fd)
		}
		still, err = readPids(at, dir, buf, still[:0])
		if err != nil {
			errs = append(errs, err)
			still = still[:0]
		}
		slices.Sort(still)
		for k, fd := range fds {
			if fd < 0 {
				continue
			}
			if _, member := slices.BinarySearch(still, batch[k]); member {
				seen = append(seen, batch[k])
				if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH { // raw errno
					errs = append(errs, fmt.Errorf("signal %d: %w", batch[k], err))
				}
			}
			_ = unix.Close(fd)
		}
	}
	return seen, errors.Join(errs...)
}

// listSubtree lists a group's directory and those below it, parents first. It is bounded: a program with a cgroup
// file system of its own may have made any number.
func listSubtree(at int, top string) ([]string, error) {
	type node struct {
		dir   string
		depth int
	}
	queue := []node{{top, 0}}
	var dirs []string
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		dirs = append(dirs, n.dir)
		names, err := subdirs(at, n.dir)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return dirs, errno(err)
		}
		if len(names) > 0 && n.depth == maxDepth {
			return dirs, fmt.Errorf("groups nested deeper than %d: %w", maxDepth, unix.ELOOP)
		}
		for _, name := range names {
			if len(dirs)+len(queue) >= maxGroups {
				return dirs, fmt.Errorf("more than %d groups: %w", maxGroups, unix.E2BIG)
			}
			queue = append(queue, node{n.dir + "/" + name, n.depth + 1})
		}
	}
	return dirs, nil
}
