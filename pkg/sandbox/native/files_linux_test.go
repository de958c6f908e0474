package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// putAndTake copies files in and out, and some that are refused.
func putAndTake(t *testing.T, m *sandbox.Manager, id string, n int) {
	t.Helper()
	ctx := context.Background()
	broken := errors.New("broken")
	name := fmt.Sprintf("/workspace/%d/file", n)
	if err := m.Put(ctx, id, []sandbox.File{{Path: name, Data: []byte("x")},
		{Path: name + ".too", Open: func() (io.ReadCloser, error) { return os.Open("/proc/self/exe") }}}); err != nil {
		t.Fatal(err)
	}
	for err, open := range map[error]func() (io.ReadCloser, error){
		broken:             func() (io.ReadCloser, error) { return nil, broken },
		syscall.EISDIR:     func() (io.ReadCloser, error) { return os.Open("/") },
		sandbox.ErrInvalid: nil,
	} {
		f := sandbox.File{Path: "/workspace/broken", Open: open}
		if open == nil {
			f.Path = name + "/below"
		}
		if got := m.Put(ctx, id, []sandbox.File{f}); !errors.Is(got, err) {
			t.Errorf("%v, not %v", got, err)
		}
	}
	taken := 0
	_, err := m.Take(ctx, id, sandbox.Selection{Patterns: []string{fmt.Sprintf("/workspace/%d/**", n), "/tmp", "/workspace/broken"}},
		func(_ sandbox.File, size sandbox.Size, r io.Reader) error {
			taken++
			got, err := io.Copy(io.Discard, r)
			if sandbox.Size(got) != size {
				t.Errorf("%d bytes of %d", got, size)
			}
			return err
		})
	if err != nil || taken != 2 {
		t.Errorf("taken %d, %v", taken, err)
	}
	if _, err := m.Take(ctx, id, sandbox.Selection{Patterns: []string{"/workspace"}},
		func(sandbox.File, sandbox.Size, io.Reader) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// Nearly every run begins with one small file.
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
