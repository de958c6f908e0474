package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// groupPrefix begins the names of the cgroups that runtimes make for our inits on machines with v1 hierarchies: directly below
// our own in each of them, so that the runtime leaves nothing above it.
const groupPrefix = "sandbox-run-oci-"

// groupName is the name of such a group, after the one that its programs are in: the claim's name, and a number.
func groupName(path string) string { return groupPrefix + strings.ReplaceAll(path, "/", "-") }

// sweep removes those groups whose supervisors are dead, and whose runtimes were killed before they could do it. On v2 there
// are none: there, all groups are in the one tree that the supervisor's collector knows. A group with a process in it stays.
func sweep(dryRun bool) (list []sandbox.Residue) {
	for _, dir := range ownGroups() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			rest, ours := strings.CutPrefix(e.Name(), groupPrefix)
			claim, _, _ := strings.Cut(rest, "-")
			if !ours || registry.Alive(supervisor.RuntimeDir(), claim) {
				continue
			}
			r := sandbox.Residue{Kind: "cgroup", Name: filepath.Join(dir, e.Name())}
			if !dryRun {
				err := unix.Rmdir(r.Name)
				if errors.Is(err, unix.ENOENT) { // somebody else was faster
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

// ownGroups are the directories of this process's own group in every v1 hierarchy.
func ownGroups() (dirs []string) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	at := map[string]string{} // by what the hierarchy is called
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		for i := 6; i+3 < len(f); i++ {
			if f[i] == "-" && f[i+1] == "cgroup" && f[3] == "/" {
				for word := range strings.SplitSeq(f[i+3], ",") {
					at[word] = f[4]
				}
				break
			}
		}
	}
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, group, _ := strings.Cut(rest, ":")
		name, _, _ := strings.Cut(names, ",")
		if dir, ok := at[name]; ok && name != "" {
			dirs = append(dirs, filepath.Join(dir, group))
		}
	}
	return dirs
}
