package zygote

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/clone"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// Place is the sandbox that a process is forked into. The caller still owns the descriptors.
type Place struct {
	PIDNS   int   // of the sandbox
	UserNS  int   // of the sandbox
	Init    int   // pidfd of its init, whose other namespaces are joined
	Cgroups []int // to join, through files that are open for writing
}

// Request is a program in the form that a forked process can become. The caller still owns the descriptors.
type Request struct {
	Stdio    [3]int
	Ruleset  int // of Landlock, or -1
	Rlimits  []initproto.Rlimit
	UID, GID int
	Filter   []byte // a BPF program
	// Probe, Held and Forbidden are as in initproto.Exec.
	Probe     bool
	Held      bool
	Forbidden string
	Args      []string
	Env       []string // NAME=value
	Dir       string
}

// descriptors of a request, by their order.
const (
	fdStdin = iota
	fdStdout
	fdStderr
	fdRuleset // if there is one
)

// A call is list{stage, list{errno that is no failure…}, number, argument…}. An argument is an int, bytes that are passed by their
// address, list{n} for the n-th descriptor of the request, or list{} for the result of the call before.
func call(stage initproto.Stage, number int, args ...any) list {
	return append(list{stage.String(), list{}, number}, args...)
}

// mayFail is a call for which that errno is no failure.
func mayFail(c list, errno unix.Errno) list {
	c[1] = list{int(errno)}
	return c
}

func fd(n int) list { return list{n} }

