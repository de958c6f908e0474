//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// freezeTime is how long Freeze waits for processes to stop: milliseconds will do, but on a machine that is busy elsewhere. Tests shorten it.
var freezeTime = 5 * time.Second

// gatherTime is how long Freeze chases, on a hybrid machine, a group that keeps forking.
const gatherTime = 5 * time.Second

// Freeze stops every process in the group, or lets them go on, and waits until that is so (at most freezeTime: a process
// that sleeps in the kernel can not be frozen). A frozen group can be killed and removed. When freezing fails, what was
// stopped goes on again.
//
// It needs the v2 core file cgroup.freeze. The v1 freezer is left alone on purpose: tasks frozen by it ignore SIGKILL
// until thawed, and a sandbox that can not be killed breaks D4. ErrUnsupported there.
//
// On a hybrid machine a run keeps out of the v2 tree, so the first Freeze makes the group there and each moves into it
// whoever is not in it yet. A process that joins the group later goes on; so does, for a program that keeps replacing its
// process by a new one faster than we can follow, the whole group: ETIMEDOUT.
func (g *Group) Freeze(frozen bool) error {
	if g.err != nil {
		return g.err
	}
	if !g.tree.Has(Freeze) {
		return &Error{Op: "freeze", Group: g.path, Err: fmt.Errorf("%w: %s", ErrUnsupported, g.tree.why("freeze"))}
	}
	i := slices.IndexFunc(g.tree.hierarchies, func(h hierarchy) bool { return h.v2 })
	h := &g.tree.hierarchies[i]
	if !frozen {
		err := g.setFrozen(i, false)
		if h.lazy && errors.Is(err, fs.ErrNotExist) && existsAt(g.tree.hierarchies[0].at, g.rel) {
			return nil // never frozen
		}
		return err
	}
	if h.lazy {
		if err := g.makeLazily(i); err != nil {
			return err
		}
		// First the order to freeze and then the processes: each stops on arrival and forks no more.
		err := g.writeFrozen(i, true)
		if err == nil {
			err = g.gather(i, time.Now().Add(gatherTime))
		}
		if err != nil {
			_ = g.writeFrozen(i, false)
			return err
		}
	}
	err := g.setFrozen(i, true)
	if err != nil {
		_ = g.writeFrozen(i, false)
	}
	return err
}

func (g *Group) writeFrozen(i int, frozen bool) error {
	file, value := g.rel+"/cgroup.freeze", "0"
	if frozen {
		value = "1"
	}
	if err := writeFile(g.tree.hierarchies[i].at, file, value); err != nil {
		return g.fail("freeze", i, file, err)
	}
	return nil
}

// setFrozen gives the order and waits until it is carried out.
func (g *Group) setFrozen(i int, frozen bool) error {
	if err := g.writeFrozen(i, frozen); err != nil {
		return err
	}
	word, want := "thawed", uint64(0)
	if frozen {
		word, want = "frozen", 1
	}
	file := g.rel + "/cgroup.events"
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	deadline := time.Now().Add(freezeTime)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		b, err := readCounter(g.tree.hierarchies[i].at, file, buf)
		if err != nil {
			return g.fail("freeze", i, file, err)
		}
		state := uint64(2)
		flatKeyed(b, func(name []byte, v uint64) {
			if string(name) == "frozen" {
				state = v
			}
		})
		if state == want {
			return nil
		}
		if time.Now().After(deadline) {
			return g.fail("freeze", i, file, fmt.Errorf("not %s after %v: %w", word, freezeTime, unix.ETIMEDOUT))
		}
		time.Sleep(pause)
	}
}

// makeLazily makes the group in the v2 tree of a hybrid machine, unless it is there.
//
// Remove takes the v2 directory last, when the others are gone. So either it finds the one made here, or the look at the
// others, after it was made, finds them gone.
func (g *Group) makeLazily(i int) error {
	var made []madeDir
	file, err := g.makeIn(i, &made)
	if err == unix.EEXIST { //nolint:errorlint // raw errno
		err = nil
	}
	if err == nil && !existsAt(g.tree.hierarchies[0].at, g.rel) {
		file, err = g.rel, unix.ENOENT
	}
	if err != nil {
		g.tree.takeBack(made)
		return g.fail("freeze", i, file, err)
	}
	return nil
}

