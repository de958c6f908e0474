//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// rootName is the directory of all groups; nothing outside a directory of this name is made or removed.
const rootName = "sandbox-run"

// ErrUnsupported is returned, wrapped, when this machine's cgroups can not do what the caller asks for.
var ErrUnsupported = errors.New("not supported by this machine's cgroups")

// Controller is an ability of a Tree.
type Controller uint8

// The arguments of Has.
const (
	Memory Controller = iota // limit memory, count OOM kills
	CPU                      // limit CPU time per period
	Pids                     // limit the number of tasks
	Swap                     // a memory limit includes swap
	Kill                     // cgroup.kill: the kernel kills all of any group at once
	IO                       // count bytes read and written
)

// Gap is one ability that this machine's cgroups lack.
type Gap struct {
	Control string // memory, pids, cpu, swap, kill, peak
	Reason  string // for doctor
	Remedy  string // the next step for an operator; "" where none is known
}

// Tree is the machine's cgroup layout and the directories in it that this process uses. Open and At make it. It holds one
// descriptor per hierarchy until Close; a supervisor keeps it until it exits.
type Tree struct {
	hierarchies []hierarchy
	version     string
	missing     []Gap
	canKill     bool
	gcOnly      bool   // made by At: groups can be found and removed, not made
	mayMove     bool   // Options.MoveToLeaf
	leafPlace   string // the place that holds no process only because this process is in its leaf; "" for none

	// noSwapLimit is set when a kernel turns out to have no swap limit file (v2 shows it only below the root).
	noSwapLimit atomic.Bool

	// The two calls that a directory of regular files can not imitate; tests replace them.
	mkdir func(h *hierarchy, path string) error
	rmdir func(h *hierarchy, path string) error
}

// Options of Open. They allow Open to move this process to another group. Only a command may set them, not a library.
// They have an effect on pure v2 only. Processes that this one has started already are not moved along.
type Options struct {
	// MoveToLeaf allows this process to leave its own group for a leaf below it, where it may write to that group and the
	// group holds no other process. Groups are then made beside the leaf. The last Close moves the process back.
	MoveToLeaf bool
	// Ask is called where no controller is available otherwise. It has to move this process into a group that is delegated
	// to it and that holds no other process, as internal/linux/delegate does. Its error becomes part of Missing. Ask needs
	// MoveToLeaf.
	Ask func() error
	// Record, if not nil, is called with the directory `sandbox-run` that the move is about to make. A process that is killed
	// before it has recorded Roots leaves that directory, and then no process could enter the group any more. The returned
	// function is called when the process has moved back. If Record fails, the process does not move.
	Record func(root string) (forget func(), err error)
}

// Open finds the machine's cgroup layout and the directories below which this process may make groups. Without Options
// it makes nothing. Call it once per process and keep the result: it reads the machine's whole mount table.
//
// A machine without usable cgroups is not an error: Has and Missing report it, and Make fails with ErrUnsupported.
func Open(options ...Options) (*Tree, error) {
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	t, err := open(o)
	if err != nil || o.Ask == nil || !o.MoveToLeaf || t.version != "v2" || t.serving(limits) != nil {
		return t, err
	}
	if err := o.Ask(); err != nil {
		addCause(t.missing, err)
		return t, nil
	}
	t.Close()
	return open(o)
}

func open(o Options) (*Tree, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroup: open: %w", err)
	}
	detectLayout := func(moving bool) (layout, error) {
		self, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return layout{}, fmt.Errorf("cgroup: open: %w", err)
		}
		return detect(string(mountinfo), string(self), moving, realFiles{}), nil
	}
	l, err := detectLayout(o.MoveToLeaf)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(l.hierarchies, func(h hierarchy) bool { return h.moveFirst }); i >= 0 {
		problem := moveToRecordedLeaf(l.hierarchies[i].place, l.hierarchies[i].enable, o.Record)
		// Detect again: this process is in the leaf now, or has to use what is above its group.
		if l, err = detectLayout(false); err != nil {
			return nil, err
		}
		if problem != nil {
			addCause(l.missing, problem)
		}
	}
	t, err := newTree(l, realFiles{})
	if err == nil {
		t.mayMove = o.MoveToLeaf
		t.retainLeaf()
	}
	return t, err
}

// addCause adds the error of Options.Ask to the gaps that it did not close.
func addCause(missing []Gap, err error) {
	for i := range missing {
		switch g := &missing[i]; g.Control {
		case "memory", "pids", "cpu":
			g.Reason += "; " + err.Error()
		}
	}
}

