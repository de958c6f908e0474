package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// mustFork runs a program as a fork and returns its output.
func mustFork(t *testing.T, b *Backend, z sandbox.Zygote, program string, args ...string) string {
	t.Helper()
	got, err := runIn(t, b, z, warmSpec(), warmProcess(args...), program, "")
	if err != nil || got.Exit != (sandbox.Exit{}) {
		t.Fatalf("%+v, %v", got, err)
	}
	return got.Stdout
}

// searchMemory prints how often a text is in the memory of its own process. The text comes in two halves, so that the
// search does not put it there.
const searchMemory = `
import os, sys
halves = sys.argv[1], sys.argv[2]
def search():
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            where, how = line.split()[:2]
            if "r" not in how or "[v" in line:
                continue
            first, end = (int(x, 16) for x in where.split("-"))
            memory.seek(first)
            while first < end:
                try:
                    piece = memory.read(min(end - first, 1 << 20))
                except OSError:
                    break
                if not piece:
                    break
                at = piece.find(halves[0].encode())
                while at >= 0:
                    found += piece[at + len(halves[0]):at + len(halves[0]) + len(halves[1])] == halves[1].encode()
                    at = piece.find(halves[0].encode(), at + 1)
                first += len(piece)
    return found
`

// A later fork has nothing of an earlier one, nor of the server (W1, A1).
func TestForkFindsNothing(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	half := fmt.Sprintf("%x", time.Now().UnixNano())
	mark := "Mark" + half + "-whole"
	t.Setenv("SECRET_OF_THE_SERVER", mark)
	z := newZygote(t, b, warmSpec(), warmProcess())
	leave := `
import os, sys, builtins
mark = sys.argv[1]
for d in ("/tmp", os.path.expanduser("~"), "/workspace", "/dev/shm"):
    open(os.path.join(d, mark), "w").write(mark)
os.environ["LEFT"] = mark
builtins.left = mark
sys.path.append(mark)
`
	p := warmProcess(mark)
	p.Env["LEFT_BY"] = mark
	if got, err := runIn(t, b, z, warmSpec(), p, leave, mark); err != nil || got.Exit != (sandbox.Exit{}) {
		t.Fatalf("%+v, %v", got, err)
	}
	look := searchMemory + `
print(search())
held = "".join(halves)
print(search() > 0)
for d in ("/tmp", os.path.expanduser("~"), "/workspace", "/dev/shm"):
    print(os.listdir(d))
import builtins
print(hasattr(builtins, "left"), [k for k in os.environ if "LEFT" in k or "SECRET" in k], [p for p in sys.path if p.startswith("Mark")])
`
	got := mustFork(t, b, z, look, "Mark"+half, "-whole")
	if want := "0\nTrue\n[]\n[]\n['main.py']\n[]\nFalse [] []\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Two forks of one zygote have no random number in common (W2). The secret of hashes and the addresses belong to one
// zygote, and differ in another (W7).
func TestForkRandom(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	const program = `
import random, uuid, os, secrets, ssl, tempfile, hashlib
print(hash("some text"), id(print))
for f in (random.random, random.SystemRandom().random, uuid.uuid4, uuid.uuid1, lambda: os.urandom(8), secrets.token_hex,
          lambda: ssl.RAND_bytes(8), tempfile.mktemp, lambda: random.Random().random(),
          lambda: list(tempfile._get_candidate_names().rng.sample(range(1 << 30), 3))):
    print(f())
`
	one := newZygote(t, b, warmSpec(), warmProcess())
	other := newZygote(t, b, warmSpec(), warmProcess())
	var lines [3][]string
	for n, z := range []sandbox.Zygote{one, one, other} {
		lines[n] = strings.Split(strings.TrimSpace(mustFork(t, b, z, program)), "\n")
		if len(lines[n]) != 11 {
			t.Fatalf("%q", lines[n])
		}
	}
	for n := range lines[0] {
		if same := lines[0][n] == lines[1][n]; same != (n == 0) {
			t.Errorf("line %d: %q and %q in two forks", n, lines[0][n], lines[1][n])
		}
		if lines[0][n] == lines[2][n] {
			t.Errorf("line %d: %q in two zygotes' forks", n, lines[0][n])
		}
	}
}

// Two forks with numpy loaded have none in common either (W2).
func TestForkRandomData(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	if out, err := exec.Command(pythonPath, "-c", "import pandas").CombinedOutput(); err != nil {
		t.Skipf("%s lacks python3-pandas: %s", pythonPath, out)
	}
	p := warmProcess()
	p.Warm = driver.Python("python+pandas", driver.Pandas()...)
	z := newZygote(t, b, warmSpec(), p)
	const program = `
import sys
print("pandas" in sys.modules)
import numpy as np, pandas as pd
print(np.random.rand(), np.random.randint(1 << 40))
print(np.random.default_rng().random())
print(pd.Series(range(1000)).sample(3).tolist())
`
	one, other := strings.Split(mustFork(t, b, z, program), "\n"), strings.Split(mustFork(t, b, z, program), "\n")
	if len(one) != 5 || one[0] != "True" {
		t.Fatalf("%q", one)
	}
	for n := 1; n < 4; n++ {
		if one[n] == other[n] {
			t.Errorf("%q in two forks", one[n])
		}
	}
	// With modules loaded that may have read any variable, no variable may differ.
	p.Env["ANYTHING"] = "1"
	if _, err := runIn(t, b, z, warmSpec(), p, "", ""); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("another variable: %v", err)
	}
}

