// Package conformance holds what every backend is tested with: one conformance suite, the probe
// program that runs inside, and a fake backend for the layers above.
//
// Place in the flow. Tests import it and nothing else does. A backend's test calls [Run] with what
// the backend claims; upper layers use [NewFake].
//
// Lifecycle. Run makes one backend and one Manager for all cases, and closes both; each case makes
// and deletes its own sandboxes. When the cases are through nothing of them may be left: process,
// cgroup, mount, loop device, directory or descriptor.
//
// Concurrency. Cases run in parallel unless they measure.
//
// Limits. A denial is only believed when its positive control succeeds: the same probe, where it is
// allowed. Nothing destructive runs outside a sandbox with limits, and the network is only ever the
// loopback.
package conformance
