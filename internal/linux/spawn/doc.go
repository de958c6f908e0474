// Package spawn starts the init of a sandbox and exchanges messages with it.
//
// Place in the flow. The native and process backends use it; it speaks internal/linux/initproto with internal/linux/initproc at the other
// end.
//
// Lifecycle. Start clones a process into fresh namespaces from a sealed copy of the init; Setup tells it what file system to build; Exec,
// Signal and Kill act on it; Reap waits until the kernel has let go of all of it. The caller always calls Reap. When the supervisor dies,
// however it dies, its end of the socket closes and the init follows, and with it every process of the namespace.
//
// Concurrency. All methods may be called from several goroutines once Setup has returned.
//
// Limits. The init's executable is $SANDBOX_RUN_INIT, else sandbox-init beside the running executable, else the running executable
// itself: any program that links this package is an init when its argv[0] is sandbox-init, before its main begins. Library users need no
// second file.
//
// The init runs from a sealed memory file, which neither the program nor an upgrade can change. A process that makes a single sandbox
// ([OneShot]) uses a detached read-only mount of the file instead, which needs no copy.
package spawn
