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

// marked lists the running processes that have a mark in their environment or command line.
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

// Marked lists the running processes that have a mark in their environment or command line.
func Marked(mark string) []string {
	return slices.DeleteFunc(marked(mark), func(p string) bool { return strings.HasPrefix(p, strconv.Itoa(os.Getpid())+" ") })
}

// Outliving lists the processes with a mark that still run a second after their supervisor's end, or as much later as the machine is busy.
func Outliving(mark string, ended time.Time) (alive []string) {
	spare, stop := busyness(time.Second)
	defer stop()
	for alive = Marked(mark); len(alive) > 0 && time.Since(ended) < time.Second+spare(); alive = Marked(mark) {
		time.Sleep(5 * time.Millisecond)
	}
	return alive
}

// host is the state before the suite. Other programs of this project may run on the machine: only
// resources of this process are considered.
type host struct {
	scratch string
	files   map[string]int // open descriptors, by what they are
	mounts  map[string]bool
}

func lookAtHost(scratch string) host {
	return host{scratch: scratch, files: descriptors(), mounts: ourMounts()}
}

// descriptors counts the open descriptors, by kind. Addresses and numbers would make each one unique.
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

// ourMounts are the mounts of this namespace that a backend could have made.
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

// registrations are the names under which this process is registered as a supervisor.
func registrations() []string { return registrationsOf(os.Getpid()) }

// registrationsOf are those of another process.
func registrationsOf(pid int) []string {
	var names []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if l, err := os.Readlink(link); err == nil && strings.HasPrefix(l, supervisor.RuntimeDir()+"/s") {
			names = append(names, filepath.Base(l))
		}
	}
	return names
}

// groupsOf are the cgroups of registered supervisors, by their names.
func groupsOf(names []string) (dirs []string) {
	for _, name := range names {
		text, _ := os.ReadFile(filepath.Join(supervisor.RuntimeDir(), name))
		for _, root := range strings.Fields(string(text)) {
			dirs = append(dirs, filepath.Join(root, name))
		}
	}
	return dirs
}

// inhabitants are the processes in cgroups and below them, and whether all of them are dead: a process whose first thread has
// ended is listed until the last of the others has.
func inhabitants(groups []string) (pids []string, dead bool) {
	dead = true
	for _, g := range groups {
		_ = filepath.WalkDir(g, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // just removed
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

// registered are the names of all supervisors, running and dead.
func registered() []string {
	var names []string
	entries, _ := os.ReadDir(supervisor.RuntimeDir())
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Left lists the leftovers of supervisors, by the names they were registered under.
func Left(names []string) []string { return leftOf(names) }

// leftOf lists the leftovers of collected supervisors. A name may be in use again: leftOf skips
// those of running supervisors.
func leftOf(names []string) []string {
	var list []string
	for _, name := range names {
		if isRunning(name) {
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

// groups are the cgroups of sandboxes of this process.
func (host) groups() []string {
	var list []string
	for _, name := range registrations() {
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

// waits reports whether a group is of a spare init: a backend may keep one, and on cgroup v2
// it has a group of its own.
func waits(group string) bool {
	events, err := os.ReadFile(group + "/init/cgroup.events")
	_, programs := os.Stat(group + "/run")
	return err == nil && strings.Contains(string(events), "populated 1") && programs != nil
}

// kept reports descriptors that a process opens once and keeps: the sealed init, /dev/null, the runtime's
// poller, the cgroup hierarchies, one user namespace per mapping.
func kept(kind string) bool {
	return strings.HasPrefix(kind, "/memfd:sandbox-init") || kind == "/dev/null" || strings.HasPrefix(kind, "anon_inode") ||
		strings.HasPrefix(kind, "/sys/fs/cgroup") || kind == "user" || strings.HasPrefix(kind, "/proc/")
}

// left lists the leftovers of the suite, once its backend is closed: names are its registrations. Leftovers of others are not listed:
// tests of other packages kill their supervisors meanwhile.
func (h host) left(names []string) []string {
	var list []string
	if still := registrations(); len(still) > 0 {
		list = append(list, fmt.Sprintf("registrations %q", still))
	}
	for line := range ourMounts() {
		if !h.mounts[line] {
			list = append(list, "mount "+line)
		}
	}
	now := descriptors()
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		// Pipes of the test runner and of other packages' helpers are opened in pairs and stay.
		most := h.files[kind]
		if kind == "/run/sandbox-run/disks" { // the ledger of scratches is opened once
			most = max(most, 1)
		}
		if now[kind] > most && !kept(kind) && kind != h.scratch && !strings.HasPrefix(kind, h.scratch+"/") {
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

// isRunning reports whether a running supervisor has a name, which another one has then taken.
func isRunning(name string) bool {
	f, err := os.Open(filepath.Join(supervisor.RuntimeDir(), name))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// rights are the owners and modes of the machine's own directories and devices.
func rights() (list []string) {
	for _, p := range []string{"/", "/dev", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx",
		"/dev/shm", "/proc", "/sys", "/run", "/tmp", "/usr", "/etc"} {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err == nil {
			list = append(list, fmt.Sprintf("%s %o %d:%d", p, st.Mode, st.Uid, st.Gid))
		}
	}
	return list
}
