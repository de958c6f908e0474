// Package clone has the code that runs between clone and exec: in the child that becomes an init, and in the child of an init that
// becomes the program.
//
// Place in the flow. internal/linux/spawn starts inits with it, internal/linux/initproc programs.
//
// Lifecycle. A child borrows its parent's memory (CLONE_VM, CLONE_VFORK): the parent's thread sleeps until the child has executed or
// exited. Nothing is copied, and errors are in the parent's memory. All data that the child needs is prepared before the clone. The
// supervisor's thread gives its processor to other goroutines while it sleeps.
//
// Concurrency. Any number of goroutines may start children at the same time.
//
// Limits. Between clone and exec there are raw system calls only: no allocation, no stack growth, no lock, no Go signal handler (signals
// are blocked). The linker checks that the functions marked nosplit fit on the stack. docs/decisions/004 says why os/exec is not used.
//
// The init is cloned into new user, pid, mount, network, IPC and UTS namespaces. A user namespace without id maps has no root, and an
// exec would drop all capabilities; so the child raises those that it needs into its ambient set. The supervisor writes uid_map and
// gid_map while the kernel loads the init, and then sends setup; only then the init's main thread becomes uid 0. The cloning thread takes
// on the sandbox's uid for the clone, so that the kernel counts everything of the namespace against that id.
//
// The init starts with coarse timers and, if linked statically, without the right to open files: the Go runtime would otherwise wake its
// monitor thread every 70 µs and read the host's mounts and cgroups. Awaken ends both before any program starts.
//
// The program takes these steps, in this order (becomeProgram):
//
//	cgroup              v1: write 0 to each tasks file. v2: nothing, the process is cloned into its group; where that was refused, write
//	                    0 to cgroup.procs. First, so that every page of its own is charged. The supervisor opened the files
//	cgroup namespace    after the join, so that the group is the root that the program sees
//	session, keyring    the inherited session keyring is the supervisor's
//	stdio               controlling terminal; every descriptor from 3 on becomes close-on-exec
//	rlimits, umask      before the ids: hard limits can need privilege
//	ids, capabilities   empty bounding set, no groups, setresgid, setresuid, empty sets
//	no_new_privs        the filter needs it
//	working directory   as the program's user, before Landlock applies
//	Landlock            after the last step that uses a path of ours
//	signals             every signal to its default, mask cleared
//	seccomp             last, because it refuses calls of the steps above. The listener goes to the supervisor over the init's socket
//	probe               seccomp(0x70726f62, errno), reported to the listener. errno is the result of an attempt that only Landlock refuses,
//	                    made before the filter. The supervisor measures the held process and lets it go on or ends it. Without a
//	                    listener the errno of the filter is checked, and the controls are declared
//	execve              of each candidate path in turn
//
// A step that fails leaves its stage and errno in the init's memory, and the child exits.
package clone