// walls are the calls that give the process the isolation of a program that the init executes: see becomeProgram in
// package clone, whose every step is here or is done by the exec. The first ones can be made before the program is
// known.
func (p *Place) walls() (all list) {
	add := func(stage initproto.Stage, number int, args ...any) { all = append(all, call(stage, number, args...)) }
	// A child of the init is root there. Another process may get the zygote's ids after its end, and this process may
	// live longer.
	add(initproto.StageIdentity, unix.SYS_SETRESGID, 0, 0, 0)
	add(initproto.StageIdentity, unix.SYS_SETRESUID, 0, 0, 0)
	for n := range p.Cgroups {
		add(initproto.StageCgroup, unix.SYS_WRITE, fd(n), "0", 1)
	}
	add(initproto.StageCgroup, unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	// The kernel refuses this to the leader of a process group; the process is one only if it started with a session of
	// its own.
	all = append(all, mayFail(call(initproto.StageSession, unix.SYS_SETSID), unix.EPERM))
	if !weakenKeyring {
		all = append(all, mayFail(call(initproto.StageSession, unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0), unix.ENOSYS))
	}
	add(initproto.StageLimits, unix.SYS_UMASK, 0o022)
	for c := range unix.CAP_LAST_CAP + 1 {
		all = append(all, mayFail(call(initproto.StageIdentity, unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c), unix.EINVAL)) // this kernel has fewer
	}
	add(initproto.StageIdentity, unix.SYS_SETGROUPS, 0, 0)
	return all
}

// encode returns the place in the form that the process reads, and its descriptors.
func (p *Place) encode() (body []byte, fds []int) { return encode(nil, p.walls()), p.Cgroups }

// walls are the remaining calls, except for the filter.
func (r *Request) walls() (all list) {
	add := func(stage initproto.Stage, number int, args ...any) { all = append(all, call(stage, number, args...)) }
	for n := range r.Stdio {
		add(initproto.StageStdio, unix.SYS_DUP3, fd(fdStdin+n), n, 0)
	}
	for _, l := range r.Rlimits {
		add(initproto.StageLimits, unix.SYS_PRLIMIT64, 0, int(l.Resource),
			binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, l.Soft), l.Max), 0)
	}
	add(initproto.StageIdentity, unix.SYS_SETRESGID, r.GID, r.GID, r.GID)
	add(initproto.StageIdentity, unix.SYS_SETRESUID, r.UID, r.UID, r.UID)
	add(initproto.StageIdentity, unix.SYS_CAPSET, capHeader(), make([]byte, 24))
	// An exec does the same for a program: the kernel hides a process that changes its ids.
	add(initproto.StageIdentity, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	add(initproto.StageIdentity, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	add(initproto.StageWorkdir, unix.SYS_OPENAT2, unix.AT_FDCWD, r.Dir+"\x00", openHow(), unix.SizeofOpenHow)
	add(initproto.StageWorkdir, unix.SYS_FCHDIR, list{})
	if r.Ruleset >= 0 {
		add(initproto.StageLandlock, unix.SYS_LANDLOCK_RESTRICT_SELF, fd(fdRuleset), 0)
	}
	return all
}

// filters are the ways to install the filter, the last step; the first that the kernel accepts is used: list{number,
// operation, flags, program, whether it returns a listener}.
func (r *Request) filters() list {
	const size = unix.SizeofSockFilter
	if len(r.Filter) < size || weakenFilter {
		return nil
	}
	var program []unix.SockFilter
	for in := r.Filter; len(in) >= size; in = in[size:] {
		program = append(program, unix.SockFilter{Code: binary.NativeEndian.Uint16(in), Jt: in[2], Jf: in[3],
			K: binary.NativeEndian.Uint32(in[4:])})
	}
	var all list
	plain := r.Filter
	if quiet := clone.WithoutNotifications(program); &quiet[0] != &program[0] {
		plain = nil
		for _, in := range quiet {
			plain = binary.NativeEndian.AppendUint32(append(binary.NativeEndian.AppendUint16(plain, in.Code), in.Jt, in.Jf), in.K)
		}
		for _, flags := range []int{unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER} {
			all = append(all, list{unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, r.Filter, 1})
		}
	}
	return append(all, list{unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, plain, 0})
}

// probes are calls that show that the controls are in force: list{attempt, probe, go, refused}. The attempt, which may
// be empty, is made before the filter; its errno is the last argument of the probe, which is made after the filter and
// returns go if there is a listener. Without one, refused is called instead and fails with EPERM: the filter of the
// zygote, which a fork keeps, answers ENOSYS, and the kernel EBADF. If refused is empty, there must be a listener.
func (r *Request) probes() list {
	if !r.Probe {
		return list{}
	}
	tries := list{}
	if r.Forbidden != "" {
		tries = list{unix.SYS_MKNODAT, unix.AT_FDCWD, r.Forbidden + "\x00", unix.S_IFCHR | 0o600, 0}
	}
	refused := list{unix.SYS_SETNS, math.MaxInt32, 0}
	if r.Held {
		refused = list{}
	}
	return list{tries, list{unix.SYS_SECCOMP, initproto.ProbeMark}, initproto.ProbeGo, refused}
}

// closing closes all other descriptors (F2).
func closing() list {
	return list{call(initproto.StageStdio, unix.SYS_CLOSE_RANGE, 3, 1<<32-1, 0)}
}

// encode returns the request in the form that the process reads, and its descriptors.
func (r *Request) encode() (body []byte, fds []int) {
	strings := func(of []string) (l list) {
		for _, s := range of {
			l = append(l, s)
		}
		return l
	}
	body = encode(nil, list{
		r.walls(), r.filters(), r.probes(), closing(), strings(r.Args), strings(r.Env),
	})
	fds = []int{r.Stdio[0], r.Stdio[1], r.Stdio[2]}
	if r.Ruleset >= 0 {
		fds = append(fds, r.Ruleset)
	}
	return body, fds
}

// capHeader is struct __user_cap_header_struct for this process.
func capHeader() []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3), 0)
}

// openHow is struct open_how for a directory to be entered.
func openHow() (how []byte) {
	for _, field := range []uint64{unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, 0, unix.RESOLVE_NO_MAGICLINKS} {
		how = binary.NativeEndian.AppendUint64(how, field)
	}
	return how
}
