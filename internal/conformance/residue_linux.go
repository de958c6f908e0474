package conformance

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
)

// marked lists the living processes that have a mark in their environment or command line.
func marked(mark string) []string {
	var list []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		for _, f := range []string{"environ", "cmdline"} {
			if text, err := os.ReadFile(d + "/" + f); err == nil && bytes.Contains(text, []byte(mark)) {
				line, _ := os.ReadFile(d + "/cmdline")
				list = append(list, fmt.Sprintf("%s %q", filepath.Base(d), line))
				break
			}
		}
	}
	return list
}

// Marked lists the living processes that have a mark in their environment or command line.
func Marked(mark string) []string {
	return slices.DeleteFunc(marked(mark), func(p string) bool { return strings.HasPrefix(p, strconv.Itoa(os.Getpid())+" ") })
}

// Outliving lists the processes with a mark that are there still a second after their supervisor's end, or as much later as the machine is busy.
func Outliving(mark string, ended time.Time) (alive []string) {
	spare, stop := busyness(time.Second)
	defer stop()
	for alive = Marked(mark); len(alive) > 0 && time.Since(ended) < time.Second+spare(); alive = Marked(mark) {
		time.Sleep(5 * time.Millisecond)
	}
	return alive
}

// host is what there was before the suite. Other programs of this project may run on the machine: only
// what is this process's own is looked at.
type host struct {
	scratch string
	files   map[string]int // open descriptors, by what they are
	mounts  map[string]bool
}

func lookAtHost(scratch string) host {
	return host{scratch: scratch, files: descriptors(), mounts: ourMounts()}
}

// descriptors counts what is open, by kind. Addresses and numbers would make each one unique.
func descriptors() map[string]int {
	count := map[string]int{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			kind, _, _ := strings.Cut(l, ":[")
			count[kind]++
		}
	}
	return count
}

// open is how many descriptors this process has.
func open() (n int) {
	for _, count := range descriptors() {
		n += count
	}
	return n
}

// ourMounts are the mounts of this namespace that could be ours.
func ourMounts() map[string]bool {
	found := map[string]bool{}
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(text), "\n") {
		if strings.Contains(line, "sandbox-run") || strings.Contains(line, " overlay ") || strings.Contains(line, "/dev/loop") {
			found[line] = true
		}
	}
	return found
}

// claims are the names under which this process is registered as a supervisor.
func claims() []string { return claimsOf(os.Getpid()) }

// claimsOf are those of another.
func claimsOf(pid int) []string {
	var names []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if l, err := os.Readlink(link); err == nil && strings.HasPrefix(l, supervisor.RuntimeDir()+"/s") {
			names = append(names, filepath.Base(l))
		}
	}
	return names
}

// groupsOf are the cgroups of supervisors that are registered, by their names.
func groupsOf(names []string) (dirs []string) {
	for _, name := range names {
		text, _ := os.ReadFile(filepath.Join(supervisor.RuntimeDir(), name))
		for _, root := range strings.Fields(string(text)) {
			dirs = append(dirs, filepath.Join(root, name))
		}
	}
	return dirs
}

