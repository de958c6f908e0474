// Package hostile has the attackers that the attack suite runs inside sandboxes: programs that try to escape, to read
// foreign data, or to exceed their limits.
//
// Place in the flow. Every executable that links it can be the attacker: package attack mounts the running
// executable into a sandbox and starts it there with a word that no command line has. So the suite needs no
// compiler on the machine.
//
// Lifecycle. An attacker is one process. It prints the result of each attempt on its standard output, one line
// each, and exits 0 when it could try at all: a refusal is an answer, not a failure.
//
// Concurrency. Attacks that fork do so on one thread, and their children make raw system calls only.
//
// Limits. Every attack bounds itself: it stops a little beyond what a sandbox should allow, and reports that. One
// that meets no refusal reports that, and does not harm the machine. Calls that would change the
// machine have arguments that the kernel rejects after its check of permissions.
package hostile
