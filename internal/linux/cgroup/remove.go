//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// removeTime bounds Remove when its context has no deadline.
const removeTime = 5 * time.Second

// Remove kills the processes in the group and in groups below it, waits until they are empty and removes them, in every
// hierarchy. It may be called in any state, twice, and on a group that exists in some hierarchies only. It blocks at most
// until ctx ends, or five seconds; even with a context that has ended it tries once. The error names what remains.
//
// Parents that Make made stay: a supervisor removes its own group when it ends, with all groups below.
func (g *Group) Remove(ctx context.Context) error {
	if g.err != nil {
		return g.err
	}
	defer g.closePeak() // last: samples report the same peak until the group is gone
	left := make([]int, len(g.tree.hierarchies))
	for i := range left {
		left[i] = i
	}
	// Nearly always the processes have ended by now, and one rmdir per hierarchy suffices.
	left, retry, errs := g.removeIn(left)
	if len(left) == 0 {
		return nil
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, removeTime)
		defer cancel()
	}
	deadline, _ := ctx.Deadline()
	var killErr error
	pause := 50 * time.Microsecond
	for {
		if !retry { // read-only, not permitted, …: waiting changes nothing
			return errors.Join(errs...)
		}
		if err := g.kill(deadline); err != nil {
			killErr = err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(pause*3/2, 5*time.Millisecond)
			if left, retry, errs = g.removeIn(left); len(left) == 0 {
				return nil
			}
			continue
		case <-ctx.Done():
			timer.Stop()
		}
		// The kill above may have been the first one: try once more before failing.
		if left, _, errs = g.removeIn(left); len(left) == 0 {
			return nil
		}
		return &Error{Op: "remove", Group: g.path, Err: fmt.Errorf("%w; remaining: %s: %w",
			context.Cause(ctx), g.describeRemaining(left), errors.Join(append(errs, killErr)...))}
	}
}

// removeIn tries the given hierarchies once and returns those that still have the group, whether another try can help,
// and the errors.
func (g *Group) removeIn(hierarchies []int) (left []int, retry bool, errs []error) {
	for _, i := range hierarchies {
		h := &g.tree.hierarchies[i]
		err := g.tree.rmdir(h, g.rel)
		if err == unix.EBUSY || err == unix.ENOTEMPTY { //nolint:errorlint // raw errnos
			// Processes, or groups below. Children first; listSubtree lists parents first.
			dirs, derr := listSubtree(h.at, g.rel)
			if len(dirs) == 1 {
				dirs = nil // no groups below: a process was the reason
			}
			for _, dir := range slices.Backward(dirs) {
				if err = g.tree.rmdir(h, dir); err == unix.ENOENT { //nolint:errorlint // raw errno
					err = nil
				}
			}
			if err != nil && derr != nil {
				err = errors.Join(err, derr)
			}
		}
		if err != nil && err != unix.ENOENT { //nolint:errorlint // raw errno
			left = append(left, i)
			retry = retry || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY)
			errs = append(errs, g.fail("rmdir", i, g.rel, err))
		}
	}
	return left, retry, errs
}

// describeRemaining lists the processes of a group with their states. "D" (asleep in the kernel) is the usual reason.
func (g *Group) describeRemaining(left []int) string {
	var names []string
	for _, i := range left {
		names = append(names, g.tree.hierarchies[i].label)
	}
	text := "in " + strings.Join(names, ", ")
	pids, err := g.Procs()
	if err != nil || len(pids) == 0 {
		return text + ", no process listed"
	}
	const show = 5
	text += ", " + strconv.Itoa(len(pids)) + " processes ("
	for k, pid := range pids {
		if k == show {
			text += ", …"
			break
		}
		if k > 0 {
			text += ", "
		}
		text += describeProcess(pid)
	}
	return text + ")"
}

// describeProcess returns "123 python3 D". The program chooses the name, so it is quoted.
func describeProcess(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	s := string(b)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if err != nil || open < 0 || end < open || end+2 >= len(s) {
		return strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d %q %c", pid, s[open+1:end], s[end+2])
}
