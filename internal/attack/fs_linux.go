package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func fileCases() []attackCase {
	return []attackCase{
		{"F1", "overwrite the runtime through /proc/self/exe", overwriteRuntime},
		{"F2", "use an inherited descriptor", inheritDescriptors},
		{"F3", "a root whose mount targets are symlinks", symlinkedTargets},
		{"F4", "a root with another /dev/null", swappedNull},
		{"F5", "a root with a /proc of its own", fakeProc},
		{"F6", "escape by racing renames", racingRenames},
		{"F7", "hand out a link, a pipe or a device", copyOut},
		{"F8", "a link where something is brought in", copyIn},
		{"F9", "an archive that slips out, or explodes", hostileArchive},
		{"F10", "a volume that is a link, or lies elsewhere", volumeSources},
		{"F11", "set-uid files and file capabilities", setUID},
		{"F12", "write to the system", writeSystem},
		{"F13", "read the host's secrets", readSecrets},
		{"F14", "very deep and very many directories", manyDirectories},
		{"F15", "fill the disk", fillDisk},
	}
}

func inheritDescriptors(t *trial) {
	// A descriptor that a careless supervisor has open, and would inherit to the program.
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	t.must(err)
	t.later(func() { unix.Close(fd) })
	seen := t.outside("descriptors").of(fmt.Sprintf("fd %d", fd))
	t.control(seen.OK(), "a child on the host inherits it", say(seen))
	// The attacker's own Go runtime must not open its cgroup's files, where it finds some.
	id := t.sandbox(func(s *sandbox.Spec) { s.Env["GODEBUG"] = "containermaxprocs=0,updatemaxprocs=0" })
	for _, tty := range []*sandbox.TTY{nil, {Rows: 24, Cols: 80}} {
		p := t.process("descriptors")
		p.TTY = tty
		res := t.run(id, p, sandbox.IO{})
		said := answers(hostile.Parse(bytes.ReplaceAll(res.Stdout.Bytes(), []byte("\r\n"), []byte("\n"))))
		t.control(said.of("fd 1").OK(), "its own output is seen", say(said.of("fd 1")))
		form := map[bool]string{true: "with pipes", false: "with a terminal"}[tty == nil]
		for _, a := range said {
			switch name, n, _ := strings.Cut(a.Name, " "); {
			case name == "fd" && slices.Contains([]string{"0", "1", "2"}, n):
				stream := strings.HasPrefix(a.Detail, "pipe:") || a.Detail == "/dev/null" || strings.HasPrefix(a.Detail, "/dev/pts/") ||
					strings.HasPrefix(a.Detail, "socket:")
				t.judge(stream, "descriptor "+n+" "+form, a.Detail, seen.Detail)
			case name == "fd":
				t.judge(false, "descriptor "+n+" "+form, a.Detail, seen.Detail)
			case name == "openat":
				t.judge(!a.OK(), "openat from descriptor "+n+" "+form, a.Got, seen.Detail)
			case name == "cwd":
				t.judge(a.OK() && a.Detail == sandbox.WorkspaceDir, "working directory "+form, say(a), "")
			}
		}
	}
	for dir, allowed := range map[string]bool{"/tmp": true, "/proc/self/fd/3": false, "/proc/self/cwd": false, "/proc/self/root": false} {
		p := t.process("sleep", "0s")
		p.Workdir = dir
		_, err := t.manager.Run(t.ctx, id, p, sandbox.IO{})
		if allowed {
			t.control(err == nil, "work in "+dir, fmt.Sprint(err))
			continue
		}
		t.judge(err != nil, "work in "+dir, fmt.Sprint(err), "/tmp: ok")
	}
}

// ownDir is a directory that a sandbox may write to as a volume.
func (t *trial) ownDir() string {
	dir := t.dir()
	t.must(os.Chmod(dir, 0o777))
	return dir
}

