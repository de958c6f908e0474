// Package sandbox runs untrusted commands inside fresh, isolated,
// resource-limited sandboxes, and reports what happened and which walls were really up.
//
// Place in the flow. A door (command line, HTTP, library) or the executor builds a [Spec]; the
// [Manager] checks it, asks a [Backend] for an [Instance], starts a [Process] in it, pumps its
// output as numbered [Event]s, watches its limits and returns a [Result]. Backends live in
// sub-packages and import this one, never the other way round:
//
//	Spec, Process ──► Manager ──► Backend.Create ──► Instance.Start ──► Task
//	                     │                                               │
//	 Result ◄── verdict ─┴── output recorder ◄── stdout, stderr ◄────────┤
//	                     └── monitor ◄───────────── samples ◄────────────┘
//
// Lifecycle. Create makes a sandbox (state ready); Run runs one process in it (running while at
// least one lives); Stop ends what runs, gracefully, and refuses further runs (stopped); Delete
// kills whatever is left and forgets the sandbox, in any state, twice if need be. A sandbox is
// made for one tenant and is never reset for another.
//
// Concurrency. A Manager may be used from any number of goroutines. Processes of one sandbox may
// run side by side; those that name the same phase share a pid namespace and a cgroup. Lock
// order: Manager.mu before container.mu; neither is held while a backend is called.
//
// Limits. Execute-time failures of the program are a Result with a verdict; an error means that
// we failed. Kernel bugs and side channels of shared hardware are outside what a Spec can promise;
// docs/THREAT_MODEL.md says what each tier does promise.
package sandbox