// The sandbox of a fork is charged for the memory that the fork allocates, and for the inherited pages that it changes
// (W4).
func TestForkPays(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	z := newZygote(t, b, warmSpec(), warmProcess())
	m := sandbox.NewManager(&warmed{b, func(*sandbox.Spec, *sandbox.Process) (sandbox.Zygote, error) { return z, nil }}, sandbox.Options{})
	ctx := context.Background()
	run := func(program string) *sandbox.Result {
		t.Helper()
		id, err := m.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 * sandbox.MiB, CPUTime: 20 * time.Second,
			Wall: 5 * time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Delete(ctx, id)
		if err := m.Put(ctx, id, []sandbox.File{{Path: "/workspace/main.py", Data: []byte(program)}}); err != nil {
			t.Fatal(err)
		}
		p := warmProcess()
		res, err := m.Run(ctx, id, sandbox.Process{Args: p.Args, Env: p.Env, Warm: p.Warm}, sandbox.IO{})
		if err != nil || res.Verdict != sandbox.VerdictOK {
			t.Fatalf("%+v, %v", res, err)
		}
		return res
	}
	little := run("pass").Metrics
	much := run("x = bytearray(100 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1").Metrics
	if grew := much.MemoryPeak - little.MemoryPeak; little.MemoryPeak == 0 || little.MemoryPeak > 32<<20 || grew < 90<<20 || grew > 130<<20 {
		t.Errorf("%d bytes, and %d with 100 MiB", little.MemoryPeak, much.MemoryPeak)
	}
	if little.ProcessesPeak != 1 {
		t.Errorf("%d processes", little.ProcessesPeak)
	}
	busy := run("import time\nt = time.process_time()\nwhile time.process_time() - t < 1: pass").Metrics
	if cpu := time.Duration(busy.CPUUser + busy.CPUSystem); cpu < 950*time.Millisecond || cpu > 3*time.Second {
		t.Errorf("%v for a second of work", cpu)
	}
}

// zygotePID is the process of a zygote.
func zygotePID(t *testing.T, z sandbox.Zygote) int {
	t.Helper()
	return z.(*zygote).z.PID()
}

// One caller waits for a zygote that hangs; for later callers it is gone (W5).
func TestForkStuck(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	z := newZygote(t, b, warmSpec(), warmProcess())
	_ = unix.Kill(zygotePID(t, z), unix.SIGSTOP)
	for _, patience := range []time.Duration{time.Minute, forkTimeout} {
		began := time.Now()
		if got, err := runIn(t, b, z, warmSpec(), warmProcess(), "", ""); !errors.Is(err, sandbox.ErrState) || time.Since(began) > patience {
			t.Errorf("%+v, %v after %v", got, err, time.Since(began))
		}
		select {
		case <-z.Done():
		case <-time.After(30 * time.Second):
			t.Fatal("it is still there")
		}
	}
}

