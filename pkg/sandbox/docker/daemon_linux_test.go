package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Variables by which a victim of TestCrash finds the daemon that its test has started.
const (
	hostVariable  = "SANDBOXTEST_DOCKER_HOST"
	stateVariable = "SANDBOXTEST_DOCKER_STATE"
)

// testImage is a small root of the machine's own files.
const testImage = "sandbox-run-test/small:latest"

func TestMain(m *testing.M) {
	if plan := os.Getenv(victimVariable); plan != "" {
		os.Exit(beVictim(plan))
	}
	code := conformance.Main(m, func() (sandbox.Backend, error) {
		return New(Options{Host: os.Getenv(hostVariable), Image: testImage, StateDir: os.Getenv(stateVariable),
			Helper: os.Getenv(helperVariable)})
	})
	engines.stop()
	os.Exit(code)
}

// engine is a daemon that the tests have started, with its own data, and stop at the end.
type engine struct {
	name string
	dir  string
	host string
	cmd  *exec.Cmd
}

var engines running

type running struct {
	mu     sync.Mutex
	all    map[string]*engine
	helper string
	image  []byte
	err    error
	dir    string
}

// start starts an engine once for all tests.
func (r *running) start(t testing.TB, name string) *engine {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	testenv.NeedRoot(t)
	if e := r.all[name]; e != nil {
		return e
	}
	if err := r.prepare(); err != nil {
		t.Fatal(err)
	}
	e, err := startEngine(name, filepath.Join(r.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if r.all == nil {
		r.all = map[string]*engine{}
	}
	r.all[name] = e
	if err := e.load(r.image); err != nil {
		t.Fatal(err)
	}
	return e
}

// prepare builds the helper and packs the image.
func (r *running) prepare() (err error) {
	if r.dir != "" {
		return r.err
	}
	defer func() { r.err = err }()
	// A socket's path has at most 108 bytes.
	if r.dir, err = os.MkdirTemp("/tmp", "sbxdk-"); err != nil {
		return err
	}
	r.helper = filepath.Join(r.dir, helperFile)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", r.helper,
		"github.com/sandbox-run/sandbox-run/cmd/sandbox-helper")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build helper: %w: %s", err, out)
	}
	if err := os.Setenv(helperVariable, r.helper); err != nil {
		return err
	}
	r.image, err = packRoot()
	return err
}

func (r *running) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		e.stop()
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
}

func startEngine(name, dir string) (*engine, error) {
	e := &engine{name: name, dir: dir, host: "unix://" + dir + "/s"}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return e, e.run()
}

// run starts the daemon's process and waits until it answers.
func (e *engine) run(extra ...string) error {
	switch e.name {
	case "docker":
		e.cmd = exec.Command("dockerd", append([]string{"--data-root", e.dir + "/data", "--exec-root", e.dir + "/exec", "--pidfile",
			e.dir + "/pid", "-H", e.host,
			"--bridge", "none", "--iptables=false", "--ip6tables=false"}, extra...)...)
	case "podman":
		e.cmd = exec.Command("podman", append([]string{"--root", e.dir + "/root", "--runroot", e.dir + "/run", "--tmpdir", e.dir + "/tmp",
			"--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"},
			append(extra, "system", "service", "--time", "0", e.host)...)...)
	}
	// Podman leaves incomplete images in /var/tmp, or in TMPDIR.
	e.cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "TMPDIR="+e.dir)
	log, err := os.Create(e.dir + "/log") // a file, so that no goroutine has to copy
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:    syscall.SIGTERM,
		Unshareflags: syscall.CLONE_NEWNS, // its mounts stay in its own namespace: other tests search for leftover mounts
	}
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w (scripts/deps.sh test installs it)", e.name, err)
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := client.New(client.WithHost(e.host))
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err = c.Ping(ctx, client.PingOptions{})
			cancel()
			_ = c.Close()
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			e.stop()
			return fmt.Errorf("%s does not answer: %w\n%s", e.name, err, e.log())
		}
	}
}

// log is the end of the daemon's log.
func (e *engine) log() []byte {
	text, _ := os.ReadFile(e.dir + "/log")
	return text[max(0, len(text)-4000):]
}

// stop ends the daemon; its mounts end with its mount namespace.
func (e *engine) stop() {
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = e.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		_ = e.cmd.Process.Kill()
		<-done
	}
}

