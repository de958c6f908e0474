// Package cgroup manages the control groups of sandboxes on every cgroup layout: v1, v2, or both at once ("hybrid").
//
// What. A [Tree] is the machine's layout and the directory in each hierarchy below which this process may make groups; a [Group] is one
// name made in all of those hierarchies together, with limits, counters, kill and removal. docs/decisions/001 says why it is our own code
// and not opencontainers/cgroups.
//
// Place in the flow. The native backend opens one Tree at start-up and makes a [PhaseGroup] per phase (D7). It hands the descriptors of
// [PhaseGroup.OpenProgramLeaf] and [Group.JoinFiles] to the sandbox's init, samples [Group.Stat] for pkg/monitor and ends with
// [Group.Empty], [Group.Final] and [Group.Remove]. doctor uses [Tree.Missing]; gc reopens the roots that a dead
// supervisor recorded ([Tree.Roots]) with [At]. The package imports nothing of ours.
//
// Lifecycle.
//
//	Open ─► Group(path) ─► Make(limits) ─► JoinFiles │ CgroupFD ─► Stat… ─► Kill ─► Final ─► Remove ─► … ─► Prune, Close
//
//	v1      <mount>/<own cgroup>/sandbox-run/<path>              one directory per controller mount
//	v2      <mount>/<nearest free ancestor>/sandbox-run/<path>   see placeV2
//	        <mount>/<own cgroup>/sandbox-run/<path>              moved: this process is in …/sandbox-run/supervisor
//	hybrid  limits and CPU time in the v1 directories
//
// A process joins by writing to the v1 files `tasks`, and stays out of a hybrid machine's v2 tree, for one reason: any other way to join
// waits for an RCU grace period, up to 11 ms on an idle machine ([Group.JoinFiles]). Where v1 lacks a limit or the CPU time and v2 has
// it, the process joins the v2 tree as well. Where v2 has all of it, programs are cloned into their group, which does not wait: a
// [PhaseGroup] has the layout that the kernel requires for that.
//
// Groups are made below the cgroup that holds the supervisor and not below the hierarchy's root, so a sandbox never escapes the limit of
// the process that started the supervisor (a container, a systemd slice). The price is that another process can not guess where a dead
// supervisor's groups are: supervisors record Roots beside their lock. Prune removes the directory `sandbox-run` itself once it is empty,
// because it would keep the caller's own cgroup from being removed.
//
// An ordinary user can do all of this where root, or systemd, has delegated groups: on v1 a directory per controller, on v2 a group above
// the process's own, or its own. Open asks the kernel for permissions, by effective ids and by trying; [Gap] says what an operator can do
// where the kernel refuses. In two cases Open moves this process, and only where [Options] allow it: into a leaf of its own group, which
// otherwise could have no children with controllers (moveToLeaf); and, by Options.Ask, into a scope of the systemd user manager (package
// delegate).
//
//	tree, err := cgroup.Open(cgroup.Options{MoveToLeaf: true, Ask: func() error { return delegate.Obtain(ctx) }})
//
// Init and program. The init is not in the program's group: there it could be throttled, frozen or chosen by the OOM killer, and it must
// run to end the sandbox when the supervisor dies. On v2 a program is cloned into its group (CLONE_INTO_CGROUP, Linux 5.7). The kernel
// then requires that the init may write to cgroup.procs of the new group and of the nearest group above both. So a PhaseGroup has two
// leaves:
//
//	…/sandbox-run/<supervisor>/<number>     cgroup.procs belongs to the init's id
//	                       ├─ init          the init, without limits
//	                       └─ run           the programs of the phase, limited; cgroup.procs belongs to the init's id
//
// The id owns those two files only. Programs have another id, and see no cgroup file system. Where the kernel refuses the clone (an older
// kernel, a container that forbids clone3), the program joins by a write; a program that can do neither does not run. A spare init has
// its PhaseGroup already, without run.
//
// Counters. CPU time is from v2, or v1 cpuacct. I/O bytes are those of /proc/<pid>/io: io.stat of v2 counts a loop device twice. The peak
// of memory is memory.peak (Linux 5.19), before that the highest sample. The peak of a pooled sandbox is reset when it is handed out
// (Linux 6.12). A limit that no hierarchy can enforce is an error. Swap is off with the memory limit where the kernel counts swap.
//
// Kill uses cgroup.kill where it exists, and then pidfds: cgroup.kill misses a process whose first thread has ended (seen with Linux
// 6.1). After pidfds are opened, the list is read again, and only numbers still on it are signalled.
//
// Concurrency. A Tree does not change between Open and Close but for atomics and is safe for concurrent use, as is a Group. The only lock
// is shared by the Trees of this process and counts the users of a leaf. Several supervisors may share one `sandbox-run` directory: Make
// restores a parent that another supervisor's Prune removed. The package starts no goroutine.
//
// Limits. On v1, a user can move only processes with that user's own id: a process takes on a subordinate id after joining. v1 counts OOM
// kills only in the group of the victim, v2 in its ancestors too, and v1 has no usable I/O counter (Stat.HasIO). The package writes
// nothing outside directories called `sandbox-run` on a cgroup file system, with one exception: on pure v2 it switches controllers on in
// the parent of that directory, and off again when the last process in the leaf moves back to that parent.
package cgroup
