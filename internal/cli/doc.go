// Package cli is the command line: it runs untrusted code in fresh, limited Linux sandboxes.
//
// What. Given code, it runs it and says what happened, here or at a server; exec runs a command; doctor says what this machine can
// enforce; gc removes what a crash left. commands.go lists all subcommands; those that package full has are handed over to sandbox-rund.
//
// Place in the flow. This is an entry point: it reads flags and environment into an executor.Request (or, for exec, a sandbox.Spec),
// hands it to the executor that internal/app puts together, and shows the result. No logic of sandboxes or languages lives here.
//
//	root.go ──► arguments.go ─────► handover.go            sandbox-rund (package full)
//	             subcommand │ run
//	                        ▼
//	cmd_run.go ──► source.go, template_variables.go ──► local_server.go, remote_run.go     a server, or here:
//	 flags          the code                             run_environment.go, output_printer.go ──► summary.go, format.go, copy_out.go
//	                                                      backend, live output                      result, files
//
// Lifecycle. One sandbox per run, gone before the command returns. Main alone ends the process; everything else returns errors and exit
// codes.
//
// Concurrency. The program's output arrives on goroutines of the Manager, one event at a time; signals arrive on one of ours.
//
// Limits. This executable is started for every run, so what it links is kept small: a test lists what must not be in it and sums up what
// its initialisers cost (DESIGN.md, D10).
package cli
