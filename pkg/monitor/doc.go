// Package monitor turns a sandbox's counters into live samples and a final summary.
//
// What. A [Monitor] reads a [Source] at an interval, keeps the latest values and the peaks, and ends in a [Metrics]: the
// `metrics` object of a result, whose JSON names are a promise to users.
//
// Place in the flow. Backends implement Source (a cgroup, a container engine's statistics, a process's rusage). The
// sandbox manager starts one Monitor per process, returns [Monitor.Metrics] from GetMetrics and puts the result of
// [Monitor.Finish] into the run's result. The package imports none of ours.
//
// Lifecycle.
//
//	Start ─► (interval) sample ─► (interval) sample ─► … ─► Finish(final) ─► Metrics
//
// The first sample is taken after one interval, so a program of two milliseconds costs no sample but the final one, which
// its backend gives to Finish. Finish may be called twice; the second call returns the result of the first. A Monitor that
// is never finished leaks its goroutine.
//
// Concurrency. All methods are safe for concurrent use. One goroutine per Monitor samples and calls OnSample, never two
// at a time. Finish waits at most [Options].Timeout for an OnSample or a Source that hangs. The sampling goroutine then
// ends when that call returns, and its late sample is dropped. The lock guards the fields of Monitor only and is never
// held while a Source or OnSample runs.
//
// Limits. A peak that the kernel does not keep is as exact as the sampling: a rise and fall between two samples is not
// seen. A Source that fails keeps its last good values; failures are counted, not reported one by one.
package monitor
