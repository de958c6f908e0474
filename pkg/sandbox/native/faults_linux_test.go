package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const greeting = "echo hello > $HOME/x; cat $HOME/x"

func smallSpec() sandbox.Spec {
	return sandbox.Spec{Limits: sandbox.Limits{Memory: 64 * sandbox.MiB, Disk: 8 * sandbox.MiB, Inodes: 256,
		Grace: 100 * time.Millisecond}, Scratch: sandbox.ScratchDisk}
}

// cgroupMounts are the mount points of this machine's hierarchies.
func cgroupMounts() (points []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		if strings.HasPrefix(after, "cgroup") {
			points = append(points, strings.Fields(before)[4])
		}
	}
	return points, err
}

// readOnlyCgroups makes each hierarchy read-only, one at a time and then all.
func readOnlyCgroups([]string) error {
	points, err := cgroupMounts()
	if err != nil {
		return err
	}
	remount := func(p string, flags uintptr) error {
		return unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
	}
	tell(try("", smallSpec(), greeting)) // before the fault
	for _, p := range points {
		if err := remount(p, unix.MS_RDONLY); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		tell(try("read-only "+p, smallSpec(), greeting))
		if err := remount(p, 0); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	for _, p := range points {
		if err := remount(p, unix.MS_RDONLY); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	tell(try("read-only all", smallSpec(), greeting))
	return nil
}

func TestFaultReadOnlyCgroups(t *testing.T) {
	told, _ := runWithFault(t, true, "read-only-cgroups")
	if len(told) < 3 || told[0].Step != "" {
		t.Fatalf("%+v", told)
	}
	failed := failures(t, told)
	if last := told[len(told)-1]; last.Step == "" || !strings.Contains(last.Error, "read-only") {
		t.Errorf("all read-only: %+v", last)
	}
	for _, a := range failed {
		if place, _ := strings.CutPrefix(a.Fault, "read-only "); place != "all" && !strings.Contains(a.Error, filepath.Base(place)) {
			t.Errorf("%s: the error does not name it: %s", a.Fault, a.Error)
		}
	}
}

// readOnlyMidway makes all hierarchies read-only under a registered supervisor, and writable again after it has failed.
func readOnlyMidway([]string) error {
	points, err := cgroupMounts()
	if err != nil {
		return err
	}
	all := func(flags uintptr) error {
		for _, p := range points {
			if err := unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	}
	b, err := New(Options{CacheDir: os.Getenv(cacheVariable)})
	if err != nil {
		return err
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	ctx := context.Background()
	id, err := m.Create(ctx, smallSpec())
	if err != nil {
		return err
	}
	var groups []string
	for _, root := range b.host.Cgroups.Roots() {
		groups = append(groups, filepath.Join(root, filepath.Dir(b.inits.supervisor.NewGroup().Path())))
	}
	if _, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/true"}}, sandbox.IO{}); err != nil {
		return err
	}
	if err := errors.Join(m.Delete(ctx, id), all(unix.MS_RDONLY)); err != nil {
		return err
	}
	a := attempt{Fault: "read-only midway", Step: "create"}
	if _, err = m.Create(ctx, smallSpec()); err == nil {
		return errors.New("a sandbox without a cgroup")
	}
	a.Error = err.Error()
	tell(a)
	_ = m.Close()
	a.Step = "close"
	if err = b.Close(); err == nil {
		return errors.New("closed in peace, and left a cgroup")
	}
	a.Error = err.Error()
	tell(a)
	if err := all(0); err != nil {
		return err
	}
	tell(try("writable again", smallSpec(), greeting))
	next, err := New(Options{CacheDir: os.Getenv(cacheVariable)})
	if err != nil {
		return err
	}
	defer next.Close()
	a = attempt{Fault: "collected", Verdict: sandbox.VerdictOK, Output: "hello\n"}
	if _, err := next.Collect(ctx, false); err != nil {
		a.Left = err.Error()
	}
	for _, g := range groups {
		if _, err := os.Lstat(g); err == nil {
			a.Left += " " + g
		}
	}
	tell(a)
	return nil
}

func TestFaultCgroupsTurnReadOnly(t *testing.T) {
	told, _ := runWithFault(t, true, "read-only-midway")
	if failed := failures(t, told); len(failed) != 2 || len(told) != 4 {
		t.Errorf("%+v", told)
	}
}

// fill takes all the space below a directory, except for so many bytes.
func fill(dir string, but int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(make([]byte, max(0, int64(st.Bavail)*st.Bsize-but)))
	return err
}

func small(dir, options string) error {
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID, "mode=0755,"+options)
}

// fullRuntime: no space to register.
func fullRuntime([]string) error {
	if err := small("/run", "size=64k"); err != nil {
		return err
	}
	if err := fill("/run", 0); err != nil {
		return err
	}
	tell(try("no bytes", smallSpec(), greeting))
	if err := errors.Join(unix.Unmount("/run", unix.MNT_DETACH), small("/run", "nr_inodes=1")); err != nil {
		return err
	}
	tell(try("no inodes", smallSpec(), greeting))
	return nil
}

func TestFaultFullRuntimeDirectory(t *testing.T) {
	told, _ := runWithFault(t, true, "full-runtime")
	if failed := failures(t, told); len(failed) != 2 {
		t.Errorf("%+v", told)
	}
	for _, a := range told {
		if !strings.Contains(a.Error, "/run/sandbox-run") || !strings.Contains(a.Error, "no space left") {
			t.Errorf("%s: %s", a.Fault, a.Error)
		}
	}
}

// fullCache: little space for formatted image files and disks, and a bit more each time.
func fullCache([]string) error {
	top := filepath.Dir(os.Getenv(cacheVariable))
	rooms := []int64{0, 16 << 10, 48 << 10, 64 << 10, 128 << 10, 64 << 20}
	if testenv.All() {
		rooms = []int64{0, 4 << 10, 16 << 10, 48 << 10, 64 << 10, 96 << 10, 128 << 10, 192 << 10, 256 << 10, 384 << 10, 512 << 10, 1 << 20,
			4 << 20, 64 << 20}
	}
	for _, room := range rooms {
		// A process keeps the cache directories that it has opened.
		top := filepath.Join(top, strconv.FormatInt(room, 10))
		if err := errors.Join(os.Mkdir(top, 0o700), small(top, "size=128m"), fill(top, room),
			os.Setenv(cacheVariable, filepath.Join(top, "cache"))); err != nil {
			return err
		}
		for _, mode := range []sandbox.ScratchMode{sandbox.ScratchDisk, sandbox.ScratchAuto} {
			spec := smallSpec()
			spec.Scratch = mode
			tell(try(fmt.Sprintf("%d KiB, %s", room>>10, mode), spec, greeting))
		}
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return nil
}

func TestFaultFullCacheDirectory(t *testing.T) {
	dir := cacheDir(t)
	t.Setenv(cacheVariable, dir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	told, _ := runWithFault(t, true, "full-cache")
	for _, a := range failures(t, told) {
		if !strings.Contains(a.Error, filepath.Dir(dir)) && !strings.Contains(a.Error, "mkfs.ext4") ||
			!strings.Contains(a.Error, "no space left") {
			t.Errorf("%s: %s", a.Fault, a.Error)
		}
	}
	if last := told[len(told)-1]; last.Step != "" {
		t.Errorf("with room: %+v", last)
	}
}

// tooLargeDisk: there is less space than the sandbox's disk promises, and the program reaches the end of it.
func tooLargeDisk([]string) error {
	top := filepath.Dir(os.Getenv(cacheVariable))
	if err := small(top, "size=24m"); err != nil {
		return err
	}
	spec := smallSpec()
	spec.Limits.Disk = 64 * sandbox.MiB
	const write = "dd if=/dev/zero of=$HOME/x bs=1M conv=fsync count="
	for _, megabytes := range []string{"4", "48"} {
		tell(try(megabytes+" MB", spec, write+megabytes+" 2>/dev/null; echo $?"))
	}
	return nil
}

// A host with less space than the disk promises reports that in advance, and a run that runs out of it is an internal
// error.
func TestFaultHostDiskFillsUp(t *testing.T) {
	dir := cacheDir(t)
	t.Setenv(cacheVariable, dir)
	told, _ := runWithFault(t, true, "too-large-disk")
	if len(told) != 2 {
		t.Fatalf("%+v", told)
	}
	if a := told[0]; a.Step != "" || a.Output != "0\n" || !strings.Contains(strings.Join(a.Gaps, "|"), "overcommitted") {
		t.Errorf("%+v", a)
	}
	// The disk poller and the failed write race: either may be first.
	if a := told[1]; a.Step != "run" || !strings.Contains(a.Error, "floor of free space") &&
		!strings.Contains(a.Error, "lost what was written") {
		t.Errorf("%+v", a)
	}
}

// openNow lists the descriptors of this process.
func openNow() (list []string) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		// User namespaces for id mappings are kept, up to a bound.
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(l, "user:") {
			list = append(list, l)
		}
	}
	slices.Sort(list)
	return list
}

// fewDescriptors allows one more descriptor each time, so that every step that needs one fails once. With an argument,
// the process has so few from its first sandbox on, and then enough.
func fewDescriptors(args []string) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	spec := smallSpec()
	spec.Volumes = []sandbox.Volume{{Source: "/usr/lib", Target: "/lib2"}}
	if len(args) > 0 {
		limit, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return err
		}
		for _, cur := range []uint64{limit, before.Cur} {
			if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: cur, Max: before.Max}); err != nil {
				return err
			}
			tell(try(fmt.Sprintf("%d descriptors at first, then %d", limit, cur), spec, greeting))
		}
		return nil
	}
	for range 3 {
		tell(try("enough", spec, greeting)) // for the descriptors that are opened once
	}
	base, goroutines := openNow(), runtime.NumGoroutine()
	image, err := shellImage()
	if err != nil {
		return err
	}
	defer os.RemoveAll(image.Dir)
	inARow := 0
	for n := range 400 {
		limit := uint64(3 + n)
		if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: before.Max}); err != nil {
			return err
		}
		if spec.Root, spec.WritableRoot = (sandbox.Root{}), n%2 == 1; spec.WritableRoot {
			spec.Root = image
		}
		a := try(fmt.Sprintf("%d descriptors", limit), spec, greeting)
		if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: before.Cur, Max: before.Max}); err != nil {
			return err
		}
		now := openNow()
		for end := time.Now().Add(30 * time.Second); (len(now) > len(base) || runtime.NumGoroutine() > goroutines) &&
			time.Now().Before(end); now = openNow() {
			time.Sleep(time.Millisecond)
		}
		if len(now) > len(base) || runtime.NumGoroutine() > goroutines {
			buf := make([]byte, 1<<16)
			a.Left = fmt.Sprintf("%d goroutines, %d before; descriptors %q, %q before\n%s", runtime.NumGoroutine(), goroutines, now, base,
				buf[:runtime.Stack(buf, true)])
			base, goroutines = now, runtime.NumGoroutine()
		}
		tell(a)
		if inARow++; a.Step != "" {
			inARow = 0
		}
		if inARow == 6 {
			return nil
		}
	}
	return errors.New("it never has enough")
}

