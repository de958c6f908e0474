//go:build linux

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// machine describes a machine to detect: files by path, directories and files that may not be written, and the user.
type machine struct {
	files  map[string]string
	locked []string
	user   int
	self   int
}

func (m machine) openable(path string) error { return m.writable(path) }
func (m machine) euid() int                  { return m.user }
func (m machine) pid() int                   { return m.self }

func (m machine) subdirs(dir string) (names []string) {
	for path := range m.files {
		if rest, below := strings.CutPrefix(path, dir+"/"); below {
			if name, _, deeper := strings.Cut(rest, "/"); deeper {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (m machine) exists(path string) bool { _, ok := m.files[path]; return ok }

func (m machine) writable(dir string) error {
	if slices.Contains(m.locked, dir) {
		return unix.EACCES
	}
	return nil
}

func (m machine) read(path string) (string, error) {
	if s, ok := m.files[path]; ok {
		return s, nil
	}
	return "", unix.ENOENT
}

// The mount table of the machine this was written on, shortened.
const hybridMounts = `23 1 8:1 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
`
const unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
const hybridSelf = "9:name=systemd:/\n8:pids:/\n4:memory:/process_api/1e97\n3:cpuset:/\n2:cpuacct:/\n1:cpu:/\n0::/a:b\n"

func (l layout) summary() string {
	var b strings.Builder
	b.WriteString(l.version)
	for _, h := range l.hierarchies {
		fmt.Fprintf(&b, "\n%s %s", h.label, h.place)
		if h.enable != "" {
			b.WriteString(" " + h.enable)
		}
	}
	for _, g := range l.missing {
		fmt.Fprintf(&b, "\n- %s: %s", g.Control, g.Reason)
	}
	return b.String()
}

func TestDetect(t *testing.T) {
	v2Mount := "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	const root = "/sys/fs/cgroup"
	all := "cpuset cpu io memory hugetlb pids\n"
	for _, c := range []struct {
		name, mounts, self string
		machine            machine
		want               string
	}{
		{
			"hybrid", hybridMounts + unified, hybridSelf,
			machine{files: map[string]string{root + "/unified/cgroup.controllers": "\n", root + "/unified/a:b/cpu.stat": ""}},
			"hybrid\ncpu " + root + "/cpu\ncpuacct " + root + "/cpuacct\nmemory " + root + "/memory/process_api/1e97\npids " + root +
				"/pids\n- kill: a run takes no part in the v2 tree of a hybrid machine: processes are killed one by one",
		},
		{
			"hybrid, io in v2: no reason to join", hybridMounts + unified, hybridSelf,
			machine{files: map[string]string{root + "/unified/cgroup.controllers": "io\n", root + "/unified/a:b/cgroup.controllers": "io",
				root + "/unified/a:b/cpu.stat": ""}},
			"hybrid\ncpu " + root + "/cpu\ncpuacct " + root + "/cpuacct\nmemory " + root + "/memory/process_api/1e97\npids " + root +
				"/pids\n- kill: a run takes no part in the v2 tree of a hybrid machine: processes are killed one by one",
		},
		{
			"hybrid, CPU time only in v2", strings.ReplaceAll(hybridMounts, "rw,cpuacct", "rw,net_cls") + unified, hybridSelf,
			machine{files: map[string]string{root + "/unified/cgroup.controllers": "\n", root + "/unified/a:b/cpu.stat": ""}},
			"hybrid\ncpu " + root + "/cpu\nmemory " + root + "/memory/process_api/1e97\npids " + root + "/pids\nv2 " + root + "/unified/a:b",
		},
		{
			"hybrid, pids only in v2", strings.ReplaceAll(hybridMounts, "rw,pids", "rw,net_cls") + unified, hybridSelf,
			machine{files: map[string]string{root + "/unified/cgroup.controllers": "pids\n", root + "/unified/a:b/cgroup.controllers": "pids",
				root + "/unified/a:b/cgroup.events": "", root + "/unified/a:b/cgroup.procs": "7\n", root + "/unified/a:b/cpu.stat": ""}},
			"hybrid\ncpu " + root + "/cpu\nmemory " + root + "/memory/process_api/1e97\nv2 " + root + "/unified +pids",
		},
		{
			"v1 in a container that sees its own part", "1 2 0:1 /docker/ab /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n3 2 " +
				"0:2 /docker/ab /m\\040em rw - cgroup cgroup rw,memory\n",
			"2:cpu,cpuacct:/docker/ab/x\n3:memory:/docker/ab\n", machine{},
			"v1\ncpu,cpuacct /sys/fs/cgroup/cpu,cpuacct/x\nmemory /m em\n- pids: controller pids is not mounted\n- kill: no v2 tree is mounted: " +
				"processes are killed one by one",
		},
		{
			"v1, refused in every way", "1 2 0:1 / /c rw - cgroup cgroup rw,cpu\n3 2 0:2 /docker/ab /m rw - cgroup cgroup rw,memory\n4 2 0:3 / " +
				"/p ro - cgroup cgroup rw,pids\n5 2 0:4 / /u rw - cgroup2 cgroup2 rw\n",
			"2:cpu:/\n3:memory:/docker/abc\n4:pids:/\n0::/../x\n", machine{locked: []string{"/c"}},
			"hybrid\n- memory: this process's own group \"/docker/abc\" is not visible below /m\n- pids: cgroup tree /p is read-only\n- cpu: " +
				"cannot create groups in /c: permission denied\n- kill: this process's own group \"/../x\" is not visible below /u",
		},
		{
			"v2, a service: the nearest ancestor without processes", v2Mount, "0::/system.slice/x.service\n",
			machine{files: map[string]string{
				root + "/cgroup.controllers": all, root + "/system.slice/cgroup.controllers": all, root +
					"/system.slice/x.service/cgroup.controllers": all,
				root + "/system.slice/cgroup.events": "", root + "/system.slice/x.service/cgroup.events": "",
				root + "/system.slice/cgroup.procs": "", root + "/system.slice/x.service/cgroup.procs": "17\n",
			}},
			"v2\nv2 " + root + "/system.slice +cpu +memory +pids +io",
		},
		{
			"v2, the slice has one controller less: one further up", v2Mount, "0::/user.slice/s.scope\n",
			machine{files: map[string]string{
				root + "/cgroup.controllers": all, root + "/user.slice/cgroup.controllers": "memory pids", root +
					"/user.slice/s.scope/cgroup.controllers": "memory pids",
				root + "/user.slice/cgroup.events": "", root + "/user.slice/cgroup.procs": "", root + "/cgroup.procs": "1\n",
			}},
			"v2\nv2 " + root + " +cpu +memory +pids +io",
		},
		{
			"v2 in a container whose root group is full", v2Mount, "0::/\n",
			machine{files: map[string]string{root + "/cgroup.controllers": all, root + "/cgroup.events": "", root + "/cgroup.procs": "1\n"}},
			"v2\nv2 " + root + "\n- memory: " + root + " holds processes, so its children can not have controllers\n- pids: " + root +
				" holds processes, so its children can not have controllers\n- cpu: " + root +
				" holds processes, so its children can not have controllers",
		},
		{
			"v2 read-only", strings.Replace(v2Mount, "rw,nosuid", "ro,nosuid", 1), "0::/\n", machine{},
			"v2\n- memory: cgroup tree /sys/fs/cgroup is read-only\n- pids: cgroup tree /sys/fs/cgroup is read-only\n- cpu: cgroup tree " +
				"/sys/fs/cgroup is read-only\n- kill: cgroup tree /sys/fs/cgroup is read-only",
		},
		{
			"nothing", "", "", machine{},
			"none\n- memory: controller memory is not mounted\n- pids: controller pids is not mounted\n- cpu: controller cpu is not mounted\n- " +
				"kill: no v2 tree is mounted: processes are killed one by one",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := detect(c.mounts, c.self, false, c.machine).summary(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func FuzzDetect(f *testing.F) {
	f.Add(hybridMounts+unified, hybridSelf)
	f.Add(`1 2 0:1 /\040 /\777 rw - cgroup2 a b`, "0::/../..\n:::\n")
	f.Fuzz(func(t *testing.T, mounts, self string) {
		l := detect(mounts, self, false, machine{files: map[string]string{}})
		for _, h := range l.hierarchies {
			if h.place == "" && h.mount != "" && h.mount != "/" {
				t.Errorf("hierarchy without a place: %+v", h)
			}
			if slices.Contains(strings.Split(strings.TrimPrefix(h.place, h.mount), "/"), "..") {
				t.Errorf("%s climbs out of %s", h.place, h.mount)
			}
		}
	})
}

func FuzzCounters(f *testing.F) {
	f.Add([]byte("oom_kill 3\nmax 18446744073709551616\nx\n y 1\n"))
	f.Add([]byte("8:0 rbytes=1 wbytes=2 rios=3\n8:16 rbytes=10 wbytes=20"))
	f.Fuzz(func(t *testing.T, b []byte) {
		flatKeyed(b, func(name []byte, _ uint64) {
			if len(name) == 0 {
				t.Error("empty name")
			}
		})
		parseIOStat(b)
		parseUint(b)
	})
}

func TestParse(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, "42\n": 42, "18446744073709551615": 1<<64 - 1, "99999999999999999999": 1<<64 - 1} {
		if got, ok := parseUint([]byte(in)); got != want || !ok {
			t.Errorf("%q: %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "max\n", "-1"} {
		if n, ok := parseUint([]byte(in)); ok {
			t.Errorf("%q: %d", in, n)
		}
	}
	if r, w := parseIOStat([]byte("8:0 rbytes=1 wbytes=2 rios=3\n8:16 rbytes=10 wbytes=20\n")); r != 11 || w != 22 {
		t.Errorf("io.stat: %d, %d", r, w)
	}
	for _, c := range []struct{ total, user, system, wantUser, wantSystem int64 }{
		{100, 0, 0, 100, 0}, {100, 0, 5, 0, 100}, {100, 3, 1, 75, 25}, {0, 1, 1, 0, 0}, {1 << 60, 1 << 62, 1 << 62, 1 << 59, 1 << 59},
	} {
		u, s := splitCPU(1*dur(c.total), uint64(c.user), uint64(c.system))
		if u != dur(c.wantUser) || s != dur(c.wantSystem) {
			t.Errorf("%+v: %d, %d", c, u, s)
		}
	}
}

func TestBadPaths(t *testing.T) {
	tree := &Tree{hierarchies: []hierarchy{{label: "x", place: t.TempDir(), at: -1}}}
	for _, path := range []string{"", "/", "/a", "a/", "a//b", "..", "a/../b", ".", "cgroup.procs", "a b", strings.Repeat("a", 300),
		"1/2/3/4/5/6/7/8/9"} {
		g := tree.Group(path)
		_, statErr := g.Stat()
		_, joinErr := g.JoinFiles()
		_, fdErr := g.CgroupFD()
		_, procsErr := g.Procs()
		_, emptyErr := g.Empty()
		for i, err := range []error{g.Make(Limits{}), g.Set(Limits{}), g.Add(1), g.Kill(), g.Remove(t.Context()), statErr, joinErr, fdErr,
			procsErr, emptyErr} {
			if err == nil {
				t.Errorf("%q: call %d accepted it", path, i)
			}
		}
		if g.Exists() || g.Dirs() != nil {
			t.Errorf("%q exists", path)
		}
	}
}

// A recorded root must be a directory called sandbox-run, on a cgroup file system, or missing.
func TestAtRefusesForeignDirectories(t *testing.T) {
	plain := filepath.Join(t.TempDir(), rootName)
	if err := os.MkdirAll(filepath.Join(plain, "precious"), 0o700); err != nil {
		t.Fatal(err)
	}
	bad := []string{plain, "sandbox-run", "/sys/fs/cgroup", "/sys/fs/cgroup/pids/../pids/sandbox-run", "/", ""}
	tree, refused := At(append(slices.Clone(bad), "/sys/fs/cgroup/no/such/sandbox-run"))
	defer tree.Close()
	if !slices.Equal(refused, bad) || len(tree.Roots()) != 0 {
		t.Errorf("refused %q, kept %q", refused, tree.Roots())
	}
	if err := tree.Group("precious").Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(plain, "precious")); err != nil {
		t.Error(err)
	}
}

// An ordinary user, on every kind of machine: the place of its groups, the gaps and the remedies.
func TestDetectForUser(t *testing.T) {
	const (
		root    = "/sys/fs/cgroup"
		mounts  = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		slice   = root + "/user.slice/user-7.slice"
		manager = slice + "/user@7.service"
		all     = "cpu memory pids"
	)
	// groups describes v2 groups by path: the content of cgroup.procs, with the controllers of the machine. The user may
	// write to the given groups only.
	groups := func(given []string, procs map[string]string, more ...string) machine {
		m := machine{files: map[string]string{root + "/cgroup.controllers": all, root + "/cgroup.procs": "1\n"}, user: 7, self: 42}
		for dir, pids := range procs {
			for up := dir; up != root; up = filepath.Dir(up) {
				if _, known := m.files[up+"/cgroup.events"]; !known || up == dir {
					m.files[up+"/cgroup.controllers"], m.files[up+"/cgroup.events"], m.files[up+"/cgroup.procs"] = all, "", procs[up]
				}
			}
			m.files[dir+"/cgroup.procs"] = pids
		}
		for path := range m.files {
			dir := filepath.Dir(path)
			if !slices.ContainsFunc(given, func(g string) bool { return dir == g || strings.HasPrefix(dir, g+"/") }) {
				m.locked = append(m.locked, dir, dir+"/cgroup.procs", dir+"/cgroup.subtree_control")
			}
		}
		for _, path := range more {
			m.files[path] = ""
		}
		return m
	}
	systemd := []string{"/run/systemd/system", "/run/user/7/systemd/private"}
	for _, c := range []struct {
		name, mounts, self string
		moving             bool
		machine            machine
		want               string // place and controllers, or the reason
		remedy             string
	}{
		{"alone in a delegated group", mounts, "0::/d/own\n", true,
			groups([]string{root + "/d/own"}, map[string]string{root + "/d/own": "42\n"}), root + "/d/own +cpu +memory +pids (move)", ""},
		{"alone, moves not allowed", mounts, "0::/own\n", false, groups([]string{root + "/own"}, map[string]string{root + "/own": "42\n"}),
			"cannot create groups in " + root + ": permission denied", "chown -R 7"},
		{"not alone", mounts, "0::/own\n", true, groups([]string{root + "/own"}, map[string]string{root + "/own": "42\n43\n"}),
			"cannot create groups in " + root + ": permission denied", "chown -R 7"},
		{"a process of an invisible pid namespace", mounts, "0::/own\n", true,
			groups([]string{root + "/own"}, map[string]string{root + "/own": "0\n42\n"}), "cannot create groups in " + root +
				": permission denied", "chown -R 7"},
		{"in the leaf already", mounts, "0::/own/sandbox-run/supervisor\n", true,
			groups([]string{root + "/own"}, map[string]string{root + "/own/sandbox-run/supervisor": "42\n"}), root + "/own +cpu +memory +pids", ""},
		{"a delegated subtree", mounts, "0::/d/shell\n", false, groups([]string{root + "/d"}, map[string]string{root + "/d/shell": "41\n42\n"}),
			root + "/d +cpu +memory +pids", ""},
		{"a delegated subtree, nearest first", mounts, "0::/d/e/shell\n", false,
			groups([]string{root + "/d"}, map[string]string{root + "/d/e/shell": "41\n42\n"}), root + "/d/e +cpu +memory +pids", ""},
		{"in a session", mounts, "0::/user.slice/user-7.slice/session-1.scope\n", true,
			groups([]string{manager}, map[string]string{slice + "/session-1.scope": "42\n", manager + "/init.scope": "9\n"}, systemd...),
			manager + " is this user's, but this process is in " + slice +
				"/session-1.scope, outside of it, and only root may move a process from there; above it: cannot create groups in " + root +
				": permission denied", "systemd-run --user --scope"},
		{"no manager", mounts, "0::/system.slice/cron.service\n", true,
			groups(nil, map[string]string{root + "/system.slice/cron.service": "42\n"}, systemd[:1]...),
			"cannot create groups in " + root + ": permission denied", "loginctl enable-linger 7"},
		{"read-only in a container", strings.Replace(mounts, "rw,nosuid", "ro,nosuid", 1), "0::/\n", true, groups(nil, nil),
			"cgroup tree " + root + " is read-only", "--cgroupns=private"},
		{"outside the container's part", mounts, "0::/../other\n", true, groups(nil, nil),
			`this process's own group "/../other" is not visible below ` + root, "--cgroupns=private"},
		{"hybrid", hybridMounts + unified, hybridSelf, true,
			machine{user: 7, files: map[string]string{}, locked: []string{root + "/memory/process_api/1e97", root + "/unified/a:b"}},
			"cannot create groups in " + root + "/memory/process_api/1e97: permission denied", "chown -R 7 /sys/fs/cgroup/$c/u7"},
		{"hybrid, given", hybridMounts, hybridSelf, true, machine{user: 7, files: map[string]string{}}, root + "/memory/process_api/1e97 ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := detect(c.mounts, c.self, c.moving, c.machine)
			got, remedy := "", ""
			for _, h := range l.hierarchies {
				if h.roles&roleMemory != 0 {
					got = h.place + " " + h.enable
					if h.moveFirst {
						got += " (move)"
					}
				}
			}
			for _, g := range l.missing {
				if g.Control == "memory" {
					got, remedy = g.Reason, g.Remedy
				}
			}
			if got != c.want || (c.remedy == "") != (remedy == "") || !strings.Contains(remedy, c.remedy) {
				t.Errorf("got  %s\nwant %s\nremedy %q", got, c.want, remedy)
			}
		})
	}

	// All of these files of a group must be writable.
	for _, file := range []string{"", "/cgroup.procs", "/cgroup.subtree_control"} {
		m := groups([]string{root + "/d"}, map[string]string{root + "/d/shell": "41\n42\n"})
		m.locked = append(m.locked, root+"/d"+file)
		if l := detect(mounts, "0::/d/shell\n", true, m); len(l.missing) == 0 {
			t.Errorf("without %q: nothing is missing", file)
		}
	}

	// A group with fewer controllers is used only if no group above has more.
	m := groups([]string{root + "/d"}, map[string]string{root + "/d/e/shell": "41\n42\n"}, systemd...)
	m.files[root+"/d/e/cgroup.controllers"] = "memory pids"
	if l := detect(mounts, "0::/d/e/shell\n", false, m); len(l.missing) != 0 || l.hierarchies[0].place != root+"/d" {
		t.Error(l.summary())
	}
	m.files[root+"/d/cgroup.controllers"] = "memory pids"
	l := detect(mounts, "0::/d/e/shell\n", false, m)
	if want := "v2\nv2 " + root + "/d/e +memory +pids\n- cpu: " + root + "/d/e does not have it"; l.summary() != want {
		t.Errorf("got\n%s\nwant\n%s", l.summary(), want)
	} else if !strings.Contains(l.missing[0].Remedy, "Delegate=cpu memory pids") {
		t.Error(l.missing[0].Remedy)
	}
}