// gather moves every process of the group into its v2 directory. A child of one that was moved is born there, so it is
// done when nobody is left who is not. A move waits for forks under way: next to nothing for a program that does something
// else, 10 ms each for two hundred processes that only fork, on two CPUs.
func (g *Group) gather(i int, deadline time.Time) error {
	var before []int
	for {
		missing, err := g.strays(i)
		if err != nil || len(missing) == 0 {
			return err
		}
		moved, err := g.moveStrays(i, missing)
		if err != nil {
			return err
		}
		// A process whose first thread has ended is not listed in the v2 directory, though its other threads are there.
		// It was moved in the last round and again in this one; nobody new was seen; so nobody is left.
		if !slices.ContainsFunc(missing, func(pid int) bool { return !slices.Contains(before, pid) }) {
			return nil
		}
		if time.Now().After(deadline) {
			return &Error{Op: "freeze", Group: g.path, Err: fmt.Errorf("%d processes still run, and others appear, after %v: %w", len(missing), gatherTime, unix.ETIMEDOUT)}
		}
		before = moved
	}
}

// strays are the processes of the group that its directory in hierarchy i does not list.
func (g *Group) strays(i int) ([]int, error) {
	all, err := g.procs(0, i) // i is the last
	if err != nil {
		return nil, err
	}
	there, err := g.procs(i, i+1)
	return slices.DeleteFunc(all, func(pid int) bool {
		_, found := slices.BinarySearch(there, pid)
		return found
	}), err
}

// moveStrays writes processes into the cgroup.procs of hierarchy i and returns those that were moved for certain.
//
// That file takes numbers, and a number can come to mean another process. As in killDir, a pidfd and a second look make
// sure whom we mean; and when the pidfd says, after the write, that our process was still there, it is the one that was
// moved. If it was not, a stranger may have been: whoever is in the v2 group now and not in the others is put out again,
// before a Kill can reach it.
func (g *Group) moveStrays(i int, pids []int) (moved []int, err error) {
	h, file := &g.tree.hierarchies[i], g.rel+"/cgroup.procs"
	doubt := false
	for batch := range slices.Chunk(pids, pidfdBatch) {
		fds := make([]int, len(batch))
		for k, pid := range batch {
			if pid == 0 {
				err = g.fail("freeze", i, file, errors.New("a process of a foreign pid namespace is in the group and can not be moved"))
				fds[k] = -1
			} else if fds[k], _ = unix.PidfdOpen(pid, 0); fds[k] < 0 {
				fds[k] = -1 // gone; seen again if not
			}
		}
		still, lerr := g.procs(0, i)
		err = errors.Join(err, lerr)
		for k, fd := range fds {
			if fd < 0 {
				continue
			}
			if _, member := slices.BinarySearch(still, batch[k]); member && err == nil {
				werr := writeFile(h.at, file, strconv.Itoa(batch[k]))
				gone := unix.PidfdSendSignal(fd, 0, nil, 0) == unix.ESRCH // raw errno
				switch {
				case werr == nil && !gone:
					moved = append(moved, batch[k])
				case werr == nil:
					doubt = true
				case werr != unix.ESRCH: //nolint:errorlint // raw errno: ESRCH is gone
					err = g.fail("freeze", i, file, werr)
				}
			}
			_ = unix.Close(fd)
		}
		if err != nil {
			break
		}
	}
	if doubt {
		err = errors.Join(err, g.expelStrangers(i))
	}
	return moved, err
}

// expelStrangers moves who is in the v2 directory and in no other to the group that holds ours.
func (g *Group) expelStrangers(i int) error {
	there, err := g.procs(i, i+1)
	if err != nil {
		return err
	}
	ours, err := g.procs(0, i)
	if err != nil {
		return err
	}
	for _, pid := range there {
		if _, found := slices.BinarySearch(ours, pid); !found && pid != 0 {
			err := writeFile(g.tree.hierarchies[i].at, "cgroup.procs", strconv.Itoa(pid))
			if err != nil && err != unix.ESRCH { //nolint:errorlint // raw errno
				return g.fail("freeze", i, "cgroup.procs", err)
			}
		}
	}
	return nil
}
