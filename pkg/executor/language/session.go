package language

import (
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

// Composer makes programs of the cells of one session, in a language whose cells are compiled. Declarations and imports of the cells that were
// kept are part of later programs; statements and the values of variables are not. A Composer belongs to one session and one goroutine.
type Composer interface {
	// Compose returns the program of a cell. An error is of kind sandbox.ErrInvalid, and is for the user: for instance that the cell uses a
	// variable of an earlier cell.
	Compose(code string) (*Composition, error)
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
	// Line returns the line of the cell for a line of a file; 0 if it is not the cell's.
	Line func(file string, line int) int
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
