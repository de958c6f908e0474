//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFreezeThenKill(t *testing.T) {
	tree := realTree(t, Freeze)
	g := realGroup(t, tree, Limits{})
	p := start(t, g, "spin 60000")
	cpu := func() time.Duration { return mustStat(t, g).CPUTotal }
	for a := cpu(); cpu() == a; { // control: it runs
		time.Sleep(time.Millisecond)
	}
	if err := g.Freeze(true); err != nil {
		t.Fatal(err)
	}
	a := cpu()
	time.Sleep(50 * time.Millisecond)
	if b := cpu(); b > a+time.Millisecond { // it counts as frozen a moment before it gives its CPU up
		t.Errorf("frozen, and used %v", b-a)
	}
	if err := g.Freeze(false); err != nil {
		t.Fatal(err)
	}
	for a := cpu(); cpu() == a; {
		time.Sleep(time.Millisecond)
	}
	if err := g.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, state := p.finish(); state.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("%v", state)
	}
}

// v2Dir is the group's directory in the v2 tree, and whether it is there.
func v2Dir(tree *Tree, g *Group) (string, bool) {
	dir := tree.v2().place + "/" + rootName + "/" + g.Path()
	return dir, unix.Access(dir, unix.F_OK) == nil
}

// On a hybrid machine nothing of a run is in the v2 tree before a Freeze, and nothing after its Remove; or after its
// supervisor's, or after gc when nobody called either.
func TestFreezeMakesLazily(t *testing.T) {
	tree := realTree(t, Freeze)
	if !tree.v2().lazy {
		t.Skipf("runs join the v2 tree here (%s)", tree.Version())
	}
	sup := realGroup(t, tree, Limits{})
	top, _ := v2Dir(tree, sup)
	for k, remove := range []func(g *Group) error{
		func(g *Group) error { return g.Remove(t.Context()) },
		func(g *Group) error { return tree.Group(g.Path()).Remove(t.Context()) }, // another handle
		func(*Group) error { return sup.Remove(t.Context()) },
		func(*Group) error { // gc after a crash
			gc, refused := At(tree.Roots())
			defer gc.Close()
			if names, err := gc.List(); err != nil || len(refused) != 0 || !slices.Contains(names, sup.Path()) {
				t.Errorf("gc lists %v (%v), refuses %v", names, err, refused)
			}
			return gc.Group(sup.Path()).Remove(t.Context())
		},
		func(g *Group) error { // gc after a crash within Remove: only the v2 directories are left
			for _, group := range []*Group{g, sup} {
				for _, dir := range group.Dirs() {
					if err := unix.Rmdir(dir); err != nil {
						return err
					}
				}
			}
			gc, _ := At(tree.Roots())
			defer gc.Close()
			if names, err := gc.List(); err != nil || !slices.Contains(names, sup.Path()) {
				t.Errorf("gc lists %v (%v)", names, err)
			}
			return gc.Group(sup.Path()).Remove(t.Context())
		},
	} {
		if !sup.Exists() {
			if err := sup.Make(Limits{}); err != nil {
				t.Fatal(err)
			}
		}
		g := tree.Group(fmt.Sprintf("%s/%d", sup.Path(), k))
		if err := g.Make(Limits{}); err != nil {
			t.Fatal(err)
		}
		if err := g.Freeze(false); err != nil {
			t.Errorf("thaw of a group that was never frozen: %v", err)
		}
		if dir, there := v2Dir(tree, g); there {
			t.Errorf("%s before any Freeze", dir)
		}
		var p *probeProcess
		if k != 4 {
			p = start(t, g, "sleep")
		}
		if err := g.Freeze(true); err != nil {
			t.Fatal(err)
		}
		dir, there := v2Dir(tree, g)
		if !there {
			t.Errorf("%s is not there after Freeze", dir)
		}
		if k == 1 { // frozen twice, thawed between
			if err := errors.Join(g.Freeze(false), g.Freeze(true), g.Freeze(true)); err != nil {
				t.Error(err)
			}
		}
		if err := remove(g); err != nil {
			t.Errorf("way %d: %v", k, err)
		}
		if dir, there := v2Dir(tree, g); there || g.Exists() {
			t.Errorf("way %d: %s left", k, dir)
		}
		if p != nil {
			if _, state := p.finish(); state.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
				t.Errorf("way %d: %v", k, state)
			}
		}
		if err := g.Freeze(true); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("freeze of a group that is gone: %v", err)
		}
		if err := g.Freeze(false); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("thaw of a group that is gone: %v", err)
		}
		if dir, there := v2Dir(tree, g); there {
			t.Errorf("way %d: a late Freeze made %s", k, dir)
		}
	}
	if err := sup.Remove(t.Context()); err != nil || unix.Access(top, unix.F_OK) == nil {
		t.Errorf("%s is left (%v)", top, err)
	}
}

