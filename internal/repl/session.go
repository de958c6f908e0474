package repl

import (
	"context"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// Interpreter executes cells and answers questions about code.
type Interpreter interface {
	Execute(context.Context, session.Cell) (*session.Result, error)
	Interrupt() error
	Check(ctx context.Context, code string) (protocol.Checked, error)
	Complete(ctx context.Context, code string, cursor int) (protocol.Completed, error)
	Variables(context.Context) (protocol.Variables, error)
}

// Session is a session of this process, or of a server.
type Session interface {
	Interpreter
	Info() session.Info
	Files(ctx context.Context, dir string) ([]session.Entry, []sandbox.Untaken, error)
	Restart(context.Context) error
	Reset(context.Context) error
}

// Optional methods of a Session. Without one, its command is not available.
type (
	// Forker makes another session with the same state.
	Forker interface {
		Fork(context.Context) (Session, error)
	}
	// Packager installs packages.
	Packager interface {
		AddPackages(ctx context.Context, deps []string) (*executor.Deps, error)
	}
	// Networker replaces the network policy.
	Networker interface {
		SetNetwork(context.Context, network.Policy) error
	}
)