// A zygote that is killed, or hangs, returns an error; its request starts cold in the same sandbox, and its existing
// forks continue (W5).
func TestForkWithoutZygote(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	ctx := context.Background()
	for _, how := range []string{"killed", "closed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			z := newZygote(t, b, warmSpec(), warmProcess())
			in, err := b.Create(ctx, warmSpec())
			if err != nil {
				t.Fatal(err)
			}
			defer in.Destroy(ctx)
			const program = "import os, sys\nprint(os.readlink('/proc/self/exe'), " +
				"flush=True)\nsys.stdin.readline()\nprint(os.readlink('/proc/self/exe'))\nsys.exit(5)\n"
			if err := in.(sandbox.Filer).Put(ctx, []sandbox.File{{Path: "/workspace/main.py", Data: []byte(program)}}); err != nil {
				t.Fatal(err)
			}
			running, err := z.Start(ctx, in, warmProcess())
			if err != nil {
				t.Fatal(err)
			}
			var line []byte
			for b := make([]byte, 1); !bytes.HasSuffix(line, []byte("\n")); line = append(line, b[0]) {
				if _, _, err := running.ReadOutput(b); err != nil {
					t.Fatal(err)
				}
			}
			switch how {
			case "killed":
				_ = unix.Kill(zygotePID(t, z), unix.SIGKILL)
				<-z.Done()
			case "closed":
				if err := z.Close(); err != nil {
					t.Error(err)
				}
				<-z.Done()
			case "stopped":
				_ = unix.Kill(zygotePID(t, z), unix.SIGSTOP)
			}
			// Another program in its own phase, and in its own sandbox.
			other, err := b.Create(ctx, warmSpec())
			if err != nil {
				t.Fatal(err)
			}
			defer other.Destroy(ctx)
			if err := other.(sandbox.Filer).Put(ctx, []sandbox.File{{Path: "/workspace/main.py", Data: []byte("print('cold')")}}); err != nil {
				t.Fatal(err)
			}
			soon, cancel := context.WithTimeout(ctx, 3*time.Second)
			began := time.Now()
			_, err = z.Start(soon, other, warmProcess())
			cancel()
			if !errors.Is(err, sandbox.ErrState) || time.Since(began) > time.Minute {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			task, err := other.Start(ctx, warmProcess())
			if err != nil {
				t.Fatal(err)
			}
			if got := follow(ctx, t, task, ""); got != (outcome{Stdout: "cold\n"}) {
				t.Errorf("%+v", got)
			}
			if how == "stopped" { // the zygote does not serve the old request later
				_ = unix.Kill(zygotePID(t, z), unix.SIGCONT)
				if got := mustFork(t, b, z, "print(1)"); got != "1\n" {
					t.Errorf("%q", got)
				}
			}
			_, _ = io.WriteString(running.Stdin(), "\n")
			got := follow(ctx, t, running, "")
			if got.Exit.Code != 5 || got.Stdout != string(line) || !strings.HasPrefix(got.Stdout, "/usr/bin/python3") {
				t.Errorf("%+v, before: %q", got, line)
			}
		})
	}
}

