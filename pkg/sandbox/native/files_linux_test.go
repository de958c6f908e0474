package native

import (
	"context"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// One small file is what nearly every run begins with.
func BenchmarkPut(b *testing.B) {
	backend := newBackend(b, Options{})
	defer backend.Close()
	m := sandbox.NewManager(backend, sandbox.Options{})
	defer m.Close()
	for _, mode := range []sandbox.ScratchMode{sandbox.ScratchMemory, sandbox.ScratchDisk} {
		id, err := m.Create(context.Background(), sandbox.Spec{Scratch: mode})
		if err != nil {
			b.Fatal(err)
		}
		files := []sandbox.File{{Path: "/workspace/main.py", Data: []byte("print(1)\n")}}
		b.Run(string(mode), func(b *testing.B) {
			for b.Loop() {
				if err := m.Put(context.Background(), id, files); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
