package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// victim is a variable with which the test binary only runs a build in the directory of its value. With the prefix collect, it
// only collects there.
const victim = "SANDBOX_RUN_TEST_BUILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victim); dir != "" {
		os.Exit(play(dir))
	}
	os.Exit(conformance.Main(m))
}

// play builds python, and says on stdout how far it is and what it got.
func play(dir string) int {
	d, err := Lookup("python")
	if collected, ok := strings.CutPrefix(dir, "collect:"); ok {
		_, err = Collect(context.Background(), collected, false)
	} else if err == nil {
		_, err = d.build(context.Background(), func(_ context.Context, s image.Source) (*image.Image, error) {
			fmt.Println("digest", s.Layers[0].Digest)
			return &image.Image{}, nil
		}, Options{Dir: dir, Progress: func(what string) { fmt.Println(what) }})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// need skips where nothing can be built.
func need(t *testing.T) {
	t.Helper()
	testenv.NeedRoot(t)
	for _, program := range []string{"mmdebstrap", "apt-get"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal("needs " + program + ", which scripts/deps.sh test installs")
			}
			t.Skip("needs " + program + ", which scripts/deps.sh test installs")
		}
	}
}

// online skips the test if the environment says that no packages can be downloaded. CI never sets that.
func online(t *testing.T) {
	t.Helper()
	need(t)
	if os.Getenv("SANDBOX_RUN_TEST_OFFLINE") != "" {
		t.Skip("needs the archives of Debian's packages, and SANDBOX_RUN_TEST_OFFLINE is set")
	}
}

// buildDir returns a directory for the builds of this test, with the packages that earlier tests have downloaded. It keeps the
// packages of this test.
func buildDir(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	shared := filepath.Join(cache, "sandbox-run-test", "build")
	must(t, os.MkdirAll(filepath.Join(shared, packagesName), 0o755))
	// Leftovers of killed tests.
	old, err := filepath.Glob(filepath.Join(shared, "run-*"))
	must(t, err)
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(shared, "run-")
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, packagesName), 0o755))
	exchange := func(from, to string) {
		for _, pattern := range []string{packagesName + "/*.deb", "*" + listSuffix} {
			files, err := filepath.Glob(filepath.Join(from, pattern))
			must(t, err)
			for _, file := range files {
				name, err := filepath.Rel(from, file)
				must(t, err)
				if strings.HasSuffix(name, listSuffix) {
					_ = os.Remove(filepath.Join(to, name))
				}
				if err := os.Link(file, filepath.Join(to, name)); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
		}
	}
	exchange(shared, dir)
	t.Cleanup(func() {
		exchange(dir, shared)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// build builds an image, with the packages at hand.
func build(t *testing.T, dir, name, store string) (*image.Store, *image.Image) {
	t.Helper()
	s, err := image.Open(store)
	must(t, err)
	var log bytes.Buffer
	start := time.Now()
	img, err := Build(t.Context(), s, name, Options{Dir: dir, Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.Bytes())
	}
	t.Logf("%s: %s, %d MB unpacked, built in %.0f s", name, img.Digest, img.Size>>20, time.Since(start).Seconds())
	idle(t, dir)
	return s, img
}

// idle checks that nothing is left of a build: no directory, no mount, no process.
func idle(t *testing.T, dir string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(dir, workPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if busy := busy(dir); busy != "" {
		t.Error(busy)
	}
}

// busy finds a mount or a process of a build's.
func busy(dir string) string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(filepath.Join(dir, workPrefix))) {
		return fmt.Sprintf("a mount is left (%v)", err)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		environ, _ := os.ReadFile(p + "/environ")
		root, _ := os.Readlink(p + "/root")
		if bytes.Contains(environ, []byte("TMPDIR="+filepath.Join(dir, workPrefix))) || strings.HasPrefix(root, filepath.Join(dir, workPrefix)) {
			args, _ := os.ReadFile(p + "/cmdline")
			return fmt.Sprintf("process %s is left: %q", filepath.Base(p), args)
		}
	}
	return ""
}

// hellos are programs of each language, as a user of an image would run them.
var hellos = map[string]string{
	"python":     `python3 -c 'import ssl, sqlite3, ctypes; print("hello from python")'`,
	"javascript": `node -e 'console.log("hello from javascript")'`,
	"typescript": `echo 'const s: string = "typescript"; console.log("hello from " + s)' >x.ts; tsc --outDir . x.ts; node x.js`,
	"go": `printf 'package main\nimport ("fmt"; "net/http")\nfunc main() { _ = http.StatusOK; fmt.Println("hello from go") }\n' >x.go
		go build -o x x.go; ./x`,
	"rust": `echo 'fn main() { println!("hello from rust") }' >x.rs; rustc x.rs; ./x; cargo --version >&2`,
	"java": `echo 'class X { public static void main(String[] a) throws Exception { javax.net.ssl.SSLContext.getDefault();
		System.out.println("hello from java"); } }' >X.java; javac X.java; java X`,
	"shell": `bash -c 'printf "hello from %s\n" shell'`,
	"data": `python3 -c 'import numpy, pandas, matplotlib.pyplot as p; p.plot([1, 2]); p.savefig("x.png");` +
		` print("hello from data", pandas.DataFrame({"a": [1]}).a.sum())'`,
}

// hello runs an image's languages in sandboxes that stand on it.
func hello(t *testing.T, m *sandbox.Manager, s *image.Store, img *image.Image, name string) {
	t.Helper()
	lease, err := s.Use(img)
	must(t, err)
	defer lease.Close()
	languages := strings.Split(img.Config.Labels[labelLanguages], ",")
	if name == "data" {
		languages = append(languages, "data")
	}
	env := map[string]string{}
	for _, e := range img.Config.Env {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	for _, language := range languages {
		script, ok := hellos[language]
		if !ok {
			t.Errorf("%s: nothing is known to say in %q", name, language)
			continue
		}
		res := inside(t, m, lease.Dir(), env, "set -e; "+script)
		if out := string(res.Stdout.Bytes()); !res.Success() || !strings.Contains(out, "hello from "+language) {
			t.Errorf("%s, %s: verdict %s, %+v\n%s%s", name, language, res.Verdict, res.Exit, out, res.Stderr.Bytes())
		}
	}
	// And who is there: the sandbox's user, by name, in a root without the machine's files.
	res := inside(t, m, lease.Dir(), env,
		`id -un; ls -ld /workspace /home/sandbox; test ! -e /etc/machine-id; test -z "$(ls -A /var/cache /var/log)"
		test -z "$(find / -xdev -perm /6000 2>/dev/null)"`)
	if out := string(res.Stdout.Bytes()); !res.Success() || !strings.HasPrefix(out, "sandbox\n") {
		t.Errorf("%s: %s, %q %s", name, res.Verdict, out, res.Stderr.Bytes())
	}
}

func inside(t *testing.T, m *sandbox.Manager, dir string, env map[string]string, script string) *sandbox.Result {
	t.Helper()
	ctx := context.Background()
	id, err := m.Create(ctx, sandbox.Spec{
		Root: sandbox.Root{Dir: dir}, Env: env, Limits: sandbox.Limits{Wall: 3 * time.Minute, Memory: 2 << 30}, Require: sandbox.TierNamespace,
	})
	must(t, err)
	defer func() {
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}()
	res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"/bin/sh", "-c", script}}, sandbox.IO{})
	must(t, err)
	return res
}

