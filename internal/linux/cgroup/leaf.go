//go:build linux

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// leafName is the group below `sandbox-run` that a supervisor moves into when its own group is to have children with
// controllers. All processes that move from one place share the leaf, child processes included.
//
// The existence of the leaf records that the place held a process before, and so had no controllers switched on. The
// process that removes the leaf switches them off again; otherwise no process could enter the place any more.
// The last Close in the leaf removes it. The leaf of a killed supervisor is removed by the next Prune of the roots it
// recorded (Options.Record). systemd removes a scope, and all groups below it, when its last process has ended.
const leafName = "supervisor"

// moveToRecordedLeaf records the place and calls moveToLeaf: this process may be killed at any moment.
func moveToRecordedLeaf(place, enable string, record func(string) (func(), error)) error {
	forget := func() {}
	if record != nil {
		var err error
		if forget, err = record(place + "/" + rootName); err != nil {
			return &Error{Op: "move to leaf", File: place, Err: err}
		}
	}
	if err := moveToLeaf(place, enable); err != nil {
		forget()
		return err
	}
	leaves.Lock()
	defer leaves.Unlock()
	if leaves.forget == nil {
		leaves.forget = map[string][]func(){}
	}
	leaves.forget[place] = append(leaves.forget[place], forget)
	return nil
}

// moveToLeaf moves this process from place, where it is the only process, into the leaf, and switches the controllers on.
func moveToLeaf(place, enable string) error {
	root, leaf := place+"/"+rootName, place+"/"+rootName+"/"+leafName
	var err error
	for range 32 { // Prune of another supervisor may remove what was made while it is empty
		for _, dir := range []string{root, leaf} {
			if err = unix.Mkdir(dir, 0o755); err != nil && err != unix.EEXIST { //nolint:errorlint // raw errno
				break
			}
			err = nil
		}
		if err == nil {
			err = writeFile(unix.AT_FDCWD, leaf+"/cgroup.procs", "0")
		}
		if err != unix.ENOENT && err != unix.ENODEV { //nolint:errorlint // raw errnos
			break
		}
	}
	if err != nil {
		_ = unix.Rmdir(leaf)
		_ = unix.Rmdir(root)
		return &Error{Op: "move to leaf", File: leaf, Err: err}
	}
	if err := writeFile(unix.AT_FDCWD, place+"/cgroup.subtree_control", enable); err != nil {
		return errors.Join(&Error{Op: "move to leaf", File: place + "/cgroup.subtree_control", Err: err}, moveFromLeaf(place))
	}
	return nil
}

// moveFromLeaf undoes moveToLeaf. It does nothing while other groups or processes use the leaf.
func moveFromLeaf(place string) error {
	root, leaf := place+"/"+rootName, place+"/"+rootName+"/"+leafName
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	others, err := subdirs(unix.AT_FDCWD, root)
	if err != nil || len(others) != 1 || others[0] != leafName {
		return err
	}
	if pids, err := readPids(unix.AT_FDCWD, leaf, buf, nil); err != nil || len(pids) != 1 || pids[0] != os.Getpid() {
		return err
	}
	for _, dir := range []string{root, place} {
		if err := disableControllers(unix.AT_FDCWD, dir); err != nil {
			return &Error{Op: "move from leaf", File: dir + "/cgroup.subtree_control", Err: err}
		}
	}
	if err := writeFile(unix.AT_FDCWD, place+"/cgroup.procs", "0"); err != nil {
		return &Error{Op: "move from leaf", File: place + "/cgroup.procs", Err: err}
	}
	for _, dir := range []string{leaf, root} {
		if err := unix.Rmdir(dir); err != nil && err != unix.EBUSY && err != unix.ENOENT { // raw errnos
			return &Error{Op: "move from leaf", File: dir, Err: err}
		}
	}
	return nil
}

// disableControllers takes every controller from a group's children.
func disableControllers(at int, dir string) error {
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	file := dir + "/cgroup.subtree_control"
	b, err := readCounter(at, file, buf)
	if err != nil {
		return err
	}
	on := strings.Fields(string(b))
	if len(on) == 0 {
		return nil
	}
	return writeFile(at, file, "-"+strings.Join(on, " -"))
}

// pruneLeaf removes a leaf whose processes have all ended, with the directory it is in, and restores their place.
// It reports whether it did.
func (t *Tree) pruneLeaf(h *hierarchy) bool {
	if !h.v2 || !existsAt(h.at, rootName+"/"+leafName) {
		return false
	}
	// With groups beside it the leaf stays; the supervisor that removes the last of them removes it.
	if names, err := subdirs(h.at, rootName); err != nil || len(names) != 1 {
		return false
	}
	if t.rmdir(h, rootName+"/"+leafName) != nil || t.rmdir(h, rootName) != nil {
		return false
	}
	_ = disableControllers(h.at, ".")
	return true
}

// leaves counts, by place, the Trees of this process that need it to stay in the leaf.
var leaves struct {
	sync.Mutex
	users  map[string]int
	forget map[string][]func() // by place: undo Options.Record
}

// retainLeaf counts this Tree as a user of the leaf if this process is in the leaf of the Tree's place.
func (t *Tree) retainLeaf() {
	h := t.v2()
	if h == nil || h.own != h.place+"/"+rootName+"/"+leafName {
		return
	}
	leaves.Lock()
	defer leaves.Unlock()
	if leaves.users == nil {
		leaves.users = map[string]int{}
	}
	leaves.users[h.place]++
	t.leafPlace = h.place
}

// releaseLeaf undoes retainLeaf. The last user undoes moveToLeaf, if Options allow moves. A scope stays as it is: systemd
// removes it whole, and moving a process takes up to 11 ms.
func (t *Tree) releaseLeaf() {
	place := t.leafPlace
	if place == "" {
		return
	}
	t.leafPlace = ""
	leaves.Lock()
	defer leaves.Unlock()
	leaves.users[place]--
	if leaves.users[place] > 0 {
		return
	}
	delete(leaves.users, place)
	if filepath.Ext(place) != ".scope" && (!t.mayMove || moveFromLeaf(place) != nil) {
		return // the next Prune removes the leaf; the record stays until this process ends
	}
	for _, forget := range leaves.forget[place] {
		forget()
	}
	delete(leaves.forget, place)
}
