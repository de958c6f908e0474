package seccomp

import "fmt"

// Policy is the system-call policy as data. The zero value is the default policy.
type Policy struct {
	// DenySetID refuses to create set-uid and set-gid files, or to make a file
	// one: needed when a host directory is writable inside, where such a file
	// would outlive the sandbox and be honoured by the host. openat2 carries its mode
	// behind a pointer and fails with ENOSYS instead; callers fall back to openat.
	DenySetID bool
	// DenyUncounted refuses memory that no process shows as its own: memory files, shared memory without a file (whose
	// pages stay when they are unmapped, as long as one mapping is left), pages given to pipes and sockets, message queues,
	// and more than a little of System V shared memory and semaphores. Needed where the limit poller counts memory by
	// reading /proc instead of a cgroup.
	DenyUncounted bool
	// DenyAffinity refuses to choose processors: needed where CPU affinity is the only limit on CPU use.
	DenyAffinity bool
	// DenyAllocate refuses fallocate, which takes space for a file before writing it: needed where the cap on a host directory
	// is enforced by polling. Callers of posix_fallocate write zeroes instead. No policy has the ioctls that do the same
	// (FS_IOC_RESVSP).
	DenyAllocate bool
	// Notify has the kernel notify a listener of refused calls instead of refusing them by itself, for a [RefusalCounter] to
	// count and refuse. Without a listener they fail with ENOSYS. See quietly for calls that are left out.
	Notify bool
	// Interfaces has a [RefusalCounter] admit some sockets by which a program lists the network interfaces of its namespace. It does
	// not change the filter: without a listener they are refused.
	Interfaces bool
	// Zygote is the policy of a zygote: it allows what a program may do, and the calls by which its forks enter a sandbox and
	// apply their isolation steps. Forks keep this filter below their own. So it refuses by SECCOMP_RET_TRACE, which is ENOSYS
	// where no process traces, and which ranks below the refusals of a fork's own filter, notifications included.
	Zygote bool
}

// Action is what the kernel does with a system call: a SECCOMP_RET_* value.
type Action uint32

// The actions in use. Refusals are errnos, which errno makes.
const (
	KillProcess Action = 0x80000000 // SECCOMP_RET_KILL_PROCESS
	Allow       Action = 0x7fff0000 // SECCOMP_RET_ALLOW

	retTrace   Action = 0x7ff00000 // SECCOMP_RET_TRACE
	retNotify  Action = 0x7fc00000 // SECCOMP_RET_USER_NOTIF; the kernel ignores the low 16 bits
	retErrno   Action = 0x00050000 // SECCOMP_RET_ERRNO; the low 16 bits are the errno
	actionMask Action = 0xffff0000
)

// Linux errno values, as numbers because this package also compiles where the
// syscall package has other values for them.
const (
	ePERM            = 1
	eINVAL           = 22
	eNOTTY           = 25
	eNOSYS           = 38
	eNOPROTOOPT      = 92
	eOPNOTSUPP       = 95
	ePROTONOSUPPORT  = 93
	eSOCKTNOSUPPORT  = 94
	eAFNOSUPPORT     = 97
	noSys            = retErrno | eNOSYS
	notPermitted     = retErrno | ePERM
	invalid          = retErrno | eINVAL
	noSuchRequest    = retErrno | eNOTTY
	noSuchOption     = retErrno | eNOPROTOOPT
	noSuchFamily     = retErrno | eAFNOSUPPORT
	noSuchSocketType = retErrno | eSOCKTNOSUPPORT
	noSuchProtocol   = retErrno | ePROTONOSUPPORT
	notSupported     = retErrno | eOPNOTSUPP
)

// Errno returns the errno the call fails with, or 0 if a does not make it fail.
func (a Action) Errno() int {
	if a&actionMask == retErrno {
		return int(a &^ actionMask)
	}
	return 0
}

// String names a for logs and test failures.
func (a Action) String() string {
	switch {
	case a == Allow:
		return "allow"
	case a == KillProcess:
		return "kill"
	case a&actionMask == retErrno:
		return fmt.Sprintf("errno %d", a.Errno())
	}
	return fmt.Sprintf("action %#x", uint32(a))
}

