package oci

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// verify measures the isolation of a container: its init from outside, and the init's own findings from inside. A
// missing control is reported as absent, even if the bundle asked for it; the Manager then refuses a sandbox that is too
// weak.
func (c *container) verify(iso *sandbox.Isolation) error {
	addGap := func(control sandbox.Control, format string, args ...any) {
		if iso.Controls[control] != sandbox.Absent {
			iso.Lack(control, sandbox.Absent, fmt.Sprintf(format, args...), "another version of "+c.kind.name+", or --backend native")
		}
	}
	pid := c.InitPID
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
		// A program on a kernel of its own is in that kernel's namespaces; the host's namespaces of that kernel do not
		// matter.
		if ours == theirs && !c.kind.kernel {
			addGap(ns.control, "%s has left the container in our own %s namespace", c.kind.name, ns.file)
		}
	}
	found := c.Init.Posture()
	if found.PID != 1 {
		addGap(sandbox.ControlPidNS, "the container's init is process %d", found.PID)
	}
	if in := c.i.init; int(found.UID) != in.uid || int(found.GID) != in.gid {
		return failure("look at init", "verify", fmt.Errorf("it is %d:%d, not %d:%d", found.UID, found.GID, in.uid, in.gid))
	}
	// An ordinary user's init has some capabilities, to make a program that has none.
	if caps := c.i.init.capabilities(); found.Capabilities&^caps != 0 || found.Bounding&^caps != 0 {
		addGap(sandbox.ControlCapabilities, "the container has capabilities %#x, and could have %#x; %#x are needed", found.Capabilities,
			found.Bounding, caps)
	}
	if !found.NoNewPrivs {
		addGap(sandbox.ControlNoNewPrivs, "%s has not set it", c.kind.name)
	}
	if c.kind.kernel {
		c.verifyKernel(found.Release, addGap)
	} else {
		if found.Seccomp != unix.SECCOMP_MODE_FILTER {
			addGap(sandbox.ControlSeccomp, "%s has installed no filter", c.kind.name)
		}
		if err := c.verifyInit(pid, addGap); err != nil {
			return err
		}
	}
	c.i.b.grade(iso)
	return nil
}

// verifyInit reads the host's own records of the init.
func (c *container) verifyInit(pid int, addGap func(c sandbox.Control, format string, args ...any)) error {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return failure("look at init", "verify", err)
	}
	caps := fmt.Sprintf("%016x", c.i.init.capabilities())
	for field, want := range map[string]struct {
		value   string
		control sandbox.Control
	}{
		"CapEff":     {caps, sandbox.ControlCapabilities},
		"CapBnd":     {caps, sandbox.ControlCapabilities},
		"NoNewPrivs": {"1", sandbox.ControlNoNewPrivs},
		"Seccomp":    {"2", sandbox.ControlSeccomp},
		"Uid":        {strings.TrimSuffix(strings.Repeat(strconv.Itoa(c.i.init.host)+"\t", 4), "\t"), sandbox.ControlUserNS},
	} {
		if got := statusField(text, field); got != want.value {
			addGap(want.control, "the host says of the container's init: %s %q, not %q", field, got, want.value)
		}
	}
	ours, err1 := os.Stat("/")
	theirs, err2 := os.Stat("/proc/" + strconv.Itoa(pid) + "/root")
	if err := errors.Join(err1, err2); err != nil {
		return failure("look at init's root", "verify", err)
	}
	if os.SameFile(ours, theirs) {
		addGap(sandbox.ControlRoot, "%s has left the container in our own root", c.kind.name)
	}
	return nil
}

// verifyKernel checks that the program runs on another kernel, and that this kernel is limited.
func (c *container) verifyKernel(release string, addGap func(c sandbox.Control, format string, args ...any)) {
	var own unix.Utsname
	if unix.Uname(&own) == nil && unix.ByteSliceToString(own.Release[:]) == release {
		addGap(sandbox.ControlRoot, "the container runs on the host's own kernel %s, not on one of %s's", release, c.kind.name)
	}
	var pids []int
	var err error
	if c.Group != nil {
		pids, err = c.Group.Procs()
	}
	if err != nil || !slices.Contains(pids, c.InitPID) {
		for _, control := range []sandbox.Control{sandbox.ControlMemory, sandbox.ControlCPU, sandbox.ControlProcesses} {
			addGap(control, "%s does not run in the cgroup that it was started in", c.kind.name)
		}
	}
}

func inode(pid, ns string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+pid+"/ns/"+ns, &st)
	return st.Ino, err
}

// statusField returns a field of /proc/<pid>/status.
func statusField(text []byte, name string) string {
	_, after, _ := bytes.Cut(text, []byte("\n"+name+":\t"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return string(bytes.TrimSpace(line))
}
