package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func managed(t testing.TB, b *Backend) *sandbox.Manager {
	t.Helper()
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func create(t testing.TB, m *sandbox.Manager, change ...func(*sandbox.Spec)) string {
	t.Helper()
	spec := sandbox.Spec{Limits: sandbox.Limits{Memory: 128 * sandbox.MiB, Disk: 32 * sandbox.MiB, Inodes: 1000, Processes: 30, CPUs: 0.5}}
	for _, c := range change {
		c(&spec)
	}
	id, err := m.Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func run(t testing.TB, m *sandbox.Manager, id string, script string, in io.Reader) *sandbox.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"sh", "-c", script}}, sandbox.IO{Stdin: in})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Works on every machine with Docker or Podman: each limit from inside, exact streams, files, an exit code, no leftovers.
func TestSmoke(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		m := managed(t, e.backend(t))
		id := create(t, m)
		info, err := m.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if info.Isolation.Tier != sandbox.TierContainer {
			t.Errorf("%+v", info.Isolation)
		}
		disk := slices.ContainsFunc(info.Isolation.Missing, func(g sandbox.Gap) bool {
			return g.Control == sandbox.ControlDisk && strings.HasPrefix(g.Reason, "shared with memory")
		})
		if !disk {
			t.Errorf("the scratch is reported as a disk: %+v", info.Isolation.Missing)
		}
		limits := run(t, m, id, `id -u; id -g; cd /sys/fs/cgroup
cat memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes pids/pids.max \
		cpu/cpu.cfs_quota_us memory.max memory.swap.max pids.max cpu.max 2>/dev/null
ulimit -Hn; ulimit -Hc
for d in /workspace /tmp $HOME; do df -B1 --output=size,target $d | tail -1; done
grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\t'
touch /x /usr/x /etc/x /.sandbox-run/x 2>&1 | grep -c 'Read-only'; ls /proc/net/dev >/dev/null && grep -c : /proc/net/dev; uname -n`, nil)
		got := strings.Fields(string(limits.Stdout.Bytes()))
		size := fmt.Sprint(128 << 20)
		for _, want := range []string{"1000", size, "62", "1024", "33554432", "/workspace", "/home/sandbox", "CapEff:0000000000000000",
			"CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2", "4", "sandbox"} {
			if !slices.Contains(got, want) {
				t.Errorf("%s is not among %q", want, got)
			}
		}
		if !slices.Contains(got, "50000") || limits.Stderr.Total > 0 && limits.Verdict != sandbox.VerdictOK {
			t.Errorf("%s, %q, %q", limits.Verdict, got, limits.Stderr.Bytes())
		}
		// Controls that the helper measures on the program are enforced, those that only the engine's machine shows are declared; strict refuses
		// both.
		for _, c := range sandbox.WallControls() {
			want := sandbox.Declared
			if slices.Contains(ofProgram, c) {
				want = sandbox.Enforced
			}
			if got := limits.Isolation.Controls[c]; got != want {
				t.Errorf("%s is %s: %+v", c, got, limits.Isolation.Missing)
			}
		}

		// Binary input of some size is returned unchanged, on both streams.
		sent := bytes.Repeat([]byte{0, 1, 2, 0xff, '\n', '\r', 0x1b}, 300_000)
		both := run(t, m, id, "tee /dev/stderr", bytes.NewReader(sent))
		sum := sha256.Sum256(sent)
		for i, got := range [][]byte{both.Stdout.Bytes(), both.Stderr.Bytes()} {
			if sha256.Sum256(got) != sum {
				t.Errorf("stream %d: %d of %d bytes", i, len(got), len(sent))
			}
		}
		if res := run(t, m, id, "exit 42", nil); res.Exit.Code != 42 || res.Verdict != sandbox.VerdictNonzeroExit {
			t.Errorf("%+v", res.Exit)
		}
		if res := run(t, m, id, "python3 -c 'x = bytearray(300 << 20)'", nil); res.Verdict != sandbox.VerdictMemoryLimit ||
			res.Metrics.OOMKills == 0 {
			t.Errorf("%s, %+v, %q", res.Verdict, res.Metrics, res.Stderr.Bytes())
		}
		if res := run(t, m, id, "head -c 64000000 /dev/zero > /workspace/x", nil); res.Verdict != sandbox.VerdictDiskLimit {
			t.Errorf("%s, %+v", res.Verdict, res.Metrics)
		}
		run(t, m, id, "rm /workspace/x", nil)

		err = m.Put(context.Background(), id, []sandbox.File{{Path: "/workspace/in/main.py",
			Data: []byte("print(open('/tmp/link').read().upper())"), Mode: 0o600}, {Path: "/tmp/data", Data: []byte("text")},
			{Path: "/tmp/link", Link: "data"}})
		if err != nil {
			t.Fatal(err)
		}
		if res := run(t, m, id, "python3 /workspace/in/main.py > /workspace/out; ln -s /etc/passwd /workspace/link; mkfifo /workspace/fifo",
			nil); res.Verdict != sandbox.VerdictOK {
			t.Errorf("%s, %q", res.Verdict, res.Stderr.Bytes())
		}
		files := map[string]string{}
		untaken, err := m.Take(context.Background(), id, sandbox.Selection{Patterns: []string{"/workspace/*"}},
			func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
				text, err := io.ReadAll(r)
				files[f.Path] = string(text)
				return err
			})
		if err != nil || len(untaken) != 2 || files["/workspace/out"] != "TEXT\n" {
			t.Errorf("%q, %+v, %v", files, untaken, err)
		}
		if err := m.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
}

