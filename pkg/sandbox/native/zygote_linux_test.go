package native

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/procstate"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const pythonPath = "/usr/bin/python3"

// warmProcess is a Python program's process as the executor plans it.
func warmProcess(args ...string) *sandbox.Process {
	return &sandbox.Process{
		Phase: sandbox.DefaultPhase, Args: append([]string{pythonPath, "/workspace/main.py"}, args...), Workdir: sandbox.WorkspaceDir,
		Limits:  sandbox.DefaultLimits(),
		Network: sandbox.NetworkNone, Warm: driver.Python("python"),
		Env: map[string]string{
			"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": sandbox.HomeDir, "USER": sandbox.UserName,
			"LOGNAME": sandbox.UserName, "LANG": "C.UTF-8",
			"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": driver.Dir,
		},
	}
}

func warmSpec() *sandbox.Spec {
	return &sandbox.Spec{Limits: sandbox.DefaultLimits(), Workdir: sandbox.WorkspaceDir, Hostname: sandbox.UserName,
		User: sandbox.DefaultUser, Network: sandbox.NetworkNone}
}

// outcome is the observable outcome of a run.
type outcome struct {
	Stdout, Stderr string
	Exit           sandbox.Exit
}

// runIn runs a program in a fresh sandbox, cold or as a fork of z.
func runIn(t testing.TB, b *Backend, z sandbox.Zygote, spec *sandbox.Spec, p *sandbox.Process, program, stdin string) (outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	in, err := b.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	files := []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644, Data: []byte(program)}}
	if z == nil {
		files = append(files, driver.LineBuffering())
	}
	if err := in.(sandbox.Filer).Put(ctx, files); err != nil {
		t.Fatal(err)
	}
	start := func() (sandbox.Task, error) { return in.Start(ctx, p) }
	if z != nil {
		start = func() (sandbox.Task, error) { return z.Start(ctx, in, p) }
	}
	task, err := start()
	if err != nil {
		return outcome{}, err
	}
	return follow(ctx, t, task, stdin), nil
}

// follow waits for the end of a task.
func follow(ctx context.Context, t testing.TB, task sandbox.Task, stdin string) (o outcome) {
	t.Helper()
	stop := context.AfterFunc(ctx, func() { _ = task.Kill() })
	defer stop()
	var streams [2]bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() {
		for b := make([]byte, 4096); ; {
			stream, n, err := task.ReadOutput(b)
			streams[stream].Write(b[:n])
			if err != nil {
				return
			}
		}
	})
	_, _ = io.WriteString(task.Stdin(), stdin)
	_ = task.Stdin().Close()
	exit, err := task.Wait()
	if err != nil {
		t.Error(err)
	}
	if _, err := task.Finish(context.Background()); err != nil {
		t.Error(err)
	}
	reading.Wait()
	task.CloseOutput()
	return outcome{streams[0].String(), streams[1].String(), exit}
}

func newZygote(t testing.TB, b *Backend, spec *sandbox.Spec, p *sandbox.Process) sandbox.Zygote {
	t.Helper()
	z, err := b.Prepare(context.Background(), spec, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := z.Close(); err != nil {
			t.Error(err)
		}
	})
	return z
}

//go:embed testdata/warm/posture.py
var pythonPosture string

// A fork has the same posture as a cold start, byte for byte, and the interpreter is in the same state.
func TestForkPosture(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	z := newZygote(t, b, warmSpec(), warmProcess())
	p := warmProcess("an argument", "", "\xff\xfe", "--help")
	p.Env["GREETING"], p.Env["ODD"] = "hello", "\xff=\n"
	p.Workdir = sandbox.TmpDir
	cold, err := runIn(t, b, nil, warmSpec(), p, pythonPosture, "")
	if err != nil || cold.Exit != (sandbox.Exit{}) || len(cold.Stdout) < 4096 || cold.Stderr != "" {
		t.Fatalf("%+v, %v", cold, err)
	}
	for range 2 {
		warm, err := runIn(t, b, z, warmSpec(), p, pythonPosture, "")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(cold.Stdout, "\n"), strings.Split(warm.Stdout, "\n")); diff != "" || warm.Stderr != cold.Stderr ||
			warm.Exit != cold.Exit {
			t.Errorf("cold (-), fork (+): %+v %q\n%s", warm.Exit, warm.Stderr, diff)
		}
	}
}

