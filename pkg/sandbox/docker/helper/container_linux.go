package helper

import (
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// keptCapabilities are those that the helper needs: to set the ids of inits, to take the user's id for files, and to kill
// processes of other users. Only the file worker uses the last one, for directories whose owner has removed the permissions.
var keptCapabilities = []int{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_DAC_OVERRIDE}

// dropAllBut drops all other capabilities, in all threads.
func dropAllBut(kept ...int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return err
	}
	var want [2]unix.CapUserData
	for _, c := range kept {
		bit := uint32(1) << (c % 32)
		want[c/32].Permitted |= have[c/32].Permitted & bit
		if c != unix.CAP_DAC_OVERRIDE {
			want[c/32].Effective |= have[c/32].Permitted & bit
		}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&want[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// measureContainer measures the isolation and the limits of the container.
func measureContainer(r *containerproto.Ready, setup *containerproto.Setup, c *counter) {
	status := map[string]string{}
	text, _ := os.ReadFile("/proc/thread-self/status")
	for line := range strings.SplitSeq(string(text), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			status[name] = strings.TrimSpace(value)
		}
	}
	r.NoNewPrivs = status["NoNewPrivs"] == "1"
	r.Seccomp, _ = strconv.Atoi(status["Seccomp"])
	r.CapBnd, _ = strconv.ParseUint(status["CapBnd"], 16, 64)
	var st unix.Statfs_t
	r.ReadOnly = unix.Statfs("/", &st) == nil && st.Flags&unix.ST_RDONLY != 0
	if list, err := net.Interfaces(); err == nil {
		for _, i := range list {
			r.Interfaces = append(r.Interfaces, i.Name)
		}
	}
	for _, d := range setup.Dirs {
		room := containerproto.Room{At: d.At, Bytes: -1, Inodes: -1}
		if unix.Statfs(d.At, &st) == nil {
			room.Kind, room.NoSuid = st.Type, st.Flags&unix.ST_NOSUID != 0
			room.Bytes, room.Inodes = int64(st.Blocks)*st.Bsize, clampInt(st.Files)
		}
		r.Scratch = append(r.Scratch, room)
	}
	for _, v := range setup.Volumes {
		var st unix.Stat_t
		_ = unix.Lstat(v, &st) // a missing file has the zero identity
		r.Volumes = append(r.Volumes, containerproto.Ident{Device: st.Dev, Inode: st.Ino})
	}
	r.Writable = unrequestedMounts(setup)
	r.Cgroup = c.version
	r.Memory, r.Swap, r.Pids, r.CPUQuota, r.CPUPeriod = c.limits()
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		r.Release = unix.ByteSliceToString(name.Release[:])
	}
}

func clampInt(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// engineFiles are mounted by engines into every container: they belong to root, and the user can not write to them.
var engineFiles = []string{"/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/run/.containerenv", "/run/secrets", "/.dockerenv"}

// littleRoom is a size that is ignored.
const littleRoom = 64 << 10

// unrequestedMounts are writable mounts that are neither the kernel's, nor the scratch's, nor the user's volumes: an image declares them.
func unrequestedMounts(setup *containerproto.Setup) (list []string) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return []string{"? (" + err.Error() + ")"}
	}
	known := append(engineFiles[:len(engineFiles):len(engineFiles)], setup.Volumes...)
	for _, d := range setup.Dirs {
		known = append(known, d.At)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		fields, rest, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(fields), strings.Fields(rest)
		if len(f) < 6 || len(kind) < 1 || strings.HasPrefix(f[5], "ro,") || f[5] == "ro" || f[4] == "/" {
			continue
		}
		at := f[4]
		if within(at, "/proc") || within(at, "/sys") || within(at, "/dev") || slices.Contains(known, unescape(at)) {
			continue
		}
		var st unix.Statfs_t
		if kind[0] == "tmpfs" && unix.Statfs(unescape(at), &st) == nil && st.Blocks*uint64(st.Bsize) <= littleRoom {
			continue // the backend has made it so small that it counts as read-only
		}
		list = append(list, unescape(at))
	}
	return list
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// unescape undoes the kernel's escapes in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
