// Package interval repeats a call in the background: keep-alive messages, reviews of what is kept, notes of what was used.
//
// Each Start has a goroutine of its own, which has ended when stop returns. The called function takes its own locks.
package interval

import (
	"sync"
	"time"
)

// Start calls a function at every interval until stop is called. stop blocks until the last call has returned, and may be called twice.
func Start(every time.Duration, call func()) (stop func()) {
	quit := make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				call()
			case <-quit:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(quit)
		over.Wait()
	})
}
