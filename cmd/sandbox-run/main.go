// Command sandbox-run runs commands that nobody has vouched for in fresh, limited Linux sandboxes.
//
// What. exec runs a command, audit shows and checks the log of what was run, workspace looks after
// directories that survive between runs, doctor says what this machine can enforce, gc removes what
// a crash left behind.
//
// Place in the flow. This is a door: it reads flags and environment into a sandbox.Spec, hands it
// to a sandbox.Manager over a backend from internal/app, and shows what came of it. No logic of
// sandboxes lives here.
//
// Lifecycle. One sandbox per exec, gone before the command returns. main alone ends the process;
// everything else returns errors and exit codes.
//
// Concurrency. The program's output arrives on goroutines of the Manager, one event at a time;
// signals arrive on one of ours.
//
// Limits. This executable is started for every run, so what it links is kept small: a test lists
// what must not be in it and sums up what its initialisers cost (DESIGN.md, D10).
package main

import (
	"os"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest/attack/hostile"
)

func main() {
	hostile.Play() // if that is what doctor --attack has started us for
	os.Exit(run(os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