func manager(t *testing.T) *sandbox.Manager {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-cache-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := native.New(native.Options{CacheDir: filepath.Join(dir, "cache")})
	must(t, err)
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestBuild(t *testing.T) {
	online(t)
	t.Parallel()
	m := manager(t)
	names, bin := []string{"python"}, ""
	if testenv.All() {
		names, bin = Names(), executables(t)
	}
	// SANDBOX_RUN_TEST_IMAGES is a store that keeps the images after the test.
	store := os.Getenv("SANDBOX_RUN_TEST_IMAGES")
	if store == "" {
		store = filepath.Join(t.TempDir(), "images")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a build is one process at a time: downloads, dpkg, compression
			s, img := build(t, buildDir(t), name, store)
			if found, err := s.Lookup(Repository + name); err != nil || found.ID != img.ID {
				t.Errorf("%v, %v", found, err)
			}
			if !strings.Contains(img.Config.Labels[labelPackages], "libc6=") || img.Config.Workdir != sandbox.WorkspaceDir {
				t.Errorf("%+v", img.Config)
			}
			if age := time.Since(img.Created); age < time.Minute || img.Created.Year() < 2020 {
				t.Errorf("the newest package is of %v", img.Created)
			}
			hello(t, m, s, img, name)
			if bin != "" {
				languages := strings.Split(img.Config.Labels[labelLanguages], ",")
				if name == "polyglot" {
					languages = append(languages, "sql") // needs nothing of an image's, and this is its default
				}
				examples(t, bin, store, name, languages)
			}
		})
	}
}

