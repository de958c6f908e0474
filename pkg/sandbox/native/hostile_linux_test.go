package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// managed returns a backend and its manager, which end with the test.
func managed(t *testing.T, o Options) (*Backend, *sandbox.Manager) {
	t.Helper()
	b := newBackend(t, o)
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return b, m
}

// newSandbox is a sandbox of its own backend.
func newSandbox(t *testing.T, spec sandbox.Spec) (run func(phase, script string) *sandbox.Result) {
	t.Helper()
	_, m := managed(t, Options{})
	id, err := m.Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return func(phase, script string) *sandbox.Result {
		t.Helper()
		res, err := m.Run(context.Background(), id, sandbox.Process{Phase: phase, Args: []string{"sh", "-c", script}}, sandbox.IO{})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
}

// publicDir is a host directory that every user may write to, and that no sandbox shows.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A program with a writable root plants links where the next phase mounts, or where the sources of mounts are. None of
// them leads to the host (F3, F6).
func TestAttackLinksInWritableRoot(t *testing.T) {
	outside := publicDir(t)
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("host"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"/sys", "/media", "/opt", "/run", "/srv", "/mnt"} {
		run := newSandbox(t, writable(t, sandbox.Spec{}))
		// The control: the program may change its own root.
		if res := run("one", "rm -rf "+place+" && ln -s /.."+outside+" "+place+" && readlink "+place); string(res.Stdout.Bytes()) != "/.."+
			outside+"\n" {
			t.Fatalf("%s: %s %q", place, res.Verdict, res.Stderr.Bytes())
		}
		res := run("two", "for d in /proc/* "+place+"; do cat $d/secret && echo x > $d/planted; done 2>/dev/null; grep -v ' - "+
			"\\(tmpfs\\|proc\\|devpts\\|overlay\\|ext4 /dev/loop\\)' /proc/self/mountinfo; true")
		if out := string(res.Stdout.Bytes()); strings.Contains(out, "host") || strings.Contains(out, outside) {
			t.Errorf("%s leads out: %q", place, out)
		}
		if _, err := os.Lstat(filepath.Join(outside, "planted")); err == nil {
			t.Errorf("%s: something was written on the host", place)
		}
	}
}

// Only the program follows the host's links that its root shows. Making the mount point of a volume behind a link must
// not reach the host (F6).
func TestAttackVolumeBehindLink(t *testing.T) {
	needRoot(t)
	outside := publicDir(t)
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(publicDir(t), "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, m := managed(t, Options{})
	for _, v := range []sandbox.Volume{
		{Source: filepath.Join(source, "file"), Target: link + "/precious"}, {Source: source, Target: link + "/made"},
		{Source: source, Target: link},
	} {
		_, err := m.Create(context.Background(), sandbox.Spec{Root: sandbox.Root{HostPaths: []string{"/usr", "/bin", "/lib", "/lib64", link}},
			Volumes: []sandbox.Volume{v}})
		if err == nil || !strings.Contains(err.Error(), v.Target) || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: %v", v.Target, err)
		}
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "data" {
		t.Errorf("the host's file is %q, %v", text, err)
	}
	if _, err := os.Lstat(outside + "/made"); err == nil {
		t.Error("a directory was made on the host")
	}
	// The control: without the link in the way it works.
	if _, err := m.Create(context.Background(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: source, Target: "/made"}}}); err != nil {
		t.Error(err)
	}
}

// The sandbox acts as the owner of the file that it is given, whatever is at that path a moment before or after (F9).
func TestAttackSwappedVolume(t *testing.T) {
	needRoot(t)
	dir := publicDir(t)
	theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
	for d, uid := range map[string]int{theirs: 501, ours: 0} {
		if err := os.MkdirAll(d+"/x", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d+"/x/secret", []byte("secret"), 0o600); err != nil { // root's, in both
			t.Fatal(err)
		}
		if err := os.Chown(d+"/x", uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "path")
	if err := os.Rename(theirs, path); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "link")
	if err := os.Symlink(ours, other); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	swapping := make(chan struct{})
	go func() {
		defer close(swapping)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-swapping }()
	_, m := managed(t, Options{})
	opened := 0
	for range 150 {
		id, err := m.Create(context.Background(), sandbox.Spec{Scratch: sandbox.ScratchMemory,
			Volumes: []sandbox.Volume{{Source: path + "/x", Target: "/data"}}})
		if err != nil {
			continue // a link on the way, or nothing there
		}
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"cat", "/data/secret"}}, sandbox.IO{})
		if err == nil {
			opened++
			if strings.Contains(string(res.Stdout.Bytes()), "secret") {
				t.Error("read as the owner of another file")
			}
		}
		if err := m.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	}
	if opened == 0 {
		t.Error("it was never there: this proves nothing")
	}
}

