package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The bars of the docker backend, in interleaved pairs: SANDBOX_RUN_BENCH=1 go test -run TestBars -v ./pkg/sandbox/docker
func TestBars(t *testing.T) {
	if os.Getenv("SANDBOX_RUN_BENCH") == "" {
		t.Skip("SANDBOX_RUN_BENCH is not set: it measures, and wants the machine for itself")
	}
	e := engines.start(t, "docker")
	const pairs = 30
	reference := func(ctx context.Context, n int) (bench.Sample, error) {
		time.Sleep(500 * time.Millisecond) // arrivals, two a second
		began := time.Now()
		out, err := exec.CommandContext(ctx, "docker", "-H", e.host, "run", "--rm", "--network", "none", testImage, "python3", "-c", fmt.Sprintf("print(%d)", n)).Output()
		took := time.Since(began)
		if err == nil && strings.TrimSpace(string(out)) != fmt.Sprint(n) {
			err = fmt.Errorf("docker run printed %q", out)
		}
		return bench.Sample{Wall: took}, err
	}
	for _, c := range []struct {
		name  string
		warm  int
		limit float64
	}{{"Docker backend cold, Python hello", 0, 1.1}, {"Docker backend warm, Python hello, arrivals 2/s", 3, 0.25}} {
		m := managed(t, e.backend(t, func(o *Options) { o.Warm = c.warm }))
		ours := func(ctx context.Context, n int) (bench.Sample, error) {
			time.Sleep(500 * time.Millisecond)
			began := time.Now()
			id, err := m.Create(ctx, sandbox.Spec{})
			if err != nil {
				return bench.Sample{}, err
			}
			res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"python3", "-c", fmt.Sprintf("print(%d)", n)}}, sandbox.IO{})
			if err == nil && strings.TrimSpace(string(res.Stdout.Bytes())) != fmt.Sprint(n) {
				err = fmt.Errorf("%s, printed %q", res.Verdict, res.Stdout.Bytes())
			}
			if err == nil {
				err = m.Delete(ctx, id) // nothing of it lives when this returns
			}
			return bench.Sample{Wall: time.Since(began)}, err
		}
		a, b, err := bench.Pairs(context.Background(), 3, pairs, ours, reference)
		if err != nil {
			t.Fatal(err)
		}
		row := bench.Compare(c.name, "docker run --rm --network none", a, b, c.limit)
		t.Logf("%s: ours p50 %v, docker run p50 %v, ratio %+v, bar %v, met %v", c.name, row.Ours, row.Reference, row.Ratio, c.limit, row.Met())
	}
}