// withDriver is a process whose driver differs in one place.
func withDriver(t *testing.T, p *sandbox.Process, place, other string) *sandbox.Process {
	t.Helper()
	text := string(p.Warm.Files[0].Data)
	if strings.Count(text, place) != 1 {
		t.Fatalf("the driver has no such place, or several: %s", place)
	}
	p.Warm.Files[0].Data = []byte(strings.Replace(text, place, other, 1))
	return p
}

// There are two ways to fork: one with a C library that lets an intermediate process borrow the interpreter's memory, as
// on this machine, and one for other libraries. A process can not tell them apart.
func TestForkWays(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	cold, err := runIn(t, b, nil, warmSpec(), warmProcess(), pythonPosture, "")
	if err != nil || cold.Exit != (sandbox.Exit{}) {
		t.Fatalf("%+v, %v", cold, err)
	}
	for name, way := range map[string][2]string{
		"borrows":     {"== 1 else twice", "== 1 else None"},
		"no contexts": {`"makecontext", "swapcontext",`, `"makecontext", "no_such_function",`},
		"trial fails": {`os._exit(ended if os.getsid(0)`, `os._exit(ended if 0 and os.getsid(0)`},
		"trial is ill": {`before()
            swapcontext(`, `before()
            os.getpid() in (0,) or os.kill(os.getpid(), 9)
            swapcontext(`},
	} {
		t.Run(name, func(t *testing.T) {
			z := newZygote(t, b, warmSpec(), withDriver(t, warmProcess(), way[0], way[1]))
			warm, err := runIn(t, b, z, warmSpec(), warmProcess(), pythonPosture, "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(cold.Stdout, "\n"), strings.Split(warm.Stdout, "\n")); diff != "" || warm.Stderr != cold.Stderr ||
				warm.Exit != cold.Exit {
				t.Errorf("cold (-), fork (+): %+v %q\n%s", warm.Exit, warm.Stderr, diff)
			}
		})
	}
}

// A fork can wait before its program is known, and then equals a cold start: byte for byte, and in its use of resources.
func TestForkWaits(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	p := warmProcess("an argument")
	p.Env["GREETING"] = "hello"
	cold, err := runIn(t, b, nil, warmSpec(), p, pythonPosture, "")
	if err != nil || cold.Exit != (sandbox.Exit{}) {
		t.Fatalf("%+v, %v", cold, err)
	}
	z, err := b.Prepare(t.Context(), warmSpec(), warmProcess())
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	wait := func(t *testing.T) (_ sandbox.Instance, _ sandbox.Fork, where string) {
		in, err := b.Create(t.Context(), warmSpec())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := in.Destroy(context.Background()); err != nil {
				t.Error(err)
			}
		})
		f, err := z.Fork(t.Context(), in, warmProcess())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		// Its process id is known, so that its state can be read before it is started.
		place, err := procstate.ReadPlace(f.(*fork).process.PID)
		if err != nil || place.Hidden != nil || !f.(*fork).ph.Group.ContainsProcess(place.Cgroups) {
			t.Fatalf("process %d: %+v, %v", f.(*fork).process.PID, place, err)
		}
		namespace := "/proc/" + strconv.Itoa(f.(*fork).ph.Init.PID()) + "/ns/pid"
		held, err := os.Open(namespace) // while it is open, no other namespace gets its number
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = held.Close() })
		if where, err = os.Readlink(namespace); err != nil {
			t.Fatal(err)
		}
		return in, f, where
	}
	put := func(t *testing.T, in sandbox.Instance, program string) {
		if err := in.(sandbox.Filer).Put(t.Context(), []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644,
			Data: []byte(program)}}); err != nil {
			t.Fatal(err)
		}
	}
	coldly := func(t *testing.T, in sandbox.Instance, waits string) {
		put(t, in, "import os\nprint(os.readlink('/proc/self/ns/pid'))")
		task, err := in.Start(t.Context(), warmProcess())
		if err != nil {
			t.Fatal(err)
		}
		if got := follow(t.Context(), t, task, ""); !strings.HasPrefix(got.Stdout, "pid:[") || got.Stdout == waits+"\n" {
			t.Errorf("%+v, where a fork waits in %s", got, waits)
		}
	}
	t.Run("posture", func(t *testing.T) {
		in, f, _ := wait(t)
		time.Sleep(50 * time.Millisecond)
		if !f.Alive() {
			t.Fatal("it does not wait")
		}
		put(t, in, pythonPosture)
		task, err := f.Start(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		warm := follow(t.Context(), t, task, "")
		if diff := cmp.Diff(strings.Split(cold.Stdout, "\n"), strings.Split(warm.Stdout, "\n")); diff != "" || warm.Stderr != cold.Stderr ||
			warm.Exit != cold.Exit {
			t.Errorf("cold (-), fork (+): %+v %q\n%s", warm.Exit, warm.Stderr, diff)
		}
		if _, err := f.Start(t.Context(), p); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("twice: %v", err)
		}
	})
	t.Run("killed", func(t *testing.T) {
		in, f, where := wait(t)
		pids, err := f.(*fork).ph.Group.Procs()
		if err != nil || len(pids) != 1 {
			t.Fatalf("what waits is in the sandbox's cgroup: %v, %v", pids, err)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); f.Alive(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the zygote's end is not reported")
			}
		}
		if _, err := f.Start(t.Context(), p); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("%v", err)
		}
		coldly(t, in, where)
	})
	// A process that entered the phase while the fork was about to start is not affected if the start fails.
	t.Run("killed with company", func(t *testing.T) {
		in, f, where := wait(t)
		pids, err := f.(*fork).ph.Group.Procs()
		if err != nil || len(pids) != 1 {
			t.Fatalf("%v, %v", pids, err)
		}
		if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		tasks := f.(*fork).ph.Tasks
		put(t, in, "import os\nprint(os.readlink('/proc/self/ns/pid'))")
		var beginning sync.WaitGroup
		beginning.Go(func() {
			if _, err := f.Start(t.Context(), p); !errors.Is(err, sandbox.ErrState) {
				t.Errorf("%v", err)
			}
		})
		for tasks() != 1 {
			time.Sleep(time.Millisecond)
		}
		beginning.Go(func() {
			task, err := in.Start(t.Context(), warmProcess())
			if err != nil {
				t.Error(err)
				return
			}
			if got := follow(t.Context(), t, task, ""); !strings.HasPrefix(got.Stdout, "pid:[") || got.Stdout == where+"\n" {
				t.Errorf("%+v, where a fork waited in %s", got, where)
			}
		})
		for tasks() != 2 {
			time.Sleep(time.Millisecond)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		beginning.Wait()
	})
	t.Run("another kind", func(t *testing.T) {
		in, f, where := wait(t)
		other := warmProcess()
		other.Network = sandbox.NetworkLocalhost
		if _, err := f.Start(t.Context(), other); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("%v", err)
		}
		if f.Alive() {
			t.Error("it still waits, after an error")
		}
		coldly(t, in, where)
	})
	t.Run("beside another", func(t *testing.T) {
		in, f, where := wait(t)
		coldly(t, in, where)
		put(t, in, "print('late')")
		task, err := f.Start(t.Context(), warmProcess())
		if err != nil {
			t.Fatal(err)
		}
		if got := follow(t.Context(), t, task, ""); got != (outcome{Stdout: "late\n"}) {
			t.Errorf("%+v", got)
		}
	})
	t.Run("without its zygote", func(t *testing.T) {
		in, f, _ := wait(t)
		if err := syscall.Kill(z.(*zygote).z.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := z.Fork(t.Context(), in, warmProcess()); !errors.Is(err, sandbox.ErrState) || time.Since(began) >= forkTimeout {
			t.Errorf("a zygote that was killed: %v after %v", err, time.Since(began))
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		// The next sandbox gets the ids of the zygote: no process may have them any more.
		pids, err := f.(*fork).ph.Group.Procs()
		if err != nil || len(pids) != 1 {
			t.Fatalf("%v, %v", pids, err)
		}
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pids[0]) + "/status")
		if root := "\t" + strconv.Itoa(in.(*instance).ID.Root); err != nil ||
			!strings.Contains(string(status), "\nUid:"+strings.Repeat(root, 4)+"\nGid:"+strings.Repeat(root, 4)+"\n") {
			t.Errorf("who waits is not its sandbox's%s: %s, %v", root, status, err)
		}
		put(t, in, "print('alone')")
		task, err := f.Start(t.Context(), warmProcess())
		if err != nil {
			t.Fatal(err)
		}
		if got := follow(t.Context(), t, task, ""); got != (outcome{Stdout: "alone\n"}) {
			t.Errorf("%+v", got)
		}
		if _, err := z.Fork(t.Context(), in, warmProcess()); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("a zygote that is gone: %v", err)
		}
	})
}

