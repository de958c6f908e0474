package toolchain

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// RunAlone runs a command in a process group of its own and ends all processes of the group: a shim is a script that starts other
// programs. The command dies with this process. Only ctx ends it early; cmd must not have a context.
func RunAlone(ctx context.Context, cmd *exec.Cmd) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// The kernel sends Pdeathsig when the thread that started the child ends, so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		for {
			err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	select {
	case <-exited:
	case <-ctx.Done():
	}
	_ = unix.Kill(-pid, unix.SIGKILL) //nolint:forbidigo // the leader is not reaped before the next line: no other group can have its number
	<-exited
	return cmd.Wait()
}
