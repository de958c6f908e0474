// Package executor runs code in a language and reports the result.
//
// What. A [Request] names code and what it may use; [Executor.Execute] returns a [Result]: verdict, output, figures, and which controls
// were in force. Program errors are results; an error means that we failed, or that the request is wrong.
//
// Place in the flow. Entry points (command line, HTTP, library) build a Request. Everything below the plan is done by pkg/sandbox:
//
//	Request ──► detect ──► toolchain ──► Plan ──────────────► sandbox.Manager
//	            language    (host paths)   files, phases        Create, Put files
//	                                       compile ──────────►  Run ──► Take ──► compile cache
//	                                       run ──────────────►  Run ──► Take ──► Result.Files
//	                                                            Delete
//
// plan.go is pure: a Request, a language and a toolchain make a [Plan] without looking at the machine, so plans are compared with golden
// files. A language is one value in a directory of its own (lang/NAME) and one line of the table in languages.go. What a plan has to know
// of the machine, Language.Inspect reads beforehand; what has to be ready on the host, such as a compiled standard library, Plan.Prepare
// makes afterwards, once per toolchain (package prepared).
//
// Lifecycle. New makes an Executor over a Manager that the caller owns; it holds nothing that must be closed. Each Execute makes one
// sandbox and has deleted it when it returns.
//
// Concurrency. An Executor may be used from any number of goroutines; runs share nothing but caches, which are safe between processes
// too.
//
// Limits. What a toolchain can not do offline, it can not do here: there is no network in any phase. Compiled programs are cached by
// everything that went into them; the result of a run never is.
//
// Compile cache. Processes that add entries keep it within its size, but not each time: the file `added` grows by a byte per 64 KiB, and
// after a thirty-second of the limit one of them looks at all entries and removes the least recently used. An entry is copied before the
// program runs, which could change the original, and gets its name while the program runs. The id of an image is part of the key.
//
// Syntax errors. When a program of a scripting language failed, its output names the file that could not be parsed (Phase.Suspect). If
// that is a file of the program, it is put back as it was given and parsed again by the same interpreter, which runs none of it
// (Phase.Check). Only if that fails too is the verdict compile_error. Programs that succeed pay nothing.
//
// Images. A request names one, or the language's default image is used where the machine has no toolchain and the image is stored here. A
// lease holds the unpacked image until the sandbox is gone. A backend with images of its own (sandbox.ImageKeeper) gets Root.Image
// instead; then no plan has a mount of the host's, and the kit is a file among the program's. No program of an image runs outside a
// sandbox: toolchains are found by reading the unpacked root, and queried in a sandbox with small limits, once per image id. Prepared
// files of an image are made by its own tools in a sandbox and shown to sandboxes of that image only. Nothing is downloaded: NoImage has
// the command that would.
//
// languages.yaml is read by LoadLanguages if it exists. Its words are arguments, read by no shell. Such a language comes before a
// built-in one of the same name.
package executor