func copyOut(t *trial) {
	t.takeWhatIsPlanted()
	dir, secret := t.ownDir(), t.file(t.dir()+"/secret", "the host's", 0o644)
	t.must(os.Mkdir(dir+"/kept", 0o777))
	shared := func(s *sandbox.Spec) {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: "/out", Writable: true})
		s.Limits.Output = 4 * sandbox.KiB
	}
	id := ""
	var planted answers
	if err := t.refused(t.spec(shared)); errors.Is(err, sandbox.ErrRefused) || errors.Is(err, sandbox.ErrUnsupported) {
		// The attacker can make nothing where the host finds it: another process makes it.
		t.judge(true, "a volume to write to", fmt.Sprint(err), "")
		planted = t.outside("plant", dir, secret)
	} else {
		id = t.sandbox(shared)
		planted = t.inside(id, "plant", "/out", secret)
	}
	for _, kind := range []string{"symlink", "symlinked directory", "fifo", "socket", "file"} {
		t.control(planted.of(kind).OK(), "plant a "+kind, say(planted.of(kind)))
	}
	for _, kind := range []string{"device", "hard link"} {
		if id == "" {
			break
		}
		t.judge(!planted.of(kind).OK(), "plant a "+kind, say(planted.of(kind)), "a file: "+planted.of("file").Got)
	}
	t.devicesInVolumes()
	volume := func(source string) error {
		return t.refused(t.spec(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: source, Target: "/in"})
		}))
	}
	err := volume(dir + "/file")
	t.control(err == nil, "hand on a plain file", fmt.Sprint(err))
	for _, name := range []string{"symlink", "symlinked", "symlinked/secret", "fifo", "socket"} {
		began := time.Now()
		err := volume(filepath.Join(dir, name))
		t.judge(err != nil && time.Since(began) < 5*time.Second, "hand on its "+name, fmt.Sprint(err), "a plain file: ok")
	}
	if id == "" {
		return
	}
	// Output beyond its limit is written to files of the host, in a directory that the sandbox may reach.
	outside := t.dir()
	for _, attempt := range []struct{ name, script string }{
		{"a link in the way of kept output", "ln -s " + outside + "/stdout /out/kept/stdout; head -c 20000 /dev/zero"},
		{"a link in place of the directory of kept output", "mv /out/kept /out/moved; ln -s " + outside + " /out/kept; head -c 20000 /dev/zero"},
	} {
		res, err := t.manager.Run(t.ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c", attempt.script}},
			sandbox.IO{Spill: &sandbox.Spill{Dir: dir + "/kept"}})
		if err != nil || !res.Stdout.Truncated() {
			t.fault("control failed: %s: output did not outgrow its limit: %v", attempt.name, err)
		}
		left, _ := os.ReadDir(outside)
		t.judge(len(left) == 0, attempt.name, map[bool]string{true: "not followed",
			false: "followed: something was written elsewhere on the host"}[len(left) == 0], "")
	}
}

func copyIn(t *trial) {
	t.putOverWhatIsPlanted()
	for _, kind := range []string{"directory", "file"} {
		dir := t.dir()
		source := t.file(dir+"/in", "brought in", 0o644)
		seen := "/workspace/way/target"
		if kind == "directory" {
			source, seen = dir, seen+"/in"
		}
		newBox := func() string {
			return t.sandbox(func(s *sandbox.Spec) {
				s.Volumes = append(s.Volumes, sandbox.Volume{Source: source, Target: "/workspace/way/target"})
			})
		}
		look := func(id, phase, path string) string {
			p := t.process("read", path)
			p.Phase = phase
			res, err := t.manager.Run(t.ctx, id, p, sandbox.IO{})
			if err != nil {
				return fmt.Sprintf("refused: %v", err)
			}
			return say(answers(hostile.Parse(res.Stdout.Bytes())).of(path))
		}
		plain := newBox()
		t.must(t.sh(plain, "true"))
		control := look(plain, "second", seen)
		t.control(strings.Contains(control, "brought in"), "a later phase has the "+kind, control)
		for name, script := range map[string]string{
			"a link on the way":        "mv /workspace/way /workspace/was; mkdir /tmp/elsewhere; ln -s /tmp/elsewhere /workspace/way",
			"a link to /etc":           "mv /workspace/way /workspace/was; ln -s /etc /workspace/way",
			"a link by way of /proc/1": "mv /workspace/way /workspace/was; ln -s /proc/1/root/tmp /workspace/way",
		} {
			id := newBox()
			t.must(t.sh(id, script))
			got := look(id, "second", "/tmp/elsewhere/target"+strings.TrimPrefix(seen, "/workspace/way/target"))
			t.judge(!strings.Contains(got, "brought in"), kind+": "+name, got, control)
		}
	}
}

