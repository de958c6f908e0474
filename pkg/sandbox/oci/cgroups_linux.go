package oci

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// groupPrefix begins the names of the cgroups that runtimes make for inits on machines with v1 hierarchies: directly
// below this process's own cgroup in each of them, so that the runtime leaves nothing above it.
const groupPrefix = "sandbox-run-oci-"

// groupName names such a cgroup, and its container, after the cgroup of its programs: the registration's name, and a
// number. No name is the prefix of another: runsc takes a prefix for an abbreviation.
func groupName(path string) string { return groupPrefix + strings.ReplaceAll(path, "/", "-") + "." }

// collectGroups removes the cgroups of dead supervisors whose runtimes were killed before they could remove them. On v2
// there are none: all cgroups are in the one tree that the supervisor's collector handles.
func collectGroups(dryRun bool) (list []sandbox.Residue) {
	for _, h := range hierarchies() {
		dir := h.own
		if h.name == "" {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			rest, ours := strings.CutPrefix(e.Name(), groupPrefix)
			name, _, _ := strings.Cut(rest, "-")
			if !ours || registry.Alive(supervisor.RuntimeDir(), name) {
				continue
			}
			r := sandbox.Residue{Kind: "cgroup", Name: filepath.Join(dir, e.Name())}
			if !dryRun {
				err := removeGroup(r.Name)
				if errors.Is(err, unix.ENOENT) { // another collector was faster
					continue
				}
				if r.Removed = err == nil; err != nil {
					r.Problem = err.Error()
				}
			}
			list = append(list, r)
		}
	}
	return list
}

// removeGroup kills the processes of a cgroup, and removes it.
func removeGroup(dir string) error {
	killMembers(dir)
	return unix.Rmdir(dir)
}

// killTimeout bounds the wait for the end of killed processes.
const killTimeout = 2 * time.Second

// killMembers kills the processes of a cgroup: runc's own init waits for ever for a runc that was killed before it sent
// the order to start.
func killMembers(dir string) {
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		pids := members(dir)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			if slices.Contains(members(dir), pid) { // so the process id has not been reused
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
			_ = unix.Close(fd)
		}
	}
}

// members lists the processes of a cgroup.
func members(dir string) (pids []int) {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // gone: no processes
	for word := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// hierarchy is a v1 hierarchy, or the v2 tree.
type hierarchy struct {
	name string // of its first controller; empty for v2
	at   string // mount point
	own  string // directory of this process's group
}

// hierarchies lists the hierarchies of this machine that this process sees from their root on.
func hierarchies() (list []hierarchy) {
	own, err1 := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err1 != nil || err2 != nil {
		return nil
	}
	groups := map[string]string{} // by controller
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, group, _ := strings.Cut(rest, ":")
		for name := range strings.SplitSeq(names, ",") {
			groups[name] = group
		}
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if len(b) < 6 || len(a) < 3 || b[3] != "/" {
			continue
		}
		switch a[0] {
		case "cgroup2":
			list = append(list, hierarchy{"", b[4], filepath.Join(b[4], groups[""])})
		case "cgroup":
			for word := range strings.SplitSeq(a[2], ",") {
				if group, ok := groups[word]; ok && word != "" {
					list = append(list, hierarchy{word, b[4], filepath.Join(b[4], group)})
					break
				}
			}
		}
	}
	return list
}

// needed are the v1 hierarchies that runtimes put containers into: those with limits, and the one for devices, without
// which no runtime starts. The others would only show names of the supervisor's cgroups to a program.
var needed = []string{"cpu", "cpuacct", "memory", "pids", "devices"}

// hide unmounts the other hierarchies in the mount namespace of the calling thread. With v2 alone there is nothing to
// hide.
func hide(all []hierarchy) error {
	if !slices.ContainsFunc(all, func(h hierarchy) bool { return h.name != "" }) {
		return nil
	}
	var errs []error
	for _, h := range all {
		if !slices.Contains(needed, h.name) {
			errs = append(errs, unix.Unmount(h.at, unix.MNT_DETACH))
		}
	}
	return errors.Join(errs...)
}