// The containers of a killed supervisor end with it; the next supervisor removes those that were never started.
func TestCrash(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		if e.name == "podman" {
			testenv.NeedAll(t, "Docker Engine")
		}
		t.Setenv(hostVariable, e.host)
		b := e.backend(t)
		t.Setenv(stateVariable, b.opts.StateDir)
		if !testenv.All() {
			crashOnce(t, e, b)
			return
		}
		t.Setenv(testenv.AllVariable, "") // as often as in ordinary tests: containers are slow
		conformance.Crash(t, b, sandbox.TierContainer)
		// A busy daemon may still make a container of a dead supervisor: the start after that collects it.
		for deadline := time.Now().Add(30 * time.Second); len(e.containers(t)) > 0 &&
			time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if _, err := b.Collect(context.Background(), false); err != nil {
				t.Error(err)
			}
		}
	})
}

// crashOnce is the short form: one supervisor, killed while its program runs, and a container that was left half made.
func crashOnce(t *testing.T, e *engine, b *Backend) {
	m := managed(t, b)
	survivor := create(t, m)
	other := e.backend(t)
	registration := registrationLock{dir: b.opts.StateDir}
	if err := registration.register(); err != nil {
		t.Fatal(err)
	}
	d, err := other.connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	other.registration.name, other.registration.dir = registration.name, registration.dir
	settings, err := other.settings(d, &sandbox.Spec{User: sandbox.DefaultUser, Hostname: "x", Limits: sandbox.DefaultLimits()})
	if err != nil {
		t.Fatal(err)
	}
	volume, err := other.helperVolume(context.Background(), d, testImage)
	if err != nil {
		t.Fatal(err)
	}
	config, host, err := other.config(d, settings, d.setup(settings), volume)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.create(context.Background(), d, config, host); err != nil {
		t.Fatal(err)
	}
	// Its owner runs: Collect leaves it.
	if found, err := b.Collect(context.Background(), false); err != nil || len(found) != 0 {
		t.Errorf("of a running supervisor: %+v, %v", found, err)
	}
	_ = registration.file.Close() // as the kernel does for a process that ends
	if found, err := b.Collect(context.Background(), true); err != nil || len(found) != 2 || found[0].Removed {
		t.Errorf("a look: %+v, %v", found, err)
	}
	found, err := b.Collect(context.Background(), false)
	if err != nil || len(found) != 2 || found[0].Kind != "container" || !found[0].Removed || found[1].Kind != "lock" || !found[1].Removed {
		t.Errorf("%+v, %v", found, err)
	}
	if res := run(t, m, survivor, "echo alive", nil); string(res.Stdout.Bytes()) != "alive\n" {
		t.Errorf("%+v", res)
	}
}

