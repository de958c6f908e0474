// Package sandbox runs untrusted commands in fresh, isolated, limited sandboxes, and reports how they ended and which controls were in
// force.
//
// Place in the flow. An entry point (command line, HTTP, library) or the executor builds a [Spec]; the [Manager] checks it, asks a
// [Backend] for an [Instance], starts a [Process] in it, pumps its output as numbered [Event]s, watches its limits and returns a
// [Result]. Backends live in sub-packages and import this one, never the other way round:
//
//	Spec, Process ──► Manager ──► Backend.Create ──► Instance.Start ──► Task
//	                     │                                               │
//	 Result ◄── verdict ─┴── output recorder ◄── stdout, stderr ◄────────┤
//	                     └── monitor ◄───────────── samples ◄────────────┘
//
// Lifecycle. Create makes a sandbox (state ready); Run runs one process in it (running while at least one lives); Stop ends what runs,
// gracefully, and refuses further runs (stopped); Delete kills all processes that are left and forgets the sandbox, in any state; it may
// be called twice. A sandbox is made for one tenant and is never reset for another.
//
// Concurrency. A Manager may be used from any number of goroutines. Processes of one sandbox may run side by side; those that name the
// same phase share a pid namespace and a cgroup. Lock order: Manager.mu before container.mu; neither is held while a backend is called.
//
// Limits. Execute-time failures of the program are a Result with a verdict; an error means that we failed. Kernel bugs and side channels
// of shared hardware are outside what a Spec can promise; docs/THREAT_MODEL.md says what each tier does promise.
//
// Output. Events are numbered from 1 without gaps: output, phase, metric, violation.
//
//	pipe ─► pump ─► recorder ─┬─► live reader: every byte, in order; it may block
//	                          ├─► head and tail, half of the output limit each: 1 MiB in memory, the rest in an output file
//	                          └─► all of it in a file, once the limit is exceeded, if requested (--spill)
//
// One goroutine pumps both streams, in the order in which the task reads them. When the live reader blocks, the pump stops, the pipe
// fills, and the program waits. Samples are left out while the reader is busy. An [OutputStore] has the unnamed output files of all runs,
// within one size; an [OutputSpace] is one owner's part of it. Without space less is kept: the result is truncated and has a note.
// Result.Encode gives the JSON in pieces, so that output is encoded while it is written.
// After the program's end its output is drained: without a time limit if it ended by itself, for one second if the run was stopped or
// another process of the phase has the pipe open.
//
// Verdicts. One per run, the first row of verdictTable that applies. memory_limit and disk_limit need a failed program and the fact: the
// cgroup's OOM counter, the full scratch. A limit that was reached by a program that succeeded is a violation, and the verdict is ok. The
// executor gives compile_error, entry points give internal_error.
//
// CPU time is polled, because the kernel has no limit on the CPU seconds of a cgroup: the Manager reads the counter, and never before the
// rest could have been used on all allowed cores.
package sandbox
