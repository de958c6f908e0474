package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// leftovers searches for cgroups and loop devices of deleted sandboxes. It considers only those of this process,
// so that other sandboxes of the machine do not matter.
type leftovers struct {
	cache  string // directory of the backing files of this process's scratches
	groups string // glob of this process's cgroups; empty until found
	checks int
}

const registryDir = "/run/sandbox-run/"

// find finds the cgroups of this process: its registration, which it has open, lists their roots.
func (l *leftovers) find() error {
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(target, registryDir+"s") {
			continue
		}
		record, err := os.ReadFile(target)
		if err != nil {
			return err
		}
		roots := strings.Fields(string(record))
		if len(roots) == 0 {
			return fmt.Errorf("%s names no cgroups", target)
		}
		for i, r := range roots {
			roots[i] = filepath.Join(r, filepath.Base(target), "*")
		}
		l.groups = strings.Join(roots, "\n")
		return nil
	}
	return fmt.Errorf("no registration of this process below %s", registryDir)
}

// list names the cgroups and loop devices that this process has now.
func (l *leftovers) list() ([]string, error) {
	if l.groups == "" {
		if err := l.find(); err != nil {
			return nil, err
		}
	}
	var found []string
	for _, glob := range strings.Split(l.groups, "\n") {
		names, err := filepath.Glob(glob)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if st, err := os.Stat(n); err == nil && st.IsDir() && !waits(n) {
				found = append(found, "cgroup "+n)
			}
		}
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, b := range backing {
		if text, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(text), l.cache+"/") {
			found = append(found, "loop device "+strings.Split(b, "/")[3])
		}
	}
	return found, nil
}

// waits reports whether a cgroup is that of a spare init. The backend keeps one, which on cgroup v2 has a cgroup of its own.
func waits(group string) bool {
	events, err := os.ReadFile(group + "/init/cgroup.events")
	_, programs := os.Stat(group + "/run")
	return err == nil && strings.Contains(string(events), "populated 1") && programs != nil
}

// verify fails if a deleted sandbox left a cgroup or a loop device. It is not timed.
func (l *leftovers) verify() error {
	found, err := l.list()
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("not gone when Delete had returned: %s", strings.Join(found, ", "))
	}
	l.checks++
	return nil
}
