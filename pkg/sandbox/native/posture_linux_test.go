package native

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// declared is the expected posture of a sandboxed process. It is written by hand: a changed line is a decision, and
// never the copied result of a run.
//
// Files of their own declare the differences for an ordinary user, section by section.
//
//go:embed testdata/posture*.txt
var declared embed.FS

// declaration is a declared posture: the root's, with the sections of another one replacing its own.
func declaration(t *testing.T, name string) []string {
	t.Helper()
	sections := func(file string) (names []string, lines map[string]string) {
		text, err := declared.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		lines = map[string]string{}
		for _, s := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
			name, _, _ := strings.Cut(s, "\n")
			names, lines[name] = append(names, name), s+"\n"
		}
		return names, lines
	}
	names, lines := sections("posture.txt")
	if name != "" {
		over, others := sections("posture-" + name + ".txt")
		for _, n := range over {
			if _, ok := lines[n]; !ok {
				t.Fatalf("%s: there is no section %s", name, n)
			}
			lines[n] = others[n]
		}
	}
	var all strings.Builder
	for _, n := range names {
		all.WriteString(lines[n] + "\n")
	}
	return strings.Split(all.String(), "\n")
}

// The whole posture of a sandboxed process is the declared one: its rights, its resources, its view. Values that only
// the machine decides (numbers of devices and mounts, the files of /proc) are left out or translated; values that come
// from the supervisor unchanged are called inherited.
func TestPosture(t *testing.T) {
	b := newBackend(t, Options{})
	defer b.Close()
	checkPosture(t, b, sandbox.TierContainer, declaration(t, ""))
}

func TestPlainPosture(t *testing.T) {
	tier, _ := conformance.AsPlain(t)
	b := plainBackend(t)
	defer b.Close()
	checkPosture(t, b, tier, declaration(t, os.Getenv(conformance.PlainVariable)))
}

func checkPosture(t *testing.T, b *Backend, tier sandbox.Tier, want []string) {
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	ctx := context.Background()
	id, err := m.Create(ctx, sandbox.Spec{Require: tier})
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		res, err := m.Run(ctx, id, sandbox.Process{Args: args}, sandbox.IO{})
		if err != nil || res.Verdict != sandbox.VerdictOK {
			t.Fatalf("%q: %+v, %v", args, res, err)
		}
		return string(res.Stdout.Bytes())
	}
	var got strings.Builder
	section := func(name string, lines []string) {
		fmt.Fprintf(&got, "[%s]\n", name)
		for _, l := range lines {
			fmt.Fprintln(&got, strings.TrimRight(l, " "))
		}
		fmt.Fprintln(&got)
	}
	section("status", statusOf(run("cat", "/proc/self/status")))
	section("limits", limitsOf(t, run("cat", "/proc/self/limits")))
	section("ids", idsOf(run("cat", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups")))
	section("namespaces", namespacesOf(t, run("sh", "-c", "cd /proc/self/ns; for n in *; do echo $n $(readlink $n); done")))
	section("descriptors", descriptorsOf(run("ls", "-l", "/proc/self/fd")))
	section("environment", strings.Fields(run("env")))
	section("mounts", mountsOf(run("cat", "/proc/self/mountinfo")))
	section("root", strings.Split(strings.TrimSpace(run("sh", "-c", "cd /; stat -c '%A %U %N' * | grep -v '/lib32\\|/libx32'")), "\n"))
	section("devices", strings.Split(strings.TrimSpace(run("sh", "-c", "cd /dev; stat -c '%A %t:%T %N' *")), "\n"))
	section("other", []string{
		"coredump_filter " + strings.TrimSpace(run("cat", "/proc/self/coredump_filter")),
		"oom_score_adj " + strings.TrimSpace(run("cat", "/proc/self/oom_score_adj")),
		"personality " + strings.TrimSpace(run("cat", "/proc/self/personality")),
		"timerslack " + strings.TrimSpace(run("cat", "/proc/self/timerslack_ns")),
		"keys " + strings.TrimSpace(run("cat", "/proc/keys")),
		"cgroup " + strings.Join(cgroupPathsOf(run("cat", "/proc/self/cgroup")), " "),
		"interfaces " + strings.Join(interfacesOf(run("cat", "/proc/net/dev")), " "),
		"visible processes " + strings.TrimSpace(run("sh", "-c", "set -- /proc/[0-9]*; echo $#")),
		"hostname " + strings.TrimSpace(run("cat", "/proc/sys/kernel/hostname")),
	})
	section("cgroup", cgroupFilesOf(t, m, id))
	if diff := cmp.Diff(want, strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("what is declared (-), what is (+):\n%s", diff)
	}
}

// statusOf keeps the lines that show a control, or a gap in one.
func statusOf(text string) (lines []string) {
	var self string
	for l := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), ":")
		value = strings.Join(strings.Fields(value), " ")
		switch name {
		case "Pid":
			self = value
		case "NStgid", "NSpid", "NSpgid", "NSsid":
			if value == self {
				value = "self"
			}
			fallthrough
		case "Umask", "PPid", "TracerPid", "Uid", "Gid", "Groups", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt",
			"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters":
			lines = append(lines, name+" "+value)
		}
	}
	return lines
}

