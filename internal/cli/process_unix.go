//go:build !windows

package cli

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// isForeground reports whether this process may read from the terminal: the kernel stops a background process that does.
func isForeground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// watchSize calls changed whenever the terminal changes its size, one call at a time, until stop is called. stop may be called twice.
func watchSize(changed func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-signals:
				changed()
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		signal.Stop(signals)
		close(done)
	})
}

// beforeReplace is called before this process executes another executable.
var beforeReplace = func() {}

// replace executes another executable in this process. Inherited descriptors stay open. It returns only if it fails.
func replace(path string, args, env []string) (int, error) {
	beforeReplace()
	return 0, syscall.Exec(path, args, env)
}
