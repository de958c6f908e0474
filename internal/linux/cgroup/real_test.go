//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// These tests make real groups. They need the controllers they test, as root or delegated, and say so when they skip.

var groupCount atomic.Int64

// emulated is a machine on which a moment is not as short.
func realTree(t testing.TB, needs ...Controller) *Tree {
	t.Helper()
	testenv.NeedSystem(t)
	tree, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	if os.Geteuid() != 0 && (len(tree.hierarchies) == 0 || len(needs) == 0 && !tree.Has(Memory)) {
		t.Skipf("needs root or a delegated group: %v", tree.Missing())
	}
	for _, c := range needs {
		if !tree.Has(c) {
			t.Skipf("this machine's cgroups (%s) can not do what the test needs: %v", tree.Version(), tree.Missing())
		}
	}
	return tree
}

func uniquePath() string { return fmt.Sprintf("test-%d-%d", os.Getpid(), groupCount.Add(1)) }

// realGroup makes a group. When the test ends, it removes the group and checks that.
func realGroup(t testing.TB, tree *Tree, l Limits) *Group {
	t.Helper()
	g := tree.Group(uniquePath())
	if err := g.Make(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if g.Exists() {
			t.Errorf("%v still there", g.Dirs())
		}
	})
	return g
}

// holder is where a process of g can be although g has groups below it: g itself or, where a group that hands controllers
// down may hold no process (v2), one more below it.
func holder(t testing.TB, g *Group) *Group {
	t.Helper()
	if h := g.tree.v2(); h == nil || h.enable == "" {
		return g
	}
	beside := g.tree.Group(g.Path() + "/beside")
	if err := beside.Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	return beside
}

func mustStat(t *testing.T, g *Group) Stat {
	t.Helper()
	s, err := g.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestProbe(t *testing.T) {
	tree := realTree(t)
	t.Logf("version %s, roots %v, missing %v", tree.Version(), tree.Roots(), tree.Missing())
	if err := tree.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	names, err := tree.List()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, fmt.Sprintf("probe-%d-", os.Getpid())) }); i >= 0 {
		t.Errorf("%s left behind", names[i])
	}
}

func TestMemoryLimit(t *testing.T) {
	tree := realTree(t, Memory)

	control := realGroup(t, tree, Limits{Memory: 256 << 20})
	if out, state := start(t, control, "alloc 96").finish(); !strings.Contains(out, "allocated") || !state.Success() {
		t.Fatalf("control: 96 MiB under 256 MiB: %q, %v", out, state)
	}
	s := mustStat(t, control)
	if s.OOMKills != 0 || s.MemoryPeak < 96<<20 || s.MemoryPeak > 256<<20 || s.MemoryPeakPolled {
		t.Errorf("control: %+v", s)
	}

	g := realGroup(t, tree, Limits{Memory: 64 << 20})
	out, state := start(t, g, "alloc 96").finish()
	if ws := state.Sys().(syscall.WaitStatus); strings.Contains(out, "allocated") || !ws.Signaled() || ws.Signal() != unix.SIGKILL {
		t.Fatalf("96 MiB under 64 MiB: %q, %v", out, state)
	}
	s = mustStat(t, g)
	if s.OOMKills == 0 || s.MemoryPeak < 60<<20 || s.MemoryPeak > 65<<20 {
		t.Errorf("after the kill: %+v", s)
	}
}

// After a reset, the peak excludes earlier use. Where the kernel has no reset, ResetPeak is ErrUnsupported and the peak stays.
func TestResetPeak(t *testing.T) {
	tree := realTree(t, Memory)
	g := realGroup(t, tree, Limits{Memory: 256 << 20})
	use := func(mib string) uint64 {
		t.Helper()
		if out, state := start(t, g, "alloc "+mib).finish(); !strings.Contains(out, "allocated") || !state.Success() {
			t.Fatalf("%s MiB: %q, %v", mib, out, state)
		}
		return mustStat(t, g).MemoryPeak
	}
	if peak := use("96"); peak < 96<<20 {
		t.Fatalf("control: %d", peak)
	}
	err := g.ResetPeak()
	unsupported := errors.Is(err, ErrUnsupported)
	if err != nil && (!unsupported || tree.Version() != "v2") {
		t.Fatal(err)
	}
	peak := use("32")
	switch {
	case unsupported && peak < 96<<20:
		t.Errorf("not reset, and %d", peak)
	case !unsupported && (peak < 32<<20 || peak > 80<<20):
		t.Errorf("since the reset: %d", peak)
	}
	t.Logf("unsupported: %v, peak %d", unsupported, peak)
}

