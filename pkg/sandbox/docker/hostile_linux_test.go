package docker

import (
	"context"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Whatever a program does to the helper's resources, the verdict is about the program: the helper shares its container's memory
// and its limit on processes.
func TestHelperUnderSiege(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		if e.name == "podman" {
			testenv.NeedAll(t, "Docker Engine")
		}
		b := e.backend(t)
		m := sandbox.NewManager(b, sandbox.Options{})
		defer m.Close()
		attack := func(memory sandbox.Size, script string) *sandbox.Result {
			t.Helper()
			id, err := m.Create(context.Background(), sandbox.Spec{Limits: sandbox.Limits{Memory: memory, Processes: 40, Wall: 3 * time.Second,
				Grace: 200 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			res := run(t, m, id, script, nil)
			if err := m.Delete(context.Background(), id); err != nil {
				t.Error(err)
			}
			return res
		}
		// A runtime that can not make a thread ends; the helper has its own beforehand.
		for range 2 {
			res := attack(256*sandbox.MiB, "exec python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'")
			if res.Verdict != sandbox.VerdictTimeLimit || res.Metrics.ProcessLimitHits == 0 || len(res.Notes) > 0 {
				t.Errorf("fork bomb: %s, %d refused, %q", res.Verdict, res.Metrics.ProcessLimitHits, res.Notes)
			}
		}
		// A program may be as unlikely to be ended as the helper is, and smaller.
		res := attack(64*sandbox.MiB, "echo 0 > /proc/self/oom_score_adj; for i in 1 2 3 4 5 6; do cat /dev/zero > /tmp/$i & done; wait")
		// which does not report OOM kills
		if res.Verdict != sandbox.VerdictMemoryLimit && !(e.name == "podman" && res.Verdict == sandbox.VerdictSignaled) {
			t.Errorf("memory: %s, %+v, %q", res.Verdict, res.Metrics, res.Notes)
		}
	})
}
