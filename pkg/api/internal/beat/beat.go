// Package beat keeps streams alive that have nothing to say: proxies and clients give up on those that are silent.
//
// A stream of server-sent events starts a beat when it begins, and stops it before it ends. Each has a goroutine of its own,
// which is over when stop returns. What a beat sends, and under which lock, is the stream's business.
package beat

import (
	"sync"
	"time"
)

// Start calls send again and again until stop is called, which waits until that is over. Stopping twice is fine.
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
