// Package cgroup manages the control groups of sandboxes on every cgroup layout: v1, v2, or both at once ("hybrid").
//
// What. A [Tree] is the machine's layout and the directory in each hierarchy below which this process may make
// groups; a [Group] is one name made in all of those hierarchies together, with limits, counters, kill and removal.
// It is our own code and not opencontainers/cgroups for one reason: start-up time. A group is made, limited, joined, read
// and dropped in a fifth of a millisecond here, two thirds of it the kernel's own mkdir and rmdir; the library links
// a D-Bus client and its initialisers into the thin binary (DESIGN.md, D10) and looks its paths up anew per group.
//
// Place in the flow. The native backend opens one Tree at start-up and makes a [PhaseGroup] per phase (D7). It hands the
// descriptors of [PhaseGroup.OpenProgramLeaf] and [Group.JoinFiles] to the sandbox's init, samples [Group.Stat] for
// pkg/monitor and ends with [Group.Empty], [Group.Final] and [Group.Remove]. doctor uses [Tree.Missing] and [Tree.Probe];
// gc reopens the roots that a dead supervisor recorded ([Tree.Roots]) with [At]. The package imports nothing of ours.
//
// Lifecycle.
//
//	Open ─► Group(path) ─► Make(limits) ─► JoinFiles │ CgroupFD │ Add ─► Stat… ─► Kill ─► Final ─► Remove ─► … ─► Prune, Close
//
//	v1      <mount>/<own cgroup>/sandbox-run/<path>              one directory per controller mount
//	v2      <mount>/<nearest free ancestor>/sandbox-run/<path>   see placeV2
//	        <mount>/<own cgroup>/sandbox-run/<path>              moved: this process is in …/sandbox-run/supervisor
//	hybrid  limits and CPU time in the v1 directories
//
// A process joins by writing to the v1 files `tasks`, and stays out of a hybrid machine's v2 tree, for one reason: any other
// way to join waits for an RCU grace period, up to 11 ms on an idle machine ([Group.JoinFiles]). Where v1 lacks a limit
// or the CPU time and v2 has it, the process joins the v2 tree as well. Where v2 has all of it, programs are cloned into
// their group, which does not wait: a [PhaseGroup] has the layout that the kernel requires for that.
//
// Groups are made below the cgroup that holds the supervisor and not below the hierarchy's root, so a sandbox never
// escapes the limit of the process that started the supervisor (a container, a systemd slice). The price is that another
// process can not guess where a dead supervisor's groups are: supervisors record Roots beside their lock. Prune removes the
// directory `sandbox-run` itself once it is empty, because it would keep the caller's own cgroup from being removed.
//
// An ordinary user can do all of this where root, or systemd, has delegated groups: on v1 a directory per controller, on v2
// a group above the process's own, or its own. Open asks the kernel for permissions, by effective ids and by trying; [Gap]
// says what an operator can do where the kernel refuses. In two cases Open moves this process, and only where [Options]
// allow it: into a leaf of its own group, which otherwise could have no children with controllers (moveToLeaf); and, by
// Options.Ask, into a scope of the systemd user manager (package delegate).
//
//	tree, err := cgroup.Open(cgroup.Options{MoveToLeaf: true, Ask: func() error { return delegate.Obtain(ctx) }})
//
// Concurrency. A Tree does not change between Open and Close but for atomics and is safe for concurrent use, as is a
// Group. The only lock is shared by the Trees of this process and counts the users of a leaf. Several supervisors may
// share one `sandbox-run` directory: Make restores a parent that another supervisor's Prune removed. The package starts no
// goroutine.
//
// Limits. On v1, a user can move only processes with that user's own id: a process takes on a subordinate id after
// joining. v1 counts OOM kills only in the group of the victim, v2 in its ancestors too, and
// v1 has no usable I/O counter (Stat.HasIO). The package writes nothing outside directories called `sandbox-run` on a cgroup
// file system, with one exception: on pure v2 it switches controllers on in the parent of that directory, and off again when
// the last process in the leaf moves back to that parent.
package cgroup
