package stack

import (
	"runtime"
	"sync"
)

// spareThreads is how many threads wait for blocking calls: of name resolution, and of the device.
const spareThreads = 16

// makeThreads makes the threads that this process will need; the runtime keeps and reuses them. They count in the sandbox's limit of
// processes, which has room for exactly those: a program that uses up its own room can not keep this process from starting a thread.
//
// A goroutine that waits and has its thread to itself passes the right to execute on at once; one in a blocking call loses it only when
// the runtime looks, which takes a tenth of a millisecond for each thread.
func makeThreads() {
	gate := make(chan struct{})
	var started, done sync.WaitGroup
	for range spareThreads {
		started.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			<-gate
		})
	}
	started.Wait()
	close(gate)
	done.Wait()
}