func hostileArchive(t *trial) {
	t.note("nothing is unpacked for a program; tried: a careless unpacker as the program")
	const disk = 16 * sandbox.MiB
	id := t.sandbox(func(s *sandbox.Spec) { s.Limits.Disk = disk })
	res := t.run(id, t.process("unpack", "/workspace/unpacked", strconv.Itoa(int(4*disk))), sandbox.IO{})
	said := answers(hostile.Parse(res.Stdout.Bytes()))
	if len(said) == 0 {
		t.abort("the unpacker ended with the verdict %s: %.200q", res.Verdict, res.Stderr.Bytes())
	}
	inside := said.of("inside")
	t.control(inside.OK() && said.of("link").OK(), "unpack a file and a link where it may", say(inside))
	for _, a := range said {
		switch {
		case strings.HasPrefix(a.Name, "slip"), a.Name == "through link":
			t.judge(!a.OK(), a.Name, a.Got, inside.Got)
		case a.Name == "bomb":
			n := 0
			_, _ = fmt.Sscan(a.Detail, &n)
			t.judge(a.Got == "ENOSPC" && n <= int(disk+disk/8), "an entry of "+(4*disk).String()+" on a disk of "+disk.String(),
				fmt.Sprintf("%s after %s", a.Got, sandbox.Size(n)), "")
		}
	}
	if said.of("bomb").Got == "no answer" { // in a scratch of memory it may have reached that limit first
		t.judge(res.Verdict == sandbox.VerdictMemoryLimit, "an entry of "+(4*disk).String(), string(res.Verdict), "")
	}
}

func volumeSources(t *trial) {
	dir := t.dir()
	real := t.file(dir+"/real/file", "x", 0o644)
	t.must(os.Symlink(real, dir+"/link"))
	t.must(os.Symlink(dir+"/real", dir+"/linked"))
	t.must(unix.Mkfifo(dir+"/fifo", 0o644))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	t.must(err)
	defer unix.Close(fd)
	t.must(unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/socket"}))
	bounded := sandbox.NewManager(t.o.Backend, sandbox.Options{VolumeRoots: []string{dir + "/real", filepath.Dir(t.o.Executable)}})
	t.later(func() {
		if err := bounded.Close(); err != nil {
			t.fault("close: %v", err)
		}
	})
	try := func(m *sandbox.Manager, source string) error {
		id, err := t.create(m, t.spec(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: source, Target: "/data"})
		}))
		if err == nil {
			_ = m.Delete(t.ctx, id)
		}
		return err
	}
	for _, m := range []*sandbox.Manager{t.manager, bounded} {
		err := try(m, real)
		t.control(err == nil, "a plain source", fmt.Sprint(err))
	}
	for _, s := range []struct {
		name, source string
		m            *sandbox.Manager
	}{
		{"a link", dir + "/link", t.manager}, {"behind a link", dir + "/linked/file", t.manager},
		{"with ..", dir + "/real/../real/file", t.manager},
		{"relative", "real/file", t.manager}, {"a FIFO", dir + "/fifo", t.manager}, {"a socket", dir + "/socket", t.manager},
		{"a device", "/dev/null", t.manager},
		{"outside the allowed roots", dir, bounded}, {"beside an allowed root", dir + "/real-too", bounded},
		{"out of an allowed root by ..", dir + "/real/../link", bounded},
	} {
		err := try(s.m, s.source)
		t.judge(err != nil, s.name, fmt.Sprint(err), "a plain one: ok")
	}
}

// Two unused ids: the owner of a set-uid file, and the user that runs it.
const (
	ownerOfFile = 54321
	runnerOfIt  = 54322
)