// Volumes in volumes are all mounted, in any order of the request; a file can be a volume, and be written to.
func TestVolumesInVolumes(t *testing.T) {
	needRoot(t)
	dir := publicDir(t)
	for _, d := range []string{"outer/inner", "mask"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for f, text := range map[string]string{"outer/inner/secret": "secret", "outer/inner/f": "", "mask/nothing": "", "file": "before"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := newSandbox(t, sandbox.Spec{Volumes: []sandbox.Volume{
		{Source: filepath.Join(dir, "mask"), Target: "/data/inner"}, {Source: filepath.Join(dir, "outer"), Target: "/data"},
		{Source: filepath.Join(dir, "file"), Target: "/workspace/a/file", Writable: true},
	}})
	res := run("run", "ls /data/inner; echo after > /workspace/a/file; cat /workspace/a/file")
	if got := string(res.Stdout.Bytes()); got != "nothing\nafter\n" {
		t.Errorf("%q %q", got, res.Stderr.Bytes())
	}
	if text, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(text) != "after\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// An impossible target is an error of the request, reported before a program runs.
func TestVolumeTargetsThatCanNotBe(t *testing.T) {
	_, m := managed(t, Options{})
	dir := publicDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, v := range []sandbox.Volume{
		{Source: dir, Target: "/usr/no-such-place"}, {Source: dir, Target: "/usr/bin/env"}, {Source: file, Target: "/usr/bin"},
		{Source: dir, Target: "/etc/passwd/x"},
	} {
		if _, err := m.Create(context.Background(), sandbox.Spec{Volumes: []sandbox.Volume{v}}); !errors.Is(err, sandbox.ErrInvalid) ||
			!strings.Contains(err.Error(), v.Target) {
			t.Errorf("%s: %v", v.Target, err)
		}
	}
	if _, err := m.Create(context.Background(), sandbox.Spec{Volumes: []sandbox.Volume{{Source: file, Target: "/usr/bin/env"},
		{Source: dir, Target: "/usr/lib/locale"}}}); err != nil {
		t.Errorf("the control: %v", err)
	}
}

// A working directory named by a descriptor could be one that the init has open (F2).
func TestAttackWorkdirByDescriptor(t *testing.T) {
	_, m := managed(t, Options{})
	id, err := m.Create(context.Background(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for dir, ok := range map[string]bool{"/proc/self/cwd": false, "/proc/self/root": false, "/proc/self/fd/3": false, "/proc/self": true,
		"/bin": true} {
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"/bin/true"}, Workdir: dir}, sandbox.IO{})
		if ok != (err == nil && res.Verdict == sandbox.VerdictOK) || !ok && !strings.Contains(err.Error(), "workdir") {
			t.Errorf("%s: %+v, %v", dir, res, err)
		}
	}
}

// The supervisor's umask does not change a sandbox.
func TestUmask(t *testing.T) {
	needRoot(t)
	defer unix.Umask(unix.Umask(0o077))
	for _, spec := range []sandbox.Spec{{}, writable(t, sandbox.Spec{})} {
		run := newSandbox(t, spec)
		if res := run("run", "stat -c '%a' / /etc /etc/passwd /home /workspace /tmp; echo x > "+
			"$HOME/x"); string(res.Stdout.Bytes()) != "755\n755\n644\n755\n755\n1777\n" || res.Verdict != sandbox.VerdictOK {
			t.Errorf("writable %v: %s %q %q", spec.WritableRoot, res.Verdict, res.Stdout.Bytes(), res.Stderr.Bytes())
		}
	}
}

// A machine that had space for scratch disks at the capability check may have none later. The report says so, and
// --strict refuses it.
func TestScratchThatBecameMemory(t *testing.T) {
	dir := cacheDir(t)
	_, m := managed(t, Options{CacheDir: dir})
	missing := func() []sandbox.Gap {
		id, err := m.Create(context.Background(), sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		return info.Isolation.Missing
	}
	if err := scratch.DiskAvailable(dir); err != nil {
		t.Skip(err) // needs loop devices, as the scratch tests do
	}
	if got := missing(); len(got) != 0 {
		t.Fatalf("this machine lacks something else: %+v", got)
	}
	if err := os.Chmod(dir, 0o777); err != nil { // a cache that others could change is not used
		t.Fatal(err)
	}
	if got := missing(); len(got) != 1 || got[0].Control != sandbox.ControlDisk {
		t.Errorf("%+v", got)
	}
	if _, err := m.Create(context.Background(), sandbox.Spec{Strict: true}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("strict: %v", err)
	}
	if _, err := m.Create(context.Background(), sandbox.Spec{Strict: true, Scratch: sandbox.ScratchMemory}); err != nil {
		t.Errorf("memory, as asked for: %v", err)
	}
}

// Closing everything while sandboxes are being made leaves nothing, and does not panic.
func TestCloseWhileCreating(t *testing.T) {
	for n := range 12 {
		b := newBackend(t, Options{})
		m := sandbox.NewManager(b, sandbox.Options{})
		spec := sandbox.Spec{}
		if n%2 == 0 {
			spec = writable(t, spec)
		}
		spec.Scratch = sandbox.ScratchMemory
		var making sync.WaitGroup
		for range 3 {
			making.Go(func() {
				for {
					id, err := m.Create(context.Background(), spec)
					if err != nil {
						if !errors.Is(err, sandbox.ErrState) {
							t.Error(err)
						}
						return
					}
					_ = m.Delete(context.Background(), id)
				}
			})
		}
		time.Sleep(time.Duration(n) * 3 * time.Millisecond)
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
		making.Wait()
	}
}

// The failed start of a spare init does not fail the next sandbox.
func TestStillbornIsForgotten(t *testing.T) {
	b, m := managed(t, Options{})
	make1 := func() error {
		id, err := m.Create(context.Background(), sandbox.Spec{Scratch: sandbox.ScratchMemory})
		if err != nil {
			return err
		}
		return m.Delete(context.Background(), id)
	}
	if err := make1(); err != nil {
		t.Fatal(err)
	}
	id, err := b.host.Self.Identify(b.inits.supervisor, sandbox.DefaultUser, false)
	if err != nil {
		t.Fatal(err)
	}
	dead := &spareInit{id: id, cgroup: b.inits.supervisor.NewPhaseCgroup(id.Init), started: make(chan struct{}), err: unix.EMFILE}
	close(dead.started)
	b.inits.mu.Lock()
	b.inits.spare = dead
	b.inits.mu.Unlock()
	if err := make1(); err != nil {
		t.Error(err)
	}
}

// noLandlock makes later sandboxes run without Landlock, as on a kernel that has none.
func noLandlock(t *testing.T) {
	abi := rootfs.LandlockABI
	rootfs.LandlockABI = func() int { return 0 }
	t.Cleanup(func() { rootfs.LandlockABI = abi })
}

// A process that stops the other processes of its phase, also those that are being started, does not delay the report of
// its own end.
func TestAttackNeighbourThatStops(t *testing.T) {
	needRoot(t)
	noLandlock(t) // its scope of signals would protect them
	_, m := managed(t, Options{})
	id, err := m.Create(context.Background(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"sh", "-c",
			`end=$(($(date +%s) + 3)); n=0; while :; do kill -STOP -1 2>/dev/null; n=$((n + 1)); [ $((n % 1000)) -ne 0 ] || [ $(date ` +
				`+%s) -lt $end ] || break; done; exit 5`}}, sandbox.IO{})
		if err != nil || res.Exit.Code != 5 {
			t.Errorf("the one that stops others: %+v, %v", res, err)
		}
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("its end was heard of after %v", took)
		}
		_ = m.Kill(id) // ends the stopped processes
	}()
	for n := 0; ; n++ {
		select {
		case <-ended:
			if n == 0 {
				t.Error("it was alone")
			}
			return
		default:
			_, _ = m.Run(context.Background(), id, sandbox.Process{Args: []string{"/bin/true"}}, sandbox.IO{})
		}
	}
}

