//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// rootName is the directory all our groups live in; nothing outside a directory of this name is made or removed.
const rootName = "sandbox-run"

// ErrUnsupported is returned, wrapped, when this machine's cgroups can not do what was asked.
var ErrUnsupported = errors.New("not supported by this machine's cgroups")

// Controller is something a Tree may be able to do.
type Controller uint8

// What Has can be asked.
const (
	Memory Controller = iota // limit memory, count OOM kills
	CPU                      // limit CPU time per period
	Pids                     // limit the number of tasks
	Swap                     // a memory limit includes swap
	Kill                     // cgroup.kill: the kernel kills all of any group at once
	IO                       // count bytes read and written
)

// Gap is one thing this machine's cgroups lack.
type Gap struct {
	Control string // memory, pids, cpu, swap, kill, peak
	Reason  string // in words, for doctor
	Remedy  string // what to do about it on this machine; "" where nothing can be said
}

// Tree is the machine's cgroup layout and our place in it. It is made by Open or At and holds one descriptor per
// hierarchy. A supervisor keeps it for life; others call Close.
type Tree struct {
	hierarchies []hierarchy
	version     string
	missing     []Gap
	canKill     bool
	gcOnly      bool   // made by At: groups can be found and removed, not made
	maySettle   bool   // Options.Settle
	settledIn   string // the place that is free of processes only because we are in its leaf; "" for none

	// noSwapLimit is set when a kernel turns out to have no swap limit file (v2 shows it only below the root).
	noSwapLimit atomic.Bool
	probes      atomic.Uint64

	// The two calls a directory of regular files can not imitate; tests replace them.
	mkdir func(h *hierarchy, path string) error
	rmdir func(h *hierarchy, path string) error
}

// Options of Open. Both allow it to move this process to another group, which only a program that owns itself (a command,
// not a library) can decide; and both are for pure v2. Processes that this one has started already are not moved along.
type Options struct {
	// Settle allows this process to leave its own group for a leaf below it, where that group is its to write and holds
	// no other process. Groups are then made beside the leaf. Close moves it back when it was the last.
	Settle bool
	// Ask is called where no controller can be had otherwise. It is to move this process into a group that is delegated
	// to it and that it is alone in; internal/linux/delegate has one. Its error becomes part of Missing. Needs Settle.
	Ask func() error
	// Record, if there is one, is called with the directory `sandbox-run` that settling is about to make: a process that is
	// killed before it has said otherwise where its groups are leaves it, and nobody could enter the place any more. What it
	// returns is called when the process has moved back. Without a record it does not settle.
	Record func(root string) (forget func(), err error)
}

// Open finds the machine's cgroup layout and the place in it below which this process may make groups. Without Options
// it makes nothing. Call it once per process and keep the result: it reads the machine's whole mount table.
//
// A machine without usable cgroups is not an error: the Tree says so through Has and Missing, and Make refuses.
func Open(options ...Options) (*Tree, error) {
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	t, err := open(o)
	if err != nil || o.Ask == nil || !o.Settle || t.version != "v2" || t.serving(limits) != nil {
		return t, err
	}
	if err := o.Ask(); err != nil {
		explain(t.missing, err)
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
	look := func(settling bool) (layout, error) {
		self, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return layout{}, fmt.Errorf("cgroup: open: %w", err)
		}
		return detectFor(string(mountinfo), string(self), settling, realLooker{}), nil
	}
	l, err := look(o.Settle)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(l.hierarchies, func(h hierarchy) bool { return h.settle }); i >= 0 {
		problem := settleOnRecord(l.hierarchies[i].place, l.hierarchies[i].enable, o.Record)
		// Look again: we are in the leaf now, or we are not and have to make do with what is above us.
		if l, err = look(false); err != nil {
			return nil, err
		}
		if problem != nil {
			explain(l.missing, problem)
		}
	}
	t, err := newTree(l, realLooker{})
	if err == nil {
		t.maySettle = o.Settle
		t.stay()
	}
	return t, err
}

// explain adds what came of an attempt to get the controllers that are missing.
func explain(missing []Gap, err error) {
	for i := range missing {
		switch g := &missing[i]; g.Control {
		case "memory", "pids", "cpu":
			g.Reason += "; " + err.Error()
		}
	}
}

