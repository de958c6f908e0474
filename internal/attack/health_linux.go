package attack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
)

// host is the state before the first case. Other supervisors may run on this machine: only resources of this
// process are considered.
type host struct {
	mounts []string // that existed before
	groups []string // cgroups that existed before
	canary *canary
}

func lookAtHost() *host { return &host{mounts: mounts(), groups: ownGroups(), canary: newCanary()} }

func (h *host) close() { h.canary.stop() }

// residueTimeout is how long the kernel may take to end killed processes, on a host that is not late itself.
const residueTimeout = 2 * time.Second

// residue lists the leftovers of a case: processes with its marks, our cgroups and loop devices, mounts.
func (h *host) residue(marks ...string) (left []string) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		left = nil
		for _, m := range marks {
			for _, p := range marked(m) {
				left = append(left, "process "+p)
			}
		}
		for _, g := range ownGroups() {
			if !slices.Contains(h.groups, g) { // a backend may keep some of its own
				left = append(left, "cgroup "+g)
			}
		}
		for _, line := range mounts() {
			if !slices.Contains(h.mounts, line) {
				left = append(left, "mount "+line)
			}
		}
		for _, f := range ownDisks() {
			left = append(left, "disk "+f)
		}
		if len(left) == 0 || time.Since(began) > residueTimeout+h.canary.spare() {
			return left
		}
	}
}

// marked lists the running processes that have a mark in their command line or environment.
func marked(mark string) (list []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		for _, f := range []string{"cmdline", "environ"} {
			if text, err := os.ReadFile(d + "/" + f); err == nil && bytes.Contains(text, []byte(mark)) {
				line, _ := os.ReadFile(d + "/cmdline")
				list = append(list, fmt.Sprintf("%s %.120q", filepath.Base(d), bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
				break
			}
		}
	}
	return list
}

// markedPIDs are their pids.
func markedPIDs(mark string) (pids []string) {
	for _, p := range marked(mark) {
		pid, _, _ := strings.Cut(p, " ")
		pids = append(pids, pid)
	}
	return pids
}

// claimsOf are the registry entries that a process has open: the files of its registrations as a supervisor.
func claimsOf(pid string) (files []string) {
	links, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	for _, link := range links {
		if l, err := os.Readlink(link); err == nil && filepath.Dir(l) == supervisor.RuntimeDir() && strings.HasPrefix(filepath.Base(l), "s") {
			files = append(files, l)
		}
	}
	return files
}

// groupOf are the directories of a registration in the cgroup hierarchies.
func groupOf(claim string) (dirs []string) {
	text, _ := os.ReadFile(claim)
	for _, root := range strings.Fields(string(text)) {
		dirs = append(dirs, filepath.Join(root, filepath.Base(claim)))
	}
	return dirs
}

// ownGroups are the cgroups of sandboxes of this process.
func ownGroups() (list []string) {
	for _, claim := range claimsOf("self") {
		waiting := 0
		for _, dir := range groupOf(claim) {
			children, _ := filepath.Glob(filepath.Join(dir, "*"))
			for _, c := range children {
				if st, err := os.Stat(c); err != nil || !st.IsDir() {
					continue
				}
				if waiting == 0 && waits(c) {
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
// it has a group.
func waits(group string) bool {
	if _, err := os.Stat(group + "/run"); err == nil {
		return false
	}
	events, err := os.ReadFile(group + "/init/cgroup.events")
	return err == nil && strings.Contains(string(events), "populated 1")
}

// ownDisks are scratches that this process has open: files without a name.
func ownDisks() (list []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if l, err := os.Readlink(link); err == nil && strings.Contains(l, "/sandbox-run") && strings.HasSuffix(l, "(deleted)") &&
			!strings.HasPrefix(l, "/memfd:") {
			list = append(list, l)
		}
	}
	return list
}

// mounts are the mounts of this namespace that a backend could have made.
func mounts() (list []string) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "sandbox-run") || strings.Contains(line, "sandbox-attack") || strings.Contains(line, " overlay ") ||
			strings.Contains(line, "/dev/loop") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// canary only sleeps, and records how much longer than requested: that is how late everything on this host is.
type canary struct {
	quit, gone chan struct{}

	mu   sync.Mutex
	late time.Duration
}

func newCanary() *canary {
	c := &canary{quit: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		defer close(c.gone)
		const nap = 10 * time.Millisecond
		for {
			began := time.Now()
			select {
			case <-c.quit:
				return
			case <-time.After(nap):
			}
			late := time.Since(began) - nap
			c.mu.Lock()
			c.late = max(c.late, late)
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *canary) stop() {
	close(c.quit)
	<-c.gone
}

func (c *canary) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = 0
}

func (c *canary) most() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// spare is how much longer than on an idle host an operation of several processes in turn may take: each of them may
// have to wait for a processor as long as the canary had to.
func (c *canary) spare() time.Duration { return 5 * c.most() }

// claimed reports whether a registry entry belongs to a running supervisor, which has taken its name anew.
func claimed(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