func setUID(t *trial) {
	dir := t.dir()
	control := "not root: no file of another's can be made here"
	var volumes []sandbox.Volume
	program := ""
	if os.Geteuid() == 0 {
		text, err := os.ReadFile(t.o.Executable)
		t.must(err)
		program = t.file(dir+"/bin/set-uid", string(text), 0o755)
		t.must(os.Chown(program, ownerOfFile, ownerOfFile))
		t.must(os.Chmod(program, 0o755|os.ModeSetuid))
		var fs unix.Statfs_t
		t.must(unix.Statfs(dir, &fs))
		if fs.Flags&(unix.ST_NOSUID|unix.ST_NOEXEC) != 0 {
			t.abort("control failed: set-uid counts nowhere in /var/tmp on this host; the attempt proves nothing")
		}
		said := t.outsideAs(&syscall.Credential{Uid: runnerOfIt, Gid: runnerOfIt}, program, "status").of("Uid")
		control = said.Detail
		t.control(strings.HasPrefix(said.Detail, fmt.Sprintf("%d %d ", runnerOfIt, ownerOfFile)), "on the host the file gives its owner's id",
			said.Detail)
		volumes = append(volumes, sandbox.Volume{Source: dir + "/bin", Target: "/set"})
	}
	id := t.sandbox(func(s *sandbox.Spec) { s.Volumes = append(s.Volumes, volumes...) })
	status := t.inside(id, "status")
	uid := strings.Fields(status.of("Uid").Detail)
	if len(uid) != 4 {
		t.abort("no ids: %q", status.of("Uid").Detail)
	}
	t.judge(uid[0] != "0" && uid[1] == uid[0] && uid[2] == uid[0], "its own ids", strings.Join(uid, " "), "")
	t.judge(status.of("NoNewPrivs").Detail == "1", "no_new_privs", status.of("NoNewPrivs").Detail,
		"host: "+t.outside("status").of("NoNewPrivs").Detail)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		t.judge(strings.Trim(status.of(set).Detail, "0") == "", set, status.of(set).Detail, "")
	}
	if os.Geteuid() == 0 { // other users may not drop theirs, and the isolation reports it
		t.judge(status.of("Groups").Detail == "", "supplementary groups", status.of("Groups").Detail, "")
	}
	args := []string{"/workspace"}
	if program != "" {
		args = append(args, "/set/set-uid")
	}
	for _, a := range t.inside(id, "set-id", args...) {
		if strings.HasPrefix(a.Name, "run ") {
			t.judge(!a.OK() || a.Detail == strings.Join(uid, " "), a.Name, say(a), control)
			continue
		}
		t.judge(!a.OK(), a.Name, a.Got, "")
	}
	mounts := t.inside(id, "cat", "/proc/self/mountinfo")
	t.control(len(mounts) > 3, "mounts are seen", fmt.Sprint(len(mounts)))
	allow := map[string]int{} // by kind
	for _, a := range mounts {
		if strings.Contains(a.Detail, "nosuid") {
			continue
		}
		kind := t.mountKind(a.Detail)
		allow[kind]++
		if t.open(kind, "") == "" {
			t.breach("set-uid counts on %s", a.Detail)
		}
	}
	for _, kind := range []string{anyMount, coverMount, engineMount} {
		if kind == anyMount || allow[kind] > 0 {
			t.judge(allow[kind] == 0, kind, fmt.Sprintf("%d of %d", allow[kind], len(mounts)), "")
		}
	}
}

// Kinds of mounts, as named in attempts.
const (
	anyMount    = "mounts on which set-uid counts"
	coverMount  = "covers of /proc on which set-uid counts"
	engineMount = "mounts of the engine on which set-uid counts"
)

// mountKind distinguishes mounts of a runtime or an engine from the backend's own, by a line of mountinfo.
func (t *trial) mountKind(line string) string {
	fields := strings.Fields(line)
	_, kind, _ := strings.Cut(line, " - ")
	switch {
	case len(fields) < 6:
		return anyMount
	case t.iso.Backend == "oci" && strings.HasPrefix(fields[4], "/proc/") && strings.HasPrefix(fields[5], "ro,") &&
		strings.HasPrefix(kind, "tmpfs tmpfs ro"):
		return coverMount
	case t.iso.Backend != "docker":
		return anyMount
	}
	for _, own := range []string{sandbox.WorkspaceDir, "/tmp", "/home", "/dev", "/proc/self"} { // writable mounts are no exception
		if fields[4] == own || strings.HasPrefix(fields[4], own+"/") {
			return anyMount
		}
	}
	return engineMount
}

