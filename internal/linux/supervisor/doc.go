// Package supervisor is this process's registration on the machine: a name that no other live supervisor has, its cgroups and user ids.
// It also collects what dead supervisors left.
//
// Place in the flow. The native and process backends each open one; it stands on internal/linux/registry (live supervisors) and
// internal/linux/cgroup.
//
// Lifecycle. Open registers; everything made for it is named after it; Close removes the registration. A supervisor that dies instead
// leaves a registry entry whose lock is gone: Collect, in any later process, finds it, removes its cgroups and then the entry.
//
// Concurrency. Safe for concurrent use.
//
// Limits. Processes are not looked for: a sandbox dies with its supervisor by itself. What Collect finds still alive in a dead
// supervisor's cgroup it kills. Collect takes five seconds at most; the next collector continues. It touches only directories named
// sandbox-run on a cgroup file system, whatever the record of an entry says.
//
// Ids. Inside, a sandbox has two ids: 0 (the init) and the user's. Outside, both are ids that no other process has, so that limits which
// the kernel counts per user (pending signals, inotify …) are per sandbox:
//
//	0x70000000 + slot × 4096 + sandbox × 2      root of the sandbox
//	                                      + 1   its user
//
// Directories. A supervisor locks its directory in /var/tmp. Collect removes one that is not locked and whose name is not registered: a
// runtime that outlived its supervisor may have made it again, or a user's registry may be gone after logout.
package supervisor