func TestMemorySetBothWays(t *testing.T) {
	tree := realTree(t, Memory)
	g := realGroup(t, tree, Limits{Memory: 64 << 20})
	for _, mib := range []uint64{128, 32, 512, 512} {
		if err := g.Set(Limits{Memory: mib << 20}); err != nil {
			t.Fatalf("%d MiB: %v", mib, err)
		}
		for i, dir := range g.Dirs() {
			if h := tree.hierarchies[i]; h.roles&roleMemory != 0 && !h.v2 {
				for _, file := range []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"} {
					b, err := os.ReadFile(dir + "/" + file)
					if errors.Is(err, fs.ErrNotExist) && !h.memsw {
						continue
					}
					if got := strings.TrimSpace(string(b)); err != nil || got != fmt.Sprint(mib<<20) {
						t.Errorf("%s is %s (%v), want %d MiB", file, got, err, mib)
					}
				}
			}
		}
	}
}

func TestPidsLimit(t *testing.T) {
	tree := realTree(t, Pids)

	control := realGroup(t, tree, Limits{Pids: 200})
	p := start(t, control, "fork 40")
	for !strings.Contains(p.output, "\nforked") && !strings.Contains(p.output, "refused") {
		p.output += p.read()
	}
	if !strings.Contains(p.output, "\nforked") {
		t.Fatalf("control: 40 children under 200: %q", p.output)
	}
	s := mustStat(t, control)
	if s.Pids < 40 || s.PidsLimitHits != 0 || s.PidsPeak < s.Pids && s.PidsPeak != 0 {
		t.Errorf("control: %+v", s)
	}
	if err := control.Kill(); err != nil {
		t.Fatal(err)
	}
	p.finish()

	g := realGroup(t, tree, Limits{Pids: 30})
	p = start(t, g, "fork 40")
	for !strings.Contains(p.output, "\nforked") && !strings.Contains(p.output, "refused") {
		p.output += p.read()
	}
	if !strings.Contains(p.output, "refused") || !strings.Contains(p.output, "temporarily unavailable") {
		t.Fatalf("40 children under 30: %q", p.output)
	}
	if s := mustStat(t, g); s.PidsLimitHits == 0 || s.PidsPeak > 30 {
		t.Errorf("after the refusal: %+v", s)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	p.finish()
}

func TestCPULimit(t *testing.T) {
	tree := realTree(t, CPU)
	// spin is the CPU time of a program that never waits, in cores.
	spin := func(g *Group, ms string) (Stat, float64) {
		t.Helper()
		begin := time.Now()
		if out, _ := start(t, g, "spin "+ms).finish(); !strings.Contains(out, "spun") {
			t.Fatal(out)
		}
		s := mustStat(t, g)
		return s, float64(s.CPUTotal) / float64(time.Since(begin))
	}
	// The limit is far below a fair share of a busy machine, so that the program reaches it whatever else runs here.
	const limit, clearlyMore = 0.02, 0.045
	for attempt := 1; ; attempt++ {
		s, share := spin(realGroup(t, tree, Limits{}), "500")
		t.Logf("free: %v CPU, %.3f cores", s.CPUTotal, share)
		if s.Throttled != 0 {
			t.Errorf("control: %+v", s)
		}
		if s.CPUUser+s.CPUSystem > s.CPUTotal+time.Millisecond || s.CPUUser+s.CPUSystem < s.CPUTotal-time.Millisecond {
			t.Errorf("user %v + system %v is not total %v", s.CPUUser, s.CPUSystem, s.CPUTotal)
		}
		if share > clearlyMore {
			break
		}
		if attempt == 60 {
			t.Fatal("control: without a limit it never got clearly more than the limit will be")
		}
	}
	s, share := spin(realGroup(t, tree, Limits{CPU: limit}), "1000") // several periods
	t.Logf("limited to %v: %v CPU, %.3f cores, throttled %v in %d periods", limit, s.CPUTotal, share, s.Throttled, s.ThrottledPeriods)
	if share > 1.6*limit || s.Throttled == 0 || s.ThrottledPeriods == 0 {
		t.Errorf("share %.3f of %v: %+v", share, limit, s)
	}
}

// v1 refuses a child more CPU than an ancestor has; the ancestor's limit is what counts then.
func TestCPULimitBelowTighterParent(t *testing.T) {
	tree := realTree(t, CPU)
	parent := realGroup(t, tree, Limits{CPU: 0.3})
	child := tree.Group(parent.Path() + "/leaf")
	if err := child.Make(Limits{CPU: 2}); err != nil {
		t.Fatal(err)
	}
	for i, dir := range child.Dirs() {
		if h := tree.hierarchies[i]; h.roles&roleCPU != 0 && !h.v2 {
			if r, ok := cpuRatio(dir); !ok || r > 0.3 || r < 0.29 {
				t.Errorf("child has %v cores (%v), want its parent's 0.3", r, ok)
			}
		}
	}
}

func TestJoinFiles(t *testing.T) {
	tree := realTree(t)
	g := realGroup(t, tree, Limits{})
	files, err := g.JoinFiles()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(g.Dirs()) {
		t.Errorf("%d files for %d directories", len(files), len(g.Dirs()))
	}
	for _, f := range files {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s is not close-on-exec", f.Name())
		}
		_ = f.Close()
	}
	p := start(t, g, "sleep")
	buf := make([]byte, 64)
	for i, dir := range g.Dirs() {
		pids, err := readPids(unix.AT_FDCWD, dir, &buf, nil)
		if err != nil || !slices.Equal(pids, []int{p.cmd.Process.Pid}) {
			t.Errorf("%s holds %v (%v), want %d", tree.hierarchies[i].label, pids, err, p.cmd.Process.Pid)
		}
	}
}