var columns = regexp.MustCompile(`\s{2,}`)

func limitsOf(t *testing.T, text string) (lines []string) {
	own, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	ours := strings.Split(string(own), "\n")
	set := []string{"stack", "core", "open files", "locked", "pending", "msgqueue", "nice", "realtime priority"}
	for i, l := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		f := columns.Split(l, -1)
		value := f[1] + " " + f[2]
		if !slices.ContainsFunc(set, func(s string) bool { return strings.Contains(f[0], s) }) &&
			strings.TrimSpace(l) == strings.TrimSpace(ours[i+1]) {
			value = "inherited"
		}
		// An init with the program's id counts as well, with all threads of its runtime.
		var n, same int
		if _, err := fmt.Sscan(value, &n, &same); err == nil && f[0] == "Max processes" && n == same && n > 100 && n < 116 {
			value = "100 and the threads of the init"
		}
		lines = append(lines, f[0]+": "+value)
	}
	return lines
}

// idsOf translates the two ids of this sandbox, which are adjacent in the range that no other program uses.
func idsOf(text string) (lines []string) {
	var root int
	for l := range strings.Lines(text) {
		var inside, outside, n int
		if _, err := fmt.Sscan(l, &inside, &outside, &n); err != nil {
			lines = append(lines, strings.TrimSpace(l))
			continue
		}
		if inside == 0 {
			root = outside
		}
		name := fmt.Sprint(outside)
		switch {
		case outside >= 0x70000000:
			name = fmt.Sprintf("own+%d", outside-root)
		case outside >= conformance.SubFirst:
			name = "subordinate"
		case outside == os.Geteuid():
			name = "the user"
		}
		lines = append(lines, fmt.Sprintf("%d is %s, %d of them", inside, name, n))
	}
	return lines
}

func namespacesOf(t *testing.T, text string) (lines []string) {
	for l := range strings.Lines(text) {
		name, link, _ := strings.Cut(strings.TrimSpace(l), " ")
		host, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil {
			t.Fatal(err)
		}
		whose := "own"
		if link == host {
			whose = "the host's"
		}
		lines = append(lines, name+" "+whose)
	}
	return lines
}

// descriptorsOf leaves out the descriptor that ls itself has opened.
func descriptorsOf(text string) (lines []string) {
	for l := range strings.Lines(text) {
		f := strings.Fields(l)
		if len(f) < 11 || strings.HasPrefix(f[10], "/proc/") {
			continue
		}
		kind, _, _ := strings.Cut(f[10], ":")
		lines = append(lines, fmt.Sprintf("%s %s %s", f[8], f[0][1:3], kind))
	}
	return lines
}

