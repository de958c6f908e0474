// Package session has the driver of JavaScript and TypeScript sessions, as data: driver.cjs, which executes cells in the main thread of
// Node, reader.cjs, a thread that reads frames, rewrites cells and interrupts them, and answers.cjs, which answers questions other than
// cells.
//
// Place in the flow. pkg/executor/lang/javascript plans a session with [Add]; pkg/session speaks pkg/session/protocol with the driver.
//
// Lifecycle. The driver serves cells until the frame close or the end of the socket, and ends as a program of Node that calls process.exit.
// JavaScript can not move a descriptor: the kit moves the socket, and then executes Node in its own place. The socket is descriptor 15, not
// protocol.Descriptor: Node sets close-on-exec for inherited descriptors up to that one.
//
// Concurrency. The two threads share four numbers: a lock, the work that has ended, whether the main thread executes the synchronous part
// of a cell, and how many messages were sent to it. Frames are written by the main thread only.
//
// Limits. The driver shares its process with the cells. It has names of its own for what it calls; a cell that breaks prototypes of the
// language, or closes the socket, breaks its own session only. Constants of the top level can be assigned to. Timers and promises of a cell
// that has ended continue, and their output belongs to the next cell. An interrupt that terminates Node's own code between two immediates
// damages its queue, and the driver then ends.
//
// Cells. The inspector's Runtime.evaluate executes cells in V8's REPL mode, which has await at the top level and redeclares names as what
// they were. The rest is rewritten, in place: const becomes let; a declaration of another kind than an earlier one becomes that kind;
// imports become calls of a function, which imports from the working directory. acorn, which is a part of Node, parses. The inspector
// accepts no file name with a space; Error.prepareStackTrace names cells as <cell N>, leaves out frames of the driver, and maps lines of
// TypeScript.
//
// TypeScript. The kit is a process that stays, and removes the types of each cell (sandbox-kit typescript-cells). It builds the modules of
// the program that cells import. A cell that ends it, such as one that is nested too deeply, fails, and the next starts another.
//
// Interrupts. The reader gets the frame interrupt and terminates the JavaScript of the main thread by its inspector, wherever that is: in
// a cell, a timer or a promise. A cell that waits for an event is ended by a message. Processes for which a cell waits synchronously get
// SIGINT. Node checks that asynchronous calls are nested properly, which a terminated one is not: the check is off.
package session

import (
	_ "embed"
	"strconv"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

var (
	//go:embed driver.cjs
	driver []byte

	//go:embed reader.cjs
	reader []byte

	//go:embed answers.cjs
	answers []byte
)

// socket is the descriptor of the session.
const socket = 15

// TypeScript is the language whose types the kit removes.
const TypeScript = "typescript"

// Add adds the phase of the driver to the job's plan, for a language, the kit, and Node with its flags.
func Add(j *language.Job, name, kit string, node ...string) *language.Phase {
	files := []string{
		j.ShowSessionDriver("node-session.cjs", driver), j.ShowSessionDriver("node-session-reader.cjs", reader),
		j.ShowSessionDriver("node-session-answers.cjs", answers),
	}
	return j.AddDriver(command(name, kit, node, files)...)
}

// command returns the command of a driver. Files are the driver, the reader and the answers.
func command(name, kit string, node, files []string) []string {
	descriptor := strconv.Itoa(socket)
	args := append([]string{kit, "driver", "--socket", descriptor, "--"}, node...)
	args = append(args, "--no-force-async-hooks-checks", files[0], name, descriptor, files[1], files[2])
	if name == TypeScript {
		args = append(args, kit)
	}
	return args
}