// frozen freezes a group of many. On a machine that is busy elsewhere not each of them may come to stop within the time that Freeze gives them.
func frozen(t *testing.T, g *Group) {
	t.Helper()
	err := g.Freeze(true)
	for tries := 1; errors.Is(err, unix.ETIMEDOUT) && tries < 5; tries++ {
		t.Logf("try %d: %v", tries, err)
		err = g.Freeze(true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A program that forks meanwhile is frozen whole, goes on when thawed, and dies frozen.
func TestFreezeForkBomb(t *testing.T) {
	tree := realTree(t, Freeze, Pids)
	for _, core := range []bool{true, false} {
		tree.canKill = core && tree.v2() != nil
		g := realGroup(t, tree, Limits{Pids: 60})
		p := start(t, g, "bomb")
		for round := range 3 {
			begin := time.Now()
			frozen(t, g)
			before := mustStat(t, g)
			t.Logf("round %d: %d processes frozen in %v", round, before.Pids, time.Since(begin))
			// The last of them counts as frozen a moment before it gives its CPU up, and the kernel adds that up later.
			still := before
			for deadline := time.Now().Add(bombTime * time.Second); ; {
				time.Sleep(20 * time.Millisecond)
				now := mustStat(t, g)
				if now.Pids != before.Pids || now.PidsLimitHits != before.PidsLimitHits || time.Now().After(deadline) {
					t.Fatalf("frozen, and yet: before %+v\nafter %+v", before, now)
				}
				if now.CPUTotal == still.CPUTotal {
					break
				}
				still = now
			}
			if err := g.Freeze(false); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(bombTime * time.Second); mustStat(t, g).CPUTotal == still.CPUTotal; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("thawed, and stands still")
				}
			}
		}
		frozen(t, g)
		begin := time.Now()
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		p.finish()
		if err := g.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("cgroup.kill %v: frozen fork bomb killed and removed in %v", core, time.Since(begin))
	}
}

// Kill and Remove do not mind a Freeze under way, however the program forks, and leave nothing in the v2 tree.
func TestKillWhileFreezing(t *testing.T) {
	tree := realTree(t, Freeze, Pids)
	for _, action := range []string{"bomb", "relay", "sleep"} {
		for round := range 5 {
			g := realGroup(t, tree, Limits{Pids: 100})
			p := start(t, g, action)
			var wg sync.WaitGroup
			wg.Go(func() { _ = g.Freeze(true) })
			time.Sleep(time.Duration(round) * time.Millisecond)
			if err := g.Remove(t.Context()); err != nil {
				t.Errorf("%s: %v", action, err)
			}
			wg.Wait()
			p.finish()
			if dir, there := v2Dir(tree, g); there {
				t.Errorf("%s: %s left", action, dir)
			}
		}
	}
}

// A process that is never the same for long may outrun Freeze, which then says so in time and leaves it running.
func TestFreezeRelay(t *testing.T) {
	tree := realTree(t, Freeze, Pids)
	g := realGroup(t, tree, Limits{Pids: 100})
	p := start(t, g, "relay")
	begin := time.Now()
	err := g.Freeze(true)
	t.Logf("after %v: %v", time.Since(begin), err)
	if took := time.Since(begin); took > gatherTime+2*freezeTime {
		t.Errorf("took %v", took)
	}
	before := mustStat(t, g).CPUTotal
	time.Sleep(50 * time.Millisecond)
	after := mustStat(t, g).CPUTotal
	// A busy machine may have let nobody run in that time.
	for end := time.Now().Add(bombTime / 2 * time.Second); err != nil && after == before && time.Now().Before(end); time.Sleep(time.Millisecond) {
		after = mustStat(t, g).CPUTotal
	}
	switch {
	case err == nil && after > before+time.Millisecond:
		t.Errorf("frozen, and used %v", after-before)
	case err != nil && (!errors.Is(err, unix.ETIMEDOUT) || after == before):
		t.Errorf("not frozen, and stands still: %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	p.finish()
}

// A process whose first thread has ended is not listed by v2, and is frozen all the same.
func TestFreezeWithoutFirstThread(t *testing.T) {
	tree := realTree(t, Freeze)
	g := realGroup(t, tree, Limits{})
	p := start(t, g, "headless")
	stat := func() string { return describe(p.cmd.Process.Pid) }
	for deadline := time.Now().Add(30 * time.Second); !strings.HasSuffix(stat(), "Z"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(stat())
		}
	}
	cpu := func() time.Duration { return mustStat(t, g).CPUTotal }
	for a := cpu(); cpu() == a; { // control: it runs
		time.Sleep(time.Millisecond)
	}
	if err := g.Freeze(true); err != nil {
		t.Fatal(err)
	}
	a := cpu()
	time.Sleep(50 * time.Millisecond)
	if b := cpu(); b > a+time.Millisecond { // it counts as frozen a moment before it gives its CPU up
		t.Errorf("frozen, and used %v", b-a)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	p.finish()
}