// A second build, by an ordinary user in another directory, makes the same image.
func TestReproducible(t *testing.T) {
	online(t)
	testenv.NeedAll(t, "TestBuild")
	t.Parallel()
	d, err := Lookup("python")
	must(t, err)
	digest := ""
	_, err = d.build(t.Context(), func(_ context.Context, s image.Source) (*image.Image, error) {
		digest = s.Layers[0].Digest
		return &image.Image{}, nil
	}, Options{Dir: buildDir(t)})
	must(t, err)
	home := plainHome(t, true)
	out, err := plain(t, home, filepath.Join(home, "build")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "digest "+digest+"\n") {
		t.Errorf("%v: root's is %s\n%s", err, digest, out)
	}
	idle(t, filepath.Join(home, "build"))
}

const (
	plainUID = 54321
	plainSub = 1 << 20
)

// plainHome is a directory of a user's that the machine does not have. It is below /var/tmp: others can not reach into root's.
func plainHome(t *testing.T, ids bool) string {
	t.Helper()
	home, err := os.MkdirTemp("/var/tmp", "sandboxtest-plain-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	must(t, os.Chmod(home, 0o755))
	must(t, os.Mkdir(filepath.Join(home, "build"), 0o700))
	must(t, os.Chown(filepath.Join(home, "build"), plainUID, plainUID))
	exe, err := os.Executable()
	must(t, err)
	must(t, exec.Command("install", "-m", "755", exe, filepath.Join(home, "test")).Run())
	for _, d := range []string{"upper", "work"} {
		must(t, os.Mkdir(filepath.Join(home, d), 0o755))
	}
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("builder:x:%d:%d::%s:/bin/sh", plainUID, plainUID, home),
		"group":  fmt.Sprintf("builder:x:%d:", plainUID),
		"subuid": fmt.Sprintf("builder:%d:65536", plainSub),
		"subgid": fmt.Sprintf("builder:%d:65536", plainSub),
	} {
		if strings.HasPrefix(name, "sub") && !ids {
			continue
		}
		old, _ := os.ReadFile("/etc/" + name)
		must(t, os.WriteFile(filepath.Join(home, "upper", name), append(old, line+"\n"...), 0o644))
	}
	return home
}

// plain is the test binary as that user, who builds in a directory.
func plain(t *testing.T, home, dir string) *exec.Cmd {
	t.Helper()
	script := fmt.Sprintf(`mount -t overlay overlay -o lowerdir=/etc,upperdir=%[1]s/upper,workdir=%[1]s/work /etc
exec setpriv --reuid %[2]d --regid %[2]d --clear-groups env -i PATH="$PATH" HOME=%[1]s %[3]s=%[4]s %[1]s/test`, home, plainUID, victim, dir)
	return exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-euc", script)
}

// quick is a definition that fails, or ends, before much is downloaded.
func quick(packages ...string) *Definition {
	return &Definition{Name: "quick", Title: "Quick", Description: "none", Debian: packages, Cmd: []string{"sh"}}
}

func refuse(context.Context, image.Source) (*image.Image, error) {
	return nil, errors.New("an image came of it")
}

func TestBuildNamesWhatIsWrong(t *testing.T) {
	need(t)
	dir := t.TempDir()
	t.Run("mmdebstrap is missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := quick("sed").build(t.Context(), refuse, Options{Dir: dir})
		if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "try: apt-get install mmdebstrap") {
			t.Error(err)
		}
	})
	t.Run("no network", func(t *testing.T) {
		_, err := quick("sed").build(t.Context(), refuse, Options{Dir: dir, Mirror: "http://127.0.0.1:1/debian"})
		if !errors.Is(err, ErrNetwork) || !strings.Contains(err.Error(), "127.0.0.1") ||
			!strings.Contains(err.Error(), "try: check the network") {
			t.Error(err)
		}
	})
	t.Run("no such package", func(t *testing.T) {
		online(t)
		_, err := quick("no-such-package").build(t.Context(), refuse, Options{Dir: buildDir(t)})
		if !errors.Is(err, ErrPackage) || !strings.Contains(err.Error(), "no-such-package") {
			t.Error(err)
		}
	})
	t.Run("disk full", func(t *testing.T) {
		online(t)
		small := t.TempDir()
		must(t, syscall.Mount("tmpfs", small, "tmpfs", 0, "size=24m,mode=755"))
		defer func() { must(t, syscall.Unmount(small, syscall.MNT_DETACH)) }()
		_, err := quick("sed").build(t.Context(), refuse, Options{Dir: small, Timeout: time.Minute})
		for try := 0; errors.Is(err, context.DeadlineExceeded) && try < 3; try++ { // apt may wait for ever for a download whose file it has lost
			_, err = quick("sed").build(t.Context(), refuse, Options{Dir: small, Timeout: time.Minute})
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "image prune") {
			t.Error(err)
		}
		idle(t, small)
	})
	t.Run("time is up", func(t *testing.T) {
		_, err := quick("sed").build(t.Context(), refuse, Options{Dir: dir, Timeout: time.Second})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done after 1s") {
			t.Error(err)
		}
	})
	t.Run("no subordinate ids", func(t *testing.T) {
		home := plainHome(t, false)
		out, err := plain(t, home, filepath.Join(home, "build")).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "image build python: "+ErrNamespaces.Error()) ||
			!strings.Contains(string(out), "try: usermod --add-subuids") {
			t.Errorf("%v: %s", err, out)
		}
		idle(t, filepath.Join(home, "build"))
	})
	t.Run("no such image", func(t *testing.T) {
		if _, err := Build(t.Context(), nil, "cobol", Options{Dir: dir}); !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	})
	idle(t, dir)
}

