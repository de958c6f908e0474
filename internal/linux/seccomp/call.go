package seccomp

import (
	"slices"
	"strconv"
	"strings"
)

// Refusal is a refused system call, and how often it was refused.
type Refusal struct {
	Name  string // "socket"
	Call  string // the same with the argument that caused the refusal: "socket(AF_PACKET)"
	Count uint64
}

// Call describes a call that the filter refuses by the argument that caused it, as far as registers show: "clone(CLONE_NEWUSER)".
// It never reads memory that arguments point at. The text is printable ASCII, whatever the arguments are.
func Call(arch string, nr uint32, args [6]uint64) string {
	name := Name(arch, nr)
	var low [6]uint32 // the filter reads only these halves
	for i, a := range args {
		low[i] = uint32(a)
	}
	detail := ""
	switch name {
	case "":
		return "call " + strconv.FormatUint(uint64(nr), 10)
	case "socket", "socketpair":
		detail = socketDetail(low)
	case "clone":
		detail = flags(low[0]&cloneNewMask, namespaceFlags)
	case "unshare":
		detail = flags(low[0], namespaceFlags)
	case "setns":
		detail = flags(low[1], namespaceFlags)
	case "ptrace":
		detail = constant(low[0], ptraceRequests)
	case "personality":
		detail = hex(low[0])
	case "ioctl":
		detail = hex(low[1])
		if i := slices.IndexFunc(terminalRequests, func(n named) bool { return n.value == low[1] }); i >= 0 {
			detail = terminalRequests[i].name
		}
	case "prctl":
		detail = constant(low[0], prctlOptions)
	case "setsockopt":
		detail = constant(low[2], socketOptions)
	case "mmap":
		detail = "MAP_SHARED|MAP_ANONYMOUS"
	case "fcntl":
		detail = constant(low[1], fileCommands)
	case "sendto", "sendmsg", "sendmmsg":
		detail = "MSG_OOB"
	case "chmod", "fchmod", "mkdir", "mknod", "creat":
		detail = flags(low[1]&setIDBits, modeBits)
	case "fchmodat", "fchmodat2", "mkdirat", "mknodat", "open":
		detail = flags(low[2]&setIDBits, modeBits)
	case "openat":
		detail = flags(low[3]&setIDBits, modeBits)
	}
	if detail == "" {
		return name
	}
	return name + "(" + detail + ")"
}

// socketDetail names the first of family, type and protocol that is refused, as stepsSocket goes through them.
func socketDetail(args [6]uint32) string {
	switch args[0] {
	case 1, 2, 10:
	default:
		return constant(args[0], families)
	}
	kind := args[1] & sockTypeMask
	switch kind {
	case 1, 2, 5:
		return constant(args[2], protocols)
	}
	return constant(kind, socketTypes)
}

// named is a constant of the kernel.
type named struct {
	value uint32
	name  string
}

var (
	namespaceFlags = []named{
		{0x00000080, "CLONE_NEWTIME"}, {0x00020000, "CLONE_NEWNS"}, {0x02000000, "CLONE_NEWCGROUP"}, {0x04000000, "CLONE_NEWUTS"},
		{0x08000000, "CLONE_NEWIPC"}, {0x10000000, "CLONE_NEWUSER"}, {0x20000000, "CLONE_NEWPID"}, {0x40000000, "CLONE_NEWNET"},
		{0x00000200, "CLONE_FS"}, {0x00000400, "CLONE_FILES"},
	}
	families = []named{
		{16, "AF_NETLINK"}, {17, "AF_PACKET"}, {29, "AF_CAN"}, {31, "AF_BLUETOOTH"}, {38, "AF_ALG"}, {40, "AF_VSOCK"},
		{43, "AF_SMC"}, {44, "AF_XDP"}, {15, "AF_KEY"}, {21, "AF_RDS"}, {30, "AF_TIPC"},
	}
	socketTypes = []named{{3, "SOCK_RAW"}, {4, "SOCK_RDM"}, {6, "SOCK_DCCP"}, {10, "SOCK_PACKET"}}
	protocols   = []named{{33, "IPPROTO_DCCP"}, {115, "IPPROTO_L2TP"}, {132, "IPPROTO_SCTP"}, {136, "IPPROTO_UDPLITE"},
		{256, "IPPROTO_SMC"}}
	ptraceRequests   = []named{{0, "PTRACE_TRACEME"}, {16, "PTRACE_ATTACH"}, {0x4206, "PTRACE_SEIZE"}}
	terminalRequests = []named{{0x5412, "TIOCSTI"}, {0x541c, "TIOCLINUX"}, {0x541d, "TIOCCONS"}, {0x5423, "TIOCSETD"}}
	prctlOptions     = []named{{22, "PR_SET_SECCOMP"}}
	socketOptions    = []named{{26, "SO_ATTACH_FILTER"}, {50, "SO_ATTACH_BPF"}, {51, "SO_ATTACH_REUSEPORT_CBPF"},
		{52, "SO_ATTACH_REUSEPORT_EBPF"}}
	fileCommands = []named{{1024, "F_SETLEASE"}, {1026, "F_NOTIFY"}, {1040, "F_SETDELEG"}}
	modeBits     = []named{{0o4000, "S_ISUID"}, {0o2000, "S_ISGID"}}
)

// constant is the name of a value, or the value.
func constant(v uint32, names []named) string {
	for _, n := range names {
		if n.value == v {
			return n.name
		}
	}
	return strconv.FormatUint(uint64(v), 10)
}

// flags are the names of the bits that are set; bits without a name are one number.
func flags(v uint32, names []named) string {
	var set []string
	for _, n := range names {
		if v&n.value != 0 {
			set = append(set, n.name)
			v &^= n.value
		}
	}
	if v != 0 {
		set = append(set, hex(v))
	}
	return strings.Join(set, "|")
}

func hex(v uint32) string { return "0x" + strconv.FormatUint(uint64(v), 16) }