// encode is the one place where a decision becomes the value for the kernel. A notification keeps the errno in
// the bits that the kernel ignores: internal/linux/clone turns it into a plain errno where there is no listener.
func (p Policy) encode(a Action, quiet bool) uint32 {
	if p.Zygote && a&actionMask == retErrno {
		return uint32(retTrace | a&^actionMask)
	}
	if p.Notify && !quiet && a&actionMask == retErrno {
		a = retNotify | a&^actionMask
	}
	return uint32(a)
}

// quietly reports whether a call is refused by a plain errno whatever the policy: calls that ordinary programs try
// and have a fallback for. libc tries clone3 for every thread; programs newer than their kernel try calls that
// do not exist; libuv (Node) makes an io_uring for every loop; numerical libraries look for memory nodes; package managers
// and databases write file systems back, and allocate space.
// The listener is notified of seccomp, although it fails with ENOSYS: filters are refused on purpose.
func quietly(name string, a Action) bool {
	switch name {
	case "seccomp":
		return false
	case "io_uring_setup", "get_mempolicy", "set_mempolicy", "mbind", "sync", "syncfs", "fallocate":
		return true
	}
	return a == noSys
}

// rule says how one system call is treated. The zero value is the rule of numbers
// that the table does not list, so that a hole in a table fails closed.
type rule uint8

const (
	ruleAbsent       rule = iota // ENOSYS: unassigned, newer than the profile, or hidden on purpose
	ruleRefuse                   // EPERM
	ruleAllow                    // always allowed; the kernel's allow bitmap answers without running the filter
	ruleClone                    // no new namespaces
	ruleSocket                   // families, types and protocols of socket and socketpair
	rulePersonality              // the execution domains moby lists
	ruleIoctl                    // requests by number
	rulePrctl                    // no seccomp filters
	ruleSockopt                  // no socket filters
	ruleFcntl                    // no leases
	rulePrlimit                  // no limits for the init
	ruleMode1                    // file mode in argument 1
	ruleMode2                    // file mode in argument 2
	ruleOpen1                    // open flags in argument 1, mode in 2
	ruleOpen2                    // open flags in argument 2, mode in 3
	ruleOpenHow                  // mode behind a pointer
	ruleMemoryFile               // memory that no process maps
	ruleMap                      // the same, unless it is private or of a file
	ruleSharedMemory             // the same, its size in argument 1
	ruleSemaphores               // the same, their number in argument 1
	ruleAffinity                 // processors to run on
	ruleAllocate                 // space ahead of writing
	ruleSend2                    // flags of a message in argument 2
	ruleSend3                    // flags of a message in argument 3
	ruleSetns                    // zygote: the namespaces of a sandbox, in its order
	ruleUnshare                  // zygote: a cgroup namespace
	ruleKeyctl                   // zygote: a session keyring of its own
	ruleSeccomp                  // zygote: a fork's own filter
	ruleCount
)

type op uint8

const (
	opAny   op = iota // some bit of mask is set
	opNone            // no bit of mask is set
	opIn              // value under mask is in set
	opNotIn           // value under mask is not in set
)

// step is one line of a rule about arguments: when the condition holds
// the call ends with action then, else the next step follows; after the last
// one the call is allowed.
//
// Conditions read only the low 32 bits of an argument, on purpose. All the
// arguments tested here are int, unsigned int or umode_t in the kernel (and clone
// takes lower_32_bits of its flags), so the kernel drops the upper half of the
// register. A filter that compared all 64 bits would let ioctl(fd, TIOCSTI |
// 1<<32) through as "some other request" and the kernel would still do TIOCSTI.
// A rule about a real 64-bit argument tests the upper half in a step of its own.
type step struct {
	arg  uint8
	high bool // the upper half
	op   op
	mask uint32
	set  []uint32
	then Action
	// quiet refusals are plain errnos also where others notify a listener.
	quiet bool
}

const (
	whole = 0xffffffff

	// All of CLONE_NEW* that clone can express: NEWNS, NEWCGROUP, NEWUTS, NEWIPC,
	// NEWUSER, NEWPID, NEWNET. NEWTIME is in the exit signal's bits there and
	// exists only for unshare and clone3.
	cloneNewMask = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	// SOCK_TYPE_MASK: what the kernel keeps of a socket type after it has taken
	// SOCK_NONBLOCK and SOCK_CLOEXEC away.
	sockTypeMask = 0xf

	setIDBits  = 0o6000          // S_ISUID | S_ISGID
	createBits = 0x40 | 0x400000 // O_CREAT | __O_TMPFILE, equal on both architectures
)