// A fork that fails for lack of memory is refused, at either step, and the interpreter continues unchanged.
func TestForkNoRoom(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	for name, way := range map[string][2]string{"borrows": {"== 1 else twice", "== 1 else None"},
		"twice": {"return once if well", "return twice if well"}} {
		z := newZygote(t, b, warmSpec(), withDriver(t, warmProcess(), way[0], way[1]))
		group := z.(*zygote).group
		for _, room := range []int{1, 2, 1, 2, 100} {
			if err := group.Set(cgroup.Limits{Pids: room}); err != nil {
				t.Fatal(err)
			}
			got, err := runIn(t, b, z, warmSpec(), warmProcess(), "print('hello')", "")
			if room < 3 && (!errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), "stage fork")) || room > 2 &&
				(err != nil || got != outcome{Stdout: "hello\n"}) {
				t.Errorf("%s: room for %d: %+v, %v", name, room, got, err)
			}
		}
	}
}

// Modules that are loaded before the sandbox exists know only values that are also true in it: no name of the machine,
// no process id from outside, no time before the program's start.
func TestForkModules(t *testing.T) {
	const program = `import logging, os, platform, threading, time, uuid
print(platform.node(), os.uname().nodename, threading.main_thread().native_id == os.getpid() == threading.get_native_id())
created = logging.LogRecord("", 0, "", 0, "", (), None).relativeCreated
started = int(open("/proc/self/stat").read().rpartition(") ")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
age = float(open("/proc/uptime").read().split()[0]) - started
print(created <= 1000 * age + 100)
`
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	p := warmProcess()
	p.Warm = driver.Python("modules", "uuid", "logging", "threading")
	spec := warmSpec()
	spec.Hostname = "box"
	z := newZygote(t, b, spec, p)
	time.Sleep(500 * time.Millisecond) // so that the zygote is older than any program
	want := outcome{Stdout: "box box True\nTrue\n"}
	for name, z := range map[string]sandbox.Zygote{"cold": nil, "fork": z} {
		if got, err := runIn(t, b, z, spec, p, program, ""); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := runIn(t, b, z, warmSpec(), p, program, ""); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("a sandbox of another name: %+v, %v", got, err)
	}
}