// Containers that were made ahead serve one sandbox each, have the posture of those that were not, and are replaced.
func TestWarm(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		b := e.backend(t, func(o *Options) { o.Warm = 2 })
		m := managed(t, b)
		const look = "cat /proc/self/status | grep -E 'Cap|NoNew|Seccomp|Groups|Sig'; ulimit -a; ls -A /workspace /tmp $HOME /dev/shm; env | " +
			"sort; id; pwd; ls /proc/self/fd"
		cold := create(t, m)
		want := run(t, m, cold, look, nil)
		b.background.Wait()
		ready := func() (n int) {
			b.pool.mu.Lock()
			defer b.pool.mu.Unlock()
			for _, l := range b.pool.ready {
				n += len(l)
			}
			return n
		}
		if n := ready(); n != 2 {
			t.Fatalf("%d are ready", n)
		}
		// One of them is killed from outside: no request fails because of it.
		b.pool.mu.Lock()
		for _, l := range b.pool.ready {
			l[0].connection.close()
			<-l[0].connection.done
		}
		b.pool.mu.Unlock()
		warm := create(t, m)
		got := run(t, m, warm, look, nil)
		if g, w := string(got.Stdout.Bytes()), string(want.Stdout.Bytes()); g != w {
			t.Errorf("warm and cold differ:\n%s\n%s", g, w)
		}
		if res := run(t, m, warm, "echo x > /workspace/x; echo x > /dev/shm/x", nil); res.Verdict != sandbox.VerdictOK {
			t.Errorf("%+v", res)
		}
		if res := run(t, m, create(t, m), "ls -A /workspace /dev/shm", nil); strings.Contains(string(res.Stdout.Bytes()), "x\n") {
			t.Errorf("something of another sandbox: %q", res.Stdout.Bytes())
		}
		// Another settings is another container.
		other := create(t, m, func(s *sandbox.Spec) { s.Limits.Memory = 64 * sandbox.MiB })
		if res := run(t, m, other, "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null",
			nil); string(res.Stdout.Bytes()) != fmt.Sprintln(64<<20) {
			t.Errorf("%q", res.Stdout.Bytes())
		}
	})
}

// The daemon makes a requested container even if the caller has stopped waiting: after Close of the backend it is removed, too.
func TestGivenUp(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		b := e.backend(t)
		m := managed(t, b)
		create(t, m) // makes what is made once per daemon
		gone := 0
		for n := range 12 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*3*time.Millisecond)
			if _, err := m.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}}); err != nil {
				gone++
			}
			cancel()
		}
		if gone == 0 {
			t.Error("no caller stopped waiting")
		}
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // in which the requested container would appear
		if left := e.containers(t); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// seen is a backend that exposes its last instance.
type seen struct {
	*Backend
	last *instance
}

func (s *seen) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	i, err := s.Backend.Create(ctx, spec)
	s.last, _ = i.(*instance)
	return i, err
}