func newTree(l layout, host hostFiles) (*Tree, error) {
	t := &Tree{
		hierarchies: l.hierarchies, version: l.version, missing: l.missing,
		mkdir: mkdirRetry, rmdir: rmdirRetry,
	}
	// A join is one write per hierarchy, in this order. pids comes first, so a process that is stopped in between is in
	// the group that Empty reads; cpuacct comes before cpu, for Final.
	slices.SortStableFunc(t.hierarchies, func(a, b hierarchy) int { return a.rank() - b.rank() })
	for i := range t.hierarchies {
		h := &t.hierarchies[i]
		fd, err := openRetry(unix.AT_FDCWD, h.place, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			t.Close()
			return nil, &Error{Op: "open", Hierarchy: h.label, File: h.place, Err: err}
		}
		h.at = fd
	}
	if h := t.v2(); h != nil {
		t.canKill = v2File(h, "cgroup.events", "cgroup.kill", 5, 14, host)
		if !t.canKill {
			t.missing = append(t.missing, Gap{Control: "kill",
				Reason: "the kernel is older than 5.14 and has no cgroup.kill: processes are killed one by one"})
		}
		if h.roles&roleMemory != 0 && !v2File(h, "memory.max", "memory.peak", 5, 19, host) {
			t.missing = append(t.missing, Gap{Control: "peak",
				Reason: "the kernel is older than 5.19 and keeps no peak of memory: the peak is the highest of the samples"})
		}
		if h.roles&roleMemory != 0 && host.exists(h.own+"/memory.max") && !host.exists(h.own+"/memory.swap.max") {
			t.noSwapLimit.Store(true)
		}
	}
	if h := t.serving(roleMemory); h != nil && !h.v2 && !h.memsw {
		t.noSwapLimit.Store(true)
	}
	if t.noSwapLimit.Load() {
		t.missing = append(t.missing, Gap{Control: "swap",
			Reason: "the kernel does not account for swap (boot with swapaccount=1): a memory limit leaves swap open"})
	}
	return t, nil
}

// Close closes the descriptors; every later call fails with EBADF. It may be called twice, but not while the tree or
// one of its groups is in use. If Open has moved this process into a leaf that no other process uses, Close moves it back.
func (t *Tree) Close() {
	t.releaseLeaf()
	for i := range t.hierarchies {
		if h := &t.hierarchies[i]; h.at >= 0 {
			_ = unix.Close(h.at)
			h.at = -1
		}
	}
}

// v2File reports whether groups will have the v2 file name, which every group has that has the older file beside. The
// machine's root group has neither, so when only the root can be inspected, the kernel's version decides.
func v2File(h *hierarchy, beside, name string, major, minor int, host hostFiles) bool {
	for _, dir := range []string{h.place + "/" + rootName, h.own} {
		if host.exists(dir + "/" + beside) {
			return host.exists(dir + "/" + name)
		}
	}
	return KernelIsAtLeast(major, minor)
}

// KernelIsAtLeast compares the version of the running kernel; an unreadable one is too old.
func KernelIsAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var maj, mnr int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &maj, &mnr); err != nil {
		return false
	}
	return maj > major || (maj == major && mnr >= minor)
}

