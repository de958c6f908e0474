package oci

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// collectRuntimes ends the runtimes of dead supervisors that have not begun to make a container. Earlier versions left them waiting for
// their config. One with children is left alone: it removes its container, whose init has ended with the supervisor.
func collectRuntimes(dryRun bool) (list []sandbox.Residue) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, dir := range processes {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if supervisorOf(pid) == "" {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Read again: from here on, the pid is that of the descriptor. A runtime's supervisor has its name before it starts the runtime.
		if name := supervisorOf(pid); name != "" && !registry.Alive(supervisor.RuntimeDir(), name) && !hasChildren(dir) {
			r := sandbox.Residue{Kind: "process", Name: strconv.Itoa(pid)}
			if !dryRun {
				err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				if r.Removed = err == nil; err != nil {
					r.Problem = err.Error()
				}
			}
			list = append(list, r)
		}
		_ = unix.Close(fd)
	}
	return list
}

// supervisorOf returns the name of the supervisor that has started a process of this user as a runtime; "" if none has.
func supervisorOf(pid int) string {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid() {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return ""
	}
	args := bytes.Split(text, []byte{0})
	if len(args) < 3 || string(args[1]) != "--root" || filepath.Base(string(args[2])) != filepath.Base(stateDir("")) {
		return ""
	}
	return supervisor.NameOfDir(filepath.Dir(string(args[2])))
}

// hasChildren reports whether a process has children, or may have some.
func hasChildren(dir string) bool {
	lists, _ := filepath.Glob(dir + "/task/*/children")
	for _, list := range lists {
		if text, err := os.ReadFile(list); err != nil || len(text) > 0 {
			return true
		}
	}
	return len(lists) == 0
}
