// Package cgroup gives one sandbox its control group, whatever the machine's cgroup layout is: v1, v2, or both
// at once ("hybrid").
//
// What. A [Tree] is the machine's layout and the directory in each hierarchy below which this process may make
// groups; a [Group] is one name made in all of those hierarchies together, with limits, counters, kill and removal.
// It is our own code and not opencontainers/cgroups for one reason: start-up time. A group is made, limited, joined, read
// and dropped in a fifth of a millisecond here, two thirds of it the kernel's own mkdir and rmdir; the library links
// a D-Bus client and its initialisers into the thin binary (DESIGN.md, D10) and looks its paths up anew per group.
//
// Place in the flow. The native backend opens one Tree at start-up, makes a [PhaseGroup] with a leaf group per phase (D7), hands the
// descriptors of [PhaseGroup.OpenProgramLeaf] and [Group.JoinFiles] to the sandbox's init, samples [Group.Stat] for pkg/monitor and ends with
// [Group.Empty], [Group.Final] and [Group.Remove]. doctor asks [Tree.Missing] and [Tree.Probe]; gc reopens the roots that a dead supervisor
// recorded ([Tree.Roots]) with [At]. Nothing of ours is imported.
//
// Lifecycle.
//
//	Open ─► Group(path) ─► Make(limits) ─► JoinFiles │ CgroupFD │ Add ─► Stat… ─► Kill ─► Final ─► Remove ─► … ─► Prune, Close
//
//	v1      <mount>/<own cgroup>/sandbox-run/<path>              one directory per controller mount
//	v2      <mount>/<nearest free ancestor>/sandbox-run/<path>   see placeV2
//	        <mount>/<own cgroup>/sandbox-run/<path>              settled: this process is in …/sandbox-run/supervisor
//	hybrid  limits and CPU time in the v1 directories
//
// A run joins by writing to the v1 files `tasks`, and keeps out of a hybrid machine's v2 tree, for one reason: any other
// way in waits for an RCU grace period, up to 11 ms on a machine that was idle ([Group.JoinFiles]). Where v1 lacks a limit
// or the CPU time and v2 has it, the v2 tree is joined all the same. Where v2 has all of it, programs are born in their
// group, which waits for nobody: a [PhaseGroup] is what the kernel asks for that.
//
// Groups are made below the cgroup that holds the supervisor and not below the hierarchy's root, so a sandbox never
// escapes the limit of whoever started us (a container, a systemd slice). The price is that another process can not
// guess where a dead supervisor's groups are: supervisors record Roots beside their lock. Prune removes the directory
// `sandbox-run` itself once it is empty, or it would keep the caller's own cgroup from being removed.
//
// An ordinary user can do all of this where root, or systemd, has given it groups: on v1 a directory per controller, on v2
// a group above our own, or our own. Who may do what is asked of the kernel, by effective ids and by trying; [Gap] says what
// an operator can do where it is refused. In two cases Open moves this process, and only where [Options] allow it: into a
// leaf of its own group, which otherwise could have no children with controllers (settle); and, by Options.Ask, into a
// scope of the systemd user manager (package delegate).
//
//	tree, err := cgroup.Open(cgroup.Options{Settle: true, Ask: func() error { return delegate.Obtain(ctx) }})
//
// Concurrency. A Tree does not change between Open and Close but for atomics and is safe for concurrent use, as is a
// Group; there are no locks but one that Trees of this process share to agree on who is the last in a leaf. Several supervisors may share
// one `sandbox-run` directory: Make puts back a parent that another's Prune took away. No goroutine is ever started.
//
// Limits. On v1, only a process with the user's own id can be moved by the user: a subordinate id has to be taken on after
// joining. v1 counts OOM kills for the very group the victim was in, v2 for its descendants too, and
// v1 has no usable I/O counter (Stat.HasIO). Nothing outside a directory called `sandbox-run` on a cgroup file system is
// ever written, with one exception: on pure v2, controllers are switched on in the parent of that directory (and off, when
// the last who settled in it leaves, and moves back there).
package cgroup