// A process that can not be a fork is refused before anything runs, and starts cold.
func TestForkUnsuited(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	ctx := context.Background()
	z := newZygote(t, b, warmSpec(), warmProcess())
	with := func(change func(*sandbox.Spec, *sandbox.Process)) error {
		spec, p := warmSpec(), warmProcess()
		change(spec, p)
		_, err := runIn(t, b, z, spec, p, "print(1)", "")
		return err
	}
	if err := with(func(*sandbox.Spec, *sandbox.Process) {}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*sandbox.Spec, *sandbox.Process){
		"terminal":          func(_ *sandbox.Spec, p *sandbox.Process) { p.TTY = &sandbox.TTY{Rows: 24, Cols: 80} },
		"python's variable": func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["PYTHONHASHSEED"] = "0" },
		"python's path":     func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["PYTHONPATH"] = "/workspace" },
		"unbuffered":        func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["PYTHONUNBUFFERED"] = "1" },
		"loader's variable": func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["LD_PRELOAD"] = "/x.so" },
		"locale":            func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["LC_ALL"] = "C" },
		"time zone":         func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["TZ"] = "UTC" },
		"home":              func(_ *sandbox.Spec, p *sandbox.Process) { p.Env["HOME"] = "/tmp" },
		"another program":   func(_ *sandbox.Spec, p *sandbox.Process) { p.Args[1] = "/workspace/other.py" },
		"option":            func(_ *sandbox.Spec, p *sandbox.Process) { p.Args = []string{pythonPath, "-m", "this"} },
		"no program":        func(_ *sandbox.Spec, p *sandbox.Process) { p.Args = p.Args[:1] },
		"writable root":     func(s *sandbox.Spec, _ *sandbox.Process) { *s = writable(t, *s) },
		"another root": func(s *sandbox.Spec, _ *sandbox.Process) {
			s.Root.HostPaths = []string{"/usr", "/bin", "/lib", "/lib64"}
		},
		"volume over the root": func(s *sandbox.Spec, _ *sandbox.Process) {
			s.Volumes = []sandbox.Volume{{Source: "/usr/share/doc", Target: "/usr/share/doc"}}
		},
		"no such directory": func(_ *sandbox.Spec, p *sandbox.Process) { p.Workdir = "/tmp/none" },
	} {
		if err := with(change); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A phase in which a process runs already.
	in, err := b.Create(ctx, warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer in.Destroy(ctx)
	first, err := in.Start(ctx, &sandbox.Process{Phase: "run", Args: []string{"cat"}, Workdir: "/tmp",
		Env: map[string]string{"PATH": "/bin"}, Limits: sandbox.DefaultLimits(), Network: sandbox.NetworkNone})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Start(ctx, in, warmProcess()); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("a phase that is in use: %v", err)
	}
	if got := follow(ctx, t, first, "still there"); got != (outcome{Stdout: "still there"}) {
		t.Errorf("%+v", got)
	}
	// Packages of the user's own, which a cold start would find.
	put := func(in sandbox.Instance, files ...sandbox.File) {
		t.Helper()
		if err := in.(sandbox.Filer).Put(ctx, files); err != nil {
			t.Fatal(err)
		}
	}
	own, err := b.Create(ctx, warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Destroy(ctx)
	version := strings.TrimSpace(mustFork(t, b, z, "import sys; print('%d.%d' % sys.version_info[:2])"))
	put(own, sandbox.File{Path: sandbox.HomeDir + "/.local/lib/python" + version + "/site-packages/usercustomize.py",
		Data: []byte("print('own')")},
		sandbox.File{Path: "/workspace/main.py", Data: []byte("print('main')")})
	if _, err := z.Start(ctx, own, warmProcess()); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("packages of their own: %v", err)
	}
	task, err := own.Start(ctx, warmProcess())
	if err != nil {
		t.Fatal(err)
	}
	if got := follow(ctx, t, task, ""); got != (outcome{Stdout: "own\nmain\n"}) {
		t.Errorf("%+v", got)
	}
	for name, change := range map[string]func(*sandbox.Spec, *sandbox.Process){
		"not warm":      func(_ *sandbox.Spec, p *sandbox.Process) { p.Warm = nil },
		"can not fork":  func(_ *sandbox.Spec, p *sandbox.Process) { p.Warm.Fork = false },
		"an image":      func(s *sandbox.Spec, _ *sandbox.Process) { s.Root.Dir = "/var/lib/image" },
		"writable root": func(s *sandbox.Spec, _ *sandbox.Process) { s.WritableRoot = true },
	} {
		spec, p := warmSpec(), warmProcess()
		change(spec, p)
		if z, err := b.Prepare(ctx, spec, p); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("prepare, %s: %v, %v", name, z, err)
		}
	}
}

