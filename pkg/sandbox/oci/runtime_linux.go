package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// startRuntime lets the runtime make the container, and returns its init before the init's first message: execute
// executes the runtime with that end of the init's socket.
func (c *container) startRuntime(execute func(control int) error) (*spawn.Init, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, failure("make control socket", "protocol", err)
	}
	defer unix.Close(pair[1])
	fd, err := unix.MemfdCreate("runtime log", unix.MFD_CLOEXEC)
	if err == nil {
		c.log = os.NewFile(uintptr(fd), "runtime log")
		err = execute(pair[1])
	}
	if err != nil {
		_ = unix.Close(pair[0])
		if said := new(*sandbox.Error); errors.As(err, said) {
			return nil, err
		}
		return nil, failure("start "+c.runtime, "runtime", err)
	}
	init, err := spawn.Adopt(spawn.Adopted{PID: c.pid, PIDFD: c.pidfd, Socket: pair[0], Kill: c.killInit, Last: c.waitForAnnouncement})
	if err != nil {
		c.killInit()
		_, _ = unix.Wait4(c.pid, nil, 0, nil)
		_ = unix.Close(c.pidfd)
		return nil, failure("talk to init", "protocol", err)
	}
	return init, nil
}

// command is the command line that makes the container and stays in the foreground.
func (c *container) command() []string {
	args := append([]string{c.runtime, "--root", c.ns.stateDir()}, c.kind.global...)
	args = append(append(args, "run"), c.kind.run...)
	return append(args, "--bundle", c.dir, c.id)
}

// execRuntime executes the runtime in the runtime namespace and, if the runtime itself is limited, in a cgroup.
func (c *container) execRuntime(control int, group *cgroup.Group) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	fds := []uintptr{null.Fd(), c.log.Fd(), c.log.Fd()}
	if c.kind.stdin {
		fds[0] = uintptr(control)
	} else {
		fds = append(fds, uintptr(control))
	}
	var pidfd int
	// A session of its own: signals from the supervisor's terminal are not for the runtime.
	attr := &syscall.ProcAttr{Dir: "/", Env: append(environ(), c.kind.env...), Files: fds,
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
	if err := c.enter(attr.Sys, group, func() (err error) {
		c.pid, err = syscall.ForkExec(c.runtime, c.command(), attr)
		return err
	}); err != nil {
		return err
	}
	c.pidfd = pidfd
	return nil
}

// enter starts a process with attr, by execute, in the runtime namespace and, if there is one, in a cgroup.
func (c *container) enter(attr *syscall.SysProcAttr, group *cgroup.Group, execute func() error) error {
	run := c.ns.helper.Do
	if group != nil {
		if born := group.OpenForClone(); born != nil {
			defer born.Close()
			attr.UseCgroupFD, attr.CgroupFD = true, int(born.Fd())
		} else { // a thread that enters a cgroup may not be able to leave it
			plain := execute
			execute = func() error { return group.RunInside(plain) }
			run = c.ns.inside
		}
	}
	return run(execute)
}

// inside runs f, and the processes that f starts, on a thread in the runtime namespace.
func (n *runtimeNamespace) inside(f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Setns(int(n.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter runtime namespace: %w", err)
		}
		return f()
	})
}

// deleteState lets the runtime delete a container that a killed runtime has left.
func (c *container) deleteState(ctx context.Context) error {
	var left []string
	_ = c.ns.helper.Do(func() error {
		left, _ = filepath.Glob(filepath.Join(c.ns.stateDir(), c.id+"*"))
		return nil
	})
	if len(left) == 0 || c.pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	args := append([]string{"--root", c.ns.stateDir()}, c.kind.global...)
	cmd := exec.CommandContext(ctx, c.runtime, append(args, "delete", "--force", c.id)...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = append(environ(), c.kind.env...), "/", time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.ns.inside(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) { // the runtime succeeded, and another child still has its pipe open
		return failure("delete container "+c.id, "cleanup", fmt.Errorf("%w: %s", err, lastLines(out.Bytes())))
	}
	return nil
}

// watchInterval is the time between two checks of a runtime that makes a container. Most have made it before the first
// check.
const watchInterval = 250 * time.Millisecond

// errKilled is the error of a killed runtime: a runtime that ends by itself prints the reason.
var errKilled = errors.New("it was killed before its container stood")

// watchRuntime calls end if the runtime ends before its container runs. The own init of a killed runtime may live on and
// wait for it for ever, with the supervisor's socket open and without ever sending a message.
func (c *container) watchRuntime(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !c.Init.Alive() {
				end(errKilled)
				return
			}
		}
	}
}
