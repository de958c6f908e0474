// Package initproc is the first process of a sandbox.
//
// Place in the flow. The supervisor starts it (internal/linux/spawn) in fresh namespaces with one end of a socket as descriptor 3, tells
// it over internal/linux/initproto what file system to build and what to run, and gets its answers. The code runs in the executable
// cmd/sandbox-init or, where that is not at hand, in any program that links package spawn.
//
// Lifecycle. Check that this is pid 1, in mount and user namespaces that are not the supervisor's (otherwise it would replace the
// machine's root); build the root, answer ready; fork a program for every exec, or adopt the one that a zygote has forked into the
// sandbox; reap whatever dies; when the last program asked for has ended, or the supervisor's end of the socket closes for whatever
// reason, exit. The exit of a pid namespace's first process makes the kernel kill all the others, so there is nothing else to clean up.
//
// Concurrency. The main goroutine alone serves the socket, forks and reports; one more goroutine waits for children and hands them over.
//
// Limits. Standard library and golang.org/x/sys only, and little of those: this program starts once per phase. Package fmt is not linked.
// The process is not dumpable. Between fork and exec only raw system calls are made, because the child of a threaded Go program can do
// nothing else.
//
// Mounts. The scratch is attached first to a place in the init's copy of the host's mounts, and its directories are bound from there.
// That copy is dropped as a whole once the root is attached, because each unmount waits for all processors.
//
// Threads. The main thread mounts, and is the parent of every program. The Go runtime's other threads keep the supervisor's gid and
// groups, and have capabilities in the sandbox's user namespace only. Where init and program have the same id (ordinary users), the init
// catches no signal: the kernel then delivers none from inside to the first process of a pid namespace.
package initproc