func TestBuildCancelled(t *testing.T) {
	online(t)
	dir := buildDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	var seen string
	d, err := Lookup("python")
	must(t, err)
	_, err = d.build(ctx, refuse, Options{Dir: dir, Progress: func(what string) {
		if strings.HasPrefix(what, "unpacking") { // in the midst of it: things are mounted, and dpkg runs
			once.Do(func() { seen = busy(dir); cancel() })
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if seen == "" {
		t.Error("nothing was there before it was cancelled, so its absence means nothing")
	}
	idle(t, dir)
}

// A build that is killed takes its processes and mounts with it; its directory is removed by the next.
func TestBuildKilled(t *testing.T) {
	online(t)
	t.Run("root", func(t *testing.T) {
		dir := buildDir(t)
		exe, err := os.Executable()
		must(t, err)
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), victim+"="+dir)
		killed(t, cmd, dir)
		found, err := Collect(t.Context(), dir, true)
		// A process that is just dying holds its lock a moment longer than it can be seen.
		for end := time.Now().Add(20 * time.Second); err == nil && len(found) == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			found, err = Collect(t.Context(), dir, true)
		}
		if err != nil || len(found) != 1 || found[0].Removed {
			t.Errorf("a dry run: %+v, %v", found, err)
		}
		if found, err := Collect(t.Context(), dir, false); err != nil || len(found) != 1 || !found[0].Removed {
			t.Errorf("%+v, %v", found, err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, workPrefix+"*")); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
		if found, err := Collect(t.Context(), dir, true); err != nil || len(found) != 0 {
			t.Errorf("again: %+v, %v", found, err)
		}
	})
	t.Run("ordinary user", func(t *testing.T) {
		testenv.NeedAll(t, "TestBuild")
		home := plainHome(t, true)
		dir := filepath.Join(home, "build")
		killed(t, plain(t, home, dir), dir)
		gone(t, dir, func() error {
			out, err := plain(t, home, "collect:"+dir).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})
}

func killed(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	text := make([]byte, 0, 64<<10)
	for !bytes.Contains(text, []byte("unpacking")) {
		part := make([]byte, 4096)
		n, err := out.Read(part)
		text = append(text, part[:n]...)
		if err != nil {
			t.Fatalf("it ended by itself: %v\n%s", err, text)
		}
	}
	if busy(dir) == "" {
		t.Error("nothing was there before it was killed, so its absence means nothing")
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for end := time.Now().Add(20 * time.Second); busy(dir) != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(busy(dir))
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, workPrefix+"*"))
	if err != nil || len(left) != 1 {
		t.Errorf("%q, %v: there should be something to collect", left, err)
	}
}

// gone waits until collecting has removed everything: a process that is just dying holds its lock a moment longer than it can be seen.
func gone(t *testing.T, dir string, collect func() error) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		must(t, collect())
		left, err := filepath.Glob(filepath.Join(dir, workPrefix+"*"))
		must(t, err)
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	idle(t, dir)
}

// What lives is not collected; what is dead is, by the next that begins.
func TestCollectLeavesTheLiving(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "build")
	programs := &tools{root: true}
	living, err := newWork(t.Context(), programs, dir)
	must(t, err)
	dead, err := newWork(t.Context(), programs, dir)
	must(t, err)
	must(t, dead.lock.Close())
	next, err := newWork(t.Context(), programs, dir)
	must(t, err)
	if _, err := os.Stat(living.path(lockName)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dead.own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dead build is still there: %v", err)
	}
	must(t, living.remove())
	must(t, next.remove())
	must(t, next.remove()) // twice is fine
	idle(t, dir)
}
