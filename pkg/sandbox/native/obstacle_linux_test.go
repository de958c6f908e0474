package native

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// filtered executes a command behind a system-call filter that answers the numbers in its first argument with the errno in
// its second; clone only when it is to make a user namespace.
const filtered = `
import ctypes, struct, sys, os
refused, errno, command = [int(n) for n in sys.argv[1].split(",")], int(sys.argv[2]), sys.argv[3:]
LOAD, EQ, SET, RET = 0x20, 0x15, 0x45, 0x06
program = [(LOAD, 0, 0, 0)]
for n in refused:
    if n == CLONE: continue
    program += [(EQ, 0, 1, n), (RET, 0, 0, 0x50000 | errno)]
if CLONE in refused:
    program += [(EQ, 0, 3, CLONE), (LOAD, 0, 0, 16), (SET, 0, 1, 0x10000000), (RET, 0, 0, 0x50000 | errno)]
program += [(RET, 0, 0, 0x7fff0000)]
code = b"".join(struct.pack("HBBI", *i) for i in program)
buf = ctypes.create_string_buffer(code)
prog = ctypes.create_string_buffer(struct.pack("H6xP", len(program), ctypes.addressof(buf)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(prog), 0, 0) == 0
os.execvp(command[0], command)
`

// The numbers of clone, unshare, and of the calls that mount.
const (
	cloneAndUnshare = "56,272"
	mountCalls      = "165,428,429,430,431,432,442"
)

// Obstacles to user namespaces of an ordinary user: each has its own message, with the remedy.
func TestRootlessObstacles(t *testing.T) {
	needRoot(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64: the filters are written with its numbers")
	}
	dir := t.TempDir()
	filter := filepath.Join(dir, "filter.py")
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filter, []byte("CLONE = 56\n"+filtered), 0o644); err != nil {
		t.Fatal(err)
	}
	behind := func(calls, errno string) string {
		return `wrap="/usr/bin/python3 ` + filter + ` ` + calls + ` ` + errno + `"` + "\n"
	}
	// A parameter that this kernel need not have, and others do.
	sysctl := func(name, value string) string {
		return "mount -t tmpfs tmpfs /proc/sys/kernel && echo " + value + " > /proc/sys/kernel/" + name + "\n"
	}
	const none = ""
	for _, c := range []struct{ name, obstacle, reason, remedy string }{
		{"nothing in the way", none, none, none},
		{"switched off", "inner='unshare --user --map-current-user --keep-caps " + filepath.Join(dir, "off") + "'",
			"user.max_user_namespaces is 0", "sysctl user.max_user_namespaces"},
		{"only for root", sysctl("unprivileged_userns_clone", "0") + behind(cloneAndUnshare, "1"), "only root may make user namespaces",
			"sysctl kernel.unprivileged_userns_clone=1"},
		{"AppArmor", sysctl("apparmor_restrict_unprivileged_userns", "1") + behind(mountCalls, "13"),
			"AppArmor leaves ordinary users' user namespaces without rights", "AppArmor profile"},
		{"a covered /proc", "mount -t tmpfs tmpfs /proc/sys/kernel", "parts of /proc are covered (/proc/sys/kernel)", "systempaths=unconfined"},
		{"a container's profile", behind(cloneAndUnshare+","+mountCalls, "1"), "forbids user namespaces or mounts",
			"--security-opt seccomp=unconfined"},
		{"a container that lets clone through", behind(mountCalls, "1"), "forbids user namespaces or mounts", "--security-opt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			off := "#!/bin/sh\necho 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"\n"
			if err := os.WriteFile(filepath.Join(dir, "off"), []byte(off), 0o755); err != nil {
				t.Fatal(err)
			}
			runBehind(t, conformance.Plain{}, c.obstacle, "^TestPlainObstacle$", "SANDBOXTEST_REASON="+c.reason, "SANDBOXTEST_REMEDY="+c.remedy)
		})
	}
}

func TestPlainObstacle(t *testing.T) {
	conformance.AsPlain(t)
	reason, remedy := os.Getenv("SANDBOXTEST_REASON"), os.Getenv("SANDBOXTEST_REMEDY")
	b := plainBackend(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	defer b.Close()
	defer m.Close()
	iso := b.Probe(context.Background())
	_, err := m.Create(context.Background(), sandbox.Spec{Require: sandbox.TierNamespace})
	if reason == "" {
		if iso.Tier != sandbox.TierNamespace || err != nil {
			t.Errorf("nothing is in the way: %v, %+v", err, iso)
		}
		return
	}
	if iso.Tier != sandbox.TierNone || err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: %v", iso.Tier, err)
	}
	for _, c := range []sandbox.Control{sandbox.ControlUserNS, sandbox.ControlMountNS, sandbox.ControlRoot} {
		said := false
		for _, gap := range iso.Missing {
			said = said || gap.Control == c && gap.State == sandbox.Absent && strings.Contains(gap.Reason, reason) &&
				strings.Contains(gap.Remedy, remedy)
		}
		if !said {
			t.Errorf("%s: %+v", c, iso.Missing)
		}
	}
}
