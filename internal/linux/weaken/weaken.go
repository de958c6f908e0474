// Package weaken names the isolation steps that variants of the executables leave out, to show that the attack suite notices.
//
// Place in the flow. Only files with the build tag weaken and tests import it. A build without the tag has none of it: the
// packages whose isolation steps can be left out have a file for each of the two builds; without the tag it has empty functions.
//
// Lifecycle. Variable names the mutation of a variant, which stays the same for the process and for all its inits.
//
// Concurrency. Everything is read-only.
package weaken

import "syscall"

// Variable is the environment variable that names the mutation of an executable that was built with the tag weaken. Cases is
// the one with the ids of the attack cases to carry out, separated by commas; default all. A variant with a mutation does not
// measure the programs that it starts, unless Measured is set.
const (
	Variable = "SANDBOX_WEAKEN"
	Cases    = "SANDBOX_WEAKEN_CASES"
	Measured = "SANDBOX_WEAKEN_MEASURED"
)

// Mutation is an isolation step that is left out.
type Mutation struct {
	Name  string
	Step  string   // the isolation step
	Cases []string // of the attack suite: each of them notices
	Quick bool     // make test carries it out, too
	Files []string // of /proc: on a kernel without any of them the mutation changes nothing
	// Control is the control that the measurement finds missing (sandbox.Control), or "".
	Control string
}

// On reports whether this process runs with a mutation.
func On(name string) bool {
	value, _ := syscall.Getenv(Variable)
	return value == name
}

// All lists the mutations. docs/THREAT_MODEL.md has the same table.
func All() []Mutation {
	return []Mutation{
		{"no-filter", "the system-call filter", []string{"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S9"}, true, nil, "seccomp"},
		{"call-filters", "refusal of seccomp(2), PR_SET_SECCOMP and filters on sockets", []string{"S5"}, false, nil, ""},
		{"call-group", "refusal of modify_ldt, mbind, move_pages, iopl and quotactl_fd", []string{"S5"}, true, nil, ""},
		{"call-leases", "refusal of leases", []string{"S5"}, false, nil, ""},
		{"call-aio", "refusal of kernel AIO", []string{"S5"}, false, nil, ""},
		{"call-personality", "refusal of execution domains", []string{"S5"}, false, nil, ""},
		{"socket-protocols", "refusal of DCCP, L2TP and UDPLITE", []string{"S4"}, true, nil, ""},
		{"socket-families", "refusal of SMC, TIPC, CAN, RDS and KCM", []string{"S4"}, false, nil, ""},
		{"fork-bare", "filter and Landlock of warm forks", []string{"W3"}, true, nil, ""},
		{"fork-no-filter", "filter of warm forks", []string{"W3"}, false, nil, ""},
		{"fork-no-landlock", "Landlock of warm forks", []string{"W3"}, false, nil, ""},
		{"no-landlock", "Landlock", []string{"F12", "N1", "S6"}, true, nil, "landlock"},
		{"landlock-no-network", "Landlock's rules for TCP", []string{"N1"}, false, nil, ""},
		{"landlock-no-scope", "Landlock's scopes of signals and abstract sockets", []string{"S6"}, false, nil, ""},
		{"one-id-pair", "host ids of each sandbox's own", []string{"W1"}, true, nil, ""},
		{"no-keyring", "session keyring of each program's own", []string{"W1", "W3"}, false, nil, ""},
		{"root-unsealed", "read-only root", []string{"F12"}, false, nil, "private_root"},
		{"dev-unsealed", "read-only /dev", []string{"F12"}, false, nil, ""},
		{"proc-sys-writable", "read-only /proc/sys", []string{"F12"}, false, nil, ""},
		{"no-hidepid", "hidepid of /proc", []string{"F13"}, false, nil, ""},
		{"init-dumpable", "an init that can not be traced", []string{"F13"}, false, nil, ""},
		{"sysrq-kcore", "masks of /proc/sysrq-trigger and /proc/kcore", []string{"F13"}, false, []string{"/proc/sysrq-trigger", "/proc/kcore"},
			""},
		{"proc-uncovered", "all masks of /proc", []string{"F4", "F12", "F13"}, false, nil, ""},
		{"devices", "nodev", []string{"F7"}, false, nil, "private_root"},
		{"set-uid", "nosuid", []string{"F11"}, false, nil, "private_root"},
		{"writable-root", "read-only root, and Landlock", []string{"F9", "F12"}, false, nil, ""},
		{"writable-volumes", "read-only volumes, and Landlock", []string{"F1", "F12"}, false, nil, ""},
		{"capabilities", "dropping of capabilities", []string{"F11"}, false, nil, "no_capabilities"},
		{"groups", "dropping of groups", []string{"F11"}, false, nil, ""},
		{"descriptor", "closing of descriptors", []string{"F2"}, false, nil, ""},
		{"host-network", "network namespace, and Landlock", []string{"N1"}, true, nil, "network_namespace"},
		{"network-no-rules", "the filter of networks", []string{"N2", "N3", "N4", "N5", "N6", "N7", "N8"}, false, nil, ""},
		{"network-no-private", "the check of private addresses and the host's own", []string{"N2", "N4"}, true, nil, ""},
		{"host-ipc", "IPC namespace", []string{"S6"}, false, nil, "ipc_namespace"},
		{"host-proc", "/proc of the sandbox's own", []string{"F13", "S6"}, false, nil, ""},
		{"fake-proc", "a procfs at /proc", []string{"F5"}, false, nil, ""},
		{"other-null", "the null device at /dev/null", []string{"F4"}, false, nil, ""},
		{"cgroup-fs", "absence of the cgroup file system", []string{"R11"}, false, nil, ""},
		{"no-rlimits", "resource limits", []string{"R6", "R10"}, false, nil, "open_files"},
		{"no-file-size", "ordinary programs that work", []string{"S8"}, false, nil, ""},
		{"no-pid-namespace", "pid namespace: no sandbox starts without", []string{"F12", "S1"}, false, nil, ""},
	}
}