// fewerLater: a sandbox that has worked has too few descriptors in its later phases.
func fewerLater([]string) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	b, err := New(Options{CacheDir: os.Getenv(cacheVariable)})
	if err != nil {
		return err
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	ctx := context.Background()
	image, err := shellImage()
	if err != nil {
		return err
	}
	defer os.RemoveAll(image.Dir)
	for _, root := range []sandbox.Root{{}, image} {
		spec := smallSpec()
		spec.Root, spec.WritableRoot = root, root.Dir != ""
		id, err := m.Create(ctx, spec)
		if err != nil {
			return err
		}
		run := func(fault, phase, script string) {
			a := attempt{Fault: fault, Step: "run"}
			if res, err := m.Run(ctx, id, sandbox.Process{Phase: phase, Args: []string{"/bin/sh", "-c", script}}, sandbox.IO{}); err != nil {
				a.Error = err.Error()
			} else {
				a.Step, a.Verdict, a.Output = "", res.Verdict, string(res.Stdout.Bytes())
			}
			tell(a)
		}
		run("before", "first", greeting)
		for limit := uint64(3); limit < 60; limit++ {
			if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: before.Max}); err != nil {
				return err
			}
			run(fmt.Sprintf("%d descriptors", limit), fmt.Sprintf("p%d", limit), "cat $HOME/x")
			if err := syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: before.Cur, Max: before.Max}); err != nil {
				return err
			}
		}
		run("after", "last", "cat $HOME/x")
	}
	return errors.Join(m.Close(), b.Close())
}

