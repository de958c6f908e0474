//go:build linux

package cgroup

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// The leaves of a phase cgroup.
const (
	initLeaf    = "init"
	programLeaf = "run"
)

// PhaseGroup is the cgroup of one phase: of one init and the programs that it starts. On a machine whose limits are all in
// the v2 tree its layout is
//
//	<path>        an inner group; its cgroup.procs belongs to the init's user
//	<path>/init   the init, without limits
//	<path>/run    the programs, limited; its cgroup.procs belongs to the init's user
//
// so that the init can clone a program into the group that limits it (CLONE_INTO_CGROUP); joining would wait for
// an RCU grace period. For that clone the kernel requires that the init may write to the cgroup.procs of the target and of
// the nearest group above both the target and the init: hence the inner group, and the owner of those two files. With them
// that user can only move its own processes between these two leaves, and no sandbox shows these files.
//
// On any other machine, programs join <path> itself and the init stays in the supervisor's group.
//
// Like a Group, it is a handle. The caller of OpenInitLeaf calls Remove; the caller of Programs().Make removes that group.
type PhaseGroup struct {
	tree     *Tree
	path     string
	owner    int
	programs *Group
}

// PhaseGroup returns a handle to the phase cgroup at path, for an init whose host user id is owner. It makes nothing.
func (t *Tree) PhaseGroup(path string, owner int) *PhaseGroup {
	n := &PhaseGroup{tree: t, path: path, owner: owner}
	if t.supportsCloneInto() {
		path += "/" + programLeaf
	}
	n.programs = t.Group(path)
	return n
}

// supportsCloneInto reports whether CLONE_INTO_CGROUP replaces a join: all of a group, and all its limits, are in v2.
func (t *Tree) supportsCloneInto() bool {
	return len(t.hierarchies) == 1 && t.hierarchies[0].v2 && t.hierarchies[0].roles&(roleMemory|rolePids|roleCPU) != 0 && !t.gcOnly
}

// Programs is the group of the programs. The caller makes it, with its limits, and may remove it before the rest.
func (n *PhaseGroup) Programs() *Group { return n.programs }

// OpenInitLeaf makes the init leaf and opens its directory, so that the supervisor can clone the init into it. The result is
// nil where the init stays in the supervisor's group. The caller closes it. A second call is allowed, for an init that
// replaces a dead one.
func (n *PhaseGroup) OpenInitLeaf() (*os.File, error) {
	if !n.tree.supportsCloneInto() {
		return nil, nil
	}
	g := n.tree.Group(n.path + "/" + initLeaf)
	if err := g.Make(Limits{}); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	_ = n.chownProcs(rootName + "/" + n.path) // if refused, the clone is refused as well, and programs join
	return g.CgroupFD()
}

// MakeInitLeaf makes the init leaf and returns its directory, for an OCI runtime that starts the init. It returns "" where
// not all limits are in the v2 tree: the runtime then puts the init elsewhere.
func (n *PhaseGroup) MakeInitLeaf() (string, error) {
	dir, err := n.OpenInitLeaf()
	if err != nil || dir == nil {
		return "", err
	}
	_ = dir.Close()
	return n.tree.Group(n.path + "/" + initLeaf).Dirs()[0], nil
}

// OpenProgramLeaf opens the directory of Programs, which the caller has made, so that the init can clone programs into it.
// The result is nil where programs have to join. The caller closes it.
func (n *PhaseGroup) OpenProgramLeaf() *os.File {
	if !n.tree.supportsCloneInto() || n.chownProcs(n.programs.rel) != nil {
		return nil
	}
	return n.programs.OpenForClone()
}

// OpenForClone opens the group's directory for CLONE_INTO_CGROUP where such a clone replaces the whole join. The result is
// nil where it does not, and the caller uses JoinFiles. The caller closes it.
func (g *Group) OpenForClone() *os.File {
	if g.err != nil || !g.tree.supportsCloneInto() {
		return nil
	}
	dir, err := g.CgroupFD()
	if err != nil {
		return nil
	}
	return dir
}

// chownProcs makes the init's user the owner of a group's cgroup.procs, and of nothing else.
func (n *PhaseGroup) chownProcs(dir string) error {
	h := &n.tree.hierarchies[0]
	return unix.Fchownat(h.at, dir+"/cgroup.procs", n.owner, -1, unix.AT_SYMLINK_NOFOLLOW)
}

// Remove removes the phase cgroup. Programs must have been removed or never made. It kills, waits and fails as Group.Remove.
func (n *PhaseGroup) Remove(ctx context.Context) error {
	if !n.tree.supportsCloneInto() {
		return nil
	}
	if n.programs.err != nil {
		return n.programs.err
	}
	// The init has nearly always ended, so one rmdir suffices and nothing needs to be listed.
	_ = n.tree.rmdir(&n.tree.hierarchies[0], rootName+"/"+n.path+"/"+initLeaf)
	return n.tree.Group(n.path).Remove(ctx)
}