func newTree(l layout, look looker) (*Tree, error) {
	t := &Tree{
		hierarchies: l.hierarchies, version: l.version, missing: l.missing,
		mkdir: mkdirRetry, rmdir: rmdirRetry,
	}
	// A join is one write per hierarchy, in this order. pids comes first, so a process that was stopped in between is in
	// the group that Empty asks; cpuacct comes before cpu, for Final.
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
		t.canKill = v2File(h, "cgroup.events", "cgroup.kill", 5, 14, look)
		if !t.canKill {
			t.missing = append(t.missing, Gap{Control: "kill", Reason: "the kernel is older than 5.14 and has no cgroup.kill: processes are killed one by one"})
		}
		if h.roles&roleMemory != 0 && !v2File(h, "memory.max", "memory.peak", 5, 19, look) {
			t.missing = append(t.missing, Gap{Control: "peak", Reason: "the kernel is older than 5.19 and keeps no peak of memory: it is the highest that was seen at times"})
		}
		if h.roles&roleMemory != 0 && look.exists(h.own+"/memory.max") && !look.exists(h.own+"/memory.swap.max") {
			t.noSwapLimit.Store(true)
		}
	}
	if h := t.serving(roleMemory); h != nil && !h.v2 && !h.memsw {
		t.noSwapLimit.Store(true)
	}
	if t.noSwapLimit.Load() {
		t.missing = append(t.missing, Gap{Control: "swap", Reason: "the kernel does not account for swap (boot with swapaccount=1): a memory limit leaves swap open"})
	}
	return t, nil
}

// Close gives the descriptors back; every later call fails with EBADF. It may be called twice, but not while the tree or
// one of its groups is in use. If Open has moved this process into a leaf and nothing else is there, it is moved back.
func (t *Tree) Close() {
	t.leave()
	for i := range t.hierarchies {
		if h := &t.hierarchies[i]; h.at >= 0 {
			_ = unix.Close(h.at)
			h.at = -1
		}
	}
}

// v2File says whether groups will have a v2 file, which is in every group that has the older one beside it. The machine's
// root group has neither, so when that is all there is to look at, the kernel's version has to answer.
func v2File(h *hierarchy, beside, name string, major, minor int, look looker) bool {
	for _, dir := range []string{h.place + "/" + rootName, h.own} {
		if look.exists(dir + "/" + beside) {
			return look.exists(dir + "/" + name)
		}
	}
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

// At reopens the roots that another process recorded from Roots, so that gc can find and remove what it left. Roots
// that are gone are left out, and so is whatever is not a directory called `sandbox-run` on a cgroup file system: the
// record is a file, and a file can be wrong. refused names those.
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

// Has says whether groups of this tree can do c.
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

// Missing lists what this machine's cgroups lack, in words. Empty means nothing is lacking as far as looking can tell;
// Probe tries it.
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
// be "supervisor", which is the leaf of those who settled. A bad path is reported by every method of the Group.
func (t *Tree) Group(path string) *Group {
	g := &Group{tree: t, path: path}
	if err := checkPath(path); err != nil {
		g.err = &Error{Op: "group", Group: path, Err: err}
		return g
	}
	g.rel = rootName + "/" + path
	return g
}

// List names the groups directly below `sandbox-run`, the union over all hierarchies: a process that died while making
// or removing a group left it in some of them only.
func (t *Tree) List() ([]string, error) {
	names, err := t.union(rootName)
	return slices.DeleteFunc(names, func(name string) bool { return name == leafName }), err
}

// Prune removes the `sandbox-run` directories themselves where nothing is in them. Call it when a supervisor ends:
// while they stand, the cgroup that holds the supervisor can not be removed. Another supervisor's groups are left alone.
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

// Probe makes a group with every limit this tree claims to have, reads it and removes it: permission that was only
// looked at may still be refused. doctor calls it; a run does not need to.
func (t *Tree) Probe(ctx context.Context) error {
	g := t.Group("probe-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(t.probes.Add(1), 10))
	var l Limits
	if t.Has(Memory) {
		l.Memory = 64 << 20
	}
	if t.Has(CPU) {
		l.CPU = 0.5
	}
	if t.Has(Pids) {
		l.Pids = 16
	}
	if err := g.Make(l); err != nil {
		return err
	}
	_, err := g.Stat()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return errors.Join(err, g.Remove(ctx), t.Prune())
}

// serving is the hierarchy that fills a role, v1 first: detection never gives one role to two.
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
		if !validName(element) {
			return fmt.Errorf("bad group path %q: element %q: %w", path, element, unix.EINVAL)
		}
	}
	return nil
}

func validName(name string) bool {
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return name != ""
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
