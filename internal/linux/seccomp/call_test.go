package seccomp

import (
	"slices"
	"strings"
	"testing"
)

func TestCall(t *testing.T) {
	const high = 0xdeadbeef << 32
	for want, c := range map[string]struct {
		name string
		args [6]uint64
	}{
		"mount": {name: "mount"}, "seccomp": {name: "seccomp"},
		"socket(AF_PACKET)": {"socket", [6]uint64{high | 17, 3}}, "socket(AF_ALG)": {"socket", [6]uint64{38}},
		"socket(99)":       {"socket", [6]uint64{99}},
		"socket(SOCK_RAW)": {"socket", [6]uint64{2, 3 | 0o2004000, 1}}, "socket(SOCK_DCCP)": {"socket", [6]uint64{2, 6, 33}},
		"socket(IPPROTO_SCTP)": {"socket", [6]uint64{10, 1, 132}}, "socketpair(AF_TIPC)": {"socketpair", [6]uint64{30}},
		"clone(CLONE_NEWUSER)":            {"clone", [6]uint64{high | 0x10000011}},
		"clone(CLONE_NEWNS|CLONE_NEWPID)": {"clone", [6]uint64{0x20020000 | 17}}, "unshare(CLONE_NEWTIME)": {"unshare", [6]uint64{0x80}},
		"unshare(CLONE_FS|0x1)": {"unshare", [6]uint64{0x201}}, "unshare": {"unshare", [6]uint64{0}},
		"setns(CLONE_NEWNET)": {"setns", [6]uint64{3, 0x40000000}},
		"ioctl(TIOCSTI)":      {"ioctl", [6]uint64{0, high | 0x5412}}, "prctl(PR_SET_SECCOMP)": {"prctl", [6]uint64{22, 2}},
		"setsockopt(SO_ATTACH_BPF)": {"setsockopt", [6]uint64{3, 1, 50}}, "fcntl(F_SETLEASE)": {"fcntl", [6]uint64{3, 1024}},
		"personality(0x40000)": {"personality", [6]uint64{0x40000}}, "ptrace(PTRACE_ATTACH)": {"ptrace", [6]uint64{16, 1}},
		"fchmod(S_ISUID)": {"fchmod", [6]uint64{3, 0o4755}}, "fchmodat(S_ISUID|S_ISGID)": {"fchmodat", [6]uint64{3, 0, 0o6755}},
		"openat(S_ISGID)": {"openat", [6]uint64{3, 0, 0x41, 0o2755}},
	} {
		for _, arch := range []string{"amd64", "arm64"} {
			if got := Call(arch, uint32(numberOf(arch, c.name)), c.args); got != want {
				t.Errorf("%s: %q, want %q", arch, got, want)
			}
		}
	}
	if got := Call("amd64", 4000, [6]uint64{}); got != "call 4000" {
		t.Errorf("%q", got)
	}
}

// Written by hand: calls that are refused without a notification, because ordinary programs try them.
const (
	goldenQuiet = `clone3 io_setup io_submit io_getevents io_pgetevents io_cancel io_destroy file_getattr file_setattr listns rseq_slice_yield
		io_uring_setup get_mempolicy set_mempolicy mbind sync syncfs`
	goldenQuietAMD64 = goldenQuiet + ` uprobe`
)

func TestGoldenQuiet(t *testing.T) {
	for arch, quiet := range map[string]string{"amd64": goldenQuietAMD64, "arm64": goldenQuiet} {
		a, _ := lookup(arch)
		for _, p := range []Policy{{Notify: true}, {DenySetID: true, Notify: true}} {
			want := strings.Fields(quiet)
			if p.DenySetID {
				want = append(want, "openat2")
			}
			m := newMachine(t, program(t, p, arch))
			var got []string
			for nr, c := range a.calls {
				act := m.run(t, a.audit, uint32(nr), [6]uint64{})
				if act.Errno() != 0 && c.name != "" && p.unconditional(c.rule) {
					got = append(got, c.name)
				}
				if c.name == "" && act != noSys {
					t.Errorf("%s: number %d, which is none: %v", arch, nr, act)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s %+v: quiet are %q, want %q", arch, p, got, want)
			}
			for _, nr := range []uint32{4000, 0x40000000 | 165, 0xffffffff} {
				if act := m.run(t, a.audit, nr, [6]uint64{}); act != noSys {
					t.Errorf("%s: number %#x: %v", arch, nr, act)
				}
			}
			socket := uint32(numberOf(arch, "socket"))
			if act := m.run(t, a.audit, socket, [6]uint64{16, 3, 0}); act != retNotify|eAFNOSUPPORT {
				t.Errorf("%s: a netlink socket: %v", arch, act)
			}
			if act := m.run(t, a.audit, socket, [6]uint64{17, 3, 0}); act != retNotify|eAFNOSUPPORT {
				t.Errorf("%s: a packet socket: %v", arch, act)
			}
		}
	}
}

// unconditional: the rule needs no look at arguments.
func (p Policy) unconditional(r rule) bool {
	steps, _ := p.resolve(r)
	return steps == nil
}

func FuzzCall(f *testing.F) {
	f.Add(uint32(41), uint64(17), uint64(3), uint64(0), uint64(0))
	f.Add(uint32(56), uint64(0x10000011), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, nr uint32, a0, a1, a2, a3 uint64) {
		for _, arch := range []string{"amd64", "arm64"} {
			a, _ := lookup(arch)
			for _, n := range []uint32{nr, nr % uint32(len(a.calls))} {
				got := Call(arch, n, [6]uint64{a0, a1, a2, a3})
				if got == "" || len(got) > 200 || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Errorf("%s %d: %q", arch, n, got)
				}
			}
		}
	})
}
