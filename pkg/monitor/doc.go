// Package monitor turns a sandbox's counters into live samples and a final summary.
//
// What. A [Monitor] reads a [Source] at an interval, keeps the latest values and the peaks, and ends in a [Metrics]: the
// `metrics` object of a result, whose JSON names are a promise (DESIGN.md).
//
// Place in the flow. Backends implement Source (a cgroup, a container engine's statistics, a process's rusage); the
// sandbox manager starts one Monitor per process it runs, shows [Monitor.Metrics] to GetMetrics and puts what
// [Monitor.Finish] returns into the result. Nothing of ours is imported.
//
// Lifecycle.
//
//	Start ─► (interval) sample ─► (interval) sample ─► … ─► Finish(final) ─► Metrics
//
// Nothing is read before the first interval has passed, so a program of two milliseconds costs no sample but the final
// one, which its backend gives to Finish. Finish may be called twice; the second call returns what the first did. Every
// started Monitor must be finished, or its goroutine stays.
//
// Concurrency. All methods are safe for concurrent use. One goroutine per Monitor samples and calls OnSample, never two
// at a time. Finish does not wait for a slow OnSample or a Source that hangs for longer than [Options].Patience: such a
// goroutine ends by itself when the call it is in returns, and what it then brings is dropped. The lock guards the
// fields of Monitor only and is never held while foreign code runs.
//
// Limits. A peak that the kernel does not keep is as good as the sampling: what comes and goes between two samples is
// not seen. A Source that fails keeps its last good values, and the failures are counted, not reported one by one.
package monitor
