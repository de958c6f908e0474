package conformance

import (
	"fmt"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var metricRows = []row{
	{"metrics: 1 s of CPU", []Expectation{Metrics}, true, func(e *env) {
		res := e.once(e.probe("burn", "1s")...)
		var said float64
		if _, err := fmt.Sscan(e.ok(res), &said); err != nil {
			e.Fatal(err)
		}
		got := res.Metrics.CPUTime.Duration().Seconds()
		// The time before the program reads its clock: its start.
		start := ample(10 * time.Millisecond).Seconds()
		if got < said*0.95 || got > said*1.04+start {
			e.Errorf("measured %.3f s, the program used %.3f s", got, said)
		}
		if sum := res.Metrics.CPUUser + res.Metrics.CPUSystem; sum != res.Metrics.CPUTime {
			e.Errorf("user + system is %v, CPU time %v", sum, res.Metrics.CPUTime)
		}
	}},
	{"metrics: 200 MB of memory", []Expectation{Metrics}, true, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Limits.Memory = 512 * sandbox.MiB })
		res := e.in(id, e.probe("memory", "200")...)
		e.says(res, "ok")
		if got := float64(res.Metrics.MemoryPeak) / (200 << 20); got < 0.9 || got > 1.1 {
			e.Errorf("measured %d bytes", res.Metrics.MemoryPeak)
		}
	}},
	{"metrics: 50 MB written and synced", []Expectation{Metrics, DiskApart}, true, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Limits.Disk, s.Scratch = 128*sandbox.MiB, sandbox.ScratchDisk })
		res := e.in(id, e.probe("write", "/workspace/x", "50")...)
		e.ok(res)
		if got := float64(res.Metrics.IOWrite) / (50 << 20); got < 0.9 || got > 1.1 {
			e.Errorf("measured %d bytes", res.Metrics.IOWrite)
		}
		// Of a child that another process reaps, too.
		res = e.in(id, e.sh(e.probe()[0]+" write /workspace/x 50 > /dev/null")...)
		e.ok(res)
		if got := float64(res.Metrics.IOWrite) / (50 << 20); got < 0.9 || got > 1.1 {
			e.Errorf("measured %d bytes of a child", res.Metrics.IOWrite)
		}
	}},
	{"metrics: processes", []Expectation{Metrics}, true, func(e *env) {
		res := e.once(e.sh("sleep 2 & sleep 2 & sleep 2 & wait")...)
		e.ok(res)
		if got := res.Metrics.ProcessesPeak; got < 4 || got > 5 {
			e.Errorf("measured %d, there were 4", got)
		}
	}},
}