// A sample just after the end of a program is about that program, and not about earlier ones: an earlier OOM kill would change
// the verdict of the next program.
func TestLateSample(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		b := &seen{Backend: e.backend(t)}
		m := sandbox.NewManager(b, sandbox.Options{})
		defer m.Close()
		id := create(t, m)
		var kills uint64
		for range 2 {
			res := run(t, m, id, "python3 -c 'x = bytearray(300 << 20)'", nil)
			if kills = res.Metrics.OOMKills; kills == 0 {
				t.Errorf("%s, %+v", res.Verdict, res.Metrics)
			}
		}
		late := &task{i: b.last}
		if s, err := late.Sample(); err != nil || s.OOMKills != kills {
			t.Errorf("%+v, %v; there were %d", s, err, kills)
		}
		run(t, m, id, "true", nil)
		if s, err := late.Sample(); err != nil || s.OOMKills != 0 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// Every failure is reported, and leaves no container.
func TestTrouble(t *testing.T) {
	e := engines.start(t, "docker")
	ctx := context.Background()
	t.Cleanup(func() { e.nothingLeft(t) })
	wrong := func(name string, err error, kind error, words ...string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", name)
			return
		}
		if kind != nil && !errors.Is(err, kind) {
			t.Errorf("%s: %v is not of kind %v", name, err, kind)
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", name, err, w)
			}
		}
	}
	try := func(o func(*Options), spec sandbox.Spec) error {
		b := e.backend(t, o)
		m := managed(t, b)
		_, err := m.Create(ctx, spec)
		return err
	}
	wrong("no image", try(func(o *Options) { o.Image = "" }, sandbox.Spec{}), sandbox.ErrInvalid, "--image")
	wrong("image absent", try(func(o *Options) { o.Image = "example/absent:1" }, sandbox.Spec{}), sandbox.ErrInvalid, "example/absent:1",
		"docker pull")
	wrong("runtime", try(func(o *Options) { o.Runtime = "vmware" }, sandbox.Spec{}), sandbox.ErrRefused, "vmware", "runtimes")
	wrong("root", try(func(*Options) {}, sandbox.Spec{Root: sandbox.Root{Dir: "/srv"}}), sandbox.ErrUnsupported, "--image")
	wrong("little memory", try(func(*Options) {}, sandbox.Spec{Limits: sandbox.Limits{Memory: 8 * sandbox.MiB}}), sandbox.ErrInvalid, "16 MiB")
	wrong("disk", try(func(*Options) {}, sandbox.Spec{Scratch: sandbox.ScratchDisk}), sandbox.ErrUnsupported, "--backend native")
	wrong("helper", try(func(o *Options) { o.Helper = "/etc/passwd" }, sandbox.Spec{}), nil, "/etc/passwd", "go build")
	wrong("no daemon", try(func(o *Options) { o.Host = "unix://" + e.dir + "/none" }, sandbox.Spec{}), sandbox.ErrRefused, "none",
		"setup docker")
	for _, host := range []string{"nonsense", "ssh://host", "ftp://x"} {
		_, err := New(Options{Host: host})
		wrong(host, err, sandbox.ErrInvalid, host)
	}

	// A daemon that accepts the connection and does not answer does not block the caller.
	silent := filepath.Join(e.dir, "silent")
	listener, err := listenUnix(silent)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	b := e.backend(t, func(o *Options) { o.Host = "unix://" + silent })
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := b.connect(short); err == nil || isNoSocket(err) || time.Since(began) > 5*time.Second {
		t.Errorf("silent: %v after %v", err, time.Since(began))
	}

	// The reasons why there is no daemon are distinguished.
	refused := filepath.Join(e.dir, "refused")
	if l, err := listenUnix(refused); err != nil {
		t.Fatal(err)
	} else {
		l.SetUnlinkOnClose(false)
		_ = l.Close()
	}
	for _, host := range []string{e.dir + "/none", refused} {
		if _, err := e.backend(t, func(o *Options) { o.Host = "unix://" + host }).connect(ctx); !isNoSocket(err) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if iso := e.backend(t).Probe(ctx); iso.Tier != sandbox.TierContainer {
		t.Errorf("%+v", iso)
	}
	old := unreachable(ctx, "unix:///x", &oldDaemon{"1.24"})
	if e := new(*oldDaemon); !errors.As(old, e) || isNoSocket(old) || !tooOld("1.40") || tooOld("1.41") || tooOld("2.0") || !tooOld("") {
		t.Error("an old daemon is not recognised")
	}
	if err := unreachable(ctx, "unix:///x", os.ErrPermission); isNoSocket(err) {
		t.Error(err)
	}
}

