// Package keepalive sends keep-alive messages on idle streams, because proxies and clients close silent connections.
//
// A stream of server-sent events calls Start when it begins, and stop before it ends. Each call has a goroutine of its own, which has ended
// when stop returns. The stream decides what to send and takes its own lock.
package keepalive

import (
	"sync"
	"time"
)

// Start calls send at every interval until stop is called. stop blocks until the last call has returned, and may be called twice.
func Start(every time.Duration, send func()) (stop func()) {
	quit := make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				send()
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
