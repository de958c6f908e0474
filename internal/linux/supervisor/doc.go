// Package supervisor is this process's registration on the machine: a name no other living supervisor
// has, the cgroups and user ids that go with it, and the means to clear away what dead ones left.
//
// Place in the flow. The native and process backends each open one; it stands on
// internal/linux/registry (who lives) and internal/linux/cgroup (what they hold).
//
// Lifecycle. Open registers; everything made for it is named after it; Close removes the
// registration. A supervisor that dies instead leaves a registry entry whose lock is gone: Collect, in any
// later process, finds it, removes its cgroups and then the entry.
//
// Concurrency. Safe for concurrent use.
//
// Limits. Processes are not looked for: a sandbox dies with its supervisor by itself. What Collect
// finds still alive in a dead supervisor's cgroup it kills.
package supervisor
