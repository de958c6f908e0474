//go:build linux

package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func dur(n int64) time.Duration { return time.Duration(n) }

// The machine that runs this may have no pure v2 tree, and none has an old kernel, so the file-level logic runs against a
// directory of regular files that mkdir fills as the kernel would. scripts/guest.sh runs the tests of the real thing on a
// v2 machine.

type fakeV2 struct {
	t     *testing.T
	mount string
	old   bool // a kernel without memory.peak, pids.peak, memory.swap.max, cgroup.kill
}

func (f *fakeV2) put(dir, name, text string) {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeV2) get(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "<" + errno(err).Error() + ">"
	}
	return string(b)
}

// fill empties files before a write: a regular file would keep the end of a longer value.
func (f *fakeV2) fill(dir, controllers string) {
	f.put(dir, "cgroup.controllers", controllers)
	for _, name := range []string{"cgroup.procs", "cgroup.subtree_control"} {
		f.put(dir, name, "")
	}
	f.put(dir, "cgroup.events", "populated 0\nfrozen 0\n")
	f.put(dir, "cpu.stat", "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_periods 9\nnr_throttled 2\nthrottled_usec 500\n")
	if !f.old {
		f.put(dir, "cgroup.kill", "")
	}
	for _, c := range strings.Fields(controllers) {
		switch c {
		case "cpu":
			f.put(dir, "cpu.max", "")
		case "memory":
			f.put(dir, "memory.max", "")
			f.put(dir, "memory.current", "4096\n")
			f.put(dir, "memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n")
			if !f.old {
				f.put(dir, "memory.peak", "8192\n")
				f.put(dir, "memory.swap.max", "")
			}
		case "pids":
			f.put(dir, "pids.max", "")
			f.put(dir, "pids.current", "3\n")
			f.put(dir, "pids.events", "max 4\n")
			if !f.old {
				f.put(dir, "pids.peak", "5\n")
			}
		case "io":
			f.put(dir, "io.stat", "8:0 rbytes=100 wbytes=200 rios=1 wios=1 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2 rios=1 wios=1\n")
		}
	}
}

func (f *fakeV2) mkdir(h *hierarchy, path string) error {
	dir := filepath.Join(h.place, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return errno(err)
	}
	f.fill(dir, strings.ReplaceAll(f.get(filepath.Dir(dir), "cgroup.subtree_control"), "+", ""))
	return nil
}

func (f *fakeV2) rmdir(h *hierarchy, path string) error {
	dir := filepath.Join(h.place, path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errno(err)
	}
	if slices.ContainsFunc(entries, fs.DirEntry.IsDir) || f.get(dir, "cgroup.procs") != "" {
		return unix.EBUSY
	}
	return os.RemoveAll(dir)
}

