// Package session has the driver of a Python session, as data: driver.py, which executes cells, and tools.py, which driver.py compiles when
// a session first needs a traceback, a magic, a question or a fork.
//
// Place in the flow. pkg/executor/lang/python plans a session with [Add]; pkg/session speaks pkg/session/protocol with the driver.
//
// Lifecycle. The driver reads both files before the first cell, serves cells until the frame close or the end of the socket, and ends as a
// Python program does, except that threads are not waited for.
//
// Concurrency. Cells run in the main thread of the interpreter. Threads of a cell may show values and ask for lines while a cell runs.
//
// Limits. The driver shares its process with the cells. It has built-in functions of its own, hides its frames, and restores standard
// streams that a cell has closed; a cell that closes the socket ends it.
//
// State. Cells run in a module __main__ of their own, which is in sys.modules, so that classes of cells can be pickled. The file name of a
// cell is <cell N>; linecache has its text. sys.stdin asks the session for lines; descriptor 0 is /dev/null.
//
// Interrupts. SIGINT raises KeyboardInterrupt while foreign code runs. The driver's own work is not interrupted: the interrupt waits until
// the frame is written, and one that arrives while no cell runs is ignored. A task of an asynchronous cell is cancelled while its event
// loop waits, and the cell ends with KeyboardInterrupt.
//
// Forks. The frame fork makes a process that init adopts, in a process group of its own. The process opens every pipe for reading and writing
// first, so that the session may open its ends in any order, and drops those descriptors with the first frame.
//
// IPython is imported for a magic that the driver does not have, and for a cell whose text names IPython: its import takes longer than
// starting the driver.
package session

import (
	_ "embed"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

//go:embed driver.py
var driver []byte

//go:embed tools.py
var tools []byte

// Add adds the phase of the driver to the job's plan, for an interpreter in the sandbox.
func Add(j *language.Job, interpreter string) *language.Phase {
	program := j.ShowSessionDriver("python-session.py", driver)
	return j.AddDriver(interpreter, program, j.ShowSessionDriver("python-session-tools.py", tools))
}