// An interpreter that a user other than root may change is executed only in a sandbox; an interpreter that does not
// wait, or prints, becomes no zygote, and nothing of it is left.
func TestForkBadInterpreter(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-interpreter-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	prepare := func(script string, mode os.FileMode, owner int, timeout time.Duration) error {
		t.Helper()
		file := dir + "/interpreter"
		_ = os.Remove(file)
		if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, []byte(script), mode), os.Chmod(file, mode),
			os.Chown(file, owner, 0)); err != nil {
			t.Fatal(err)
		}
		spec, p := warmSpec(), warmProcess()
		spec.Root.Add = []sandbox.Mount{{Source: dir, Target: "/opt/interpreter"}}
		p.Args[0] = "/opt/interpreter/interpreter"
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		z, err := b.Prepare(ctx, spec, p)
		if err == nil {
			_ = z.Close()
		}
		return err
	}
	const python = "#!/bin/sh\nexec " + pythonPath + ` "$@"` + "\n"
	if err := prepare(python, 0o755, 0, time.Minute); err != nil {
		t.Errorf("root's: %v", err)
	}
	for name, c := range map[string]struct {
		script string
		mode   os.FileMode
		owner  int
		says   string
	}{
		"another user's":        {python, 0o755, 1000, "may change it"},
		"everybody's":           {python, 0o777, 0, "may change it"},
		"a group's":             {python, 0o775, 0, "may change it"},
		"ends":                  {"#!/bin/sh\necho oh dear >&2\n", 0o755, 0, "oh dear"},
		"prints":                {"#!/bin/sh\necho noise >&2\nexec " + pythonPath + ` "$@"` + "\n", 0o755, 0, "noise"},
		"does not wait for us":  {"#!/bin/sh\nsleep 300\n", 0o755, 0, "deadline"},
		"can not be executed":   {"#!/no/such/shell\n", 0o755, 0, "execute"},
		"is not to be executed": {python, 0o644, 0, "execute"},
		"says something else": {"#!/bin/sh\n[ $SANDBOX_RUN_PATHS ] && exec " + pythonPath + " \"$@\"\nexec " + pythonPath +
			" -I -c 'import socket; socket.socket(fileno=0).send(b\"what\")'\n", 0o755, 0, "what"},
	} {
		timeout := time.Minute
		if c.says == "deadline" {
			timeout = 2 * time.Second
		}
		if err := prepare(c.script, c.mode, c.owner, timeout); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An interpreter that imports from where another user may write is executed only in a sandbox: modules, .pth files and
// the paths that those add.
func TestForkUntrustedImports(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	home := publicDir(t) // of an interpreter with site-packages of its own
	for _, step := range []struct {
		name, change string
		path, mode   string // that is named; none is the control
		owner        int
	}{
		{name: "root's"},
		{name: "a directory that another user owns", change: "chown 4242 $site/pkg", path: "/site-packages/pkg", mode: "0755", owner: 4242},
		{name: "a directory that a group may write to", change: "chmod 775 $site", path: "/site-packages", mode: "0775"},
		{name: "a module that everybody may write to", change: "chmod 666 $site/pkg/__init__.py", path: "/site-packages/pkg/__init__.py",
			mode: "0666"},
		{name: "a .pth file that another user owns", change: "chown 4242 $site/more.pth", path: "/site-packages/more.pth", mode: "0644",
			owner: 4242},
		{name: "a directory that a .pth file adds", change: "chown 4242 $home/more", path: "/more", mode: "0755", owner: 4242},
		{name: "a directory on the way", change: "chmod 777 $home/lib", path: "/lib", mode: "0777"},
		{name: "a .pth file that names others in its place", change: `printf '%s\n' "$lie" > $site/lie.pth; chown 4242 $site/lie.pth`,
			path: "/site-packages/lie.pth",
			mode: "0644", owner: 4242},
		{name: "a module that a .pth file imports, and that names others", change: `echo import lie > $site/next.pth
			printf '%s\n' "$lie" > $home/more/lie.py
			chown 4242 $home/more/lie.py`, path: "/more/lie.py", mode: "0644", owner: 4242},
		{name: "a link to where another user may write", change: "ln -s $home/more/open $site/link", path: "/more/open", mode: "0777"},
	} {
		if err := os.RemoveAll(home); err != nil {
			t.Fatal(err)
		}
		script := `set -e; umask 022; home=$0; mkdir -p $home/bin $home/lib $home/more/open; chmod 777 $home/more/open
			ln -s $(readlink -f ` + pythonPath + `) $home/bin/python; printf 'home = /usr/bin\n' > $home/pyvenv.cfg
			site=$home/lib/$($home/bin/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
			lie='import os; "SANDBOX_RUN_PATHS" in os.environ and (os.write(1, b"\0/usr/bin/env\0"), os._exit(0))'
			mkdir -p $site/pkg; echo > $site/pkg/__init__.py; echo $home/more > $site/more.pth
			[ "$1" = link ] || rmdir $home/more/open; ` + step.change
		kind := ""
		if strings.Contains(step.change, "ln -s") {
			kind = "link"
		}
		if out, err := exec.Command("sh", "-c", script, home, kind).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", step.name, err, out)
		}
		spec, p := warmSpec(), warmProcess()
		spec.Root.Add = []sandbox.Mount{{Source: home, Target: home}}
		p.Args[0] = home + "/bin/python"
		z, err := b.Prepare(context.Background(), spec, p)
		untrusted := new(sandbox.Untrusted)
		switch {
		case step.path == "" && err != nil:
			t.Errorf("%s: %v", step.name, err)
		case step.path != "" && !errors.As(err, &untrusted):
			t.Errorf("%s: %v", step.name, err)
		case step.path != "" && (!strings.HasSuffix(untrusted.Path, step.path) || untrusted.UID != uint32(step.owner) ||
			fmt.Sprintf("%04o", untrusted.Mode) != step.mode):
			t.Errorf("%s: %+v", step.name, untrusted)
		}
		if err == nil {
			_ = z.Close()
		}
		// A cold start uses them.
		if got, err := runIn(t, b, nil, spec, p, "import pkg; print('cold')", ""); err != nil || got.Stdout != "cold\n" {
			t.Errorf("%s: %+v, %v", step.name, got, err)
		}
	}
}