// At reopens the roots that another process recorded from Roots, so that gc can find and remove leftover groups. It leaves
// out roots that are gone. refused names roots that are no directory called `sandbox-run` on a cgroup file system: the
// record is a file, and a file can be wrong.
func At(roots []string) (t *Tree, refused []string) {
	t = &Tree{version: "recorded", gcOnly: true, mkdir: mkdirRetry, rmdir: rmdirRetry}
	for _, root := range roots {
		if !filepath.IsAbs(root) || filepath.Clean(root) != root || filepath.Base(root) != rootName {
			refused = append(refused, root)
			continue
		}
		place := filepath.Dir(root)
		var st unix.Statfs_t
		fd, err := openRetry(unix.AT_FDCWD, place, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err == unix.ENOENT { //nolint:errorlint // raw errno
			continue
		}
		if err == nil {
			err = unix.Fstatfs(fd, &st)
		}
		if err != nil || (st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC) {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			refused = append(refused, root)
			continue
		}
		h := hierarchy{label: place, place: place, at: fd}
		if st.Type == unix.CGROUP2_SUPER_MAGIC {
			h.v2, h.roles = true, roleCore
			t.canKill = existsAt(fd, rootName+"/cgroup.kill")
		}
		t.hierarchies = append(t.hierarchies, h)
	}
	return t, refused
}

// Version is "v1", "v2", "hybrid" (v1 controllers and a v2 tree), or "none".
func (t *Tree) Version() string { return t.version }

// Has reports whether groups of this tree have the ability c.
func (t *Tree) Has(c Controller) bool {
	switch c {
	case Memory:
		return t.serving(roleMemory) != nil
	case CPU:
		return t.serving(roleCPU) != nil
	case Pids:
		return t.serving(rolePids) != nil
	case Swap:
		return t.serving(roleMemory) != nil && !t.noSwapLimit.Load()
	case Kill:
		return t.v2() != nil && t.canKill
	case IO:
		return t.serving(roleIO) != nil
	}
	return false
}

// Missing lists the abilities that this machine's cgroups lack. The list comes from inspection.
func (t *Tree) Missing() []Gap { return slices.Clone(t.missing) }

// Roots are the absolute directories, each named `sandbox-run`, that all groups of this tree are made below. A
// supervisor records them for At.
func (t *Tree) Roots() []string {
	roots := make([]string, len(t.hierarchies))
	for i := range t.hierarchies {
		roots[i] = t.hierarchies[i].place + "/" + rootName
	}
	return roots
}

// Group is a handle to the group at path below `sandbox-run`, such as "sup-1a2b/7/run"; nothing is made or checked on
// disk. Path elements are letters, digits, '-' and '_': a dot could name one of the kernel's own files. The first may not
// be "supervisor", which is the leaf of Options.MoveToLeaf. Every method of a Group with a bad path returns an error.
func (t *Tree) Group(path string) *Group {
	g := &Group{tree: t, path: path}
	if err := checkPath(path); err != nil {
		g.err = &Error{Op: "group", Group: path, Err: err}
		return g
	}
	g.rel = rootName + "/" + path
	return g
}

// Prune removes the empty `sandbox-run` directories. Call it when a supervisor ends:
// while they exist, the cgroup that holds the supervisor can not be removed. Another supervisor's groups stay.
func (t *Tree) Prune() error {
	var errs []error
	for i := range t.hierarchies {
		h := &t.hierarchies[i]
		if t.pruneLeaf(h) {
			continue
		}
		switch err := t.rmdir(h, rootName); {
		case err == nil, errors.Is(err, fs.ErrNotExist), err == unix.EBUSY, err == unix.ENOTEMPTY: //nolint:errorlint // raw errnos
		default:
			errs = append(errs, &Error{Op: "prune", Hierarchy: h.label, File: h.place + "/" + rootName, Err: err})
		}
	}
	return errors.Join(errs...)
}

// serving is the hierarchy that fills a role, or nil. Detection gives each role to at most one hierarchy.
func (t *Tree) serving(r role) *hierarchy {
	for i := range t.hierarchies {
		if t.hierarchies[i].roles&r != 0 {
			return &t.hierarchies[i]
		}
	}
	return nil
}

func (t *Tree) v2() *hierarchy { return t.serving(roleCore) }

func (h *hierarchy) rank() int {
	switch {
	case h.roles&rolePids != 0:
		return 0
	case h.roles&roleCPUAcct != 0:
		return 1
	}
	return 2
}

// maxElements bounds the depth of a path; the kernel's own default has no bound.
const maxElements = 8

func checkPath(path string) error {
	if path == leafName || strings.HasPrefix(path, leafName+"/") || path == "" || strings.Count(path, "/") >= maxElements || len(path) > 255 {
		return fmt.Errorf("bad group path %q: %w", path, unix.EINVAL)
	}
	for element := range strings.SplitSeq(path, "/") {
		if element == "" || strings.ContainsFunc(element, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
		}) {
			return fmt.Errorf("bad group path %q: element %q: %w", path, element, unix.EINVAL)
		}
	}
	return nil
}

// Error is a failure of this package: which operation on which group, in which hierarchy, at which file, and the errno.
type Error struct {
	Op, Group, Hierarchy, File string
	Err                        error
}

func (e *Error) Error() string {
	s := "cgroup: " + e.Op
	for _, part := range []string{e.Group, e.Hierarchy, e.File} {
		if part != "" {
			s += ": " + part
		}
	}
	return s + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }
