//go:build !unix

package repl

import (
	"context"
	"os"
)

// awaitInput lets the read block.
func awaitInput(ctx context.Context, _ *os.File) bool { return ctx.Err() == nil }
