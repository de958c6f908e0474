// Package watch keeps the limits of a sandbox that no cgroup keeps, by looking at its processes again and again.
//
// Place in the flow. Between the backends that a plain user may use (pkg/sandbox/{native,oci}) and internal/linux/census, which
// counts. [Counts] says what cgroups keep, [Counts.Instead] how the rest is kept, for the posture.
//
// Lifecycle. New takes over the descriptors that the census counts by; Begin starts to look, once there is something to look
// at; End stops, when the sandbox's init has ended or was told to. Look, Complete and ResetPeaks speak of what was seen.
//
// Concurrency. A Watch may be used from several goroutines; End is called once.
//
// Limits. What is filled between two looks is over the limit, and Instead says by how much.
package watch
