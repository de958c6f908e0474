// Package javascript is the language JavaScript, run by Node. TypeScript shares the toolchain, the heap flags and the warm start.
//
// Place in the flow. One value of language.Language in the executor's table; imports package language and toolchain.
//
// Lifecycle, concurrency. As package language says: static data, and pure plans.
//
// Limits. --max-old-space-size is the memory limit less 80 MiB (below 256 MiB: less 32 MiB, with small semi-spaces), so that the
// collector works before the kernel ends the program. V8's "heap out of memory" becomes the verdict memory_limit. A limit in the user's
// NODE_OPTIONS takes precedence.
//
// Warm start (node.cjs). Node waits in a module that NODE_OPTIONS=--require loads before the main module is looked up, and then continues
// by itself: traces, require.main, import.meta and exit paths are Node's own. The driver removes itself from process.env, require.cache
// and process._preload_modules, sets the environment in the order of a cold start, also in /proc/self/environ, and lets process.uptime
// and performance count from the message. It is read-only in /opt/sandbox-run, because threads of the program inherit --require and load
// it again; it does nothing there. Variables that Node or the C library read at their start (NODE_* except NODE_ENV, TZ, LANG, LC_*,
// LD_*) mean a cold start. Node's compile cache is not used: programs of different owners would share it.
//
// Sessions (session.go). Package session has the driver. The kit starts it, which has to be installed.
//
// Packages (packages.go). npm installs them without their scripts; a layer is shown as /node_modules, where Node looks last from every
// directory, so that the project's own packages come first. npm: imports (imports.go) are found in the sources, and rewritten to plain
// names in the files of the sandbox once a layer is there. Commands of the layer are on PATH for the start script. Not installed:
// workspaces, packages with addresses in place of versions, locks of npm 6.
//
// What differs from a cold start: /proc/self/cmdline lacks the user's arguments, /proc/self/environ ends in NULs, timestamps of events
// and of timerify count from the start of the process.
package javascript
