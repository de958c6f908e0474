// Package spawn starts the init of a sandbox and talks to it.
//
// Place in the flow. The native and process backends use it; it speaks internal/linux/initproto
// with internal/linux/initproc at the other end.
//
// Lifecycle. Start clones a process into fresh namespaces from a sealed copy of the init; Setup
// tells it what file system to build; Exec, Signal and Kill act on it; Reap waits until the kernel has
// let go of all of it. The caller always calls Reap. When the supervisor dies, however it dies, its
// end of the socket closes and the init follows, and with it every process of the namespace.
//
// Concurrency. All methods may be called from several goroutines once Setup has returned.
//
// Limits. The init is the executable sandbox-init beside the running one, or the running
// executable itself under that name: any program that links this package can be its own init,
// and serves as such before its main begins.
package spawn