// requests are the ioctl requests that programs may make. Numbers are equal on both architectures.
var requests = []uint32{
	// Terminals: TCGETS, TCSETS, TCSETSW, TCSETSF, TCGETA, TCSETA, TCSETAW, TCSETAF, TCSBRK, TCXONC, TCFLSH, TIOCEXCL,
	// TIOCNXCL, TIOCSCTTY, TIOCGPGRP, TIOCSPGRP, TIOCOUTQ, TIOCGWINSZ, TIOCSWINSZ, TIOCPKT, TIOCNOTTY, TIOCGETD, TCSBRKP, TIOCGSID
	0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408, 0x5409, 0x540a, 0x540b, 0x540c, 0x540d, 0x540e, 0x540f,
	0x5410, 0x5411, 0x5413, 0x5414, 0x5420, 0x5422, 0x5424, 0x5425, 0x5429,
	// TCGETS2, TCSETS2, TCSETSW2, TCSETSF2
	0x802c542a, 0x402c542b, 0x402c542c, 0x402c542d,
	// TIOCGPTN, TIOCSPTLCK, TIOCGPTLCK, TIOCGPKT, TIOCGEXCL, TIOCSIG, TIOCGPTPEER
	0x80045430, 0x40045431, 0x80045439, 0x80045438, 0x80045440, 0x40045436, 0x5441,
	// Any descriptor: FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE
	0x541b, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460,
	// Files: FIGETBSZ, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR
	0x2, 0x80086601, 0x801c581f,
	// Sockets: FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP, SIOCATMARK, SIOCGSTAMP, SIOCGSTAMPNS, and the last two with 64 bits; SIOCOUTQNSD
	0x8901, 0x8902, 0x8903, 0x8904, 0x8905, 0x8906, 0x8907, 0x80108906, 0x80108907, 0x894b,
	// Interfaces, read only: SIOCGIFNAME, CONF, FLAGS, ADDR, DSTADDR, BRDADDR, NETMASK, METRIC, MTU, HWADDR, INDEX, TXQLEN, MAP
	0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891b, 0x891d, 0x8921, 0x8927, 0x8933, 0x8942, 0x8970,
	// RNDGETENTCNT: libraries use it to check that /dev/urandom is the random device
	0x80045200,
}

