package stack

import (
	"sync"

	"golang.org/x/sys/unix"
)

// spareThreads is how many threads wait for blocking calls: of name resolution, and of the device.
const spareThreads = 16

// makeThreads makes the threads that this process will need; the runtime keeps and reuses them. They count in the sandbox's limit of
// processes, which has room for exactly those: a program that uses up its own room can not keep this process from starting a thread.
func makeThreads() {
	var gate [2]int
	if unix.Pipe2(gate[:], unix.O_CLOEXEC) != nil {
		return
	}
	var started, done sync.WaitGroup
	for range spareThreads {
		started.Add(1)
		done.Go(func() {
			started.Done()
			_, _ = unix.Read(gate[0], make([]byte, 1)) // a blocking call takes a thread
		})
	}
	started.Wait()
	_ = unix.Close(gate[1])
	done.Wait()
	_ = unix.Close(gate[0])
}
