package workspace

import (
	"context"
	"path/filepath"
	"slices"
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
	if ExplainCap(store) == nil {
		t.Skip("caps are enforced here, not polled: TestQuota")
	}

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
	r, over := run("cat put && echo left >behind && mkdir -p d && ln -s /etc/passwd link", Options{},
		sandbox.File{Path: "/workspace/put", Data: []byte("was put\n")})
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
	// Space that is taken at once would be past the cap before anybody looks. Within the cap it is refused as well: it is the control
	// that the program was able to ask.
	for _, args := range []string{"-l 64m", "-n -l 64m", "-z -l 64m", "-l 1m"} {
		r, _ = run("command -v fallocate >/dev/null || exit 99; touch big; fallocate "+args+" big; stat -c %b big; rm big",
			Options{Cap: 16 * sandbox.MiB})
		if string(r.Stdout.Bytes()) != "0\n" || !strings.Contains(string(r.Stderr.Bytes()), "supported") {
			t.Errorf("fallocate %s: %s %q %q", args, r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
		}
	}
	// A file can not be longer than the cap, even one without contents.
	if r, over = run("truncate -s 15m big; truncate -s 17m big; stat -c %s big", Options{Cap: 16 * sandbox.MiB}); over ||
		string(r.Stdout.Bytes()) != "15728640\n" {
		t.Errorf("a file larger than the cap: %s %q %q", r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	if !slices.ContainsFunc(r.Isolation.Missing, func(g sandbox.Gap) bool {
		return g.Control == sandbox.ControlDisk &&
			g.State == sandbox.Polled
	}) {
		t.Errorf("the cap is polled, and the report does not say so: %+v", r.Isolation.Missing)
	}
	must(t, Remove(t.Context(), store, "w"))
}
