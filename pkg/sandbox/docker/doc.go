// Package docker runs sandboxes as containers of a Docker daemon, or of Podman behind Docker's API, here or elsewhere.
//
// What. A [Backend] whose every sandbox is one container. Its first process is our own helper (package helper), put once into a
// labelled volume of the daemon and mounted read-only; it is spoken to over the container's attached standard input and
// output (package wire, which draws the protocol). Nothing of the host is mounted but volumes that the user names.
//
//	Spec ──► container: read-only root, three tmpfs, no network, no capabilities but the helper's four, no-new-privileges,
//	         our system-call profile, memory without swap, processes, CPU, open files
//	helper ──► ready{what it finds itself in} ──► compared with what was asked for ──► Isolation
//
// What a container has is thus reported as seen from inside, and not as the daemon was told.
//
// Place in the flow. Below pkg/sandbox like every backend; linked by cmd/sandbox-rund only, because of the client's weight.
// testcontainers-go finds the daemon and substitutes image names; everything else goes through the moby client under it.
// testcontainers' own way to start containers is not used: it pulls images that are absent without being asked, makes a network
// where the daemon has none, and closes the client it was given.
//
// Lifecycle. New contacts nobody. A container is created, attached, started and set up by Create, or taken from those that were
// made ahead (Options.Warm), each of which serves one sandbox. Destroy ends the stream; the helper exits on that, the daemon
// removes the container, and Destroy waits until it has. A supervisor that is killed ends the stream as well. What never
// got as far as a helper (created, not started) is found by label and removed by the next Create or Collect, once
// the file lock of its owner is free.
//
// Concurrency. A Backend, an instance and a task may be used from several goroutines. Locks are leaves: none is held while
// another is taken, and none while the daemon is asked but the instance's, which orders changes of limits.
//
// Limits. Phases of one sandbox share its pid namespace and its cgroup: two that run side by side must have the same
// limits. The scratch is memory, and each of its directories has the whole disk limit for itself. The helper's few megabytes count
// against the memory limit. Docker's /sys and /dev are seen inside, read-only. docs/THREAT_MODEL.md lists what follows.
package docker
