package app

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Facts returns properties of this machine that matter to a sandbox. A property that can not be read has the value "unknown", so that
// every line is present.
func Facts() []Fact {
	return []Fact{
		{"system", distribution()},
		{"kernel", kernel()},
		{"user", user()},
		{"cores", strconv.Itoa(runtime.NumCPU())},
		{"memory", memory()},
		{"cgroups", cgroups()},
		{"user namespaces", userNamespaces()},
		{"landlock", landlock()},
		{"core dumps", coreDumps(firstLine("/proc/sys/kernel/core_pattern"))},
	}
}

const unknown = "unknown"

// firstLine returns the first line of a file of the kernel.
func firstLine(path string) string {
	text, err := os.ReadFile(path)
	line, _, _ := strings.Cut(string(text), "\n")
	if err != nil || line == "" {
		return unknown
	}
	return line
}

func distribution() string {
	text, _ := os.ReadFile("/etc/os-release") // may be absent
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"'`)
		}
	}
	return unknown
}

func kernel() string {
	return firstLine("/proc/sys/kernel/osrelease") + " " + runtime.GOARCH
}

func user() string {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Sprintf("uid %d, not root", uid)
	}
	return "root"
}

// coreDumps returns where the kernel sends core dumps. A socket gets those of sandboxed programs, too: RLIMIT_CORE does not apply to it.
func coreDumps(pattern string) string {
	switch {
	case strings.HasPrefix(pattern, "@"):
		return "to the socket " + pattern + ", also those of sandboxed programs (without their memory, unless a program adds its own); " +
			"try: sysctl kernel.core_pattern=core, or a handler behind a pipe"
	case strings.HasPrefix(pattern, "|"):
		return "to a handler behind a pipe; not those of sandboxed programs"
	case pattern == unknown:
		return unknown
	}
	return "to files; not those of sandboxed programs"
}

func memory() string {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return unknown
	}
	return sandbox.Size(info.Totalram * uint64(info.Unit)).String()
}

func cgroups() string {
	tree, err := cgroup.Open()
	if err != nil {
		return "none usable: " + err.Error()
	}
	defer tree.Close()
	return tree.Version()
}

func userNamespaces() string {
	switch most := firstLine("/proc/sys/user/max_user_namespaces"); most {
	case "0":
		return "switched off (user.max_user_namespaces is 0)"
	case unknown:
		return unknown
	default:
		return "up to " + most
	}
}

func landlock() string {
	// The version query takes no ruleset: attributes nil, size 0, flag 1.
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return "not available: " + errno.Error()
	}
	return "ABI " + strconv.Itoa(int(abi))
}
