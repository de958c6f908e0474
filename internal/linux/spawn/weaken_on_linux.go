//go:build weaken

package spawn

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/weaken"
)

// weakenStart changes how an init is started, and returns the variables that describe the mutation to the init.
func weakenStart(o *Options) []string {
	for name, namespace := range map[string]uintptr{"host-network": unix.CLONE_NEWNET, "host-ipc": unix.CLONE_NEWIPC,
		"no-pid-namespace": unix.CLONE_NEWPID} {
		if weaken.On(name) {
			o.Namespaces &^= namespace
		}
	}
	o.KeepGroups = o.KeepGroups || weaken.On("groups")
	return []string{weaken.Variable + "=" + os.Getenv(weaken.Variable)}
}

// measures is false where the attack suite itself must detect the missing control: a measured program would not be
// started.
func measures() bool {
	return os.Getenv(weaken.Variable) == "" || os.Getenv(weaken.Measured) != ""
}

// weakenSetup changes the setup message of an init. The descriptors that it adds are closed with the process.
func weakenSetup(m *initproto.Setup, files []int) []int {
	clearFlags := func(fd int, flags uint64, how uint) {
		_ = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|how, &unix.MountAttr{Attr_clr: flags})
	}
	show := func(source, target string, isFile bool) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			panic(err)
		}
		m.Volumes = append(m.Volumes, initproto.Volume{FD: len(files), To: target, File: isFile})
		files = append(files, fd)
	}
	switch os.Getenv(weaken.Variable) {
	case "root-unsealed":
		clearFlags(files[m.Root], unix.MOUNT_ATTR_RDONLY, 0)
	case "writable-root":
		clearFlags(files[m.Root], unix.MOUNT_ATTR_RDONLY, 0)
		for _, d := range []string{".", "etc"} {
			_ = unix.Fchmodat(files[m.Root], d, 0o777, 0)
		}
	case "writable-volumes":
		clearFlags(files[m.Volumes[0].FD], unix.MOUNT_ATTR_RDONLY, unix.AT_RECURSIVE)
	case "devices", "set-uid":
		flags := map[bool]uint64{true: unix.MOUNT_ATTR_NODEV, false: unix.MOUNT_ATTR_NOSUID}[weaken.On("devices")]
		for _, fd := range files {
			clearFlags(fd, flags, unix.AT_RECURSIVE)
		}
	case "groups":
		m.KeepGroups = true
	case "proc-uncovered":
		m.Masked, m.Hidden, m.ReadOnly = nil, nil, nil
	case "proc-sys-writable":
		m.ReadOnly = nil
	case "sysrq-kcore":
		m.Masked = without(m.Masked, "/proc/sysrq-trigger", "/proc/kcore")
	case "host-proc":
		show("/proc", "/proc", false)
	case "fake-proc":
		show("/etc", "/proc", false)
	case "other-null":
		show("/etc/hostname", "/dev/null", true)
	case "cgroup-fs":
		show("/sys/fs/cgroup", "/sys", false)
	}
	return files
}

// weakenExec changes the message by which an init runs a program.
func weakenExec(m *initproto.Exec, files []int) []int {
	weakenLandlock(&m.Landlock)
	switch os.Getenv(weaken.Variable) {
	case "no-filter":
		m.Seccomp = nil
	case "host-network", "writable-root", "writable-volumes":
		m.Landlock = initproto.Ruleset{}
	case "capabilities":
		m.UID, m.GID = 0, 0
	case "groups":
		m.KeepGroups = true
	case "descriptor":
		if fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil && !m.Terminal {
			m.Stdio[0] = len(files)
			files = append(files, fd)
		}
	case "no-rlimits":
		const none = unix.RLIM_INFINITY
		m.Rlimits = []initproto.Rlimit{{Resource: unix.RLIMIT_CORE, Soft: none, Max: none}, {Resource: unix.RLIMIT_NOFILE, Soft: 4096, Max: 4096}}
	case "no-file-size":
		m.Rlimits = append(m.Rlimits, initproto.Rlimit{Resource: unix.RLIMIT_FSIZE})
	}
	return files
}

// weakenExpect changes the message by which an init prepares for a fork.
func weakenExpect(m *initproto.Expect) {
	weakenLandlock(&m.Landlock)
	if weaken.On("fork-bare") || weaken.On("fork-no-landlock") {
		m.Landlock = initproto.Ruleset{}
	}
}

func weakenLandlock(m *initproto.Ruleset) {
	switch os.Getenv(weaken.Variable) {
	case "no-landlock":
		*m = initproto.Ruleset{}
	case "landlock-no-network":
		m.Net = 0
	case "landlock-no-scope":
		m.Scoped = 0
	}
}

func without(list []string, names ...string) (rest []string) {
	for _, s := range list {
		if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+s+" ") {
			rest = append(rest, s)
		}
	}
	return rest
}
