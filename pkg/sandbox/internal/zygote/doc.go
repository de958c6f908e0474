// Package zygote runs zygotes: interpreters that never run foreign code, and that fork programs into sandboxes.
//
// Place in the flow. Between pkg/sandbox/native, which owns the sandboxes, and the driver that runs in the interpreter
// (pkg/executor/lang/python/driver). The package knows the driver's protocol and nothing of its language.
//
// Lifecycle. Start executes an interpreter on a copy of the sandboxes' read-only root, with the arguments of a cold start, so that paths,
// /proc/self/exe and mapped files are the same. The driver loads the preload set and reports ready. From then on it forks per sandbox:
//
//	supervisor               driver, fork
//	           ◄── ready     the preload set is loaded
//	fork ──►                 + a socket and the sandbox's namespaces, on the control socket (the driver's standard input)
//	                         a child in the pid namespace forks again and exits: the fork becomes the init's child
//	place ──►                + cgroup files, on that socket. The fork joins the other namespaces and takes the first isolation steps
//	           ◄── waits
//	request ──►              + descriptors, when there is a request. The fork takes the remaining isolation steps
//	           ◄── began     {pid, at} + the filter's listener. The supervisor measures the held process and lets it go on
//	           ◄── failed    {stage, errno}, in place of any of these
//
// Only the fork reads the request; the zygote's memory never has data of a request. Place and Request are lists of system calls, in the
// order of clone.becomeProgram. The driver makes them one after the other and knows none of them; TestForkPosture compares a cold process
// with a forked one, byte for byte. A supervisor that stops waiting shuts the socket, and a fork that can not send began exits; so an
// error of Fork.Start means that no foreign code has run.
//
// Concurrency. Any number of goroutines may call Zygote.Fork; the driver serves them one after the other. A Fork belongs to one caller. A
// fork that waits has more rights in its sandbox than a program. It therefore has a phase of its own, and a pool ends it before anything
// else starts in that sandbox.
//
// Limits. The interpreter runs outside any sandbox. It has an id that no other process has, no network, mounts and a cgroup of its own,
// and one capability, CAP_SYS_ADMIN, to join namespaces. A filter (seccomp.Policy.Zygote) refuses the other uses of that capability.
// Forks keep this filter below their own; it refuses by SECCOMP_RET_TRACE, so that refusals by a fork's own filter take precedence.
//
// The interpreter's file, its libraries, all files below the directories that it imports from, and all directories above them must belong
// to root and be writable by no other user. A process without capabilities finds out which files those are, and executes only files that
// were checked. Otherwise there is no zygote: programs start cold, and the log names the file, its owner and its mode. Interpreters of
// images are refused.
//
// The kernel kills the zygote when the supervisor dies: its standard output is a pipe without a reader, with F_SETSIG set to SIGKILL.
//
// The process between zygote and fork. A fork of Python would cost as much as the program's own. The child borrows the zygote's memory
// instead, like vfork, and calls C functions only, chained by makecontext: raise, with the signal blocked, and daemon, which forks and
// exits. If daemon can not fork, the signal ends the child, so Python never runs in borrowed memory. Start tests whether this works with
// the interpreter; otherwise the driver forks twice.
//
// All forks of a zygote have the same hash secret and memory layout, so its owner replaces it by age and by number of forks. Processes
// whose environment sets variables that an interpreter reads at its start (PYTHON*, LD_*, LC_*, TZ, HOME …) to other values than the
// zygote's start cold; so do those with a terminal, a writable root or `-m`.
package zygote