func writeSystem(t *trial) {
	id := t.sandbox()
	paths := []string{
		"/", "/usr", "/usr/bin", "/usr/bin/env", "/bin", "/lib", "/etc", "/etc/passwd", "/etc/new", "/home", "/dev", "/dev/new", "/opt", "/var",
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sys/new",
		"/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/proc/1/mem", "/sys", "/sys/kernel", "/sys/fs/cgroup", attackerInside,
	}
	control := t.inside(id, "write", "/workspace", "/tmp", "/home/sandbox", "/dev/shm", "/dev/null")
	for _, a := range control {
		t.control(a.OK(), "write to "+a.Name, a.Got)
	}
	for _, a := range t.inside(id, "write", paths...) {
		t.judge(isShut(a.Got), "write to "+a.Name, a.Got, "/workspace: "+control.of("/workspace").Got)
	}
	inside := func(verb string, args ...string) answers { return t.inside(id, verb, args...) }
	t.sealedMounts("", inside)
	t.landlockedFiles("", inside)
}

func readSecrets(t *trial) {
	planted := t.file(t.dir()+"/secret", "the host's", 0o644)
	control := t.outside("read", planted, "/etc/shadow")
	t.control(control.of(planted).Detail == "the host's", "read it on the host", say(control.of(planted)))
	if os.Geteuid() == 0 && control.of("/etc/shadow").Got != "ENOENT" {
		t.control(control.of("/etc/shadow").OK(), "read /etc/shadow on the host", control.of("/etc/shadow").Got)
	}
	id := t.sandbox()
	own := t.inside(id, "read", "/etc/passwd").of("/etc/passwd")
	t.control(own.OK() && own.Detail != "", "read a file of its own", say(own))
	for _, a := range t.inside(id, "read",
		planted, "/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/sudoers", "/etc/machine-id", "/root", "/root/.ssh",
		"/home/../root/.ssh/id_rsa", "/run", "/var", "/var/run/docker.sock", "/run/docker.sock",
		"/boot", "/srv", "/mnt", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kallsyms", "/proc/sched_debug", "/proc/timer_list",
		"/proc/kmsg", "/proc/cmdline", "/proc/config.gz",
		"/proc/vmallocinfo", "/proc/iomem", "/proc/ioports", "/proc/latency_stats", "/proc/interrupts", "/proc/softirqs", "/proc/pressure",
		"/proc/pressure/cpu", "/proc/acpi", "/proc/asound", "/proc/scsi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger",
		"/proc/1/environ", "/proc/1/maps", "/proc/1/root/etc/shadow", "/proc/1/cwd", "/sys/class/dmi/id", "/sys/kernel/debug", "/sys/firmware",
		"/dev/mem", "/dev/kmsg", "/dev/sda",
	) {
		t.judge(!a.OK() || a.Detail == "", "read "+a.Name, say(a), control.of(planted).Got)
	}
	homes := t.inside(id, "read", "/home").of("/home")
	t.judge(homes.Detail == sandbox.UserName, "homes", say(homes), "")
	seen := t.inside(id, "processes")
	all := t.outside("processes")
	t.control(len(all) > len(seen) && len(all) > 3, "processes are seen on the host", fmt.Sprint(len(all)))
	strangers, supervision := 0, 0
	for _, a := range seen {
		switch {
		case a.Name == "1" && t.iso.Backend != "docker" || strings.Contains(a.Detail, t.mark):
		case t.iso.Backend == "docker" && slices.Contains([]string{"/.sandbox-run/sandbox-helper", "sandbox-init"}, strings.TrimSpace(a.Detail)):
			supervision++
		default:
			strangers++
			t.breach("sees the process %s", a.Detail)
		}
	}
	if t.iso.Backend == "docker" {
		t.judge(supervision == 0, "processes of the sandbox's own supervision", fmt.Sprint(supervision), "")
	}
	t.judge(strangers == 0, "processes of the host", fmt.Sprintf("%d", strangers), fmt.Sprint(len(all)))
	t.coveredFiles("", func(verb string, args ...string) answers { return t.inside(id, verb, args...) })
	t.hiddenInit(id)
}

