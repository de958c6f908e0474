// Package seccomp turns the sandbox's system-call policy into a classic BPF program the kernel can install.
//
// What: a table per architecture gives every known system call one rule; rules that look at arguments are short lists of steps over the
// low 32 bits of an argument. [Compile] lowers table and steps to BPF; [Decide] evaluates the same table in Go and is what the BPF is
// tested against. The table starts from moby's default profile for a container without capabilities and is only ever tightened
// (gen/tighten.go); moby and runtime-spec are needed to generate and to test, never to run.
//
// Place in the flow: the supervisor calls [Compile] or [Default] and hands the bytes to the sandbox's init. The init has no code for
// policies: it sets no_new_privs and passes the bytes to seccomp(SECCOMP_SET_MODE_FILTER) as the last step before it executes the
// program.
//
//	moby profile + gen/tighten.go ──go generate──► table_*.go
//	table + Policy ──Compile──► []sock_filter as bytes ──pipe──► init ──► kernel
//
// With [Policy].Notify the kernel notifies a listener instead of refusing by itself. A [RefusalCounter] serves that listener: it counts
// refused calls by name, and refuses them with the errno of the table.
//
// Lifecycle: pure functions over constant tables. Only a RefusalCounter is opened and closed: it ends with the last process under its
// filter, after [MaxNotifications] calls, or by Close. [Default] compiles once and keeps the result until the process exits.
//
// Concurrency: everything may be called from any goroutine. Results are the caller's own copies. A RefusalCounter is a goroutine in the
// runtime's poller, not a thread.
//
// Limits: amd64 and arm64. A filter sees registers, never memory, so calls whose flags are behind a pointer (clone3, openat2, adjtimex,
// io_uring) can be allowed or refused only as a whole. A system call entered by a foreign architecture (i386 on amd64, AArch32 on arm64)
// kills the process: its numbers mean other calls and its programs could not even exit if every call failed. x32 calls, unassigned
// numbers and calls newer than the table fail with ENOSYS, so that libraries use the older call; a known call that is refused fails with
// EPERM.
//
// Notifications. A notification names the refused call in the violations of a result, and costs the supervisor some 30 µs outside the
// sandbox's CPU quota. So there are [MaxNotifications] per program, and none for calls that libc tries in every thread; after the last,
// the listener is closed and the kernel answers ENOSYS. A program can interrupt its calls by signals before the supervisor sees them. The
// kernel numbers notifications without gaps, so missed ones count too. The counter reads registers only. It lets a call go on in one
// case: with [Policy].Interfaces, a bounded number of sockets by which programs list network interfaces. A kernel without
// listeners gets the same filter with errnos (they are in the notification's low bits, which the kernel ignores), and the result has a
// note.
//
// Refused sockets fail with the errno of a kernel built without them. Without netlink getaddrinfo works, and so does Java's
// NetworkInterface; getifaddrs, if_nameindex and Go's net.Interfaces return an error, and Node's os.networkInterfaces throws, whichever
// errno is chosen. A filter does not see the messages of a netlink socket: who may list interfaces may also read the routes and neighbours
// of its namespace.
package seccomp

//go:generate go run ./gen