func TestCgroupFD(t *testing.T) {
	tree := realTree(t)
	g := realGroup(t, tree, Limits{})
	dir, err := g.CgroupFD()
	if tree.v2() == nil {
		if !errors.Is(err, ErrUnsupported) {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // killed
	pids, err := g.Procs()
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("group holds %v (%v), want %d", pids, err, cmd.Process.Pid)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
}

// A process that has joined some hierarchies only, as when its join was interrupted, is found and killed.
func TestRemoveHalfMade(t *testing.T) {
	tree := realTree(t)
	for i := range tree.hierarchies {
		g := realGroup(t, tree, Limits{})
		for j, dir := range g.Dirs() {
			if j != i {
				if err := unix.Rmdir(dir); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd := exec.Command("/bin/sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(unix.AT_FDCWD, tree.Roots()[i]+"/"+g.Path()+"/cgroup.procs", fmt.Sprint(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		// gc in another process: it has only the recorded roots.
		gc, refused := At(append(tree.Roots(), "/sys/fs/cgroup/nowhere/sandbox-run"))
		if len(refused) != 0 {
			t.Errorf("refused %v", refused)
		}
		if names, err := gc.List(); err != nil || !slices.Contains(names, g.Path()) {
			t.Errorf("%s: gc lists %v (%v)", tree.hierarchies[i].label, names, err)
		}
		if err := gc.Group(g.Path()).Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if g.Exists() {
			t.Errorf("%s: still there", tree.hierarchies[i].label)
		}
		_ = cmd.Wait()
	}
}

func TestRemoveIsBounded(t *testing.T) {
	tree := realTree(t)
	g := realGroup(t, tree, Limits{})
	start(t, g, "sleep")
	tree.rmdir = func(*hierarchy, string) error { return unix.EBUSY } // as a process asleep in the kernel would
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err := g.Remove(ctx)
	tree.rmdir = rmdirRetry
	if took := time.Since(begin); took >= removeTime {
		t.Errorf("took %v", took)
	}
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), g.Path()) ||
		!strings.Contains(err.Error(), tree.hierarchies[0].label) {
		t.Errorf("error does not say what remains: %v", err)
	}
}

func TestEmpty(t *testing.T) {
	tree := realTree(t)
	g := realGroup(t, tree, Limits{})
	below := tree.Group(g.Path() + "/below")
	if err := below.Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	want := func(want bool, when string) {
		t.Helper()
		if empty, err := g.Empty(); err != nil || empty != want {
			t.Errorf("%s: empty %v (%v)", when, empty, err)
		}
	}
	want(true, "new")
	for _, in := range []*Group{holder(t, g), below} {
		p := start(t, in, "sleep")
		want(false, "with a process in "+in.Path())
		// A joiner that was stopped between its writes counts as well.
		p.kill()
		want(true, "after it")
	}
	if files, err := g.JoinFiles(); err != nil {
		t.Error(err)
	} else {
		if tree.Has(Pids) && !strings.HasPrefix(tree.hierarchies[0].label, "pids") && !tree.hierarchies[0].v2 {
			t.Errorf("%s is joined before pids", tree.hierarchies[0].label)
		}
		for _, f := range files {
			_ = f.Close()
		}
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	want(true, "gone")
	gc, _ := At(tree.Roots()) // no roles: reads the lists
	defer gc.Close()
	if empty, err := gc.Group(g.Path()).Empty(); err != nil || !empty {
		t.Errorf("gc: %v (%v)", empty, err)
	}
}

func TestConcurrentMakeRemove(t *testing.T) {
	tree := realTree(t)
	sup := uniquePath()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			g := tree.Group(fmt.Sprintf("%s/%d/run", sup, i))
			if err := g.Make(Limits{}); err != nil {
				t.Error(err)
			}
			if _, err := g.Stat(); err != nil {
				t.Error(err)
			}
			if err := g.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			_ = tree.Group(fmt.Sprintf("%s/%d", sup, i)).Remove(t.Context())
			_ = tree.Prune() // neighbours' parents are in use or made again
		})
	}
	wg.Wait()
	top := tree.Group(sup)
	if children, err := tree.listAcross(top.rel); err != nil || len(children) != 0 {
		t.Errorf("left: %v (%v)", children, err)
	}
	if err := top.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// Make and Prune of several supervisors at once: an empty parent may vanish between any two calls.
func TestMakeAgainstPrune(t *testing.T) {
	tree := realTree(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				g := tree.Group(uniquePath())
				if err := g.Make(Limits{}); err != nil {
					t.Error(err)
				}
				if err := g.Remove(t.Context()); err != nil {
					t.Error(err)
				}
				if err := tree.Prune(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestMakeFailureLeavesNothing(t *testing.T) {
	tree := realTree(t, Memory)
	g := tree.Group(uniquePath() + "/run")
	last := &tree.hierarchies[len(tree.hierarchies)-1]
	tree.mkdir = func(h *hierarchy, path string) error {
		if h == last {
			return unix.ENOSPC // as with cgroup.max.descendants, or no css ids left
		}
		return mkdirRetry(h, path)
	}
	err := g.Make(Limits{})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, unix.ENOSPC) || e.File == "" || e.Hierarchy == "" {
		t.Errorf("error names too little: %v", err)
	}
	if g.Exists() || tree.Group(strings.TrimSuffix(g.Path(), "/run")).Exists() {
		t.Error("half a group left")
	}

	tree = realTree(t)
	g = realGroup(t, tree, Limits{})
	if err := g.Make(Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if !g.Exists() {
		t.Error("the second Make removed the first's group")
	}
}
