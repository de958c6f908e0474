package sandbox

import (
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// thisMachine is the most that this process could use.
func thisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU()}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = Size(info.Totalram) * Size(info.Unit)
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Max < maxOpenFiles {
		m.OpenFiles = int(files.Max)
	}
	return m
}

// SignalName is "SIGKILL" for 9; empty for 0.
func SignalName(n int) string {
	if n == 0 {
		return ""
	}
	if name := unix.SignalName(unix.Signal(n)); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(n) // real-time signals have no names
}
