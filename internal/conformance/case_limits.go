package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var limitRows = []row{
	{"wall limit", nil, false, func(e *env) { // R5
		id := e.create()
		e.within(5*time.Second, "a wall limit of 300 ms", func() {
			res := e.do(id, sandbox.Process{Args: e.probe("sleep", "20s"), Limits: sandbox.Limits{Wall: 300 * time.Millisecond}}, sandbox.IO{})
			e.verdict(res, sandbox.VerdictTimeLimit)
			if w := res.Metrics.WallTime.Duration(); w < 300*time.Millisecond {
				e.Errorf("ended after %v", w)
			}
			if !violated(res, "timeout") {
				e.Errorf("violations %+v", res.Violations)
			}
			if sandbox.CLICode(res.Verdict, res.Exit) != 124 {
				e.Errorf("exit code %d", sandbox.CLICode(res.Verdict, res.Exit))
			}
		})
		e.ok(e.do(id, sandbox.Process{Args: e.probe("sleep", "10ms"), Limits: sandbox.Limits{Wall: 5 * time.Second}}, sandbox.IO{}))
	}},
	{"wall limit lets a program handle SIGTERM", nil, false, func(e *env) {
		id := e.create()
		var res *sandbox.Result
		// On a busy machine the program may not have installed its handler when its time is over.
		for wall := ample(500 * time.Millisecond); wall < caseTimeout/2; wall *= 2 {
			res = e.do(id, sandbox.Process{Args: e.probe("polite"), Limits: sandbox.Limits{Wall: wall, Grace: ample(10 * time.Second)}},
				sandbox.IO{})
			if e.verdict(res, sandbox.VerdictTimeLimit); strings.Contains(string(res.Stdout.Bytes()), "ready") {
				break
			}
		}
		if res.Exit.Code != 7 || !strings.Contains(string(res.Stdout.Bytes()), "bye") {
			e.Errorf("exit %+v, said %q", res.Exit, res.Stdout.Bytes())
		}
	}},
	{"CPU time limit", []Expectation{CPUTime}, false, func(e *env) { // R5
		id := e.create()
		const most = 1500 * time.Millisecond
		spare, stop := busyness(most) // the supervisor polls the use, and may be late
		defer stop()
		res := e.do(id, sandbox.Process{Args: e.probe("spin"), Limits: sandbox.Limits{CPUTime: 300 * time.Millisecond}}, sandbox.IO{})
		e.verdict(res, sandbox.VerdictCPULimit)
		if used := res.Metrics.CPUTime.Duration(); used < 300*time.Millisecond || used > most+spare() {
			e.Errorf("stopped after %v of CPU time", used)
		}
		if !violated(res, "cpu_time") || violated(res, "timeout") {
			e.Errorf("violations %+v", res.Violations)
		}
		// Children count, too; a program that sleeps does not.
		res = e.do(id, sandbox.Process{Args: e.sh("for i in 1 2 3; do while :; do :; done & done; wait"),
			Limits: sandbox.Limits{CPUTime: 300 * time.Millisecond}}, sandbox.IO{})
		e.verdict(res, sandbox.VerdictCPULimit)
		e.ok(e.do(id, sandbox.Process{Args: e.probe("sleep", "600ms"), Limits: sandbox.Limits{CPUTime: ample(300 * time.Millisecond)}},
			sandbox.IO{}))
	}},
	{"memory limit", []Expectation{Memory, Kernel}, false, func(e *env) { // R4
		// A sandbox each: the kernel may still be taking the memory of one that it killed, and kill the next for it, where they share a cgroup.
		small := func() string { return e.create(func(s *sandbox.Spec) { s.Limits.Memory = 64 * sandbox.MiB }) }
		id := small()
		e.says(e.in(id, e.probe("memory", "32")...), "ok") // control
		res := e.in(id, e.probe("memory", "128")...)
		e.verdict(res, sandbox.VerdictMemoryLimit)
		if res.Exit.Signal != 9 || res.Metrics.OOMKills == 0 || !violated(res, "memory") {
			e.Error(describe(res))
		}
		// The kernel charges in batches before it looks: a few pages over are its own.
		if p := res.Metrics.MemoryPeak; p < 50<<20 || p > 64<<20+256<<10 {
			e.Errorf("peak %d", p)
		}
		// The kernel kills a child: a program that fails then, and one that continues and succeeds.
		res = e.in(small(), e.sh(e.probe()[0]+" memory 128 || exit 5")...)
		e.verdict(res, sandbox.VerdictMemoryLimit)
		if res.Exit.Code != 5 {
			e.Errorf("exit %+v", res.Exit)
		}
		res = e.in(small(), e.sh(e.probe()[0]+" memory 128; true")...)
		if e.ok(res); !violated(res, "memory") {
			e.Errorf("violations %+v", res.Violations)
		}
		id = small() // more for one process, less for another
		e.says(e.do(id, sandbox.Process{Args: e.probe("memory", "128"), Limits: sandbox.Limits{Memory: 256 * sandbox.MiB}}, sandbox.IO{}), "ok")
		e.verdict(e.do(id, sandbox.Process{Args: e.probe("memory", "48"), Limits: sandbox.Limits{Memory: 32 * sandbox.MiB}}, sandbox.IO{}),
			sandbox.VerdictMemoryLimit)
		e.says(e.in(id, e.probe("memory", "32")...), "ok")
	}},
	{"memory in disguise", []Expectation{Memory, Isolated}, false, func(e *env) { // R4
		id := e.create(func(s *sandbox.Spec) { s.Limits.Memory = 64 * sandbox.MiB })
		if got := e.ok(e.in(id, e.probe("write", "/dev/shm/x", "8")...)); !strings.HasSuffix(got, "ok\n") { // control
			e.Errorf("/dev/shm: %q", got)
		}
		res := e.in(id, e.probe("write", "/dev/shm/x", "128")...)
		if res.Verdict != sandbox.VerdictMemoryLimit && !strings.Contains(string(res.Stdout.Bytes()), "ENOSPC") {
			e.Errorf("/dev/shm: %s, %q", describe(res), res.Stdout.Bytes())
		}
		if res.Metrics.MemoryPeak > 64<<20 {
			e.Errorf("peak %d", res.Metrics.MemoryPeak)
		}
	}},
	{"process limit", []Expectation{Processes}, false, func(e *env) { // R1
		id := e.create(func(s *sandbox.Spec) { s.Limits.Processes = 20 })
		e.says(e.in(id, e.sh("for i in 1 2 3 4 5; do sleep 30 & done; echo ok")...), "ok") // control
		res := e.in(id, e.sh("n=0; while [ $n -lt 40 ]; do sleep 30 & n=$((n+1)); done; echo all")...)
		if strings.Contains(string(res.Stdout.Bytes()), "all") || !violated(res, "pids") || res.Metrics.ProcessesPeak > 20 {
			e.Errorf("%s, said %q %q", describe(res), res.Stdout.Bytes(), res.Stderr.Bytes())
		}
	}},
	{"fork bomb", []Expectation{Processes}, false, func(e *env) { // R1
		id := e.create(func(s *sandbox.Spec) { s.Limits.Processes = 40; s.Limits.Wall = ample(2 * time.Second) })
		e.within(8*time.Second+ample(2*time.Second), "a fork bomb of 2 s", func() {
			// The first shell forks once, before the bomb: a pipeline needs two forks, and the second might be the one that is refused.
			res := e.in(id, e.sh("mkfifo $HOME/never; exec 3<>$HOME/never; bomb() { bomb | bomb & }; { bomb; } & read x <&3")...)
			e.verdict(res, sandbox.VerdictTimeLimit)
			if !violated(res, "pids") || res.Metrics.ProcessesPeak > 40 {
				e.Error(describe(res))
			}
		})
	}},
	{"disk limit: bytes", []Expectation{Disk}, false, func(e *env) { // F15
		id := e.create(func(s *sandbox.Spec) { s.Limits.Disk = 32 * sandbox.MiB; s.Limits.Memory = 128 * sandbox.MiB })
		for _, dir := range []string{"/workspace", "/tmp", "/home/sandbox"} {
			e.says(e.in(id, e.probe("write", dir+"/x", "4")...), fmt.Sprintf("%d ok", 4<<20)) // control
			res := e.in(id, e.probe("write", dir+"/x", "64")...)
			e.verdict(res, sandbox.VerdictDiskLimit)
			if !strings.Contains(string(res.Stdout.Bytes()), "ENOSPC") || !violated(res, "disk") || res.Exit.Code != 1 {
				e.Errorf("%s: %s, said %q", dir, describe(res), res.Stdout.Bytes())
			}
			e.ok(e.in(id, "rm", dir+"/x"))
		}
	}},
	{"disk limit: inodes", []Expectation{Disk, Inodes}, false, func(e *env) { // F15
		id := e.create(func(s *sandbox.Spec) { s.Limits.Inodes = 500 })
		e.says(e.in(id, e.probe("touch", "/tmp", "100")...), "100 ok") // control
		res := e.in(id, e.probe("touch", "/workspace", "5000")...)
		e.verdict(res, sandbox.VerdictDiskLimit)
		var n int
		var said string
		if _, err := fmt.Sscan(string(res.Stdout.Bytes()), &n, &said); err != nil || said != "ENOSPC" || n > 500 || n < 300 {
			e.Errorf("said %q", res.Stdout.Bytes())
		}
	}},
	{"disk is not memory", []Expectation{DiskApart, Memory}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) {
			s.Limits.Disk, s.Limits.Memory, s.Scratch = 256*sandbox.MiB, 48*sandbox.MiB, sandbox.ScratchDisk
		})
		res := e.in(id, e.probe("write", "/workspace/big", "150")...)
		e.says(res, fmt.Sprintf("%d ok", 150<<20))
		if res.Metrics.MemoryPeak > 49<<20 || res.Metrics.DiskUsed < 150<<20 {
			e.Error(describe(res))
		}
	}},
	{"scratch in memory", []Expectation{Disk, Memory}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Scratch = sandbox.ScratchMemory; s.Limits.Disk = 8 * sandbox.MiB })
		e.says(e.in(id, e.probe("write", "/workspace/x", "4")...), fmt.Sprintf("%d ok", 4<<20))
		e.verdict(e.in(id, e.probe("write", "/workspace/y", "16")...), sandbox.VerdictDiskLimit)
	}},
	{"open files", []Expectation{OpenFiles}, false, func(e *env) { // R6
		id := e.create(func(s *sandbox.Spec) { s.Limits.OpenFiles = 64 })
		e.says(e.in(id, e.probe("open", "40")...), "40 ok") // control
		var n int
		var said string
		got := e.ok(e.in(id, e.probe("open", "1000")...))
		if _, err := fmt.Sscan(got, &n, &said); err != nil || said != "EMFILE" || n > 64 {
			e.Errorf("said %q", got)
		}
		if got := e.ok(e.in(id, e.probe("limits")...)); !strings.Contains(got, "nofile 64 64 ok") || !strings.Contains(got, "core 1 1 ok") {
			e.Errorf("limits %q", got)
		}
	}},
	{"CPU quota", []Expectation{Metrics}, true, func(e *env) {
		// The limit is far below a fair share of a busy machine, so that the program reaches it whatever else runs here.
		const limit, most = 0.05, 8 // cores, and percent with what the kernel lets a group overdraw
		id := e.create(func(s *sandbox.Spec) { s.Limits.CPUs = limit })
		// spin runs for a while, and again as long as the machine has too little CPU time for the limit to matter.
		spin := func(l sandbox.Limits, least, most float64, held bool) {
			for tries := 1; ; tries++ {
				res := e.do(id, sandbox.Process{Args: e.probe("spin"), Limits: l}, sandbox.IO{})
				p, throttled := res.Metrics.CPUPercent, res.Metrics.ThrottledTime
				short := p < least || held && throttled <= 0
				if p > most || short && tries == 60 {
					e.Errorf("%v cores were %.1f %%, throttled for %v", l.CPUs, p, throttled.Duration())
				} else if short {
					continue
				}
				return
			}
		}
		spin(sandbox.Limits{Wall: 2 * time.Second, CPUs: limit}, 1, most, true)
		spin(sandbox.Limits{Wall: time.Second, CPUs: 1}, most+2, 110, false) // control: the machine has more
	}},
}