func TestFaultFewerDescriptorsLater(t *testing.T) {
	told, _ := runWithFault(t, false, "fewer-later")
	for _, a := range failures(t, told) {
		if a.Fault == "before" || a.Fault == "after" || !strings.Contains(a.Error, "ulimit -n") {
			t.Errorf("%+v", a)
		}
	}
}

func TestFaultFewDescriptors(t *testing.T) {
	told, _ := runWithFault(t, false, "few-descriptors")
	failed := failures(t, told)
	if len(failed) < 20 {
		t.Errorf("only %d attempts failed", len(failed))
	}
	cold := 0
	// Below that the Go runtime itself fails, before any code of the supervisor.
	for limit := 10; limit < 32; limit += 3 {
		told, _ := runWithFault(t, false, "few-descriptors", strconv.Itoa(limit))
		if len(told) != 2 || told[1].Step != "" {
			t.Fatalf("%+v", told)
		}
		for _, a := range told {
			if isClear(t, a); a.Step != "" {
				failed, cold = append(failed, a), cold+1
			}
		}
	}
	if cold < 4 {
		t.Errorf("only %d processes failed that had few from the first", cold)
	}
	for _, a := range failed {
		if !strings.Contains(a.Error, "ulimit -n") {
			t.Errorf("%s: %s", a.Fault, a.Error)
		}
	}
}