// An image that the daemon does not have is loaded, if Options.Load has it.
func TestLoad(t *testing.T) {
	e := engines.start(t, "docker")
	t.Cleanup(func() { e.nothingLeft(t) })
	ctx := context.Background()
	c := e.client(t)
	saved, err := c.ImageSave(ctx, []string{testImage})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(saved)
	_ = saved.Close()
	if err != nil {
		t.Fatal(err)
	}
	const name = "sandbox-run-test/fresh:latest"
	// the same length, or the archive would break
	text = bytes.ReplaceAll(text, []byte("sandbox-run-test/small"), []byte("sandbox-run-test/fresh"))
	asked := 0
	b := e.backend(t, func(o *Options) {
		o.Load = func(_ context.Context, ref string) (io.ReadCloser, error) {
			if asked++; ref != name {
				return nil, ErrNoImage
			}
			return io.NopCloser(bytes.NewReader(text)), nil
		}
	})
	m := managed(t, b)
	id, err := m.Create(ctx, sandbox.Spec{Root: sandbox.Root{Image: name}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Delete(ctx, id); err != nil || asked != 1 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if _, err := c.ImageRemove(ctx, name, client.ImageRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // loaded at the first look, and known at the second
		info, err := b.LookUp(ctx, name)
		if err != nil || info.Reference != name || !strings.HasPrefix(info.ID, "sha256:") || asked != 2 {
			t.Errorf("%+v, asked %d times, %v", info, asked, err)
		}
	}
	if _, err := b.LookUp(ctx, "other:1"); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "docker pull other:1") {
		t.Errorf("%v", err)
	}
	if _, err := m.Create(ctx, sandbox.Spec{Root: sandbox.Root{Image: "other:1"}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// When the daemon stops while a program runs, the run ends with an error; the next run uses the restarted daemon.
func TestDaemonRestarts(t *testing.T) {
	engines.start(t, "docker") // for the helper and the image
	e, err := startEngine("docker", filepath.Join(engines.dir, "again"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.stop)
	if err := e.load(engines.image); err != nil {
		t.Fatal(err)
	}
	m := managed(t, e.backend(t))
	id := create(t, m)
	ended := make(chan *sandbox.Result, 1)
	ready := make(chan struct{}, 1)
	go func() {
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"sh", "-c", "echo ready; sleep 60"}},
			sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Kind == sandbox.EventStdout {
					select {
					case ready <- struct{}{}:
					default:
					}
				}
			}})
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	<-ready
	e.stop()
	select {
	case res := <-ended:
		if res == nil || res.Exit.Signal != 9 || len(res.Notes) == 0 {
			t.Errorf("%+v", res)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the run does not end")
	}
	if err := e.run(); err != nil {
		t.Fatal(err)
	}
	if err := m.Delete(context.Background(), id); err != nil {
		t.Error(err)
	}
	if res := run(t, m, create(t, m), "echo again", nil); string(res.Stdout.Bytes()) != "again\n" {
		t.Errorf("%+v", res)
	}
}

// A volume that was replaced after its check is refused (F6).
func TestVolumeIsSwapped(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *engine) {
		b := e.backend(t)
		ctx := context.Background()
		d, err := b.connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(e.dir, "volume")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := b.registration.register(); err != nil {
			t.Fatal(err)
		}
		settings, err := b.settings(d, &sandbox.Spec{User: sandbox.DefaultUser, Hostname: "x", Limits: sandbox.DefaultLimits(),
			Volumes: []sandbox.Volume{{Source: dir, Target: "/data"}}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.newContainer(ctx, d, settings) // control
		if err != nil {
			t.Fatal(err)
		}
		if err := c.remove(); err != nil {
			t.Error(err)
		}
		for _, err := range []error{os.Rename(dir, dir+"-old"), os.Symlink("/etc", dir)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.newContainer(ctx, d, settings); !errors.Is(err, sandbox.ErrRefused) {
			t.Errorf("%v", err)
		}
	})
}
