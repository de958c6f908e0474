//go:build linux

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Group is one group, the same path in every hierarchy of its Tree. It is a handle and needs no closing: it owns only, from
// ResetPeak to Remove, one descriptor. The caller of Make calls Remove.
type Group struct {
	tree *Tree
	path string
	rel  string // "sandbox-run/" + path, the same in every hierarchy, relative to its place
	err  error  // a bad path; every method returns it

	pidsMax atomic.Int64  // the process limit last set through this handle
	quota   atomic.Int64  // the least CPU quota ever set through this handle, µs per period; 0 for none
	peak    atomic.Uint64 // highest memory use seen by Stat, for kernels that keep no peak themselves

	ownPeak atomic.Pointer[os.File] // v2: memory.peak, which shows the peak since ResetPeak through this descriptor only
}

// Path is the group's path below `sandbox-run`, as given to Tree.Group.
func (g *Group) Path() string { return g.path }

// Dirs are the group's absolute directories, one per hierarchy that Make makes it in.
func (g *Group) Dirs() []string {
	if g.err != nil {
		return nil
	}
	dirs := g.tree.Roots()
	for i := range dirs {
		dirs[i] += "/" + g.path
	}
	return dirs
}

func (g *Group) fail(op string, i int, file string, err error) error {
	h := &g.tree.hierarchies[i]
	return &Error{Op: op, Group: g.path, Hierarchy: h.label, File: filepath.Join(h.place, file), Err: err}
}

// Make makes the group, with any missing parents, in every hierarchy, and sets its limits. The group must not exist yet
// (fs.ErrExist): its counters would include earlier programs. When a step fails, Make removes all that it has
// made. A limit that no hierarchy can enforce is ErrUnsupported, never left out.
func (g *Group) Make(l Limits) error {
	if g.err != nil {
		return g.err
	}
	if g.tree.gcOnly || len(g.tree.hierarchies) == 0 {
		return &Error{Op: "make", Group: g.path, Err: fmt.Errorf("%w: no directory to make groups in", ErrUnsupported)}
	}
	if err := g.checkLimits(l); err != nil {
		return err
	}
	made := make([]madeDir, 0, len(g.tree.hierarchies))
	var err error
	for i := 0; i < len(g.tree.hierarchies) && err == nil; i++ {
		if file, failed := g.makeIn(i, &made); failed != nil {
			err = g.fail("make", i, file, failed)
		}
	}
	if err == nil {
		err = g.set(l)
	}
	if h := g.tree.v2(); errors.Is(err, unix.ENOENT) && h != nil && h.enable != "" {
		// Another supervisor is handing controllers down through the parent: the kernel lists them before their files
		// exist. Handing them down once more waits until the files exist.
		_, _ = g.tree.enableDown(h, g.path, &made) // set reports the failure
		err = g.set(l)
	}
	if err != nil {
		for _, dir := range slices.Backward(made) {
			_ = g.tree.rmdir(dir.in, dir.path) // a parent that another supervisor uses by now stays
		}
	}
	return err
}

// madeDir is a directory that Make has made and removes when it fails.
type madeDir struct {
	in   *hierarchy
	path string
}

// makeIn makes the directory in one hierarchy. The parents nearly always exist, so the leaf is tried first.
func (g *Group) makeIn(i int, made *[]madeDir) (file string, err error) {
	h, dir := &g.tree.hierarchies[i], g.rel
	// Another supervisor's Prune or Remove can remove an empty parent between the two calls; a few tries outlast it.
	for range 32 {
		err = g.tree.mkdir(h, dir)
		if err == nil {
			*made = append(*made, madeDir{h, dir})
			if h.enable == "" || hasControllers(h, dir) {
				return "", nil
			}
			// The parents are of a supervisor that died before switching their controllers on: do it now. An inner node
			// holds no process, so the kernel has no reason to refuse.
			return g.tree.enableDown(h, g.path, made)
		}
		if !isGone(err) {
			return dir, err
		}
		if file, err = g.tree.enableDown(h, g.path, made); err != nil && !isGone(err) {
			return file, err
		}
	}
	return dir, err
}

