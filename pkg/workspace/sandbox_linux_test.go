package workspace

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// A real sandbox: it finds what was put, leaves what the next one finds, and is ended when it writes too much.
func TestInASandbox(t *testing.T) {
	testenv.NeedRoot(t)
	backend, err := native.New(native.Options{CacheDir: filepath.Join(t.TempDir(), "cache")})
	must(t, err)
	defer backend.Close()
	m := sandbox.NewManager(backend, sandbox.Options{})
	defer m.Close()
	store := newStore(t)

	run := func(script string, o Options, files ...sandbox.File) (*sandbox.Result, bool) {
		t.Helper()
		w, err := Open(t.Context(), store, "w", o)
		must(t, err)
		defer func() { must(t, w.Close()) }()
		must(t, w.Put(t.Context(), files))
		id, err := m.Create(t.Context(), sandbox.Spec{Volumes: []sandbox.Volume{w.Volume()}, Scratch: sandbox.ScratchMemory})
		must(t, err)
		defer func() { must(t, m.Delete(context.Background(), id)) }()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watched, over := make(chan error, 1), false
		go func() {
			watched <- w.Watch(ctx, func(Usage) { over = true; cancel() })
		}()
		r, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{})
		cancel()
		must(t, <-watched)
		must(t, err)
		return r, over
	}
	r, over := run("cat put && echo left >behind && mkdir -p d && ln -s /etc/passwd link", Options{}, sandbox.File{Path: "/workspace/put", Data: []byte("was put\n")})
	if !r.Success() || string(r.Stdout.Bytes()) != "was put\n" || over {
		t.Fatalf("%s %q %q", r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	if r, _ = run("cat put behind && echo again >put", Options{}); string(r.Stdout.Bytes()) != "was put\nleft\n" {
		t.Errorf("%s %q %q", r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	r, over = run("while :; do head -c 1m /dev/zero >>big; sleep 0.01; done", Options{Cap: 4 * sandbox.MiB})
	if !over || r.Verdict != sandbox.VerdictCancelled {
		t.Errorf("over %v, %s", over, r.Verdict)
	}
	if _, err := Open(t.Context(), store, "w", Options{}); err == nil || !strings.Contains(err.Error(), "--workspace-cap") {
		t.Errorf("%v", err)
	}
	must(t, Remove(t.Context(), store, "w"))
}
