// Package golang is the language Go: files, snippets, archives, modules and tests, compiled with a standard library that was compiled
// once (warm.go).
//
// Place in the flow. One value of language.Language in the executor's table; imports package language, prepared and toolchain.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. A run downloads no module. Sources are parsed on the host (go/parser, at most 1 MiB of a file) for their imports.
//
// Modules. A module project is built from its vendor directory, or from the modules that its go.mod and go.sum name: those files of the
// user's module cache are copied in as a module proxy below $HOME. Nothing else of that cache is visible. Tests are compiled in the
// compile phase and run like a program.
//
// Packages (packages.go). With --deps, --install or --lock, the modules come from a layer instead, which is a module cache, unpacked and
// read-only: a build of three modules takes 1.8 s of CPU time with it, and 2.3 s with the same modules as a module proxy. go get chooses
// versions, and go mod download makes the layer; neither executes anything of a module or of the program. The run has the go.mod and
// go.sum with which the modules were installed. The go command compiles the modules anew whenever the program has changed.
//
// Snippets are cut at the top level: declarations and variables that functions use are hoisted, the rest becomes main, and line
// directives keep the user's positions.
//
// Sessions (cells.go). Each cell is compiled as one file, with the declarations and imports of the cells before it. Line directives name
// the cell. go/parser finds the names that a cell does not declare; those that are variables of earlier cells are refused before a
// compiler runs.
//
// Prepared files. A build cache with the packages of the standard library that programs import, compiled with the flags and variables
// that are used inside. It is read-only for sandboxes: the go command keeps compiled packages to itself then, but takes a package without
// an index in the cache for missing. A build that fails in that way runs a second command without the index (Phase.Again), and the output
// of the first is kept back until it is known to count.
//
// Direct compilation (direct.go). One file that imports only the standard library is compiled and linked without the go command, which
// would use nearly half of the CPU time. The calls of compiler and linker are read from `go build -x` when the cache is filled, and kept
// as a script. If a step fails, the go command builds the program from the start, so that every message is its own. Files with
// //go:embed, //go:debug, constraints, cgo, GO… variables or names for another system go to the go command at once. TestGoDirectly
// compares both.
//
// GOMEMLIMIT is 90 % of the memory limit.
package golang