// Programs of one phase, which share a pid and a network namespace, reach each other neither by signals nor by abstract
// sockets where Landlock has
// scopes (S6, N1). Without Landlock they do.
func TestLandlockScopes(t *testing.T) {
	needRoot(t)
	if abi := rootfs.LandlockABI(); abi < 6 {
		t.Skipf("this kernel's Landlock (ABI %d) has no scopes", abi)
	}
	const server = `import os, socket
s = socket.socket(socket.AF_UNIX)
s.bind("\0neighbour")
s.listen()
print(os.getpid(), flush=True)
s.accept()`
	const client = `import os, socket, sys
def tried(what):
    try:
        what()
        return "ok"
    except OSError as e:
        return str(e.errno)
print(tried(lambda: os.kill(int(sys.argv[1]), 0)), tried(lambda: socket.socket(socket.AF_UNIX).connect("\0neighbour")),
      tried(lambda: os.kill(os.getpid(), 0)))`
	for name, want := range map[string]string{"with Landlock": "1 1 ok\n", "without": "ok ok ok\n"} {
		t.Run(name, func(t *testing.T) {
			if name == "without" {
				noLandlock(t)
			}
			_, m := managed(t, Options{})
			id, err := m.Create(t.Context(), sandbox.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			pid, ended := make(chan string, 1), make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = m.Run(context.Background(), id, sandbox.Process{Args: []string{"/usr/bin/python3", "-c", server}},
					sandbox.IO{OnEvent: func(ev sandbox.Event) {
						if ev.Kind == sandbox.EventStdout {
							pid <- strings.TrimSpace(string(ev.Data))
						}
					}})
			}()
			select {
			case n := <-pid:
				res, err := m.Run(t.Context(), id, sandbox.Process{Args: []string{"/usr/bin/python3", "-c", client, n}}, sandbox.IO{})
				if err != nil || string(res.Stdout.Bytes()) != want {
					t.Errorf("%v: %q, want %q; %s", err, res.Stdout.Bytes(), want, res.Stderr.Bytes())
				}
			case <-ended:
				t.Error("the neighbour has ended")
			}
			_ = m.Kill(id)
			<-ended
		})
	}
}

