//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestKill(t *testing.T) {
	for _, kill := range []struct {
		name string
		core bool
	}{
		{name: "as it is", core: true},
		{name: "one by one"},
	} {
		t.Run(kill.name, func(t *testing.T) {
			tree := realTree(t)
			tree.canKill = tree.canKill && kill.core
			g := realGroup(t, tree, Limits{})
			below := tree.Group(g.Path() + "/below")
			if err := below.Make(Limits{}); err != nil {
				t.Fatal(err)
			}
			bystander := realGroup(t, tree, Limits{})
			p, q, other := start(t, holder(t, g), "fork 70"), start(t, below, "sleep"), start(t, bystander, "sleep")
			for !strings.Contains(p.output, "\nforked") {
				p.output += p.read()
			}
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			p.finish()
			if _, state := q.finish(); state.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
				t.Errorf("group below: %v", state)
			}
			if err := waitEmpty(g); err != nil {
				t.Error(err)
			}
			if err := unix.Kill(other.cmd.Process.Pid, 0); err != nil {
				t.Errorf("bystander: %v", err)
			}
			if pids, _ := bystander.Procs(); len(pids) != 1 {
				t.Errorf("bystander's group: %v", pids)
			}
			if err := g.Kill(); err != nil { // again, empty
				t.Error(err)
			}
		})
	}
}

func waitEmpty(g *Group) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		pids, err := g.Procs()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("still there: %v", pids)
		}
	}
}

// cgroup.kill needs one descriptor, and killing one by one two: with one left, only the first works.
func TestKillByTheKernel(t *testing.T) {
	tree := realTree(t, Kill)
	for _, core := range []bool{false, true} {
		tree.canKill = core
		g := realGroup(t, tree, Limits{})
		p := start(t, g, "sleep")
		giveBack := oneDescriptorLeft(t)
		err := g.Kill()
		giveBack()
		if !core { // the control
			if !errors.Is(err, unix.EMFILE) {
				t.Errorf("one by one: %v", err)
			}
			if pids, err := g.Procs(); err != nil || len(pids) != 1 {
				t.Errorf("one by one, and yet killed: %v (%v)", pids, err)
			}
			continue
		}
		// Without cgroup.kill, going through the lists would time out unless they were empty.
		if err != nil && !errors.Is(err, unix.EMFILE) {
			t.Errorf("cgroup.kill: %v", err)
		}
		if err := waitEmpty(g); err != nil {
			t.Errorf("cgroup.kill: %v", err)
		}
		p.kill()
	}
}

// oneDescriptorLeft lets this process open one file at a time, until the returned function is called.
func oneDescriptorLeft(t *testing.T) (giveBack func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	fds := make([]int, 64) // more than there are gaps between the descriptors in use
	for i := range fds {
		fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds[i] = fd
	}
	last := fds[len(fds)-1]
	now := old
	now.Cur = uint64(last + 1)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(last)
	return func() {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
		for _, fd := range fds[:len(fds)-1] {
			_ = unix.Close(fd)
		}
	}
}

// A process whose first thread has ended is one that cgroup.kill does not reach.
func TestKillWithoutFirstThread(t *testing.T) {
	tree := realTree(t)
	for _, core := range []bool{true, false} {
		tree.canKill = core && tree.v2() != nil
		g := realGroup(t, tree, Limits{})
		p := start(t, g, "headless")
		for deadline := time.Now().Add(30 * time.Second); !strings.HasSuffix(describeProcess(p.cmd.Process.Pid),
			"Z"); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(describeProcess(p.cmd.Process.Pid))
			}
		}
		if pids, err := g.Procs(); err != nil || len(pids) != 1 { // control: it still runs
			t.Fatalf("%v (%v)", pids, err)
		}
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		if err := waitEmpty(g); err != nil {
			t.Errorf("cgroup.kill %v: %v", core, err)
		}
		p.kill()
	}
}

// A program that forks without end must be caught one by one too.
func TestKillForkBomb(t *testing.T) {
	tree := realTree(t, Pids)
	for _, core := range []bool{true, false} {
		tree.canKill = core && tree.v2() != nil
		g := realGroup(t, tree, Limits{Pids: 100})
		p := start(t, g, "bomb")
		for deadline := time.Now().Add(bombTime * time.Second); mustStat(t, g).PidsLimitHits == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the bomb never reached its limit")
			}
		}
		if pids, err := g.Procs(); err != nil || len(pids) < 50 {
			t.Fatalf("the bomb is no bomb: %v (%v)", pids, err)
		}
		begin := time.Now()
		if err := g.Remove(t.Context()); err != nil {
			t.Errorf("cgroup.kill %v: %v", core, err)
		}
		t.Logf("cgroup.kill %v: fork bomb removed in %v", core, time.Since(begin))
		p.finish()
	}
}

func TestRemoveWithLiveProcesses(t *testing.T) {
	tree := realTree(t)
	top := realGroup(t, tree, Limits{})
	g := tree.Group(top.Path() + "/7/run")
	if err := g.Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	p := start(t, g, "sleep")
	begin := time.Now()
	if err := top.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed and removed in %v", time.Since(begin))
	if top.Exists() || g.Exists() {
		t.Error("still there")
	}
	if _, state := p.finish(); state.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("%v", state)
	}
	if err := top.Remove(t.Context()); err != nil { // twice
		t.Error(err)
	}
	if _, err := g.Stat(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of a group that is gone: %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Errorf("kill of a group that is gone: %v", err)
	}
	if _, err := g.JoinFiles(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("join of a group that is gone: %v", err)
	}
	if err := g.Add(p.cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("add to a group that is gone: %v", err)
	}
}