// isGone reports that a directory was removed: before it was opened, or while it was open.
func isGone(err error) bool { return err == unix.ENOENT || err == unix.ENODEV } //nolint:errorlint // raw errnos

// enableDown makes every inner node above path and, on v2, hands the controllers down through it.
func (t *Tree) enableDown(h *hierarchy, path string, made *[]madeDir) (file string, err error) {
	enable := func(dir string) error {
		if h.enable == "" {
			return nil
		}
		file = dir + "/cgroup.subtree_control"
		return writeFile(h.at, file, h.enable)
	}
	if err := enable("."); err != nil {
		return file, err
	}
	dir := rootName
	rest := path
	for {
		switch err := t.mkdir(h, dir); err {
		case nil:
			*made = append(*made, madeDir{h, dir})
			if dir == rootName && h.roles&roleMemory != 0 && !h.v2 {
				// Before 5.11 a v1 group counts its children's memory only if that is switched on while it is empty.
				_ = writeFile(h.at, dir+"/memory.use_hierarchy", "1")
			}
		case unix.EEXIST: //nolint:errorlint // raw errno
		default:
			return dir, err
		}
		if err := enable(dir); err != nil {
			return file, err
		}
		element, more, inner := strings.Cut(rest, "/")
		if !inner {
			return "", nil // element is the leaf
		}
		dir, rest = dir+"/"+element, more
	}
}

// hasControllers reports whether a new v2 group has all the controllers it should have.
func hasControllers(h *hierarchy, dir string) bool {
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	b, err := readCounter(h.at, dir+"/cgroup.controllers", buf)
	return err == nil && wordRoles(strings.ReplaceAll(h.enable, "+", ""))&^wordRoles(string(b)) == 0
}

// JoinFiles opens, close-on-exec and for writing, one file per hierarchy; a process of one thread that writes "0" into
// each, in their order, moves itself into the group. The kernel checks the credentials of the process that opened the file,
// not of the writer, so the sandbox's init can hand them to a child that has none. The caller closes them.
//
// On v1 the file is tasks, which moves the writing thread, and not cgroup.procs, which moves its whole process. For a
// process of one thread the effect is the same, but the kernel need not prevent new threads meanwhile: it
// then skips cgroup_threadgroup_rwsem (cgroup_procs_write_start), whose write side waits for an RCU grace period:
// up to 11 ms on an idle machine. A process of several threads would leave the others behind.
func (g *Group) JoinFiles() ([]*os.File, error) {
	if g.err != nil {
		return nil, g.err
	}
	files := make([]*os.File, 0, len(g.tree.hierarchies))
	tasks, procs := g.rel+"/tasks", g.rel+"/cgroup.procs"
	for i, h := range g.tree.hierarchies {
		path := tasks
		if h.v2 {
			path = procs
		}
		fd, err := openRetry(h.at, path, unix.O_WRONLY)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, g.fail("join", i, path, err)
		}
		files = append(files, os.NewFile(uintptr(fd), path))
	}
	return files, nil
}

// CgroupFD opens the group's v2 directory for CLONE_INTO_CGROUP (syscall.SysProcAttr.CgroupFD). It is ErrUnsupported where
// runs stay out of the v2 tree. On a hybrid machine where they do not, it places a child in that tree only; the v1
// controllers still need JoinFiles. The caller closes it.
func (g *Group) CgroupFD() (*os.File, error) {
	if g.err != nil {
		return nil, g.err
	}
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		if !h.v2 {
			continue
		}
		fd, err := openRetry(h.at, g.rel, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return nil, g.fail("open", i, g.rel, err)
		}
		return os.NewFile(uintptr(fd), g.rel), nil
	}
	return nil, &Error{Op: "open", Group: g.path, Err: fmt.Errorf("%w: runs do not join a v2 tree here", ErrUnsupported)}
}