// A backend that was closed has no descriptor left.
func TestBackendLeavesNoDescriptors(t *testing.T) {
	needRoot(t)
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	cycle := func() {
		b := newBackend(t, Options{})
		m := sandbox.NewManager(b, sandbox.Options{})
		if _, err := m.Create(context.Background(), sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Close(), b.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
	}
	cycle() // opens the descriptors that stay open
	before := open()
	for range 5 {
		cycle()
	}
	// Cache directories stay open for the life of the process; each cycle has one of its own here.
	if after := open(); after > before+5 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

// A process that stops the others of its phase does not prevent a start: a process that is stopped before its exec
// continues. (After the exec, the other process may stop it.)
func TestAttackNeighbourThatStopsStarts(t *testing.T) {
	needRoot(t)
	noLandlock(t) // its scope of signals would protect them
	_, m := managed(t, Options{})
	ctx := context.Background()
	for n := range 6 {
		id, err := m.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{Wall: 2 * time.Minute, CPUs: 1}})
		if err != nil {
			t.Fatal(err)
		}
		over, ready := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			_, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c",
				`echo ready; while :; do kill -STOP -1; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do :; done; done 2>/dev/null`}},
				sandbox.IO{OnEvent: func(ev sandbox.Event) {
					if ev.Kind == sandbox.EventStdout {
						close(ready)
					}
				}})
			if err != nil {
				t.Error(err)
			}
		}()
		<-ready
		began := time.Now()
		// The time limit of the stopping process ends the stopped ones with it.
		res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"true"},
			Limits: sandbox.Limits{Wall: 100 * time.Millisecond, Grace: time.Millisecond}}, sandbox.IO{})
		switch {
		case err != nil:
			t.Errorf("%d, after %v: %v", n, time.Since(began), err)
		case res.Metrics.StartupTime.Duration() > 10*time.Second:
			t.Errorf("%d: started after %v", n, res.Metrics.StartupTime.Duration())
		}
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
		<-over
	}
}