func newFakeV2(t *testing.T, old bool) (*fakeV2, *Tree) {
	f := &fakeV2{t: t, mount: t.TempDir(), old: old}
	const all = "cpu io memory pids"
	f.fill(f.mount, all)
	for _, dir := range []string{"slice", "slice/unit"} {
		if err := os.Mkdir(filepath.Join(f.mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		f.fill(filepath.Join(f.mount, dir), all)
	}
	f.put(f.mount, "slice/unit/cgroup.procs", "77\n")
	tree, err := newTree(detect("1 2 0:3 / "+f.mount+" rw - cgroup2 cgroup2 rw\n", "0::/slice/unit\n", false, realFiles{}), realFiles{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	tree.mkdir, tree.rmdir = f.mkdir, f.rmdir
	return f, tree
}

func TestFakeV2(t *testing.T) {
	f, tree := newFakeV2(t, false)
	place := filepath.Join(f.mount, "slice")
	if tree.Version() != "v2" || !slices.Equal(tree.Roots(), []string{place + "/sandbox-run"}) || len(tree.Missing()) != 0 {
		t.Fatalf("%s %v %v", tree.Version(), tree.Roots(), tree.Missing())
	}
	for c := Memory; c <= IO; c++ {
		if !tree.Has(c) {
			t.Errorf("lacks %d", c)
		}
	}
	g := tree.Group("sup-1/7/run")
	if err := g.Make(Limits{CPU: 1.5, Memory: 64 << 20, Pids: 20}); err != nil {
		t.Fatal(err)
	}
	leaf := g.Dirs()[0]
	for dir, want := range map[string]string{
		"": "+cpu +memory +pids +io", "sandbox-run": "+cpu +memory +pids +io", "sandbox-run/sup-1": "+cpu +memory +pids +io",
		"sandbox-run/sup-1/7": "+cpu +memory +pids +io", "sandbox-run/sup-1/7/run": "",
	} {
		if got := f.get(filepath.Join(place, dir), "cgroup.subtree_control"); got != want {
			t.Errorf("subtree_control of %q: %q", dir, got)
		}
	}
	for file, want := range map[string]string{"cpu.max": "150000 100000", "memory.max": "67108864", "memory.swap.max": "0", "pids.max": "20"} {
		if got := f.get(leaf, file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	f.put(leaf, "cpu.max", "")
	if err := g.Set(Limits{CPU: 0.001}); err != nil || f.get(leaf, "cpu.max") != "1000 100000" {
		t.Errorf("least quota: %v, %q", err, f.get(leaf, "cpu.max"))
	}
	want := Stat{
		CPUTotal: 30 * time.Microsecond, CPUUser: 20 * time.Microsecond, CPUSystem: 10 * time.Microsecond, Throttled: 500 * time.Microsecond,
		ThrottledPeriods: 2, MemoryCurrent: 4096, MemoryPeak: 8192, OOMKills: 1, Pids: 3, PidsPeak: 5, PidsLimitHits: 4, HasIO: true,
		IORead: 101, IOWrite: 202,
	}
	if s, err := g.Stat(); err != nil || s != want {
		t.Errorf("got  %+v (%v)\nwant %+v", s, err, want)
	}
	want.MemoryCurrent, want.Pids, want.PidsLimitHits = 0, 0, 0 // the peak of 5 never reached the limit of 20
	if s, err := g.Final(); err != nil || s != want {
		t.Errorf("final: got  %+v (%v)\nwant %+v", s, err, want)
	}
	f.put(leaf, "pids.peak", "20\n")
	if s, err := g.Final(); err != nil || s.PidsLimitHits != 4 {
		t.Errorf("final at the limit: %+v (%v)", s, err)
	}
	for pids, want := range map[string]bool{"3\n": false, "0\n": true} {
		f.put(leaf, "pids.current", pids)
		if empty, err := g.Empty(); err != nil || empty != want {
			t.Errorf("%q tasks: empty %v (%v)", pids, empty, err)
		}
	}
	if files, err := g.JoinFiles(); err != nil || len(files) != 1 || filepath.Base(files[0].Name()) != "cgroup.procs" {
		t.Errorf("join through %v (%v)", files, err)
	} else {
		_ = files[0].Close()
	}
	f.put(leaf, "cgroup.procs", "0\n") // of an invisible pid namespace: only the kernel can kill it
	if err := g.Kill(); err != nil || f.get(leaf, "cgroup.kill") != "1" {
		t.Errorf("kill: %v", err)
	}
	f.put(leaf, "cgroup.procs", "")
	if err := tree.Prune(); err != nil || !g.Exists() {
		t.Errorf("prune took a group in use: %v", err)
	}
	if err := tree.Group("sup-1").Remove(t.Context()); err != nil || g.Exists() {
		t.Errorf("remove: %v", err)
	}
	if err := tree.Prune(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(tree.Roots()[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("root: %v", err)
	}
}

// Parents made by a supervisor that died before it handed controllers down are put right.
// After a reset, the peak comes from the descriptor through which it was reset, and from no other.
func TestFakeV2ResetPeak(t *testing.T) {
	f, tree := newFakeV2(t, false)
	g := tree.Group("sup-1/8")
	if err := g.Make(Limits{Memory: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	leaf := g.Dirs()[0]
	peak := func() uint64 {
		t.Helper()
		s, err := g.Final()
		if err != nil || s.MemoryPeakPolled {
			t.Fatalf("%+v, %v", s, err)
		}
		return s.MemoryPeak
	}
	if got := peak(); got != 8192 {
		t.Errorf("before: %d", got)
	}
	for range 2 {
		if err := g.ResetPeak(); err != nil {
			t.Fatal(err)
		}
		if got := f.get(leaf, "memory.peak"); got != "reset" {
			t.Errorf("written to the kernel: %q", got)
		}
		f.put(leaf, "memory.peak", "6144\n")
	}
	held := g.ownPeak.Load()
	if err := os.Remove(leaf + "/memory.peak"); err != nil {
		t.Fatal(err)
	}
	f.put(leaf, "memory.peak", "8192\n") // what others see
	if got := peak(); got != 6144 {
		t.Errorf("after: %d", got)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := held.Close(); !errors.Is(err, os.ErrClosed) || g.ownPeak.Load() != nil {
		t.Errorf("still open: %v", err)
	}
}

func TestFakeV2HalfEnabledParent(t *testing.T) {
	f, tree := newFakeV2(t, false)
	dir := filepath.Join(f.mount, "slice/sandbox-run/sup-1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.fill(filepath.Dir(dir), "cpu io memory pids")
	f.fill(dir, "")
	g := tree.Group("sup-1/run")
	err := g.Make(Limits{})
	if err != nil || f.get(dir, "cgroup.subtree_control") != "+cpu +memory +pids +io" {
		t.Errorf("%v, %q", err, f.get(dir, "cgroup.subtree_control"))
	}
}

func TestFakeV2OldKernel(t *testing.T) {
	f, tree := newFakeV2(t, true)
	if tree.Has(Kill) || tree.Has(Swap) || len(tree.Missing()) != 3 || tree.gapReason("peak") == "no hierarchy has it" {
		t.Errorf("kill %v, swap %v, missing %v", tree.Has(Kill), tree.Has(Swap), tree.Missing())
	}
	g := tree.Group("run")
	if err := g.Make(Limits{Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	leaf := g.Dirs()[0]
	for _, step := range []struct {
		now  string
		peak uint64
	}{{"500", 500}, {"900", 900}, {"100", 900}} {
		f.put(leaf, "memory.current", step.now)
		s, err := g.Final()
		if err != nil || s.MemoryPeak != step.peak || !s.MemoryPeakPolled || s.PidsPeak != 0 || s.PidsLimitHits != 4 {
			t.Errorf("now %s: %+v (%v)", step.now, s, err)
		}
	}
	// A process of an invisible pid namespace shows as 0, and is never signalled.
	f.put(leaf, "cgroup.procs", "0\n")
	if err := g.Kill(); err == nil || !strings.Contains(err.Error(), "foreign pid namespace") {
		t.Errorf("pid 0: %v", err)
	}
}

func TestUnsupportedLimitsAreRefused(t *testing.T) {
	tree, err := newTree(detect("", "", false, machine{}), machine{})
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Group("x").Make(Limits{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("no hierarchy: %v", err)
	}
	dir := t.TempDir()
	tree, err = newTree(detect("1 2 0:1 / "+dir+" rw - cgroup cgroup rw,pids\n", "1:pids:/\n", false, realFiles{}), realFiles{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for _, l := range []Limits{{CPU: 1}, {Memory: 1 << 20}} {
		if err := tree.Group("x").Make(l); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "is not mounted") {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, l := range []Limits{{CPU: -1}, {Pids: -1}, {Memory: 1 << 63}} {
		if err := tree.Group("x").Make(l); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if err := tree.Group("x").Add(0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("add 0: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
}

// Without a pids controller, cgroup.events of v2 says whether a group holds a process.
func TestFakeV2EmptyWithoutPids(t *testing.T) {
	f := &fakeV2{t: t, mount: t.TempDir()}
	f.fill(f.mount, "memory")
	tree, err := newTree(detect("1 2 0:3 / "+f.mount+" rw - cgroup2 cgroup2 rw\n", "0::/\n", false, realFiles{}), realFiles{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	tree.mkdir, tree.rmdir = f.mkdir, f.rmdir
	g := tree.Group("a")
	if err := g.Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	for events, want := range map[string]bool{"populated 0\nfrozen 0\n": true, "populated 1\nfrozen 0\n": false} {
		f.put(g.Dirs()[0], "cgroup.events", events)
		if empty, err := g.Empty(); err != nil || empty != want {
			t.Errorf("%q: empty %v (%v)", events, empty, err)
		}
	}
	if err := os.RemoveAll(g.Dirs()[0]); err != nil {
		t.Fatal(err)
	}
	if empty, err := g.Empty(); err != nil || !empty {
		t.Errorf("gone: empty %v (%v)", empty, err)
	}
}

// v1 without a v2 tree: CPU time comes from cpuacct, and no swap file means Has(Swap) is false.
func TestFakeV1(t *testing.T) {
	dir := t.TempDir()
	tree, err := newTree(detect("1 2 0:1 / "+dir+" rw - cgroup cgroup rw,cpu,cpuacct,memory,pids\n", "1:cpu,cpuacct,memory,pids:/\n", false,
		realFiles{}), realFiles{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if tree.Version() != "v1" || tree.Has(Swap) || tree.Has(Kill) || !tree.Has(Memory) {
		t.Errorf("%v", tree.Missing())
	}
	f := &fakeV2{t: t}
	tree.mkdir = func(h *hierarchy, path string) error {
		if err := mkdirRetry(h, path); err != nil {
			return err
		}
		for name, text := range map[string]string{
			"cpu.stat": "nr_periods 1\nnr_throttled 3\nthrottled_time 77\n", "cpuacct.usage": "1000\n", "cpuacct.usage_user": "30\n",
			"cpuacct.usage_sys":     "10\n",
			"memory.usage_in_bytes": "10\n", "memory.max_usage_in_bytes": "20\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom " +
				"0\noom_kill 2\n",
			"pids.current": "1\n", "cgroup.procs": "", "memory.limit_in_bytes": "", "cpu.cfs_quota_us": "", "pids.max": "", "tasks": "",
		} {
			f.put(filepath.Join(h.place, path), name, text)
		}
		return nil
	}
	g := tree.Group("a")
	if err := g.Make(Limits{CPU: 2, Memory: 4096, Pids: 9}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.cfs_quota_us": "200000", "memory.limit_in_bytes": "4096", "pids.max": "9"} {
		if got := f.get(g.Dirs()[0], file); got != want {
			t.Errorf("%s: %q", file, got)
		}
	}
	if files, err := g.JoinFiles(); err != nil || len(files) != 1 || filepath.Base(files[0].Name()) != "tasks" {
		t.Errorf("join through %v (%v)", files, err)
	} else {
		_ = files[0].Close()
	}
	want := Stat{CPUTotal: 1000, CPUUser: 750, CPUSystem: 250, Throttled: 77, ThrottledPeriods: 3, MemoryCurrent: 10, MemoryPeak: 20,
		OOMKills: 2, Pids: 1}
	if s, err := g.Stat(); err != nil || s != want {
		t.Errorf("got  %+v (%v)\nwant %+v", s, err, want)
	}
	// Final leaves out what can not have happened: 1 µs of CPU time is far below the time of two cores, but not below a limit
	// that was once so low that slices handed to idle CPUs use it up.
	want.MemoryCurrent, want.Pids, want.Throttled, want.ThrottledPeriods = 0, 0, 0, 0
	g.quota.Store(int64(runtime.NumCPU())*5000 + 2)
	if s, err := g.Final(); err != nil || s != want {
		t.Errorf("final: got  %+v (%v)\nwant %+v", s, err, want)
	}
	if err := g.Set(Limits{CPU: 0.01}); err != nil {
		t.Fatal(err)
	}
	want.Throttled, want.ThrottledPeriods = 77, 3
	if s, err := g.Final(); err != nil || s != want {
		t.Errorf("final, tight limit: got  %+v (%v)\nwant %+v", s, err, want)
	}
	f.put(g.Dirs()[0], "cpuacct.usage_sys", "0\n")
	if s, err := g.Stat(); err != nil || s.CPUUser != 1000 || s.CPUSystem != 0 {
		t.Errorf("no system time: %+v (%v)", s, err)
	}
}
