// Package driver has the code that runs in Python interpreters before the program, as data: in those that wait (sitecustomize.py), and in
// cold starts (line_buffering.py).
//
// Place in the flow. pkg/executor hands them on as sandbox.Warm; backends and pools put them where an interpreter finds them.
//
// Lifecycle. A driver is data here. It runs inside an interpreter, from that one's start until there is a program, and is gone before the
// program's first byte; Python's has a last look when the program has ended, in forks.
//
// Concurrency. What the functions return is the caller's.
//
// Limits. A driver runs before anything foreign, and sees of it what a message says: arguments, variables, a directory.
//
// CPython imports sitecustomize, and the driver waits there. When it returns it is gone from sys.modules, sys.path, the finders' cache
// and the environment, and the machine's own sitecustomize is in its place. __main__, sys.path[0] and tracebacks are CPython's. Arguments
// and variables that /proc shows are set by PR_SET_MM_MAP.
//
// Buffering. Both set the line buffering of stdout that Python has on a terminal: a line is one write, and is not lost when the program is
// killed. PYTHONUNBUFFERED, which makes two writes of a print, is left to the request. A program can see sys.stdout.line_buffering, and
// PYTHONPATH in /proc/self/environ. Interpreters that the program starts buffer as they do elsewhere.
//
// Stacks. Both register faulthandler, which has the interpreter print the stacks of all threads to standard error at StackSignal and go on.
// That takes 0.03 ms of a cold start. No kernel sends this signal, so SIGQUIT and the others mean to a program what they mean elsewhere.
//
// Garbage collector. At its end a program has the collector visit every object, and so copy every page that it shares with the zygote.
// The zygote's objects are therefore frozen (gc.freeze), except the names of __main__. A program that imports gc, or a module that uses
// it, gets an interpreter without that. The order in which members of one cycle are finalized can differ, which Python leaves open.
//
// Early exit. Taking an interpreter apart is half of the CPU time of a small program's fork. A fork whose program has reached its end
// exits at once, with flushed streams and through C's exit, if no difference can be observed. The driver's atexit function, which runs
// last, requires: exit code 0, which it reads from the C stack; no atexit function of the machine's own start-up; no exception, no
// threads; streams, hooks and warning filters unchanged; no C module loaded since the fork; and among the new objects none with a
// finalizer, none suspended in a try, no weak reference with a callback of the program's. Otherwise the interpreter ends as usual.
// Programs that watch the interpreter (settrace, audit hooks, pdb, gc) get one without early exit, as does Python 3.9. One difference
// remains: a finalizer that a program gives to a class of the library, for objects that existed before the program.
//
// Packages. A layer is untrusted, and a zygote serves several programs, so no zygote loads anything of a layer. Python looks for a user's
// packages when it starts; with a layer, the driver does that again for each program, after its last step. Files .pth of packages may have
// code, which therefore runs where the program runs. A layer with a sitecustomize of its own is left to cold starts.
//
// What differs from a cold start: /proc/self/maps shows _ctypes, the process is as old as its fork, and the preload set is in
// sys.modules.
package driver

import (
	"bytes"
	_ "embed"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

//go:embed sitecustomize.py
var sitecustomize []byte

//go:embed line_buffering.py
var lineBuffering []byte

// Dir is where drivers lie: in a directory that programs can write to, and that is empty again before there is one.
const Dir = sandbox.TmpDir + "/.sandbox-run"

// Handshake is what a driver prints when it is ready.
const Handshake = "sandbox-run: ready\n"

// StackSignal is SIGSTKFLT, at which interpreters with a driver print their stacks.
const StackSignal = 16

// LineBuffering is the hook of cold starts, with the path of the driver: pools put it only for a cold start. Python finds it by PYTHONPATH,
// whose first directory is [Dir].
func LineBuffering() sandbox.File {
	return sandbox.File{Path: Dir + "/sitecustomize.py", Mode: 0o644, Data: lineBuffering}
}

// Python is the warm start of a Python interpreter that is given a file to run, with those modules loaded.
func Python(name string, preload ...string) *sandbox.Warm {
	return &sandbox.Warm{
		Name: name, Fork: true, Preload: preload, Handshake: Handshake,
		Env:   map[string]string{"PYTHONPATH": Dir, "SANDBOX_RUN_HANDSHAKE": Handshake, "SANDBOX_RUN_PRELOAD": strings.Join(preload, ",")},
		Files: []sandbox.File{{Path: Dir + "/sitecustomize.py", Mode: 0o644, Data: sitecustomize}},
	}
}

// PackagesFile is the file of the user's own site directory that leads to a layer of packages, and the only one there.
const PackagesFile = "sandbox-run.pth"

// Packages is the same interpreter for programs with a layer of packages in that directory. It loads nothing of the layer before there is a
// program, and then what [PackagesFile] says, as a cold start does: in the program's sandbox, with all walls up.
func Packages(w *sandbox.Warm, dir string) *sandbox.Warm {
	w.Env["SANDBOX_RUN_PACKAGES"] = dir
	return w
}

// Watched is the same interpreter for programs that watch it: in others, the garbage collector knows nothing of what was there before the
// program, and the driver has a last look at what the program leaves.
func Watched(w *sandbox.Warm) *sandbox.Warm {
	w.Name += "+gc"
	w.Env["SANDBOX_RUN_WATCHED"] = "1"
	return w
}

// Watches reports whether a program watches the interpreter, as far as a glance at its source and at what it imports tells.
func Watches(source []byte, imports []string) bool {
	return slices.ContainsFunc(watchingWords, func(word string) bool { return bytes.Contains(source, []byte(word)) }) ||
		slices.ContainsFunc(imports, func(name string) bool { return slices.Contains(watchingModules, name) })
}

var (
	watchingWords = []string{"_ncallbacks", "settrace", "setprofile", "addaudithook", "sys.monitoring", "breakpoint(", "last_type",
		"last_exc"}
	watchingModules = []string{"gc", "objgraph", "pympler", "guppy", "meliae", "muppy", "pdb", "bdb", "trace", "coverage"}
)

// Pandas is what to load for programs that use tables.
func Pandas() []string { return []string{"numpy", "pandas"} }

// Matplotlib is what to load for programs that draw: what pyplot consists of, and not itself, which looks for a screen when it is loaded.
func Matplotlib() []string {
	return append(Pandas(), "matplotlib", "matplotlib.figure", "matplotlib.style", "matplotlib.widgets", "matplotlib.mlab",
		"matplotlib.backends.backend_agg")
}
