package java

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestHeapLeavesRoom(t *testing.T) {
	for _, memory := range []sandbox.Size{2 * sandbox.MiB, 64 * sandbox.MiB, 128 * sandbox.MiB, 512 * sandbox.MiB, 8 * sandbox.GiB, 1 << 50} {
		heap := javaHeap(memory)
		if heap < 8*sandbox.MiB || memory >= 64*sandbox.MiB && (heap > memory-memory/8 || heap < memory/4) {
			t.Errorf("of %s the heap gets %s", memory, heap)
		}
	}
}
