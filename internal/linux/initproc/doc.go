// Package initproc is the first process of a sandbox.
//
// Place in the flow. The supervisor starts it (internal/linux/spawn) in fresh namespaces with one
// end of a socket as descriptor 3, tells it over internal/linux/initproto what file system to build and
// what to run, and hears from it how that ended. The code runs in the executable cmd/sandbox-init
// or, where that is not at hand, in any program that links package spawn.
//
// Lifecycle. Prove the namespaces are fresh, build the root, answer ready; fork a program for
// every exec, or adopt the one that a zygote has forked into the sandbox; reap whatever dies; when the last program asked for has ended, or
// the supervisor's end of the socket closes for whatever reason, exit. The exit of a pid namespace's first process
// makes the kernel kill all the others, so there is nothing else to clean up.
//
// Concurrency. The main goroutine alone serves the socket, forks and reports; one more goroutine
// waits for children and hands them over.
//
// Limits. Standard library and golang.org/x/sys only, and little of those: this program starts
// once per sandbox. Between fork and exec only raw system calls are made, because the child of a
// threaded Go program can do nothing else.
package initproc