func manyDirectories(t *trial) {
	const count = 2000
	id := t.sandbox(func(s *sandbox.Spec) { s.Limits.Wall = 20 * time.Second }) // the time to make them is not tested
	t.must(t.sh(id, "mkdir deep many"))
	for _, verb := range []string{"deep", "many"} {
		a := t.inside(id, verb, verb, fmt.Sprint(count)).of(verb)
		t.control(a.OK() && a.Detail == fmt.Sprint(count), "make "+verb+" directories", say(a))
	}
	memory := residentMemory()
	began := time.Now()
	t.delete(id)
	took, grown := time.Since(began), residentMemory()-memory
	reference := t.removeDirectories(2 * count) // a busy machine takes longer for these, too
	t.judge(took < max(10*time.Second, 4*reference), fmt.Sprintf("clean-up of %d directories, and of %d in each other", count, count),
		took.Round(time.Millisecond).String(), fmt.Sprintf("as many on the host: %v", reference.Round(time.Millisecond)))
	t.judge(grown < 64<<20, "memory of the clean-up", fmt.Sprintf("%d MiB", max(0, grown)>>20), "")
}

// removeDirectories makes directories on the host and returns how long their removal takes.
func (t *trial) removeDirectories(count int) time.Duration {
	dir, err := os.MkdirTemp("", "sandbox-run-attack-")
	t.must(err)
	t.later(func() { _ = os.RemoveAll(dir) })
	for i := range count {
		t.must(os.Mkdir(filepath.Join(dir, strconv.Itoa(i)), 0o700))
	}
	began := time.Now()
	t.must(os.RemoveAll(dir))
	return time.Since(began)
}

// residentMemory is how much memory this process has, in bytes.
func residentMemory() int {
	text, _ := os.ReadFile("/proc/self/statm")
	var size, resident int
	_, _ = fmt.Sscan(string(text), &size, &resident)
	return resident * os.Getpagesize()
}

func fillDisk(t *trial) {
	const (
		disk   = 16 * sandbox.MiB
		inodes = 1024
	)
	limited := func(s *sandbox.Spec) { s.Limits.Disk, s.Limits.Inodes, s.Scratch = disk, inodes, sandbox.ScratchAuto }
	small := t.inside(t.sandbox(limited), "fill", "bytes", "/workspace", strconv.Itoa(int(2*sandbox.MiB))).of("fill")
	t.control(small.OK(), "write 2 MiB", say(small))
	free := freeSpace()
	var parts []func()
	for _, kind := range []string{"bytes", "files", "inodes", "sparse"} {
		parts = append(parts, func() {
			most, limit := int(4*disk), int(disk)
			if kind == "inodes" {
				most, limit = 4*inodes, inodes
			}
			id := t.sandbox(limited)
			res := t.run(id, t.process("fill", kind, "/workspace", fmt.Sprint(most)), sandbox.IO{})
			a := answers(hostile.Parse(res.Stdout.Bytes())).of("fill")
			n := 0
			_, _ = fmt.Sscan(a.Detail, &n)
			held := a.Got == "ENOSPC" && n <= limit+limit/8 && res.Verdict == sandbox.VerdictDiskLimit
			t.judge(held, kind, fmt.Sprintf("%s after %d of %d; verdict %s", a.Got, n, most, res.Verdict), "2 MiB: "+small.Got)
			t.delete(id)
		})
	}
	t.together(parts...)
	t.note("free space of the host: %d MiB less afterwards", max(0, int64(free)-int64(freeSpace()))>>20)
}

// freeSpace is the host's free space in the directory of scratches. Other processes write there, too.
func freeSpace() uint64 {
	var st unix.Statfs_t
	if unix.Statfs("/var", &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}
