// Package box is the lifecycle of sandboxes whose programs run under our own init: the instance, its phases with their init and cgroup,
// tasks, the scratch, limits where no cgroup keeps them, and the backend's registration on the machine.
//
// Place in the flow. Between the backends pkg/sandbox/{native,oci,process} and internal/linux. A backend gives a Host (what all its
// sandboxes share) and, for each Instance, a Kind: how the init of a phase comes to be (a clone of our own, or the create and start of an
// OCI runtime) and what its programs are told.
//
// Lifecycle. NewHost looks at the machine; Host.Register registers this process at first use. An Instance has up to one Phase per name; a
// Phase ends with its last Task: the init exits, the kernel kills all that is left in its pid namespace, the cgroups are removed.
// Destroy ends everything, in any state. What a dead supervisor left, Host.Collect removes.
//
// Concurrency. Everything may be used from several goroutines. Lock order: the backend's, Instance.mu, Phase.Entry, then those of the mount
// helper and of a runtime helper. Kind.SetUp, Admit and NewPhase are called with Instance.mu held, except by Instance.ExpectPhase. Files
// are copied with none of the locks held.
//
// Limits. A backend without an init of ours (docker) does not use it.
package box
