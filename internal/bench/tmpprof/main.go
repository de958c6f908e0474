//go:build linux

// Command tmpprof is a throw-away.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

func main() {
	mode := sandbox.ScratchMode(os.Args[1])
	n, _ := strconv.Atoi(os.Args[2])
	workers, _ := strconv.Atoi(os.Args[3])
	b, err := native.New(native.Options{})
	if err != nil {
		panic(err)
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	ctx := context.Background()
	var mu sync.Mutex
	t := map[string][]time.Duration{}
	add := func(k string, d time.Duration) { mu.Lock(); t[k] = append(t[k], d); mu.Unlock() }
	one := func() {
		t0 := time.Now()
		id, err := m.Create(ctx, sandbox.Spec{Scratch: mode})
		if err != nil {
			panic(err)
		}
		t1 := time.Now()
		r, err := m.Run(ctx, id, sandbox.Process{Args: []string{"true"}}, sandbox.IO{})
		if err != nil || !r.Success() {
			panic(fmt.Sprint(err, r))
		}
		t2 := time.Now()
		if err := m.Delete(ctx, id); err != nil {
			panic(err)
		}
		t3 := time.Now()
		add("create", t1.Sub(t0))
		add("run", t2.Sub(t1))
		add("run.startup", r.Metrics.StartupTime.Duration())
		add("run.wall", r.Metrics.WallTime.Duration())
		add("delete", t3.Sub(t2))
		add("total", t3.Sub(t0))
	}
	for range 5 {
		one()
	}
	clear(t)
	start := time.Now()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range n / workers {
				one()
				if workers == 1 && len(os.Args) > 4 {
					t0 := time.Now()
					c := exec.Command("bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--unshare-all", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true")
					if err := c.Run(); err != nil {
						panic(err)
					}
					add("bwrap", time.Since(t0))
				}
			}
		})
	}
	wg.Wait()
	total := time.Since(start)
	for _, k := range []string{"create", "run", "run.startup", "run.wall", "delete", "total", "bwrap"} {
		v := t[k]
		if len(v) == 0 {
			continue
		}
		slices.Sort(v)
		fmt.Printf("%-12s p50 %8v p95 %8v\n", k, v[len(v)/2], v[len(v)*95/100])
	}
	fmt.Printf("%d in %v = %.0f/s\n", n, total, float64(n)/total.Seconds())
	m.Close()
	b.Close()
}
