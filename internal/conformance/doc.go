// Package conformance has the tests that every backend runs: one conformance suite, the probe
// program that runs inside, and a fake backend for the layers above.
//
// Place in the flow. Only tests import it. A backend's test calls [Run] with the abilities that
// the backend must have; upper layers use [NewFake].
//
// Lifecycle. Run makes one backend and one Manager for all cases, and closes both; each case makes
// and deletes its own sandboxes. After the cases nothing of them may be left: process,
// cgroup, mount, loop device, directory or descriptor.
//
// Concurrency. Cases run in parallel unless they measure.
//
// Limits. Every test of a refusal has a positive control: the same probe, where it is
// allowed. Nothing destructive runs outside a sandbox with limits, and the network is only ever the
// loopback.
package conformance
