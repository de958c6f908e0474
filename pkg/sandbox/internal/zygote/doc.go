// Package zygote keeps warm interpreters and has them fork programs into sandboxes.
//
// Place in the flow. Between pkg/sandbox/native, which owns the sandboxes, and a driver that runs in the interpreter
// (pkg/executor/lang/python/driver): it speaks with the driver, and knows nothing of its language.
//
// Lifecycle. Start executes an interpreter on the read-only root that its sandboxes have, in a mount namespace of its own where the
// driver's files lie besides, without network, with an id that no other process has, with one capability (CAP_SYS_ADMIN, to join
// namespaces) and under a filter that refuses what else that is good for. The driver loads what it can and says that it is ready. From then
// on it forks for every request:
//
//	driver → ready
//	host → fork [a socket, the sandbox's namespaces]      at the control socket, the driver's standard input
//	driver                             has a process born into the pid namespace, whose parent ends: it is the init's
//	host → place [cgroups]             at that socket
//	process                            joins the other namespaces, is root there, and puts up the walls that every program has
//	process → waits
//	host → request [descriptors]       whenever there is one, and read there: the driver's own memory has nothing of anybody's
//	process                            puts up the rest, one system call after the other as the request lists them
//	process → began{pid, at} [listener]        and from there on it is the program
//	any of them → failed{stage, errno}         in place of that
//
// That the program began is decided by one message: a host that does not wait any longer shuts the socket, and a process that can
// not send ends.
//
// Concurrency. Any number of goroutines may call Fork; they are served one after the other. A Fork is one caller's.
//
// Limits. The interpreter is executed outside of any sandbox, so it must be the machine's own: its file, its libraries, what it
// imports from and all directories on the way there are root's, and no other user's to write. A process without capabilities finds out
// before. When the supervisor dies, however it dies, the kernel kills the interpreter: it is bound to a pipe that closes then.
package zygote