// Read-only after link time: composed of constants only, so that the package
// has no initialiser.
var (
	stepsClone = []step{
		{arg: 0, op: opAny, mask: cloneNewMask, then: notPermitted},
	}
	stepsSocket = []step{
		// AF_UNIX, AF_INET, AF_INET6. For AF_NETLINK, which libc asks for in
		// ordinary programs, EPERM, EACCES, ENOSYS, EPROTONOSUPPORT and this were
		// compared: only the text of the error differs. A RefusalCounter may admit it.
		{arg: 0, op: opNotIn, mask: whole, set: []uint32{1, 2, 10}, then: noSuchFamily},
		// SOCK_RAW; and SOCK_PACKET, which the kernel turns into AF_PACKET even
		// when the family says AF_INET.
		{arg: 1, op: opIn, mask: sockTypeMask, set: []uint32{3, 10}, then: notPermitted},
		// SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET.
		{arg: 1, op: opNotIn, mask: sockTypeMask, set: []uint32{1, 2, 5}, then: noSuchSocketType},
		// MPTCP, which Go requests by default when it listens, with TCP as fallback.
		{arg: 2, op: opIn, mask: whole, set: []uint32{262}, then: noSuchProtocol, quiet: true},
		// 0, ICMP (and PF_UNIX), TCP, UDP, ICMPv6. SCTP, L2TP, DCCP and SMC would load kernel modules on demand.
		{arg: 2, op: opNotIn, mask: whole, set: []uint32{0, 1, 6, 17, 58}, then: noSuchProtocol},
	}
	stepsPersonality = []step{
		{arg: 0, op: opNotIn, mask: whole, set: []uint32{0, 0x8, 0x20000, 0x20008, 0xffffffff}, then: notPermitted},
	}
	stepsIoctl = []step{
		// TIOCSTI and TIOCLINUX type into a terminal that may be shared with the host, TIOCCONS takes the console's output;
		// TIOCSETD reaches line disciplines no program here needs.
		{arg: 1, op: opIn, mask: whole, set: []uint32{0x5412, 0x541c, 0x541d, 0x5423}, then: notPermitted},
		// Groups of requests that no device here serves, by the byte that identifies the driver: seccomp's listeners,
		// SCSI, perf, evdev, consoles, loop devices, CD-ROMs, USB, virtual terminals, DRM, userfaultfd, KVM, vhost, namespaces.
		{arg: 1, op: opIn, mask: 0xff00, then: notPermitted, set: []uint32{
			0x2100, 0x2200, 0x2400, 0x4500, 0x4b00, 0x4c00, 0x5300, 0x5500, 0x5600, 0x6400, 0xaa00, 0xae00, 0xaf00, 0xb700,
		}},
		// SIOCETHTOOL, as lo answers it: psutil handles no other error.
		{arg: 1, op: opIn, mask: whole, set: []uint32{0x8946}, then: notSupported, quiet: true},
		// A request that is not listed gets the answer of a file that does not know it. Programs that only try (cp, with
		// FICLONE) handle that answer.
		{arg: 1, op: opNotIn, mask: whole, set: requests, then: noSuchRequest, quiet: true},
	}
	// The program's own filters are compiled and freed by kernel workers, outside of its CPU
	// limit, and a few thousand freed at once have been seen to deadlock a kernel (6.18: the
	// workers wait for a lock whose holder waits for a worker). So the
	// seccomp call fails with ENOSYS, and these calls reject the option. It also keeps
	// the program from ever having a listener that could answer its own refused calls.
	stepsPrctl = []step{
		{arg: 0, op: opIn, mask: whole, set: []uint32{22}, then: invalid}, // PR_SET_SECCOMP
	}
	stepsSockopt = []step{
		{arg: 1, op: opNotIn, mask: whole, set: []uint32{1}, then: Allow}, // SOL_SOCKET
		// SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF
		{arg: 2, op: opIn, mask: whole, set: []uint32{26, 50, 51, 52}, then: noSuchOption},
	}
	// A lease on a file of a volume, which its owner may take, delays every process that opens the file on the host by up to
	// 45 s. F_SETLEASE, F_NOTIFY, F_SETDELEG.
	stepsFcntl = []step{
		{arg: 1, op: opIn, mask: whole, set: []uint32{1024, 1026, 1040}, then: invalid},
	}
	// MSG_OOB: out-of-band data on Unix sockets has led to use after free (CVE-2025-38236), and nothing here needs it on TCP.
	stepsSend2 = []step{{arg: 2, op: opAny, mask: 1, then: notSupported}}
	stepsSend3 = []step{{arg: 3, op: opAny, mask: 1, then: notSupported}}
	stepsSetns = []step{
		// CLONE_NEWPID; CLONE_NEWUSER; CLONE_NEWNS, NEWUTS, NEWIPC and NEWNET together
		{arg: 1, op: opNotIn, mask: whole, set: []uint32{0x20000000, 0x10000000, 0x4c020000}, then: notPermitted},
	}
	stepsUnshare = []step{{arg: 0, op: opNotIn, mask: whole, set: []uint32{0x02000000}, then: notPermitted}} // CLONE_NEWCGROUP
	stepsKeyctl  = []step{{arg: 0, op: opNotIn, mask: whole, set: []uint32{1}, then: notPermitted}}          // JOIN_SESSION_KEYRING
	stepsSeccomp = []step{{arg: 0, op: opNotIn, mask: whole, set: []uint32{1}, then: notPermitted}}          // SET_MODE_FILTER
	stepsMode1   = []step{{arg: 1, op: opAny, mask: setIDBits, then: notPermitted}}
	stepsMode2   = []step{{arg: 2, op: opAny, mask: setIDBits, then: notPermitted}}
	// PostgreSQL needs a few bytes of it. 4096 segments (kernel.shmmni) of this size are 256 MiB.
	stepsSharedMemory = []step{
		{arg: 1, high: true, op: opAny, mask: whole, then: notPermitted},
		{arg: 1, op: opAny, mask: 0xffff0000, then: notPermitted},
	}
	// A semaphore takes 64 bytes, a set up to 32000 of them, and there may be 32000 sets (kernel.sem). Sets of this size are
	// 140 MiB.
	stepsSemaphores = []step{{arg: 1, op: opAny, mask: 0xffffffc0, then: notPermitted}}
	// MAP_SHARED or MAP_SHARED_VALIDATE, with MAP_ANONYMOUS.
	stepsMap = []step{{arg: 3, op: opIn, mask: 0x21, set: []uint32{0x21}, then: notPermitted}}
	// SO_ZEROCOPY too: a byte of a huge page keeps all of it.
	stepsSockoptUncounted = []step{
		{arg: 1, op: opNotIn, mask: whole, set: []uint32{1}, then: Allow},
		{arg: 2, op: opIn, mask: whole, set: []uint32{26, 50, 51, 52, 60}, then: noSuchOption},
	}
	// Without root the init may have the program's own id, and then the program may lower the init's limits. The init is
	// always pid 1.
	stepsPrlimit = []step{{arg: 0, op: opIn, mask: whole, set: []uint32{1}, then: notPermitted}}
	// Without a create flag the kernel does not read the mode register, which holds
	// an arbitrary value.
	stepsOpen1 = []step{
		{arg: 1, op: opNone, mask: createBits, then: Allow},
		{arg: 2, op: opAny, mask: setIDBits, then: notPermitted},
	}
	stepsOpen2 = []step{
		{arg: 2, op: opNone, mask: createBits, then: Allow},
		{arg: 3, op: opAny, mask: setIDBits, then: notPermitted},
	}
)

