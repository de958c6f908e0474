package repl

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Screen shows what cells print and what the REPL says. It makes untrusted text safe for a terminal.
type Screen interface {
	// Output shows an event of the cell that runs: what it printed, and the values that it displays.
	Output(sandbox.Event)
	// End ends the output of a cell. r has its figures; nil if it has none.
	End(r *session.Result)
	// Print shows lines that a command asked for.
	Print(text string)
	// Message shows a line of sandbox-run itself.
	Message(text string)
}

// Terminal answers the questions of cells.
type Terminal interface {
	// ReadLine reads a line without its end; false at the end of input, or at the end of ctx.
	ReadLine(ctx context.Context, question protocol.Input) (line string, ok bool)
}

// Options are the parts of a REPL.
type Options struct {
	Session Session
	// Open makes a session of another language, for :lang. Nil: the session can not be replaced.
	Open func(ctx context.Context, language string) (Session, error)
	// Close ends a session that another one has replaced.
	Close    func(Session)
	Screen   Screen
	Terminal Terminal       // nil: cells have no input
	Network  network.Policy // of the session, for :allow
}

// REPL executes cells in a session until its input ends.
type REPL struct {
	o      Options
	code   int // of the last cell that failed
	leave  bool
	cells  []string // executed, for :save
	editor Editor

	mu      sync.Mutex
	session Session // replaced by :lang and :fork
}

// Editor reads the next cell.
type Editor interface {
	// Read returns a cell or a command. io.EOF: there are no more. ErrCleared: a person has discarded the line.
	Read(ctx context.Context) (string, error)
}

// ErrCleared is the error of a line that was discarded by Ctrl-C.
var ErrCleared = errors.New("the line was discarded")

// New makes a REPL.
func New(o Options) *REPL { return &REPL{o: o, session: o.Session} }

// Session is the present session.
func (r *REPL) Session() Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

func (r *REPL) replace(s Session) {
	r.mu.Lock()
	old := r.session
	r.session = s
	r.mu.Unlock()
	if r.o.Close != nil {
		r.o.Close(old)
	}
}

// Interrupt interrupts the cell that runs; without one it does nothing.
func (r *REPL) Interrupt() {
	if err := r.Session().Interrupt(); err != nil {
		r.o.Screen.Message(err.Error())
	}
}

// Run executes the cells of an editor, and returns the exit code of the interpreter if a cell has left it, or else that of the last cell that
// failed; for a person at a LineEditor it is 0. The error is one of the editor.
func (r *REPL) Run(ctx context.Context, e Editor) (code int, err error) {
	r.editor = e
	for !r.leave {
		text, err := e.Read(ctx)
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return r.code, nil
		case errors.Is(err, ErrCleared):
			continue
		case err != nil:
			return r.code, err
		}
		r.Do(ctx, text)
	}
	return r.code, nil
}

// Do executes a cell or a command.
func (r *REPL) Do(ctx context.Context, text string) {
	switch name, argument, ok := parseCommand(text); {
	case strings.TrimSpace(text) == "":
	case ok:
		r.command(ctx, name, argument)
	default:
		r.execute(ctx, text)
	}
}

func (r *REPL) execute(ctx context.Context, code string) {
	cell := session.Cell{Code: code, OnEvent: r.o.Screen.Output}
	if r.o.Terminal != nil {
		cell.Input = r.o.Terminal.ReadLine
	}
	result, err := r.Session().Execute(ctx, cell)
	left := err == nil && result.State == session.StateEnded && (result.Verdict == sandbox.VerdictOK || result.Verdict == sandbox.VerdictNonzeroExit)
	if left { // by exit()
		r.o.Screen.End(nil)
	} else {
		r.o.Screen.End(result)
	}
	if err != nil {
		r.fail(err)
		return
	}
	r.cells = append(r.cells, strings.TrimRight(code, "\n"))
	if result.Verdict != sandbox.VerdictOK {
		r.failed(result.ExitCode())
	}
	switch {
	case left:
		r.leave, r.code = true, result.ExitCode()
	case result.State == session.StateEnded:
		r.o.Screen.Message("the interpreter has ended: " + result.Cause + "; :restart starts another, with the same files")
	}
}

// fail shows an error of a cell or a command.
func (r *REPL) fail(err error) {
	r.failed(failureCode)
	if errors.Is(err, session.ErrNotFound) {
		r.leave = true
	}
	if errors.Is(err, session.ErrEnded) {
		r.o.Screen.Message(err.Error() + ", by :restart or :reset")
		return
	}
	r.o.Screen.Message(err.Error())
}

// failed keeps the code of a cell for the end, unless a person has seen the failure.
func (r *REPL) failed(code int) {
	if _, ok := r.editor.(*LineEditor); !ok {
		r.code = code
	}
}

// failureCode is the exit code of a cell that could not be executed.
const failureCode = 125

// isComplete reports whether text can be executed as it is, and otherwise the indent of its next line.
func (r *REPL) isComplete(ctx context.Context, text string) (complete bool, indent string) {
	if _, _, ok := parseCommand(text); ok || strings.TrimSpace(text) == "" {
		return true, ""
	}
	checked, err := r.Session().Check(ctx, text)
	if err != nil || checked.Status != incomplete { // executing it reports the error
		return true, ""
	}
	if strings.Trim(checked.Indent, " \t") != "" || len(checked.Indent) > maxIndent { // of foreign code: a person has not typed it
		return false, ""
	}
	return false, checked.Indent
}

// maxIndent bounds the indent of a new line.
const maxIndent = 200

// Statuses of protocol.Checked.
const (
	incomplete = "incomplete"
	invalid    = "invalid"
)
