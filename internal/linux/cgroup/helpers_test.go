//go:build linux

package cgroup

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"
)

// Add moves a process, with all its threads, into the group.
func (g *Group) Add(pid int) error { return g.Enter(pid, 2) }

// List names the groups directly below `sandbox-run`, the union over all hierarchies: a supervisor that died while making
// or removing a group left it in some of them only.
func (t *Tree) List() ([]string, error) {
	names, err := t.listAcross(rootName)
	return slices.DeleteFunc(names, func(name string) bool { return name == leafName }), err
}

// listAcross returns the sorted set of directory names at a path in any hierarchy. It reports a directory that can not be
// read beside the names found in the others.
func (t *Tree) listAcross(path string) ([]string, error) {
	var all []string
	var errs []error
	for i := range t.hierarchies {
		names, err := subdirs(t.hierarchies[i].at, path)
		all, errs = append(all, names...), append(errs, err)
	}
	slices.Sort(all)
	return slices.Compact(all), errors.Join(errs...)
}

// Probe makes a group with every limit that this tree claims to have, reads it and removes it: the kernel may still refuse
// what inspection found to be permitted.
func (t *Tree) Probe(ctx context.Context) error {
	g := t.Group("probe-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 10))
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
