//go:build !linux

package toolchain

import (
	"context"
	"os/exec"
)

// RunAlone runs a command, and ends it when ctx does.
func RunAlone(ctx context.Context, cmd *exec.Cmd) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	return cmd.Wait()
}
