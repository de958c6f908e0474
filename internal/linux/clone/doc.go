// Package clone holds the code that runs between clone and exec: in the child that becomes an
// init, and in the child of an init that becomes the sandboxed program.
//
// Place in the flow. internal/linux/spawn starts inits with it, internal/linux/initproc programs.
//
// Lifecycle. A child borrows its parent's memory, as with vfork: the parent's thread sleeps until
// the child has executed or exited, so nothing is copied, and what the child writes down is there
// for the parent to read. What the child needs is laid out beforehand.
//
// Concurrency. Any number of goroutines may start children at the same time.
//
// Limits. Between clone and exec there are raw system calls and nothing else: no allocation, no
// growing stack, no lock, no Go signal handler (signals are blocked). The linker checks that the
// functions marked nosplit fit on what stack there is. os/exec can not be used here: it copies the
// supervisor's page tables when a user namespace is asked for, and it has no place for the walls.
package clone
