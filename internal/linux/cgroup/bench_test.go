//go:build linux

package cgroup

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// The part of one run that this package takes. The benchmark itself reports the mean; the medians beside it show the time of
// one run on a busy machine.
func BenchmarkMakeLimitJoinStatRemove(b *testing.B) {
	tree := realTree(b)
	sup := realGroup(b, tree, Limits{})
	limits := Limits{}
	if tree.Has(Memory) {
		limits.Memory = 512 << 20
	}
	if tree.Has(CPU) {
		limits.CPU = 1
	}
	if tree.Has(Pids) {
		limits.Pids = 100
	}
	for _, idle := range []time.Duration{0, 2 * time.Millisecond, 20 * time.Millisecond} {
		b.Run("idle="+idle.String(), func(b *testing.B) { benchmarkRun(b, tree, sup, limits, idle) })
	}
}

func benchmarkRun(b *testing.B, tree *Tree, sup *Group, limits Limits, idle time.Duration) {
	b.ReportAllocs()
	names := []string{"make", "join", "final", "remove", "whole"}
	took := make([][]time.Duration, len(names))
	for i := 0; b.Loop(); i++ {
		time.Sleep(idle)
		t := []time.Time{time.Now()}
		g := tree.Group(fmt.Sprintf("%s/%d", sup.Path(), i))
		if err := g.Make(limits); err != nil {
			b.Fatal(err)
		}
		t = append(t, time.Now())
		files, err := g.JoinFiles()
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range files {
			_ = f.Close()
		}
		t = append(t, time.Now())
		if _, err := g.Final(); err != nil {
			b.Fatal(err)
		}
		t = append(t, time.Now())
		if err := g.Remove(context.Background()); err != nil {
			b.Fatal(err)
		}
		t = append(t, time.Now())
		for k := range 4 {
			took[k] = append(took[k], t[k+1].Sub(t[k]))
		}
		took[4] = append(took[4], t[4].Sub(t[0]))
	}
	for k, name := range names {
		slices.Sort(took[k])
		b.ReportMetric(float64(took[k][len(took[k])/2].Nanoseconds())/1000, name+"-p50-µs")
		b.ReportMetric(float64(took[k][len(took[k])*9/10].Nanoseconds())/1000, name+"-p90-µs")
	}
}

// The cost of a join for the joining process, one write per hierarchy: it alternates between two groups.
func BenchmarkMove(b *testing.B) {
	tree := realTree(b)
	groups := []*Group{realGroup(b, tree, Limits{}), realGroup(b, tree, Limits{})}
	cmd := exec.Command("/bin/sleep", "600")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Wait()         // killed
	defer cmd.Process.Kill() // ours
	for i := 0; b.Loop(); i++ {
		if err := groups[i%2].Add(cmd.Process.Pid); err != nil {
			b.Fatal(err)
		}
	}
}
