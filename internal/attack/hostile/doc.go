// Package hostile is what the attack suite runs inside sandboxes: programs that try to get out, to see
// what is not theirs, or to use more than they were given.
//
// Place in the flow. Every executable that links it can play the attacker: package attack shows the running
// executable to a sandbox and starts it there under a word that no command line has. So the suite needs no
// compiler on the machine it is run on.
//
// Lifecycle. An attacker is one process. It says what came of each attempt on its standard output, one line
// each, and exits 0 when it could try at all: a refusal is an answer, not a failure.
//
// Concurrency. Attacks that fork do so on one thread, and their children make raw system calls only.
//
// Limits. Every attack bounds itself: it stops a little beyond what a sandbox should allow, and says so. One
// that finds no wall reports that, and does not bring the machine down. Calls that would change the
// machine are made with arguments that the kernel rejects, after it has asked whether the caller may.
package hostile