// A program's own module replaces one that a zygote has loaded: then the program starts cold.
func TestForkShadowedModules(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	p := warmProcess()
	p.Warm = driver.Python("modules", "queue")
	z := newZygote(t, b, warmSpec(), p)
	for name, refused := range map[string]bool{"queue.py": true, "queue/__init__.py": true, "heapq.py": true, "tools.py": false,
		"sub/queue.py": false, "myqueue.py": false} {
		t.Run(name, func(t *testing.T) {
			in, err := b.Create(t.Context(), warmSpec())
			if err != nil {
				t.Fatal(err)
			}
			defer in.Destroy(context.Background())
			files := []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644, Data: []byte("import queue")},
				{Path: "/workspace/" + name, Mode: 0o644}}
			if err := in.(sandbox.Filer).Put(t.Context(), files); err != nil {
				t.Fatal(err)
			}
			task, err := z.Start(t.Context(), in, p)
			if refused != errors.Is(err, sandbox.ErrState) || !refused && err != nil {
				t.Fatal(err)
			}
			if err == nil {
				follow(t.Context(), t, task, "")
			}
		})
	}
}

// runAhead runs a program in an interpreter that was started before the program was known, in a sandbox of its own.
func runAhead(t *testing.T, b *Backend, spec *sandbox.Spec, p *sandbox.Process, program, stdin string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	in, err := b.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Destroy(context.Background())
	if err := in.(sandbox.Filer).Put(ctx, p.Warm.Files); err != nil {
		t.Fatal(err)
	}
	waits := *warmProcess()
	maps.Copy(waits.Env, p.Warm.Env)
	task, err := in.Start(ctx, &waits)
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len(p.Warm.Handshake)) // the driver writes it at once
	if stream, _, err := task.ReadOutput(said); err != nil || stream != 1 || string(said) != p.Warm.Handshake {
		t.Fatalf("%q, %v", said, err)
	}
	if err := in.(sandbox.Filer).Put(ctx, []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644, Data: []byte(program)}}); err != nil {
		t.Fatal(err)
	}
	message, err := json.Marshal(map[string]any{"args": p.Args, "env": p.Env, "dir": p.Workdir})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = task.Stdin().Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...))
	return follow(ctx, t, task, stdin)
}

