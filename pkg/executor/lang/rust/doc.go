// Package rust is the language Rust: single files by rustc, projects and files with packages by cargo without a registry.
//
// Place in the flow. One value of language.Language in the executor's table; imports package language and toolchain.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. A run downloads no crate.
//
// Packages (packages.go). With --deps, --install or --lock, cargo vendor makes a layer from a sparse registry, and the run has a
// configuration that replaces crates.io by it. cargo vendor executes nothing. Build scripts and procedural macros of crates run in the
// compile phase, as those of the program do, without a network, so that --allow-install-scripts is not needed. A program without a
// manifest gets one. Crates are compiled anew whenever the program has changed.
//
// Linker. rustc calls cc, and that calls the lld that comes with Rust from 1.90 on. Half of a small program's cost is the linker's
// reading of the standard library, and GNU's linkers take longer.
//
// Sessions (cells.go). Each cell is compiled with the items of the cells before it. The root of the program includes a file for each cell,
// which has the cell's name in messages. A splitter (items.go) that knows tokens and brackets separates items from statements; rustc finds
// the uses of variables of earlier cells.
//
// Warm start. rustc is started with a pipe as main.rs and blocks where it reads its source. A child of the kit writes the file into the
// pipe when the message arrives; the pipe has been removed from the directory by then. Programs with variables of their own, which a
// compiler may read, or whose first file is in a directory, are compiled cold.
package rust
