// Package measure holds a started program against the isolation that was asked for.
//
// Place in the flow. Between the backends and internal/linux/{seccomp,procstate,cgroup}: a backend passes Program.Examine to spawn, which
// calls it while the program's process is held between its last isolation step and its first instruction.
//
// Lifecycle. A Program is made for one start. Its Isolation is the report of that run.
//
// Concurrency. A Program is used by one goroutine at a time.
//
// Limits. What the kernel does not show to this process is declared, not measured. Disk, timeout, output limit and processor time are
// kept by the supervisor itself, and are not looked at here.
package measure
