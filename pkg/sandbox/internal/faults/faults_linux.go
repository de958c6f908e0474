package faults

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Wrap returns err as an error of a backend, with the next step; nil for nil.
func Wrap(backend, op, stage string, err error) error {
	if err == nil {
		return nil
	}
	return &sandbox.Error{Backend: backend, Op: op, Stage: stage, Err: err, Hint: hint(stage, err)}
}

// Disk returns the error of a sandbox whose scratch the host's disk, at dir, can not keep; nil for nil.
func Disk(backend, dir string, err error) error {
	if err == nil {
		return nil
	}
	hint := "free some space below " + dir
	if errors.Is(err, scratch.ErrFloor) {
		hint += ", or lower the server's --disk-floor"
	}
	return &sandbox.Error{Backend: backend, Op: "keep scratch", Stage: "scratch", Err: err, Hint: hint}
}

// Destroyed returns the error of a call that comes after Destroy.
func Destroyed(backend string) error {
	return &sandbox.Error{Backend: backend, Op: "start", Kind: sandbox.ErrState, Err: errors.New("the sandbox is destroyed")}
}

// Closed returns the error of a call that comes after the backend's Close.
func Closed(backend string) error {
	return &sandbox.Error{Backend: backend, Op: "create", Kind: sandbox.ErrState, Err: errors.New("the backend is closed")}
}

// hint is the next step: more of the exhausted resource, otherwise the general command.
func hint(stage string, err error) string {
	switch {
	case errors.Is(err, unix.EMFILE):
		return "raise the limit on open files of this process (ulimit -n)"
	case errors.Is(err, unix.ENFILE):
		return "raise the machine's limit on open files (sysctl fs.file-max)"
	case errors.Is(err, unix.ENOMEM):
		return "free some memory, or raise the memory limit that sandbox-run itself runs under"
	case errors.Is(err, unix.EAGAIN) && stage == "namespaces":
		return "raise the limit on processes that sandbox-run itself runs under (ulimit -u, or its service's)"
	case errors.Is(err, unix.ENOSPC) && stage == "scratch":
		return "--scratch memory, or free some space (a server: lower --disk-floor)"
	case errors.Is(err, unix.ENOSPC) && stage == "namespaces": // not a disk: the kernel's errno for too many namespaces
		return "raise the limits in /proc/sys/user that are used up"
	case errors.Is(err, unix.EROFS) && stage == "cgroup":
		return "remount it read-write, or run outside the container that made it so"
	}
	return "sandbox-run doctor"
}

// Start returns the error of an init that could not be set up or could not start a program. Its kind separates errors of
// the program and of the request from internal ones.
func Start(backend string, err error) error {
	var e *spawn.Error
	if !errors.As(err, &e) {
		return Wrap(backend, "talk to init", "protocol", err)
	}
	out := &sandbox.Error{Backend: backend, Op: e.Detail, Stage: e.Stage.String(), Err: e.Errno, Hint: hint(e.Stage.String(), e.Errno)}
	switch e.Stage {
	case initproto.StageRootfs:
		if e.Detail == "make proc" && e.Errno == unix.EPERM {
			out.Hint = "uncover /proc: inside a container, --security-opt systempaths=unconfined"
		}
	case initproto.StageExec:
		out.Kind, out.Hint = sandbox.ErrNotStarted, ""
		if e.Errno == unix.ENOENT {
			out.Hint = "give a program that exists inside the sandbox"
		}
	case initproto.StageWorkdir:
		out.Kind, out.Hint = sandbox.ErrInvalid, "a directory that exists inside the sandbox"
	}
	return out
}
