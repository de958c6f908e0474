// Package box is the lifecycle of sandboxes whose programs run under our own init: the instance, its phases with their init and cgroup,
// tasks, the scratch, limits where no cgroup enforces them, and the backend's registration on the machine.
//
// Place in the flow. Between the backends pkg/sandbox/{native,oci,process} and internal/linux. A backend supplies a [Host] (what all its
// sandboxes share) and, for each [Instance], a [Kind]: how the init of a phase is started and what its programs are told.
//
//	               native                          oci                                  process
//	Kind.NewPhase  clones an init, makes the       makes the bundle's directory,        clones an init without namespaces
//	               cgroup                          starts the runtime early
//	Kind.SetUp     sends mounts and masks          fills the bundle, compares what      nothing to build
//	                                               the container got with the plan
//	Kind.Admit     –                               brings up the loopback               –
//	Kind.Describe  ids, limits, Landlock rules     the same; fewer for gVisor           the private directory
//	Kind.Started   next spare init, next phase     removes the bundle                   –
//	Container      –                               the runtime's end and state          –
//	Host.Opaque    –                               runsc: programs are declared         –
//
// Lifecycle. NewHost looks at the machine; Host.Register registers this process at first use. An Instance has up to one Phase per name; a
// process that names a living phase joins it. Create ends with an init whose root is attached, so that Start only has to fork. A Phase
// ends with its last Task: the init exits, the kernel kills all that is left in its pid namespace, the cgroups are removed. Destroy ends
// everything, in any state. Host.Collect removes what a dead supervisor left.
//
//	Create: ids ─► init cloned ┐                      Start: set cgroup limits ─► exec to the init ─► held, measured ─► started
//	        root copied        ├─► setup ─► ready     Finish: exited ─► counters read ─► result; init and cgroups are reaped beside it
//	        scratch, cgroup    ┘                      Destroy: kill, reap, close the scratch, release the ids
//
// Finish does not wait for the kernel to remove namespaces, which takes milliseconds. When the pids controller shows that all processes
// of a phase are gone, its counters are final: Finish returns, and the init is reaped and the cgroups are removed in the background.
// Destroy waits for that; with Eager, Close does. Without the pids controller, or with a process left, Finish waits itself.
//
// A phase that another one follows (Process.Followed, a compiler's) has the next phase set up while its program runs.
//
// Scratch mount. Phases share the scratch and nothing else. The supervisor sends the scratch mount to the first init; the init attaches
// it, clones it and returns the clone with ready, because only a process in that mount namespace can clone it. Each later init gets a
// copy that the mount thread makes: an init that dies during setup loses its copy only.
//
// Concurrency. Everything may be used from several goroutines. Lock order: the backend's, Instance.mu, Phase.Entry, then those of the
// mount helper and of a runtime helper. Kind.SetUp, Admit and NewPhase are called with Instance.mu held, except by Instance.ExpectPhase.
// Files are copied with none of the locks held.
//
// Limits. The docker backend does not use this package: its helper starts the inits. Clean-up is bounded: an init that does not end
// within 500 ms is killed; registration and leftovers have timeouts of their own.
//
// Memory and processes are limited by cgroups and not by rlimits: RLIMIT_AS breaks runtimes that reserve address space (JVM, Go, Node),
// and RLIMIT_NPROC counts per user (per user namespace since Linux 5.14). RLIMIT_CORE is 1, because a core handler behind a pipe ignores
// 0.
//
// Limit poller. Where a cgroup controller is missing, a [LimitPoller] samples instead, over descriptors of the sandbox's /proc and
// /dev/shm that the init returned (internal/linux/census). It adds up a rough sum first, and exact figures only above the limit. It
// samples again when the rest could be filled at a fixed rate, after 1 ms at the earliest and 20 ms at the latest. The reported peak is the
// highest exact figure (of one process, of the monitor's samples, or above the limit), or the kernel's figure of the largest process.
package box
