//go:build !windows

package cli

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// isForeground reports whether we may read from a terminal: a background process that does so is stopped.
func isForeground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// watchSize calls changed, one call at a time, whenever our terminal changes its size.
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

// beforeReplace is called before this process becomes another executable.
var beforeReplace = func() {}

// replace makes another executable of this process. Every descriptor that we were given is still open in it. It returns only if it fails.
func replace(path string, args, env []string) (int, error) {
	beforeReplace()
	return 0, syscall.Exec(path, args, env)
}