// ruleOf returns the rule of a call under p.
func (p Policy) ruleOf(c call) rule {
	if p.Zygote {
		switch c.name {
		case "setns":
			return ruleSetns
		case "unshare":
			return ruleUnshare
		case "keyctl":
			return ruleKeyctl
		case "seccomp":
			return ruleSeccomp
		}
	}
	return c.rule
}

// resolve returns the meaning of r under p: the steps to take, or, when there are
// none, the action that depends on no argument.
func (p Policy) resolve(r rule) ([]step, Action) {
	switch r {
	case ruleAllow:
		return nil, Allow
	case ruleRefuse:
		return nil, notPermitted
	case ruleClone:
		return stepsClone, 0
	case ruleSocket:
		return weakenSocket(stepsSocket), 0
	case rulePersonality:
		return stepsPersonality, 0
	case ruleIoctl:
		return stepsIoctl, 0
	case ruleAllocate:
		if p.DenyAllocate {
			return nil, notSupported
		}
		return nil, Allow
	case rulePrctl:
		return stepsPrctl, 0
	case ruleSockopt:
		if p.DenyUncounted {
			return stepsSockoptUncounted, 0
		}
		return stepsSockopt, 0
	case rulePrlimit:
		return stepsPrlimit, 0
	case ruleFcntl:
		return stepsFcntl, 0
	case ruleSetns:
		return stepsSetns, 0
	case ruleUnshare:
		return stepsUnshare, 0
	case ruleKeyctl:
		return stepsKeyctl, 0
	case ruleSeccomp:
		return stepsSeccomp, 0
	case ruleSend2:
		return stepsSend2, 0
	case ruleSend3:
		return stepsSend3, 0
	case ruleMemoryFile:
		if p.DenyUncounted {
			return nil, notPermitted
		}
		return nil, Allow
	case ruleMap, ruleSharedMemory, ruleSemaphores:
		if !p.DenyUncounted {
			return nil, Allow
		}
		switch r {
		case ruleMap:
			return stepsMap, 0
		case ruleSharedMemory:
			return stepsSharedMemory, 0
		}
		return stepsSemaphores, 0
	case ruleAffinity:
		if p.DenyAffinity {
			return nil, notPermitted
		}
		return nil, Allow
	case ruleMode1, ruleMode2, ruleOpen1, ruleOpen2, ruleOpenHow:
		if !p.DenySetID {
			return nil, Allow
		}
		switch r {
		case ruleMode1:
			return stepsMode1, 0
		case ruleMode2:
			return stepsMode2, 0
		case ruleOpen1:
			return stepsOpen1, 0
		case ruleOpen2:
			return stepsOpen2, 0
		}
	}
	return nil, noSys // ruleAbsent, ruleOpenHow, and unknown rules
}
