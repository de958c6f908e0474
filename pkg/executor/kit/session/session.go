// Package session serves the cells of a session of SQL.
//
// What. Serve speaks pkg/session/protocol on standard input, and hands cells and questions to an [Interpreter].
//
// Place in the flow. The tools sqlite-session and postgres-session of the kit call it inside the sandbox; pkg/session is the other side.
//
// Lifecycle. Serve returns after the frame close, at the end of the socket, or when a cell has ended the interpreter.
//
// Concurrency. One goroutine executes cells; another one reads frames, and interrupts the cell that runs.
//
// Limits. Cells have no input. An interrupt is a frame, not a signal: signals would reach a database server, too. One that arrives before
// its cell does, or after it, is ignored.
package session

import (
	"errors"
	"strconv"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Interpreter executes cells.
type Interpreter interface {
	// Execute executes a cell and prints what it has to say. With quit, the session ends: as the cell has asked for, or with the error.
	Execute(code string) (done protocol.Done, quit bool)
	// Interrupt ends the cell that runs or is about to run. It is called from another goroutine than Execute.
	Interrupt()
	// Resume takes interrupts back. No cell runs then, and Interrupt is not called meanwhile.
	Resume()
	// Check reports whether the code is a complete cell.
	Check(code string) protocol.Checked
	// Complete lists words that may replace the one that ends at the cursor.
	Complete(code string, cursor int) protocol.Completed
	// Inspect describes a table.
	Inspect(name string) protocol.Inspected
	// Variables lists the tables and views.
	Variables() protocol.Variables
}

// Features are what every Interpreter answers.
var Features = []protocol.Kind{protocol.KindCheck, protocol.KindComplete, protocol.KindInspect, protocol.KindVariables}

// Serve serves a session until its end.
func Serve(c *protocol.Conn, ready protocol.Ready, i Interpreter) error {
	ready.Protocol, ready.Features, ready.How = protocol.Version, Features, "message"
	if err := c.WriteJSON(protocol.KindReady, 0, ready); err != nil {
		return err
	}
	s := &server{i: i, frames: make(chan *protocol.Frame)}
	ended := make(chan struct{})
	defer close(ended)
	go s.read(c, ended)
	for f := range s.frames {
		over, err := s.answer(c, f)
		if over || err != nil {
			return err
		}
	}
	return nil
}

// server is the state of Serve.
type server struct {
	i      Interpreter
	frames chan *protocol.Frame // closed at the end of the socket

	mu   sync.Mutex
	cell uint64 // that was read, and has not ended; guarded by mu
}

// read reads frames to the end. The interrupt of a cell is handled at once: even before the cell was begun, because Interrupt stays in
// effect until the cell ends.
func (s *server) read(c *protocol.Conn, ended <-chan struct{}) {
	defer close(s.frames)
	for {
		f, err := c.Read()
		if err != nil {
			s.i.Interrupt()
			return
		}
		switch f.Kind {
		case protocol.KindExecute:
			s.mu.Lock()
			s.cell = f.ID
			s.mu.Unlock()
		case protocol.KindInterrupt:
			s.mu.Lock()
			if s.cell != 0 && f.ID == s.cell {
				s.i.Interrupt()
			}
			s.mu.Unlock()
			continue
		}
		select {
		case s.frames <- f:
		case <-ended:
			return
		}
	}
}

// answer handles a frame and reports whether the session is over.
func (s *server) answer(c *protocol.Conn, f *protocol.Frame) (over bool, err error) {
	var reply any
	switch f.Kind {
	case protocol.KindExecute:
		done, quit := s.i.Execute(string(f.Body))
		s.mu.Lock()
		s.cell = 0
		s.i.Resume()
		s.mu.Unlock()
		if quit && done.Error != nil {
			return true, errors.New(done.Error.Message)
		}
		if quit {
			return true, nil
		}
		return false, c.WriteJSON(protocol.KindDone, f.ID, done)
	case protocol.KindCheck:
		reply = s.i.Check(string(f.Body))
	case protocol.KindComplete:
		cursor, err := strconv.Atoi(f.Arg)
		if err != nil || cursor < 0 || cursor > len(f.Body) {
			cursor = len(f.Body)
		}
		reply = s.i.Complete(string(f.Body), cursor)
	case protocol.KindInspect:
		reply = s.i.Inspect(string(f.Body))
	case protocol.KindVariables:
		reply = s.i.Variables()
	case protocol.KindClose:
		return true, nil
	default: // a late answer
		return false, nil
	}
	return false, c.WriteJSON(protocol.KindReply, f.ID, reply)
}
