// Package docker runs sandboxes as containers of a Docker daemon, or of Podman behind Docker's API, here or elsewhere.
//
// What. A [Backend] whose every sandbox is one container. The container's first process is our own helper (package helper), put once into
// a labelled volume of the daemon and mounted read-only. The backend talks to it over the container's attached standard input and output
// (package containerproto, which draws the protocol). Of the host, only volumes that the user names are mounted.
//
//	Spec ──► container: read-only root, three tmpfs, no network, no capabilities but the helper's four, no-new-privileges,
//	         our system-call profile, memory without swap, processes, CPU, open files
//	helper ──► ready{what it measures} ──► compared with what was asked for ──► Isolation
//
// The report is thus what the helper measures inside the container, and not what the daemon was asked for.
//
// Place in the flow. Below pkg/sandbox like every backend; linked by cmd/sandbox-rund only, because the client is large.
// testcontainers-go finds the daemon and substitutes image names; everything else goes through the moby client under it. testcontainers'
// own way to start containers is not used: it pulls absent images without being asked, makes a network where the daemon has none, and
// closes the client it was given.
//
// Lifecycle. New does not connect. Create creates, attaches, starts and sets up a container, or takes one that was prepared
// (Options.Warm); each serves one sandbox. Destroy ends the stream; the helper then exits, the daemon removes the container, and Destroy
// waits until it has. The death of a supervisor ends the stream as well. The next Create or Collect finds containers that were created
// and not started by their label, and removes them once the registration lock of their owner is free.
//
// Concurrency. A Backend, an instance and a task may be used from several goroutines. No lock is held while another is taken, and none
// during a call to the daemon but the instance's, which orders changes of limits.
//
// Limits. Phases of one sandbox share its pid namespace and its cgroup: two that run side by side must have the same limits. The scratch
// is memory, and each of its directories has the whole disk limit for itself. The helper's few megabytes count against the memory limit.
// Docker's /sys and /dev are visible inside, read-only. docs/THREAT_MODEL.md lists the consequences.
//
// Helper. docs/decisions/014 says why exec and cp of the daemon are not used. StdinOnce closes the helper's standard input with the
// supervisor's connection, the helper exits, and AutoRemove removes the container. For a daemon behind a network there is a heartbeat
// too.
//
// Filters. The daemon gets our table of system calls as names, so that calls which are not in it do not exist for the helper either. The
// program's own filter is exact; its init installs it. Calls that the table refuses are allowed by the daemon's filter: of two filters an
// errno outweighs a notification, and refusals would not be counted.
//
// Ids and processes. Outside, the program's user is an id that no user has, or the owner of its writable volume. Reserved threads bring
// the helper's tasks to a fixed number, for which the container's process limit has room, so that the program gets exactly its own limit.
//
// Ryuk, the reaper of testcontainers, is not used: it needs an image. Labels and registration locks do its work.
package docker
