// Package process is the backend of last resort: a process tree with resource limits, a clean
// environment and a deadline, on the host itself. It is weak, says so in every result (tier
// process), and runs only when it is asked for by name.
//
// Place in the flow. It implements sandbox.Backend with the same init as the native backend, which
// here builds no world: it adopts orphans, watches its supervisor and ends what it started.
//
// Lifecycle. A sandbox is a private directory with workspace, tmp and home in it, and an init per
// phase. Everything is removed with the sandbox; what a dead supervisor left is collected later.
//
// Concurrency. Safe for concurrent use.
//
// Limits. The program runs as the caller, sees the host's files, processes and network, and could
// kill its own init. Memory, process and CPU limits are the kernel's where cgroups are at hand, and
// absent where not. What needs a wall (volumes, another root, a network mode) is refused rather
// than ignored.
package process