// The zygote itself has no more rights, files or relations than it needs.
func TestZygotePosture(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	z := newZygote(t, b, warmSpec(), warmProcess())
	// A fork has the zygote's filter below its own.
	const filters = "print(*[l for l in open('/proc/self/status') if 'filters' in l], end='')"
	if got := mustFork(t, b, z, filters); got != "Seccomp_filters:\t2\n" {
		t.Errorf("%q", got)
	}
	proc := "/proc/" + strconv.Itoa(zygotePID(t, z))
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapEff:\t0000000000200000", "CapPrm:\t0000000000200000", "CapBnd:\t0000000000200000", "NoNewPrivs:\t1",
		"Seccomp:\t2", "Seccomp_filters:\t1", "Threads:\t1", "Groups:\t \n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("%s is not in %s", want, status)
		}
	}
	if strings.Contains(string(status), "Uid:\t0") || strings.Contains(string(status), "Gid:\t0") {
		t.Errorf("%s", status)
	}
	for _, ns := range []string{"mnt", "net", "ipc", "uts", "cgroup"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		if its, err := os.Readlink(proc + "/ns/" + ns); err != nil || its == own {
			t.Errorf("%s %s is ours (%v)", ns, its, err)
		}
	}
	for _, ns := range []string{"pid", "pid_for_children"} { // the zygote has left the namespace that it joined last
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		if its, _ := os.Readlink(proc + "/ns/" + ns); its != own {
			t.Errorf("%s %s", ns, its)
		}
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil || len(fds) != 4 {
		t.Errorf("%d descriptors: %v, %v", len(fds), fds, err)
	}
	environ, err := os.ReadFile(proc + "/environ")
	if err != nil || strings.Contains(string(environ), "GO") {
		t.Errorf("%q, %v", environ, err)
	}
}

