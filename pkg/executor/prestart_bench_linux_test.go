package executor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkAhead compares a program in a prestarted process with the same node and flags outside of a sandbox, in interleaved
// pairs. The metric is the ratio of the medians; sources differ each time.
func BenchmarkAhead(b *testing.B) {
	e, p := pooledEngine(b)
	for _, language := range []string{"javascript", "typescript"} {
		b.Run(language, func(b *testing.B) {
			readied(b, e, p, language)
			var warm, cold, bare []time.Duration
			began := p.Stats()
			for n := range max(b.N, 30) {
				req := Request{Language: language, Code: fmt.Sprintf("console.log('hello %d')\n", n)}
				have(b, e, p, req)
				start := time.Now()
				res, err := e.Execute(context.Background(), req)
				if err != nil || res.Verdict != "ok" {
					b.Fatalf("%+v %v", res, err)
				}
				warm = append(warm, time.Since(start))
				start = time.Now()
				if _, err := unpooledEngine(b).Execute(context.Background(), req); err != nil {
					b.Fatal(err)
				}
				cold = append(cold, time.Since(start))
				plan, err := e.Plan(context.Background(), req)
				if err != nil {
					b.Fatal(err)
				}
				args := slices.Clone(plan.Phases[len(plan.Phases)-1].Process.Args)
				file := filepath.Join(b.TempDir(), "main.mjs")
				if language == "javascript" {
					file = filepath.Join(b.TempDir(), "main.js")
				}
				if err := os.WriteFile(file, []byte(req.Code), 0o644); err != nil {
					b.Fatal(err)
				}
				args[len(args)-1] = file
				start = time.Now()
				if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
					b.Fatalf("%s %v", out, err)
				}
				bare = append(bare, time.Since(start))
				if n == 0 {
					b.Logf("bare: %q", args)
				}
			}
			slices.Sort(warm)
			slices.Sort(bare)
			slices.Sort(cold)
			ended := p.Stats()
			b.ReportMetric(float64(warm[len(warm)/2])/float64(bare[len(bare)/2]), "warm/bare")
			b.ReportMetric(float64(warm[len(warm)/2])/float64(cold[len(cold)/2]), "warm/cold")
			b.ReportMetric(float64(ended.Warm-began.Warm)/float64(max(b.N, 30)), "woken/op")
			b.ReportMetric(float64(warm[len(warm)/2].Microseconds())/1000, "ms-warm")
			b.ReportMetric(float64(bare[len(bare)/2].Microseconds())/1000, "ms-bare")
		})
	}
}
