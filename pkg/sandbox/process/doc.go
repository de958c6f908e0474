// Package process is the backend of last resort: a process tree with resource limits, a clean environment and a deadline, on the host
// itself. It is weak, says so in every result (tier process), and runs only when it is asked for by name.
//
// Place in the flow. It implements sandbox.Backend with the same init as the native backend, which here builds no root: it is a
// subreaper, watches its supervisor, and ends its descendants (SIGSTOP for all, then SIGKILL, until none is left).
//
// Lifecycle. A sandbox is a private directory with workspace, tmp and home in it, and an init per phase. Everything is removed with the
// sandbox; what a dead supervisor left is collected later.
//
// Concurrency. Safe for concurrent use.
//
// Limits. The program runs as the caller, and sees the host's files, processes and network. It can kill its own init, and then outlives a
// supervisor that dies at that moment, until its cgroup is collected. RLIMIT_FSIZE bounds each file of the private directory; nothing
// bounds their sum. A file with more than one name is not taken out, because another name may be the host's. Memory, process and CPU
// limits are the kernel's where cgroups are at hand, and absent where not. Volumes, another root, a loopback and a scratch disk are
// refused.
package process