// inhabitants are the processes in cgroups and below them, and whether all of them are dead already: one whose first thread has
// ended is there until the last of the others has.
func inhabitants(groups []string) (pids []string, dead bool) {
	dead = true
	for _, g := range groups {
		_ = filepath.WalkDir(g, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // removed just now
			}
			text, _ := os.ReadFile(path + "/cgroup.procs")
			for _, pid := range strings.Fields(string(text)) {
				pids = append(pids, pid)
				stat, _ := os.ReadFile("/proc/" + pid + "/stat")
				_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
				dead = dead && (state == "" || state[0] == 'Z' || state[0] == 'X')
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids), dead
}

// registered are the names of all supervisors, living and dead.
func registered() []string {
	var names []string
	entries, _ := os.ReadDir(supervisor.RuntimeDir())
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Left lists what is left of supervisors, by the names they were registered under.
func Left(names []string) []string { return leftOf(names) }

// leftOf lists what is left of supervisors that were collected. A name may have been taken anew: what
// belongs to somebody who lives is not looked at.
func leftOf(names []string) []string {
	var list []string
	for _, name := range names {
		if held(name) {
			continue
		}
		places := []string{filepath.Join(supervisor.RuntimeDir(), name), fmt.Sprintf("/var/tmp/sandbox-run-%d-%s", os.Geteuid(), name)}
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/sandbox-run/" + name)
		deeper, _ := filepath.Glob("/sys/fs/cgroup/*/*/*/sandbox-run/" + name)
		top, _ := filepath.Glob("/sys/fs/cgroup/sandbox-run/" + name)
		for _, p := range slices.Concat(places, top, groups, deeper) {
			if _, err := os.Lstat(p); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// groups are the cgroups of sandboxes that this process still has.
func (host) groups() []string {
	var list []string
	for _, name := range claims() {
		waiting := 0
		text, _ := os.ReadFile(filepath.Join(supervisor.RuntimeDir(), name))
		for _, root := range strings.Fields(string(text)) {
			children, _ := filepath.Glob(filepath.Join(root, name, "*/"))
			for _, c := range children {
				if st, err := os.Stat(c); err != nil || !st.IsDir() {
					continue
				}
				if waits(c) && waiting == 0 {
					waiting++
					continue
				}
				list = append(list, c)
			}
		}
	}
	return list
}

// waits says that a group is of an init that lives and has no sandbox yet: a backend may keep one ready, and on cgroup v2
// it has a group of its own.
func waits(group string) bool {
	events, err := os.ReadFile(group + "/init/cgroup.events")
	_, programs := os.Stat(group + "/run")
	return err == nil && strings.Contains(string(events), "populated 1") && programs != nil
}

// kept are descriptors that a process opens once and keeps: the sealed init, /dev/null, the runtime's
// poller, the cgroup hierarchies, one user namespace per mapping.
func kept(kind string) bool {
	return strings.HasPrefix(kind, "/memfd:sandbox-init") || kind == "/dev/null" || strings.HasPrefix(kind, "anon_inode") ||
		strings.HasPrefix(kind, "/sys/fs/cgroup") || kind == "user" || strings.HasPrefix(kind, "/proc/")
}

// left lists what the suite has left behind, once its backend is closed: names are what that was registered as. What others left is theirs to answer
// for: tests of other packages kill their supervisors meanwhile.
func (h host) left(names []string) []string {
	var list []string
	if still := claims(); len(still) > 0 {
		list = append(list, fmt.Sprintf("registrations %q", still))
	}
	for line := range ourMounts() {
		if !h.mounts[line] {
			list = append(list, "mount "+line)
		}
	}
	now := descriptors()
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		// Pipes of the test runner and of other packages' helpers come in pairs and stay.
		if now[kind] > h.files[kind] && !kept(kind) && kind != h.scratch && !strings.HasPrefix(kind, h.scratch+"/") {
			list = append(list, fmt.Sprintf("%d descriptors of %s, %d before", now[kind], kind, h.files[kind]))
		}
	}
	if h.scratch != "" {
		backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, f := range backing {
			if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), h.scratch+"/") {
				list = append(list, "loop device "+f)
			}
		}
	}
	list = append(list, leftOf(names)...)
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == nil && info.Signo != 0 {
		list = append(list, "a zombie child")
	}
	return list
}

// held reports whether a supervisor that lives has a name: somebody else, then.
func held(name string) bool {
	f, err := os.Open(filepath.Join(supervisor.RuntimeDir(), name))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// rights are whose the machine's own places are, and what anybody may do there.
func rights() (list []string) {
	for _, p := range []string{"/", "/dev", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/shm", "/proc", "/sys", "/run", "/tmp", "/usr", "/etc"} {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err == nil {
			list = append(list, fmt.Sprintf("%s %o %d:%d", p, st.Mode, st.Uid, st.Gid))
		}
	}
	return list
}
