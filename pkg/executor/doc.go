// Package executor runs code: it is given a language and a program, and says what became of it.
//
// What. A [Request] names code and what it may use; [Executor.Execute] returns a [Result]: verdict, output, figures,
// and which walls were up. Program errors are results; an error means that we failed, or that the request is wrong.
//
// Place in the flow. Doors (command line, HTTP, library) build a Request. Everything below plan is pkg/sandbox's:
//
//	Request ──► detect ──► toolchain ──► Plan ──────────────► sandbox.Manager
//	            language    (host paths)   files, phases        Create, Put files
//	                                       compile ──────────►  Run ──► Take ──► compile cache
//	                                       run ──────────────►  Run ──► Take ──► Result.Files
//	                                                            Delete
//
// plan.go is pure: a Request, a language and a toolchain make a [Plan] without looking at the machine, so plans are
// compared with golden files. A language is one entry in languages.go and one file. What a plan has to know of the machine, its
// language's look reads beforehand; what has to be ready on the host, such as a compiled standard library, the plan's prepare
// makes afterwards, once per toolchain (warm.go).
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
