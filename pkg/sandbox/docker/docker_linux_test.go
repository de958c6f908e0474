package docker

import (
	"context"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func managed(t *testing.T, b *Backend) *sandbox.Manager {
	t.Helper()
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestHello(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		b := e.backend(t)
		m := managed(t, b)
		ctx := context.Background()
		id, err := m.Create(ctx, sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", info.Isolation)
		res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", "id; echo err >&2; cat /proc/self/status | grep -i 'seccomp\\|cap\\|nonew'; ls -la / /workspace; cat; cat /proc/self/mountinfo"}}, sandbox.IO{Stdin: strings.NewReader("input")})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %+v %+v\n%s%s", res.Verdict, res.Metrics, res.Violations, res.Stdout.Bytes(), res.Stderr.Bytes())
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	})
}
