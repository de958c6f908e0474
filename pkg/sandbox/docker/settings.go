package docker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

const (
	// reservedTasks is the part of the process limit for the helper and its inits.
	reservedTasks = 32
	// minMemory is the least that the helper and a small program need.
	minMemory = 16 * sandbox.MiB
	// tasksOfUser is no effective bound: no other container has this user, and the container has its own limit.
	tasksOfUser = 32768
	// helperDir is the directory of the helper in a container.
	helperDir  = "/.sandbox-run"
	helperFile = "sandbox-helper"
)

// settings is the part of a spec that determines a container. Containers of equal settings are interchangeable until
// a program has run in them.
type settings struct {
	Image    string
	Hostname string
	User     sandbox.User
	Owner    int // the user's id on the daemon's machine, if a volume determines it; 0: any
	Volumes  []sandbox.Volume
	Limits   sandbox.Limits // of the container
	Runtime  string

	idents []containerproto.Ident // of the volumes' sources when they were checked; empty where that is unknown
}

// key identifies equal settings.
func (s *settings) key() string {
	text, err := json.Marshal(s)
	if err != nil { // plain data
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// perContainer are the limits of a container; the others are per process, or the manager's.
func perContainer(l sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{Memory: l.Memory, CPUs: l.CPUs, Processes: l.Processes, Disk: l.Disk, Inodes: l.Inodes, OpenFiles: l.OpenFiles}
}

func unsupported(what, hint string) error {
	return &sandbox.Error{Backend: Name, Op: "create", Kind: sandbox.ErrUnsupported, Err: errors.New(what), Hint: hint}
}

// withoutRules is the error of a network with rules.
func withoutRules(op string) error {
	return &sandbox.Error{
		Backend: Name, Op: op, Kind: sandbox.ErrUnsupported, Err: errors.New("containers have no network with rules"),
		Hint: "--backend native, or as root --backend oci --runtime runc; or --network none",
	}
}

// settings returns the settings of the container that a spec needs, or why there can be none.
func (b *Backend) settings(d *daemon, spec *sandbox.Spec) (*settings, error) {
	s := &settings{
		Image: spec.Root.Image, Hostname: spec.Hostname, User: spec.User, Volumes: spec.Volumes, Runtime: b.opts.Runtime,
		Limits: perContainer(spec.Limits),
	}
	switch {
	case spec.Root.Dir != "" || len(spec.Root.HostPaths) > 0 || len(spec.Root.Add) > 0:
		return nil, unsupported("a root of the host's files: containers are made of images", "--image, or --backend native")
	case spec.WritableRoot:
		return nil, unsupported("a writable root", "--backend native; /workspace, /tmp and $HOME are writable")
	case spec.Network.HasRules():
		return nil, withoutRules("create")
	case spec.Scratch == sandbox.ScratchDisk:
		return nil, unsupported("a scratch disk: the scratch of a container is memory", "--scratch memory, or --backend native")
	case spec.Limits.Memory < minMemory:
		return nil, sandbox.Invalid("memory", "%s is less than the %s that a container's helper and a program need", spec.Limits.Memory,
			minMemory)
	}
	if s.Image == "" {
		s.Image = b.opts.Image
	}
	if s.Image == "" {
		return nil, &sandbox.Error{Backend: Name, Op: "create", Kind: sandbox.ErrInvalid,
			Err: errors.New("no image is named, and a container needs one"), Hint: "--image python:3, or any image that the daemon has"}
	}
	var err error
	if s.Image, err = b.substitute(s.Image); err != nil {
		return nil, err
	}
	s.Owner, s.idents, err = d.checkVolumes(s.Volumes)
	return s, err
}

// checkVolumes refuses sources that are links or special files, and returns the owner of the writable ones: the sandbox's user
// has that id on the daemon's machine.
func (d *daemon) checkVolumes(volumes []sandbox.Volume) (owner int, idents []containerproto.Ident, err error) {
	for _, v := range volumes {
		fail := func(kind error, err error, hint string) (int, []containerproto.Ident, error) {
			return 0, nil, &sandbox.Error{Backend: Name, Op: "volume " + v.Source, Stage: "volumes", Kind: kind, Err: err, Hint: hint}
		}
		if !d.local {
			return fail(sandbox.ErrUnsupported, fmt.Errorf("the daemon at %s has other files than this machine", d.host),
				"put the files into the sandbox instead (--file)")
		}
		real, err := filepath.EvalSymlinks(v.Source) //nolint:forbidigo // the daemon opens it; the helper checks inside that it is this file (F6)
		if err != nil {
			return fail(sandbox.ErrInvalid, err, "a source that exists")
		}
		if real != v.Source {
			return fail(sandbox.ErrRefused, fmt.Errorf("the path has a symbolic link, or is not in its shortest form; it leads to %s", real),
				"name "+real)
		}
		st, err := os.Stat(real)
		if err != nil {
			return fail(sandbox.ErrInvalid, err, "")
		}
		if !st.IsDir() && !st.Mode().IsRegular() {
			return fail(sandbox.ErrRefused, errors.New("neither a directory nor a regular file"), "")
		}
		if d.podman && strings.Contains(v.Source+v.Target, ":") {
			return fail(sandbox.ErrUnsupported, errors.New("a colon in its path, which Podman would misread"), "another name")
		}
		uid, ident := identify(st)
		if uid >= 0 {
			idents = append(idents, ident)
		}
		if !v.Writable {
			continue
		}
		switch {
		case uid < 0: // desktops map owners themselves
		case uid == 0:
			return fail(sandbox.ErrUnsupported, errors.New("it belongs to root, and a container's user is never root on the machine"),
				"a directory of another user (chown), or --backend native")
		case owner != 0 && uid != owner:
			return fail(sandbox.ErrUnsupported, fmt.Errorf("it belongs to user %d, another writable one to %d; a container has one user", uid,
				owner), "--backend native")
		case d.remaps && uid != os.Getuid():
			return fail(sandbox.ErrUnsupported, errors.New("the daemon maps users, and can not act as the owner"), "--backend native")
		default:
			owner = uid
		}
	}
	return owner, idents, nil
}

// Ids that no user has: beyond those of users, of subordinate ranges as they are usually given out, and of systemd's containers.
const (
	firstNobody = 0x60000000
	countNobody = 0x08000000
	firstMapped = 20000 // where the daemon maps 65536 ids: beyond an image's own users
	countMapped = 40000
	idBytes     = 4
)

// ids are the ids of the user and the init of one container in the container's own user namespace.
func (d *daemon) ids(s *settings) (user, init uint32) {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	n := binary.LittleEndian.Uint32(b[:])
	if d.remaps || d.podman && os.Getuid() != 0 {
		user = firstMapped + n%countMapped&^1
	} else {
		user = firstNobody + n%countNobody&^1
	}
	init = user + 1
	if s.Owner != 0 {
		user = uint32(s.Owner)
	}
	return user, init
}

// profile is the daemon's own filter: it allows the calls of our policy, and those that the helper needs to put
// programs under the exact filter. All others (x32, foreign architectures, calls newer than our tables) fail with ENOSYS. Calls that
// our policy refuses with EPERM are left to the filter of each program, which notifies of them: of two filters, an errno has
// precedence over a notification, and the refusal would not be counted.
func profile(arch string) (string, error) {
	allowed, refused, err := seccomp.Names(seccomp.Policy{}, arch)
	if err != nil {
		return "", err
	}
	type rule struct {
		Names  []string `json:"names"`
		Action string   `json:"action"`
	}
	names := append(append(allowed, refused...), "seccomp")
	text, err := json.Marshal(struct {
		DefaultAction   string   `json:"defaultAction"`
		DefaultErrnoRet uint     `json:"defaultErrnoRet"`
		Architectures   []string `json:"architectures"`
		Syscalls        []rule   `json:"syscalls"`
	}{
		"SCMP_ACT_ERRNO", 38, []string{map[string]string{"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}[arch]},
		[]rule{{Names: names, Action: "SCMP_ACT_ALLOW"}},
	})
	return string(text), err
}

// resources are the limits of a container for the daemon.
func resources(l sandbox.Limits) container.Resources {
	pids := int64(l.Processes + reservedTasks)
	return container.Resources{
		Memory: int64(l.Memory), MemorySwap: int64(l.Memory), // together: no swap
		NanoCPUs: int64(l.CPUs * 1e9), PidsLimit: &pids,
	}
}

// Labels of our containers and volumes.
const (
	labelOwner  = "io.sandbox-run.owner"  // the supervisor
	labelPlace  = "io.sandbox-run.place"  // the directory of the registration locks
	labelHelper = "io.sandbox-run.helper" // of a volume: the helper's digest
)

// config returns the request for the container.
func (b *Backend) config(d *daemon, s *settings, setup *containerproto.Setup, volume string) (*container.Config, *container.HostConfig,
	error) {
	off := false
	config := &container.Config{
		Hostname: s.Hostname, User: "0:0", Image: s.Image, WorkingDir: "/",
		AttachStdin: true, AttachStdout: true, AttachStderr: true, OpenStdin: true,
		StdinOnce:  true, // the input ends with the supervisor
		Entrypoint: []string{helperDir + "/" + helperFile}, Cmd: []string{},
		// Two processors and no reading of the limits: the helper does little, and its threads count.
		Env:    []string{"GOMAXPROCS=2", "GODEBUG=containermaxprocs=0,updatemaxprocs=0,memprofilerate=0", "GOGC=50"},
		Labels: map[string]string{labelOwner: b.registration.name, labelPlace: b.registration.place()},
	}
	if !d.podman { // Podman asks systemd for a timer whatever the check is
		config.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	}
	openFiles := int64(max(s.Limits.OpenFiles, 4096)) // the helper's own streams need some as well
	host := &container.HostConfig{
		AutoRemove: true, NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}, // else the daemon would keep all output
		ReadonlyRootfs: true, CapDrop: []string{"ALL"}, CapAdd: []string{"SETUID", "SETGID", "KILL", "DAC_OVERRIDE"},
		IpcMode: container.IPCModePrivate, CgroupnsMode: container.CgroupnsModePrivate, Runtime: s.Runtime, Init: &off,
		Resources: resources(s.Limits), Tmpfs: map[string]string{}, ShmSize: int64(min(s.Limits.Memory, 64*sandbox.MiB)),
	}
	host.Ulimits = []*container.Ulimit{
		{Name: "core", Soft: 1, Hard: 1}, // 1, not 0: a core handler behind a pipe ignores 0
		{Name: "nofile", Soft: openFiles, Hard: openFiles},
	}
	if d.podman {
		// The scratch belongs to root at first: see tmpfs. The helper gives up the capability before a program starts.
		host.CapAdd = append(host.CapAdd, "CHOWN")
		// With a read-only root Podman makes these writable without a size limit, unless they are given.
		for _, at := range []string{"/run", "/var/tmp"} {
			host.Tmpfs[at] = "rw,noexec,nosuid,nodev,size=64k,mode=755"
		}
		// Podman asks for higher limits than it may itself have.
		host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: "nproc", Soft: tasksOfUser, Hard: tasksOfUser})
	}
	for _, part := range files.Parts {
		host.Tmpfs[part.At] = d.tmpfs(s.Limits, setup, part.Mode)
	}
	if d.podman { // it would read commas in paths of mounts as options
		host.Binds = []string{volume + ":" + helperDir + ":ro"}
		for _, v := range s.Volumes {
			host.Binds = append(host.Binds, v.Source+":"+v.Target+map[bool]string{true: ":rw,rprivate", false: ":ro,rprivate"}[v.Writable])
		}
		return config, host, b.addSecurity(d, host)
	}
	host.Mounts = []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: helperDir, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}
	for _, v := range s.Volumes {
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: v.Source, Target: v.Target, ReadOnly: !v.Writable,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	return config, host, b.addSecurity(d, host)
}

// addSecurity masks paths and sets the filter.
func (b *Backend) addSecurity(d *daemon, host *container.HostConfig) error {
	if d.podman {
		host.SecurityOpt = append(host.SecurityOpt, "mask="+strings.Join(masked, ":"))
	} else {
		host.MaskedPaths, host.ReadonlyPaths = masked, readOnly
	}
	filter, err := b.securityFilter(d)
	if err != nil {
		return err
	}
	host.SecurityOpt = append(host.SecurityOpt, "no-new-privileges", "seccomp="+filter)
	return nil
}

// Paths that tell about the machine are masked, in addition to those that engines mask; of /sys, only the cgroup is left, which
// the helper reads.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/cmdline", "/proc/config.gz",
		"/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/kallsyms", "/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg",
		"/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/softirqs",
		"/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo",
		"/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/firmware", "/sys/kernel", "/sys/module", "/sys/power",
	}
	readOnly = []string{"/proc/sys", "/proc/sysrq-trigger"}
)

