// Package python is the language Python: scripts, packages and directories, forked from a zygote where the backend can.
//
// Place in the flow. One value of language.Language in the executor's table; imports package language and toolchain. Package driver has
// the code that waits in the interpreter, and the hook that makes a cold start write line by line.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. ForbidImports reads syntax trees, in the sandbox, before the run. It is a check for honest programs, not a control: exec gets
// around it.
//
// A directory with __main__.py is started as a module (-m), so that relative imports work. The imports of the source select the preload
// set of the zygote: none; numpy and pandas; or matplotlib as well.
package python
