package oci

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// verify looks at what a container has really got: at its init from outside, and at what that found from inside. A wall that
// is not there is said to be absent, in place of what the bundle asked for; the Manager then refuses what is too weak.
func (p *phase) verify() error { return p.i.revise(p.lookAtWalls) }

func (p *phase) lookAtWalls(iso *sandbox.Isolation) error {
	lack := func(c sandbox.Control, format string, args ...any) {
		if iso.Controls[c] != sandbox.Absent {
			iso.Lack(c, sandbox.Absent, fmt.Sprintf(format, args...), "another version of "+p.c.kind.name+", or --backend native")
		}
	}
	pid := p.init.Inmate()
	for _, ns := range []struct {
		file    string
		control sandbox.Control
	}{
		{"user", sandbox.ControlUserNS}, {"pid", sandbox.ControlPidNS}, {"mnt", sandbox.ControlMountNS}, {"net", sandbox.ControlNetNS},
		{"ipc", sandbox.ControlIPCNS}, {"uts", sandbox.ControlUTSNS}, {"cgroup", sandbox.ControlCgroupNS},
	} {
		ours, err1 := inode("self", ns.file)
		theirs, err2 := inode(strconv.Itoa(pid), ns.file)
		if err := errors.Join(err1, err2); err != nil {
			return failure("look at init's "+ns.file+" namespace", "verify", err)
		}
		// What runs on a kernel of its own is in that one's namespaces, whichever the host has that one in.
		if ours == theirs && !p.c.kind.kernel {
			lack(ns.control, "%s has left the container in our own %s namespace", p.c.kind.name, ns.file)
		}
	}
	found := p.init.Posture()
	if found.PID != 1 {
		lack(sandbox.ControlPidNS, "the container's init is process %d", found.PID)
	}
	if in := p.i.inmate; int(found.UID) != in.uid || int(found.GID) != in.gid {
		return failure("look at init", "verify", fmt.Errorf("it is %d:%d, not %d:%d", found.UID, found.GID, in.uid, in.gid))
	}
	// A plain user's init has some, to make a program of itself that has none.
	if caps := p.i.inmate.capabilities(); found.Capabilities&^caps != 0 || found.Bounding&^caps != 0 {
		lack(sandbox.ControlCapabilities, "the container has capabilities %#x, and could have %#x; %#x are needed", found.Capabilities, found.Bounding, caps)
	}
	if !found.NoNewPrivs {
		lack(sandbox.ControlNoNewPrivs, "%s has not set it", p.c.kind.name)
	}
	if p.c.kind.kernel {
		p.verifyKernel(found.Release, lack)
	} else {
		if found.Seccomp != unix.SECCOMP_MODE_FILTER {
			lack(sandbox.ControlSeccomp, "%s has installed no filter", p.c.kind.name)
		}
		if err := p.verifyInit(pid, lack); err != nil {
			return err
		}
	}
	p.i.b.grade(iso)
	return nil
}

// verifyInit looks at the host's own records of the init.
func (p *phase) verifyInit(pid int, lack func(c sandbox.Control, format string, args ...any)) error {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return failure("look at init", "verify", err)
	}
	caps := fmt.Sprintf("%016x", p.i.inmate.capabilities())
	for field, want := range map[string]struct {
		value   string
		control sandbox.Control
	}{
		"CapEff":     {caps, sandbox.ControlCapabilities},
		"CapBnd":     {caps, sandbox.ControlCapabilities},
		"NoNewPrivs": {"1", sandbox.ControlNoNewPrivs},
		"Seccomp":    {"2", sandbox.ControlSeccomp},
		"Uid":        {strings.TrimSuffix(strings.Repeat(strconv.Itoa(p.i.inmate.host)+"\t", 4), "\t"), sandbox.ControlUserNS},
	} {
		if got := statusField(text, field); got != want.value {
			lack(want.control, "the host says of the container's init: %s %q, not %q", field, got, want.value)
		}
	}
	ours, err1 := os.Stat("/")
	theirs, err2 := os.Stat("/proc/" + strconv.Itoa(pid) + "/root")
	if err := errors.Join(err1, err2); err != nil {
		return failure("look at init's root", "verify", err)
	}
	if os.SameFile(ours, theirs) {
		lack(sandbox.ControlRoot, "%s has left the container in our own root", p.c.kind.name)
	}
	return nil
}

// verifyKernel makes sure that there is one in between, and that what it runs in is limited.
func (p *phase) verifyKernel(release string, lack func(c sandbox.Control, format string, args ...any)) {
	var own unix.Utsname
	if unix.Uname(&own) == nil && unix.ByteSliceToString(own.Release[:]) == release {
		lack(sandbox.ControlRoot, "the container runs on the host's own kernel %s, not on one of %s's", release, p.c.kind.name)
	}
	var pids []int
	var err error
	if p.group != nil {
		pids, err = p.group.Procs()
	}
	inside := false
	for _, pid := range pids {
		inside = inside || pid == p.init.Inmate()
	}
	if err != nil || !inside {
		for _, c := range []sandbox.Control{sandbox.ControlMemory, sandbox.ControlCPU, sandbox.ControlProcesses} {
			lack(c, "%s does not run in the cgroup that it was started in", p.c.kind.name)
		}
	}
}

func inode(pid, ns string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+pid+"/ns/"+ns, &st)
	return st.Ino, err
}

// statusField is what /proc/<pid>/status says.
func statusField(text []byte, name string) string {
	_, after, _ := bytes.Cut(text, []byte("\n"+name+":\t"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return string(bytes.TrimSpace(line))
}