// RunInside moves the calling thread into the group while f runs: processes that f clones start in the group, and a cgroup
// namespace that f makes has the group as its root. The caller has locked the thread. On v2 threads do not move alone, and
// the error is ErrUnsupported: see OpenForClone.
func (g *Group) RunInside(f func() error) (err error) {
	if g.err != nil {
		return g.err
	}
	move := func(dir string) error {
		for i := range g.tree.hierarchies {
			h := &g.tree.hierarchies[i]
			if h.v2 {
				return &Error{Op: "enter", Group: g.path, Err: fmt.Errorf("%w: a thread can not enter a v2 group by itself", ErrUnsupported)}
			}
			if err := writeFile(h.at, dir+"tasks", "0"); err != nil {
				return g.fail("visit", i, dir+"tasks", err)
			}
		}
		return nil
	}
	// The thread returns to the place of the hierarchy: on v1 that is the group of this process.
	defer func() { err = errors.Join(err, move("")) }()
	if err := move(g.rel + "/"); err != nil {
		return err
	}
	return f()
}

// Procs lists the processes in the group and in groups below it, in any hierarchy. A group that is gone has none. A
// process of a pid namespace that is invisible here is listed as 0.
func (g *Group) Procs() ([]int, error) {
	if g.err != nil {
		return nil, g.err
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	var pids []int
	for i := range g.tree.hierarchies {
		at := g.tree.hierarchies[i].at
		dirs, err := listSubtree(at, g.rel)
		if err != nil {
			return nil, g.fail("list processes", i, g.rel, err)
		}
		for _, dir := range dirs {
			if pids, err = readPids(at, dir, buf, pids); err != nil {
				return nil, g.fail("list processes", i, dir+"/cgroup.procs", err)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Empty reports whether no process is in the group or in groups below it, with one read where possible: every run ends with
// it. A process that has ended but was not waited for may still count (as it does for Stat.Pids). A group that
// is gone is empty.
func (g *Group) Empty() (bool, error) {
	if g.err != nil {
		return false, g.err
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		switch {
		case h.roles&rolePids != 0: // joined first: a process in any hierarchy is in this one
			if b, err := readCounter(h.at, g.rel+"/pids.current", buf); err == nil {
				if n, ok := parseUint(b); ok {
					return n == 0, nil
				}
			}
		case len(g.tree.hierarchies) == 1 && h.v2:
			if b, err := readCounter(h.at, g.rel+"/cgroup.events", buf); err == nil {
				populated := uint64(1)
				flatKeyed(b, func(name []byte, v uint64) {
					if string(name) == "populated" {
						populated = v
					}
				})
				return populated == 0, nil
			}
		}
	}
	pids, err := g.Procs()
	return len(pids) == 0 && err == nil, err
}

// Exists reports whether the group exists in any hierarchy.
func (g *Group) Exists() bool {
	return g.err == nil && slices.ContainsFunc(g.tree.hierarchies, func(h hierarchy) bool { return existsAt(h.at, g.rel) })
}

// readPids appends the numbers in a group's cgroup.procs; a group that is gone has none.
func readPids(at int, dir string, buf *[]byte, pids []int) ([]int, error) {
	b, err := readList(at, dir+"/cgroup.procs", buf)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || err == unix.ENODEV { //nolint:errorlint // raw errno; removed while open
			return pids, nil
		}
		return pids, err
	}
	for line := range bytes.Lines(b) {
		if n, ok := parseUint(line); ok && n <= 1<<31-1 {
			pids = append(pids, int(n))
		}
	}
	return pids, nil
}

// Enter moves a process of one thread, or of several, into the group. The caller holds a pidfd of it and checks afterwards that it has not ended:
// its number may then be another process's.
func (g *Group) Enter(pid, threads int) error {
	if g.err != nil {
		return g.err
	}
	if pid <= 0 { // 0 would move this process
		return &Error{Op: "join", Group: g.path, Err: fmt.Errorf("pid %d: %w", pid, unix.EINVAL)}
	}
	for i := range g.tree.hierarchies {
		h := &g.tree.hierarchies[i]
		file := g.rel + "/cgroup.procs"
		if !h.v2 && threads == 1 {
			file = g.rel + "/tasks" // at once: see JoinFiles
		}
		if err := writeFile(h.at, file, strconv.Itoa(pid)); err != nil {
			return g.fail("join", i, file, err)
		}
	}
	return nil
}
