package language

import (
	"fmt"
	"path"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// PhaseCell is the phase of a session's driver.
const PhaseCell = "cell"

// AddDriver adds the phase of a session's driver: a command that speaks the protocol of pkg/session/protocol on its driver socket.
func (j *Job) AddDriver(args ...string) *Phase {
	j.Plan.Phases = append(j.Plan.Phases, Phase{Process: sandbox.Process{Phase: PhaseCell, Args: args, DriverSocket: true}})
	return &j.Plan.Phases[len(j.Plan.Phases)-1]
}

// Composer makes programs of the cells of one session, in a language whose cells are compiled. Declarations and imports of the cells that
// were kept are part of later programs; statements and the values of variables are not. A Composer belongs to one session and one
// goroutine.
type Composer interface {
	// Compose returns the program of a cell with a number, by which messages call it. An error is a *CellError, for instance that the cell
	// uses a variable of an earlier cell.
	Compose(cell uint64, code string) (*Composition, error)
	// Check reports whether the code is a complete cell: "complete", "incomplete" or "invalid".
	Check(code string) string
	// Declared lists the names that kept cells have declared, with the kind of each.
	Declared() []Declaration
	// Reset forgets all cells.
	Reset()
}

// Composition is the program of one cell.
type Composition struct {
	Files []File // that the plan of an ordinary run would have
	// Keep adds the cell's declarations to the later programs. The session calls it if the program has compiled.
	Keep func()
	// Revise, if set, returns another program for the cell after the compiler has refused this one, with what the compiler has printed; nil:
	// there is none.
	Revise func(stderr string) (*Composition, error)
	// Explain reads what the compiler or the program has printed before it failed in a phase.
	Explain func(phase, stderr string) Failure
}

// Failure is what a message of a compiler or a program says. The text is the program's, and may be forged.
type Failure struct {
	Name    string // "compile error", "panic"; "": there is no message that is known
	Message string
	Line    int    // of the cell; 0: not known
	Hint    string // the next step; may be empty
}

// CellError is the error of a cell of which no program can be composed. It is of kind sandbox.ErrInvalid, and is for the user.
type CellError struct {
	Cell         uint64
	Line, Column int // 0: not known
	Text         string
}

func (e *CellError) Error() string {
	at := fmt.Sprintf("cell %d", e.Cell)
	if e.Line > 0 {
		at += fmt.Sprintf(":%d:%d", e.Line, e.Column)
	}
	return at + ": " + e.Text
}

func (e *CellError) Unwrap() error { return sandbox.ErrInvalid }

// VariableOfAnotherCell is the text for a name that a cell uses, and that was a variable of the statements of an earlier cell.
func VariableOfAnotherCell(name string, from uint64, next string) string {
	return fmt.Sprintf("%s is a variable of cell %d, and values of variables do not persist in a session of a compiled language; %s",
		name, from, next)
}

// DoesNotFit is the hint on an error in what an earlier cell has declared.
func DoesNotFit(earlier string, cell uint64) string {
	return fmt.Sprintf("what cell %s has declared does not fit to what cell %d declares; declare it again in this cell, too", earlier, cell)
}

// Declaration is a name that a cell has declared.
type Declaration struct{ Name, Kind, Text string }

// ShowSessionDriver shows a driver's text in the sandbox and returns its path there. Without a store of files on this machine it is one of
// the sandbox's own files, which the driver has read before foreign code can change it.
func (j *Job) ShowSessionDriver(name string, text []byte) string {
	if !j.OnForeignRoot() {
		if file := j.Store.File(name, text); file != "" {
			inside := path.Join(ToolDir, name)
			j.Mount(file, inside)
			return inside
		}
	}
	inside := path.Join(sandbox.HomeDir, ".sandbox-run", name)
	j.Plan.Files = append(j.Plan.Files, sandbox.File{Path: inside, Mode: 0o644, Data: text})
	return inside
}
