// Package session has the driver of a shell session, as data: driver.sh, which is the state of the session itself, because it executes
// cells with the builtin eval at the top level of an interactive bash.
//
// Place in the flow. pkg/executor/lang/shell plans a session with [Add]; pkg/session speaks pkg/session/protocol with the driver.
//
// Lifecycle. The script starts bash a second time, as an interactive shell without a terminal, whose input is a pipe: each line of it
// executes one cell. The shell ends with the frame close, the end of the socket, or the builtin exit; traps of EXIT run then.
//
// Concurrency. None. Jobs of a cell stay in the background, and may print at any time.
//
// Limits. Bash 4.4 or later. The driver shares its process with the cells: its names begin with __sandbox_, and a cell that changes them
// or closes the socket ends the session. Cells are text without zero bytes. No process is started for a cell.
//
// Interactive. Bash then returns to its input after an interrupt or an error that would end a script, and the state survives. An
// expansion that fails (set -u, ${x?}, 1/0) ends its line and not the cell, as in a terminal; messages have no line numbers; aliases are
// expanded. There is no job control, no history and no prompt. Bash prints the number of a job that starts.
//
// Exit. With the option errexit, bash exits where the cell should end. The trap of EXIT then replaces the shell by a new one with the
// same variables, functions, aliases, options, traps and arguments, in the same process; the directory, limits, descriptors and jobs
// stay, but the builtins jobs and wait do not know the jobs any more. A user's trap of EXIT runs at the end of the session; the builtin
// trap shows the driver's.
//
// Input. The function read asks the session for a line if its standard input is that of the cell; its option -t has no effect then. All
// other commands, such as cat and mapfile, find an empty standard input.
//
// Interrupts. SIGINT ends the cell unless the user has a trap for it, or the command that runs handles it and ends normally: bash then
// continues, as in a script. Bash can lose a signal that arrives while it starts a process. One that arrives while no cell runs is
// ignored, except for a cell that was sent already.
//
// Forks. The frame fork makes a child in a process group of its own, which starts the driver as after errexit. $$ is its own number.
package session

import (
	_ "embed"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
)

//go:embed driver.sh
var driver []byte

// Add adds the phase of the driver to the job's plan, for a bash in the sandbox.
func Add(j *language.Job, bash string) *language.Phase {
	return j.AddDriver(bash, j.ShowSessionDriver("shell-session.sh", driver))
}
