//go:build !windows

package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

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
