// Package cli is the command line: it runs untrusted code in fresh, limited Linux sandboxes.
//
// What. The root command runs code, in this process or at a server; exec runs a command; doctor reports what this machine can
// enforce; gc removes what a crash left. commands.go lists all subcommands. Those of package full are handed over to sandbox-rund.
//
// Place in the flow. This package is an entry point: it reads flags and environment into an executor.Request (for exec, a sandbox.Spec),
// passes it to the executor that internal/app assembles, and prints the result. It has no logic of sandboxes or languages.
//
//	root.go ──► arguments.go ─────► handover.go            sandbox-rund (package full)
//	             subcommand │ run
//	                        ▼
//	cmd_run.go ──► source.go, template_variables.go ──► local_server.go, remote_run.go     a server, or here:
//	 flags          the code                             run_environment.go, output_printer.go ──► summary.go, format.go, copy_out.go
//	                                                      backend, live output                      result, files
//
// Lifecycle. A run has one sandbox, which is removed before the command returns. Only Main and MainFull end the process; all other
// functions return errors and exit codes.
//
// Concurrency. The program's output arrives on goroutines of the Manager, one event at a time; signals arrive on a goroutine of this
// package.
//
// Limits. sandbox-run is started for every run, so it links few packages. TestImports lists the packages that it must not link, and
// TestInitTime measures its initialisers (DESIGN.md, D10).
package cli