// client is a connection to the engine without the backend.
func (e *engine) client(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost(e.host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// load gives the engine the image.
func (e *engine) load(image []byte) error {
	c, err := client.New(client.WithHost(e.host))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	res, err := c.ImageImport(ctx, client.ImageImportSource{Source: bytes.NewReader(image), SourceName: "-"}, testImage,
		client.ImageImportOptions{})
	if err != nil {
		return fmt.Errorf("import: %w\n%s", err, e.log())
	}
	defer res.Close()
	text, err := io.ReadAll(res)
	if err == nil && bytes.Contains(text, []byte(`"error"`)) {
		err = fmt.Errorf("import: %s", text)
	}
	return err
}

// programs are the programs that the suites use, besides those of coreutils, util-linux, grep, sed and procps.
var programs = []string{"/bin/dash", "/bin/bash", "/usr/bin/python3", "/usr/bin/su", "/usr/bin/mawk"}

// packRoot packs a root of the machine's own programs, with the libraries they are linked with.
func packRoot() ([]byte, error) {
	out, err := exec.Command("dpkg", "-L", "coreutils", "util-linux", "grep", "sed", "procps").Output()
	if err != nil {
		return nil, fmt.Errorf("dpkg -L: %w", err)
	}
	files := map[string]string{} // path in the root → of the host
	var binaries []string
	for _, p := range append(strings.Fields(string(out)), programs...) {
		if !strings.HasPrefix(p, "/bin/") && !strings.HasPrefix(p, "/usr/bin/") {
			continue
		}
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			continue
		}
		files["usr/bin/"+filepath.Base(p)] = real
		binaries = append(binaries, real)
	}
	python, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		return nil, err
	}
	lib := "/usr/lib/" + filepath.Base(python)
	err = filepath.WalkDir(lib, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"test", "idlelib", "tkinter", "lib2to3", "ensurepip", "pydoc_data"}, d.Name()) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			files[strings.TrimPrefix(p, "/")] = p
			if strings.HasSuffix(p, ".so") {
				binaries = append(binaries, p)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out, _ = exec.Command("ldd", binaries...).Output() // it fails for scripts among them
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") && strings.Contains(word, ".so") && !strings.HasSuffix(word, ":") {
			if real, err := filepath.EvalSymlinks(word); err == nil {
				files[strings.TrimPrefix(strings.Replace(word, "/lib", "/usr/lib", boolInt(strings.HasPrefix(word, "/lib"))), "/")] = real
			}
		}
	}
	return writeRoot(files)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func writeRoot(files map[string]string) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var errs []error
	entry := func(h *tar.Header, text []byte) {
		h.Size = int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			errs = append(errs, err)
			return
		}
		_, err := w.Write(text)
		errs = append(errs, err)
	}
	for _, d := range []string{"etc", "usr", "usr/bin", "usr/lib", "usr/lib64", "proc", "sys", "dev", "tmp", "home"} {
		entry(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}, nil)
	}
	for from, to := range map[string]string{"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash",
		"usr/bin/awk": "mawk"} {
		entry(&tar.Header{Typeflag: tar.TypeSymlink, Name: from, Linkname: to, Mode: 0o777}, nil)
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n",
		"etc/group":  "root:x:0:\ntty:x:5:\nsandbox:x:1000:\n",
	} {
		entry(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(text))
	}
	for name, from := range files {
		text, err := os.ReadFile(from)
		if err != nil {
			continue // not every file is readable
		}
		st, err := os.Stat(from)
		if err != nil {
			return nil, err
		}
		entry(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(st.Mode().Perm())}, text)
	}
	return archive.Bytes(), errors.Join(append(errs, w.Close())...)
}

// backend opens one over the engine, and closes it with the test.
func (e *engine) backend(t testing.TB, change ...func(*Options)) *Backend {
	t.Helper()
	o := Options{Host: e.host, Image: testImage, StateDir: filepath.Join(e.dir, "state"), Helper: engines.helper}
	for _, c := range change {
		c(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// containers lists our containers of the engine.
func (e *engine) containers(t testing.TB) (list []string) {
	t.Helper()
	res, err := e.client(t).ContainerList(context.Background(),
		client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelPlace)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Items {
		list = append(list, fmt.Sprintf("%.12s %s %v", c.ID, c.State, c.Names))
	}
	return list
}

// nothingLeft fails if the engine still has one of our containers.
func (e *engine) nothingLeft(t testing.TB) {
	t.Helper()
	left := e.containers(t)
	for deadline := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(deadline); left = e.containers(t) {
		time.Sleep(50 * time.Millisecond)
	}
	if len(left) > 0 {
		t.Errorf("%s has containers left: %q", e.name, left)
	}
}

// eachEngine runs a test on both.
func eachEngine(t *testing.T, test func(t *testing.T, e *engine)) {
	for _, name := range []string{"docker", "podman"} {
		t.Run(name, func(t *testing.T) {
			e := engines.start(t, name)
			defer func() {
				if t.Failed() {
					t.Logf("the daemon's log ends with\n%s", e.log())
				}
			}()
			t.Cleanup(func() { e.nothingLeft(t) }) // after all that the test itself cleans up
			test(t, e)
		})
	}
}