// A zygote is refused the uses of CAP_SYS_ADMIN other than joining namespaces. Its driver makes the calls here and
// prints their results, which are then the reason why there is no zygote.
func TestZygoteFilter(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	p := warmProcess()
	const calls = `
import ctypes, errno, os
if "SANDBOX_RUN_PATHS" in os.environ:
    os.write(1, b"\0/usr/bin/env\0")
    os._exit(0)
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    getattr(libc, name)(*args)
    os.write(2, b"%s=%s " % (name.encode(), errno.errorcode.get(ctypes.get_errno(), "ok").encode()))
call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
call("umount2", b"/tmp", 2)
call("sethostname", b"mine", 4)
call("unshare", 0x00020000)  # CLONE_NEWNS
call("setns", 0, 0)
call("ptrace", 0, 0, 0, 0)
call("unshare", 0x02000000)  # control: CLONE_NEWCGROUP
call("setns", 0, 0x20000000)  # control: it comes as far as to see that this is no namespace
call("getppid")
`
	p.Warm.Files[0].Data = []byte(calls)
	z, err := b.Prepare(context.Background(), warmSpec(), p)
	if err == nil {
		_ = z.Close()
		t.Fatal("it is a zygote")
	}
	const want = "mount=ENOSYS umount2=ENOSYS sethostname=ENOSYS unshare=ENOSYS setns=ENOSYS ptrace=ENOSYS unshare=ok setns=EINVAL getppid=ok"
	if !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A fork could reach two things that a cold start could not: the interpreter's file, which is on another mount, and the
// processes that existed when it was forked. Each attempt has one beside it that succeeds.
func TestForkReaches(t *testing.T) {
	b := newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	z := newZygote(t, b, warmSpec(), warmProcess())
	const program = `
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, f):
    try:
        print(name, f())
    except OSError as e:
        print(name, e.strerror)
def call(f, *a):
    r = f(*a)
    if r < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
attempt("descriptors", lambda: [n for n in range(3, 1024) if libc.fcntl(n, 1) >= 0])
attempt("write own file", lambda: os.close(os.open("/workspace/main.py", os.O_WRONLY)))
attempt("write exe", lambda: os.open("/proc/self/exe", os.O_WRONLY))
attempt("truncate exe", lambda: os.truncate("/proc/self/exe", 0))
attempt("chmod exe", lambda: os.chmod("/proc/self/exe", 0o777))
attempt("below exe", lambda: os.open("..", os.O_PATH, dir_fd=os.open("/proc/self/exe", os.O_PATH)))
attempt("link exe", lambda: os.link("/proc/self/exe", "/tmp/exe", follow_symlinks=True))
attempt("read exe", lambda: os.read(os.open("/proc/self/exe", os.O_RDONLY), 4))
for d in ("/proc/self/cwd/..", "/proc/self/root/.."):
    attempt("list " + d, lambda: sorted(os.listdir(d))[:3])
attempt("visible", lambda: len([p for p in os.listdir("/proc") if p.isdigit()]))
attempt("signal init", lambda: os.kill(1, signal.SIGKILL))
attempt("signal group 0's parent", lambda: os.kill(os.getppid(), signal.SIGTERM))
attempt("trace init", lambda: call(libc.ptrace, 16, 1, 0, 0))
attempt("init's memory", lambda: open("/proc/1/mem", "rb"))
attempt("init's descriptors", lambda: os.listdir("/proc/1/fd"))
attempt("init's namespaces", lambda: os.readlink("/proc/1/ns/pid"))
attempt("pidfd of init", lambda: call(libc.syscall, 438, call(libc.syscall, 434, 1, 0), 3, 0))
attempt("join", lambda: call(libc.setns, os.open("/proc/self/ns/mnt", os.O_RDONLY), 0))
attempt("unshare", lambda: call(libc.unshare, 0x20000000))
attempt("root", lambda: os.setuid(0))
attempt("child", lambda: os.waitpid(-1, os.WNOHANG))
attempt("parent", os.getppid)
attempt("own memory", lambda: len(os.pread(os.open("/proc/self/mem", os.O_RDONLY), 8, id(print))))
attempt("own descriptors", lambda: len(os.listdir("/proc/self/fd")) > 2)
attempt("own namespaces", lambda: os.readlink("/proc/self/ns/pid")[:4])
attempt("signal everybody", lambda: os.kill(-1, signal.SIGKILL))
`
	want := `descriptors []
write own file None
write exe Permission denied
truncate exe Permission denied
chmod exe Read-only file system
below exe Not a directory
link exe Invalid cross-device link
read exe b'\x7fELF'
list /proc/self/cwd/.. ['bin', 'dev', 'etc']
list /proc/self/root/.. ['bin', 'dev', 'etc']
visible 1
signal init Operation not permitted
signal group 0's parent Operation not permitted
trace init Operation not permitted
init's memory No such file or directory
init's descriptors No such file or directory
init's namespaces No such file or directory
pidfd of init Operation not permitted
join Operation not permitted
unshare Operation not permitted
root Operation not permitted
child No child processes
parent 1
own memory 8
own descriptors True
own namespaces pid:
signal everybody No such process
`
	for name, z := range map[string]sandbox.Zygote{"cold": nil, "fork": z} {
		got, err := runIn(t, b, z, warmSpec(), warmProcess(), program, "")
		// Before Linux 6.2, Landlock leaves truncating to the mount.
		got.Stdout = strings.Replace(got.Stdout, "truncate exe Read-only file system", "truncate exe Permission denied", 1)
		if err != nil || got.Exit != (sandbox.Exit{}) || got.Stdout != want {
			t.Errorf("%s: %+v, %v; want\n%s", name, got, err, want)
		}
	}
	if got := mustFork(t, b, z, "print('alive')"); got != "alive\n" {
		t.Errorf("%q", got)
	}
}
