package stack

import (
	"os"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// With 4 spare threads, 250 queries at a time made a process that could start no more end, and its programs with it.
func TestThreadsAtTheStart(t *testing.T) {
	makeThreads()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 16 || spareThreads+6 > network.MaxThreads {
		t.Errorf("%d threads, at most %d", len(list), network.MaxThreads)
	}
}
