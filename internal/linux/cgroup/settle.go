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
// controllers. All who settle in one place share it, a child process included.
//
// While it stands it says that the place held a process before, and so had no controllers switched on: that is how
// whoever removes it knows to switch them off again, which has to be done or nobody could enter the place any more.
// It is removed by the last Close in it; of a supervisor that was killed, by the next Prune of the roots it recorded (Options.Record);
// and of a systemd scope by systemd, which removes the scope and all below when the last process has ended.
const leafName = "supervisor"

// settleOnRecord is settle by a process that may be killed at any moment.
func settleOnRecord(place, enable string, record func(string) (func(), error)) error {
	forget := func() {}
	if record != nil {
		var err error
		if forget, err = record(place + "/" + rootName); err != nil {
			return &Error{Op: "settle", File: place, Err: err}
		}
	}
	if err := settle(place, enable); err != nil {
		forget()
		return err
	}
	settled.Lock()
	defer settled.Unlock()
	if settled.forget == nil {
		settled.forget = map[string][]func(){}
	}
	settled.forget[place] = append(settled.forget[place], forget)
	return nil
}

// settle moves this process from place, which it is alone in, into the leaf, and switches the controllers on in place.
func settle(place, enable string) error {
	root, leaf := place+"/"+rootName, place+"/"+rootName+"/"+leafName
	var err error
	for range 32 { // another's Prune may take away what was made and is still empty
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
		return &Error{Op: "settle", File: leaf, Err: err}
	}
	if err := writeFile(unix.AT_FDCWD, place+"/cgroup.subtree_control", enable); err != nil {
		return errors.Join(&Error{Op: "settle", File: place + "/cgroup.subtree_control", Err: err}, unsettle(place))
	}
	return nil
}

// unsettle undoes settle, if nobody else makes use of it.
func unsettle(place string) error {
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
		if err := switchOff(unix.AT_FDCWD, dir); err != nil {
			return &Error{Op: "unsettle", File: dir + "/cgroup.subtree_control", Err: err}
		}
	}
	if err := writeFile(unix.AT_FDCWD, place+"/cgroup.procs", "0"); err != nil {
		return &Error{Op: "unsettle", File: place + "/cgroup.procs", Err: err}
	}
	for _, dir := range []string{leaf, root} {
		if err := unix.Rmdir(dir); err != nil && err != unix.EBUSY && err != unix.ENOENT { // raw errnos
			return &Error{Op: "unsettle", File: dir, Err: err}
		}
	}
	return nil
}

// switchOff takes from a group's children every controller they have.
func switchOff(at int, dir string) error {
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

// pruneLeaf removes the leaf of settlers who are all gone, with the directory it is in, and leaves their place as it was.
// It reports whether it did.
func (t *Tree) pruneLeaf(h *hierarchy) bool {
	if !h.v2 || !existsAt(h.at, rootName+"/"+leafName) {
		return false
	}
	// With groups beside it, it has to stay for whoever removes the last of them.
	if names, err := subdirs(h.at, rootName); err != nil || len(names) != 1 {
		return false
	}
	if t.rmdir(h, rootName+"/"+leafName) != nil || t.rmdir(h, rootName) != nil {
		return false
	}
	_ = switchOff(h.at, ".")
	return true
}

// settled counts, by place, the Trees of this process that need it to stay in the leaf.
var settled struct {
	sync.Mutex
	users  map[string]int
	forget map[string][]func() // by place, what undoes the record of it
}

// stay notes that this Tree's place is free of processes only because we are in its leaf.
func (t *Tree) stay() {
	h := t.v2()
	if h == nil || h.own != h.place+"/"+rootName+"/"+leafName {
		return
	}
	settled.Lock()
	defer settled.Unlock()
	if settled.users == nil {
		settled.users = map[string]int{}
	}
	settled.users[h.place]++
	t.settledIn = h.place
}

// leave is the end of stay; the last one undoes settle, if we are allowed to move. A scope is left as it is: systemd
// removes it whole, and moving a process takes up to 11 ms.
func (t *Tree) leave() {
	place := t.settledIn
	if place == "" {
		return
	}
	t.settledIn = ""
	settled.Lock()
	defer settled.Unlock()
	settled.users[place]--
	if settled.users[place] > 0 {
		return
	}
	delete(settled.users, place)
	if filepath.Ext(place) != ".scope" && (!t.maySettle || unsettle(place) != nil) {
		return // what is left is for the next Prune, and the record stays until this process ends
	}
	for _, forget := range settled.forget[place] {
		forget()
	}
	delete(settled.forget, place)
}