// littleMemory: the supervisor, its inits and its sandboxes are in a memory cgroup of so many bytes.
func littleMemory(args []string) error {
	if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	for n := range 5 {
		// On v2 only a supervisor that may move itself has its inits and sandboxes below its own cgroup; those of others
		// are beside it, outside its limit.
		tell(tryWith(Options{Delegate: true}, strconv.Itoa(n), smallSpec(), greeting))
	}
	return nil
}

// At every size the supervisor works, or reports the missing resource, or the kernel kills it; then, as after any other
// crash, no leftover stays.
func TestFaultLittleMemory(t *testing.T) {
	needRoot(t)
	b := newBackend(t, Options{})
	defer b.Close()
	managed, ended := 0, 0
	sizes := []int{4, 6, 8, 9, 10, 11, 12, 14, 16, 24, 32, 64, 256} // with the race detector everything is larger
	for _, limit := range sizes {
		group := memoryGroup(t, limit<<20)
		told, state := runWithFault(t, false, "little-memory", group)
		for _, a := range told {
			a.Fault = fmt.Sprintf("%d MiB: %s", limit, a.Fault)
			if a.Verdict == sandbox.VerdictMemoryLimit || a.Verdict == sandbox.VerdictSignaled {
				continue // the outer limit ended the program, or its init
			}
			isClear(t, a)
		}
		t.Logf("%d MiB: %v, %d of 5 attempts", limit, state, len(told))
		switch ws := state.Sys().(syscall.WaitStatus); {
		case ws.Signaled() && ws.Signal() == unix.SIGKILL:
			ended++
		case len(told) == 5:
			managed++
		}
		// One attempt may be too early: a child that was being started holds its supervisor's registration until it is
		// executed or dead, and another collector may have begun with it and been cancelled.
		var left error
		for range 1200 {
			if _, err := b.Collect(context.Background(), false); err != nil {
				t.Error(err)
			}
			if left = os.Remove(group); left == nil || errors.Is(left, os.ErrNotExist) {
				left = nil
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if left != nil {
			inside, _ := filepath.Glob(group + "/*/*/cgroup.procs")
			t.Errorf("%d MiB: %v; there are %q", limit, left, inside)
		}
	}
	if managed == 0 || ended == 0 {
		t.Errorf("%d sizes were enough, at %d the kernel ended the supervisor: both must be seen", managed, ended)
	}
}

// killedSettled: a supervisor that has moved into a leaf of its own cgroup is killed before it is registered.
func killedSettled(args []string) error {
	if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	if _, err := New(Options{CacheDir: os.Getenv(cacheVariable), Delegate: true}); err != nil {
		return err
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

// The next start restores its cgroup: other processes can enter it, and it can be removed.
func TestFaultKilledSettled(t *testing.T) {
	needRoot(t)
	group := memoryGroup(t, 256<<20)
	_, state := runWithFault(t, false, "killed-settled", group)
	if ws := state.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != unix.SIGKILL {
		t.Fatalf("%v", state)
	}
	if left, _ := filepath.Glob(group + "/*/"); slices.ContainsFunc(left,
		func(p string) bool { st, err := os.Stat(p); return err == nil && st.IsDir() }) {
		t.Errorf("left: %q", left)
	}
	if on, err := os.ReadFile(group + "/cgroup.subtree_control"); err == nil && len(strings.TrimSpace(string(on))) > 0 {
		t.Errorf("its children still have %s", on)
	}
	if err := os.Remove(group); err != nil {
		t.Error(err)
	}
}

// memoryGroup makes a cgroup with a memory limit beside this process's own.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	dir, file := "", "memory.limit_in_bytes"
	for line := range strings.Lines(string(text)) {
		if _, own, found := strings.Cut(strings.TrimSpace(line), ":memory:"); found {
			for mount := range strings.Lines(string(mounts)) {
				if before, after, _ := strings.Cut(mount, " - "); strings.HasPrefix(after, "cgroup ") && strings.Contains(after, "memory") {
					dir = filepath.Join(strings.Fields(before)[4], own)
				}
			}
		}
	}
	if dir == "" {
		dir, file = "/sys/fs/cgroup", "memory.max"
	}
	dir = filepath.Join(dir, fmt.Sprintf("sandboxtest-%d-%d", os.Getpid(), limit))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(dir) })
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// removeGroup gives the kernel time to reap the processes of the cgroup.
func removeGroup(dir string) {
	for range 200 {
		if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
