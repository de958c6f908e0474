// Package launch is what the backends that run programs under our own init have in common: the
// process as a sandbox.Task, counters as samples, the init's failures as errors.
//
// Place in the flow. Between pkg/sandbox/{native,process} and internal/linux/{spawn,cgroup}.
//
// Lifecycle. A Task belongs to a Phase, which its backend keeps; the last Task to finish ends it.
//
// Concurrency. A Task may be used from several goroutines.
//
// Limits. It knows nothing of walls: those are what the backends differ in.
package launch
