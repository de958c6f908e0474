package client

import (
	"context"
	"io"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// either is what local sessions and those of a server have in common: command lines use one interface for both.
type either interface {
	ID() string
	Info() session.Info
	Execute(ctx context.Context, c session.Cell) (*session.Result, error)
	Interrupt() error
	Restart(ctx context.Context) error
	Reset(ctx context.Context) error
	Close()
	SetNetwork(ctx context.Context, p network.Policy) error
	AddPackages(ctx context.Context, packages []string) (*executor.Deps, error)
	Check(ctx context.Context, code string) (protocol.Checked, error)
	Complete(ctx context.Context, code string, cursor int) (protocol.Completed, error)
	Inspect(ctx context.Context, code string) (protocol.Inspected, error)
	Variables(ctx context.Context) (protocol.Variables, error)
	Put(ctx context.Context, files []sandbox.File) error
	Take(ctx context.Context, sel sandbox.Selection, each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error)
	Files(ctx context.Context, dir string) ([]session.Entry, []sandbox.Untaken, error)
}

var (
	_ either = (*session.Session)(nil)
	_ either = (*Session)(nil)
)
