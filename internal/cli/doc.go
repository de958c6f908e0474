// Package cli is the command line: it runs code that nobody has vouched for in fresh, limited Linux sandboxes.
//
// What. Given code, it runs it and says what happened; exec runs a command; languages, template, workspace
// and audit look after what that needs and leaves; doctor says what this machine can enforce, gc removes
// what a crash left behind.
//
// Place in the flow. This is a door: it reads flags and environment into an executor.Request (or, for exec,
// a sandbox.Spec), hands it to the engine that internal/app puts together, and shows what came of it. No
// logic of sandboxes or languages lives here.
//
//	cmd_run.go ──► source.go, cmd_template.go ──► cmd_run.go ──► backend.go, live.go ──► summary.go, format.go
//	 flags          the code, and what is copied in   engine      what it prints          what became of it; bring.go: files
//
// Lifecycle. One sandbox per run, gone before the command returns. Main alone ends the process;
// everything else returns errors and exit codes.
//
// Concurrency. The program's output arrives on goroutines of the Manager, one event at a time;
// signals arrive on one of ours.
//
// Limits. This executable is started for every run, so what it links is kept small: a test lists
// what must not be in it and sums up what its initialisers cost (DESIGN.md, D10).
package cli
