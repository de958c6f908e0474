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

// PhaseGroup is the cgroup of one phase: of one init and the programs it starts. On a machine whose limits are all in the v2 tree that is
//
//	<path>        an inner group; its cgroup.procs belongs to the init's user
//	<path>/init   the init, without limits
//	<path>/run    the programs, limited; its cgroup.procs belongs to the init's user
//
// so that the init can have a program born in the group that limits it (CLONE_INTO_CGROUP), where joining would wait for
// an RCU grace period. The kernel asks for that whether the init may write to the cgroup.procs of the new place and of the
// nearest group that holds both it and the init: hence the inner group of its own, and the owner of those two files. That
// user can do nothing more than move its own processes between these two leaves, with files that no sandbox shows.
//
// On any other machine, programs join <path> itself and the init stays where the supervisor is.
//
// Like a Group, it is a handle. The caller of OpenInitLeaf calls Remove; the one that makes Programs removes them.
type PhaseGroup struct {
	tree     *Tree
	path     string
	owner    int
	programs *Group
}

// PhaseGroup is a handle to the phase cgroup at path, for an init that is owner (a host user id); nothing is made yet.
func (t *Tree) PhaseGroup(path string, owner int) *PhaseGroup {
	n := &PhaseGroup{tree: t, path: path, owner: owner}
	if t.supportsCloneInto() {
		path += "/" + programLeaf
	}
	n.programs = t.Group(path)
	return n
}

// supportsCloneInto says whether programs can be born in groups of this tree: all of a group, and all its limits, are in v2.
func (t *Tree) supportsCloneInto() bool {
	return len(t.hierarchies) == 1 && t.hierarchies[0].v2 && t.hierarchies[0].roles&(roleMemory|rolePids|roleCPU) != 0 && !t.gcOnly
}

// Programs is the group that the programs live in. The caller makes it, with its limits, and may remove it before the rest.
func (n *PhaseGroup) Programs() *Group { return n.programs }

// OpenInitLeaf makes the init's own group and opens its directory, for the init to be born in; nil where it stays with the
// supervisor. The caller closes it. It may be called again, for another init in place of one that died.
func (n *PhaseGroup) OpenInitLeaf() (*os.File, error) {
	if !n.tree.supportsCloneInto() {
		return nil, nil
	}
	g := n.tree.Group(n.path + "/" + initLeaf)
	if err := g.Make(Limits{}); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	_ = n.give(rootName + "/" + n.path) // refused: so will a birth be, and programs join
	return g.CgroupFD()
}

// MakeInitLeaf makes the init's own group and is its directory, for a container runtime to put the init in; empty where that has to
// be elsewhere, because not all limits are in the v2 tree.
func (n *PhaseGroup) MakeInitLeaf() (string, error) {
	dir, err := n.OpenInitLeaf()
	if err != nil || dir == nil {
		return "", err
	}
	_ = dir.Close()
	return n.tree.Group(n.path + "/" + initLeaf).Dirs()[0], nil
}

// OpenProgramLeaf opens the directory of Programs, which was made, for the init to have programs born in; nil where they have
// to join. The caller closes it.
func (n *PhaseGroup) OpenProgramLeaf() *os.File {
	if !n.tree.supportsCloneInto() || n.give(n.programs.rel) != nil {
		return nil
	}
	return n.programs.OpenForClone()
}

// OpenForClone opens the group's directory for CLONE_INTO_CGROUP, which then is all of a join; nil where it is not, and
// JoinFiles has to do. The caller closes it.
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

// give makes the init's user the owner of a group's cgroup.procs, and of nothing else.
func (n *PhaseGroup) give(dir string) error {
	h := &n.tree.hierarchies[0]
	return unix.Fchownat(h.at, dir+"/cgroup.procs", n.owner, -1, unix.AT_SYMLINK_NOFOLLOW)
}

// Remove removes what there is beside Programs, which were removed or never made: Group.Remove for the whole phase cgroup, where
// it is one.
func (n *PhaseGroup) Remove(ctx context.Context) error {
	if !n.tree.supportsCloneInto() {
		return nil
	}
	if n.programs.err != nil {
		return n.programs.err
	}
	// Nearly always everybody is gone, and so nothing needs to be listed.
	_ = n.tree.rmdir(&n.tree.hierarchies[0], rootName+"/"+n.path+"/"+initLeaf)
	return n.tree.Group(n.path).Remove(ctx)
}