// tmpfs returns the mount options of a directory of the scratch. Podman takes no owner here: there the helper sets it.
func (d *daemon) tmpfs(l sandbox.Limits, setup *containerproto.Setup, mode uint32) string {
	options := []string{"rw", "exec", "nosuid", "nodev", "size=" + strconv.FormatUint(uint64(l.Disk), 10),
		"mode=" + strconv.FormatUint(uint64(mode), 8)}
	if !d.podman {
		options = append(options, fmt.Sprintf("nr_inodes=%d,uid=%d,gid=%d", l.Inodes, setup.OuterUID, setup.OuterGID))
	}
	return strings.Join(options, ",")
}

// securityFilter is the profile in the daemon's form: Docker takes the text, Podman the name of a file of its own machine.
func (b *Backend) securityFilter(d *daemon) (string, error) {
	text, err := profile(d.arch)
	if err != nil || !d.podman {
		return text, failure("write system-call profile", "seccomp", err)
	}
	if !d.local {
		return "unconfined", nil // for the helper; programs have the exact filter nevertheless, and the report names the gap
	}
	file := filepath.Join(b.registration.dir, "seccomp-"+d.arch+".json")
	if have, err := os.ReadFile(file); err == nil && string(have) == text {
		return file, nil
	}
	tmp, err := os.CreateTemp(b.registration.dir, "seccomp-*.tmp")
	if err != nil {
		return "", failure("write system-call profile", "seccomp", err)
	}
	_, err = tmp.WriteString(text)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return file, failure("write system-call profile", "seccomp", err)
}

// setup returns the settings for the helper.
func (d *daemon) setup(s *settings) *containerproto.Setup {
	user, init := d.ids(s)
	m := &containerproto.Setup{
		Version: containerproto.Version, UID: uint32(s.User.UID), GID: uint32(s.User.GID), OuterUID: user, OuterGID: user, Init: init,
		ReservedTasks: reservedTasks,
	}
	for _, part := range files.Parts {
		m.Dirs = append(m.Dirs, containerproto.Dir{Name: part.Name, At: part.At, Mode: part.Mode})
	}
	for _, v := range s.Volumes {
		m.Volumes = append(m.Volumes, v.Target)
	}
	if !d.local && !strings.HasPrefix(d.host, "npipe://") {
		m.Heartbeat = supervisorSilence
	}
	return m
}
