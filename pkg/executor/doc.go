// Package executor runs code in a language and reports the result.
//
// What. A [Request] names code and what it may use; [Executor.Execute] returns a [Result]: verdict, output, figures,
// and which controls were in force. Program errors are results; an error means that we failed, or that the request is wrong.
//
// Place in the flow. Entry points (command line, HTTP, library) build a Request. Everything below the plan is done by pkg/sandbox:
//
//	Request ──► detect ──► toolchain ──► Plan ──────────────► sandbox.Manager
//	            language    (host paths)   files, phases        Create, Put files
//	                                       compile ──────────►  Run ──► Take ──► compile cache
//	                                       run ──────────────►  Run ──► Take ──► Result.Files
//	                                                            Delete
//
// plan.go is pure: a Request, a language and a toolchain make a [Plan] without looking at the machine, so plans are
// compared with golden files. A language is one value in a directory of its own (lang/NAME) and one line of the table in languages.go.
// What a plan has to know of the machine, Language.Inspect reads beforehand; what has to be ready on the host, such as a compiled
// standard library, Plan.Prepare makes afterwards, once per toolchain (package prepared).
//
// Lifecycle. New makes an Executor over a Manager that the caller owns; it holds nothing that must be closed. Each
// Execute makes one sandbox and has deleted it when it returns.
//
// Concurrency. An Executor may be used from any number of goroutines; runs share nothing but caches, which are
// safe between processes too.
//
// Limits. What a toolchain can not do offline, it can not do here: there is no network in any phase. Compiled programs are cached by
// everything that went into them; the result of a run never is.
package executor