// mountsOf keeps place, options and type; file systems of the host are only marked as such. A mask over a part of /proc
// that this kernel does not have can not exist.
func mountsOf(text string) (lines []string) {
	var covers []string
	for l := range strings.Lines(text) {
		f := strings.Fields(l)
		if len(f) < 9 {
			continue
		}
		sep := slices.Index(f, "-")
		at, how, kind, super := f[4], f[5], f[sep+1], f[sep+3]
		how = strings.TrimSuffix(strings.ReplaceAll(how, ",relatime", ""), ",noatime")
		if strings.HasPrefix(at, "/proc/") && at != "/proc/sys" {
			covers = append(covers, at)
			if how != "ro,nosuid,noexec" || kind != "tmpfs" && (kind != "devtmpfs" || f[3] != "/null") || f[3] != "/null" && f[3] != "/shm" {
				lines = append(lines, strings.TrimSpace(l))
			}
			continue
		}
		switch at {
		case "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin": // hosts whose /usr is not merged
			continue
		case "/workspace", "/tmp", "/home/sandbox":
			super = ""
		}
		if kind == "devtmpfs" { // the host's own
			super = ""
		}
		if strings.HasPrefix(at, "/usr") || strings.HasPrefix(at, "/etc") {
			kind, super = "the host's", ""
		}
		super = regexp.MustCompile(`(uid|gid|inode64)(=\d+)?,?`).ReplaceAllString(super, "")
		lines = append(lines, fmt.Sprintf("%s %s %s %s", at, how, kind, strings.Trim(super, ",")))
	}
	for _, dir := range sandbox.HostDirs() {
		if _, err := os.Stat(dir); err != nil && strings.HasPrefix(dir, "/etc/") { // a host without the file can not show it
			lines = append(lines, dir+" ro,nosuid,nodev the host's")
		}
	}
	slices.Sort(lines) // kernels list them in different orders
	for _, p := range strings.Fields("keys key-users kallsyms kmsg config.gz cmdline iomem ioports acpi bus fs irq") {
		st, err := os.Stat("/proc/" + p)
		if err == nil && st.Mode().Perm()&0o007 != 0 && !slices.Contains(covers, "/proc/"+p) {
			lines = append(lines, "/proc/"+p+" is not covered")
		}
	}
	return lines
}

func cgroupPathsOf(text string) (paths []string) {
	for l := range strings.Lines(text) {
		if f := strings.SplitN(strings.TrimSpace(l), ":", 3); len(f) == 3 {
			paths = append(paths, f[2])
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func interfacesOf(text string) (names []string) {
	for l := range strings.Lines(text) {
		if name, _, ok := strings.Cut(strings.TrimSpace(l), ":"); ok {
			names = append(names, name)
		}
	}
	return names
}

// cgroupFilesOf reads the limits from the kernel's files, by the names of cgroup v2.
func cgroupFilesOf(t *testing.T, m *sandbox.Manager, id string) (lines []string) {
	mark := fmt.Sprintf("60.%d%d", os.Getpid(), time.Now().UnixNano()) // seconds to sleep
	done := make(chan error, 1)
	go func() {
		_, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"sleep", mark}}, sandbox.IO{})
		done <- err
	}()
	var member string
	for end := time.Now().Add(60 * time.Second); member == "" && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range files {
			if line, _ := os.ReadFile(f); slices.Contains(strings.Split(string(line), "\x00"), mark) {
				member = filepath.Dir(f)
			}
		}
	}
	text, err := os.ReadFile(member + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if string(own) == string(text) {
		defer func() { lines = []string{"its supervisor's"} }()
	}
	read := func(hierarchy, path, file string) string {
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", hierarchy, path, file))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	found := map[string]string{}
	for l := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(l), ":", 3)
		for _, h := range append(strings.Split(f[1], ","), f[1]) {
			for _, v := range []struct{ name, file string }{
				{"memory.max", "memory.max"}, {"memory.max", "memory.limit_in_bytes"},
				{"memory and swap", "memory.memsw.limit_in_bytes"}, {"pids.max", "pids.max"}, {"cpu.max", "cpu.max"},
			} {
				if text := read(h, f[2], v.file); text != "" {
					found[v.name] = text
				}
			}
			if quota := read(h, f[2], "cpu.cfs_quota_us"); quota != "" {
				found["cpu.max"] = quota + " " + read(h, f[2], "cpu.cfs_period_us")
			}
			if read(h, f[2], "memory.swap.max") == "0" {
				found["memory and swap"] = found["memory.max"]
			}
		}
	}
	if err := m.Kill(id); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, name := range []string{"cpu.max", "memory.max", "memory and swap", "pids.max"} {
		lines = append(lines, name+" "+found[name])
	}
	return lines
}