// A prestarted interpreter runs the program in the posture of a cold start as well, and leaves its input to it.
func TestAheadPosture(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	for name, program := range map[string]string{"posture": pythonPosture,
		"input": "import sys\nprint(sys.stdin.read(), sys.argv)\nraise ValueError('x')", "files": "import os\nprint(os.listdir('/tmp'))"} {
		p := warmProcess("an argument", "", "ä \u2603 \"quoted\\\"", "--help")
		p.Env["GREETING"], p.Env["ODD"] = "hello", "ü=\n\t"
		p.Workdir = sandbox.TmpDir
		cold, err := runIn(t, b, nil, warmSpec(), p, program, "some input")
		if err != nil {
			t.Fatal(err)
		}
		ahead := runAhead(t, b, warmSpec(), p, program, "some input")
		if diff := cmp.Diff(strings.Split(cold.Stdout, "\n"), strings.Split(ahead.Stdout, "\n")); diff != "" || ahead.Stderr != cold.Stderr ||
			ahead.Exit != cold.Exit {
			t.Errorf("%s: cold (-), ahead (+): %+v %q\n%s", name, ahead.Exit, ahead.Stderr, diff)
		}
	}
}

// A program that watches the garbage collector finds no garbage of the driver.
func TestForkCollects(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	const program = "import gc\nd = {}\nexec('def f(): pass', d)\ngc.collect()\ndel d\nprint(gc.collect(), gc.collect(), gc.garbage)\n"
	p := warmProcess()
	p.Warm = driver.Watched(p.Warm)
	z := newZygote(t, b, warmSpec(), p)
	for name, run := range map[string]func() (outcome, error){
		"cold":  func() (outcome, error) { return runIn(t, b, nil, warmSpec(), p, program, "") },
		"fork":  func() (outcome, error) { return runIn(t, b, z, warmSpec(), p, program, "") },
		"ahead": func() (outcome, error) { return runAhead(t, b, warmSpec(), p, program, ""), nil },
	} {
		if got, err := run(); err != nil || got.Stdout != "2 0 []\n" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Every version of Python on this machine works, at least its own.
func TestForkVersions(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	found, _ := filepath.Glob("/root/.pyenv/versions/3.*/bin/python3")
	for _, interpreter := range append(found, pythonPath) {
		home := filepath.Dir(filepath.Dir(interpreter))
		if minor, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(home), "3."), "."); len(minor) == 1 && minor < "9" {
			continue
		}
		t.Run(filepath.Base(home), func(t *testing.T) {
			spec := warmSpec()
			if interpreter != pythonPath {
				spec.Root.Add = []sandbox.Mount{{Source: home, Target: home}}
			}
			process := func() *sandbox.Process {
				p := warmProcess("x")
				p.Args[0] = interpreter
				return p
			}
			cold, err := runIn(t, b, nil, spec, process(), pythonPosture, "")
			if err != nil || cold.Exit != (sandbox.Exit{}) {
				t.Fatalf("%+v, %v", cold, err)
			}
			z := newZygote(t, b, spec, process())
			warm, err := runIn(t, b, z, spec, process(), pythonPosture, "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(cold.Stdout, "\n"), strings.Split(warm.Stdout, "\n")); diff != "" || warm.Stderr != cold.Stderr ||
				warm.Exit != cold.Exit {
				t.Errorf("cold (-), fork (+): %+v %q\n%s", warm.Exit, warm.Stderr, diff)
			}
		})
	}
}
