package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/hostimage"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// stored is a store of images that all tests share.
var stored struct {
	once  sync.Once
	err   error
	store *image.Store
	dir   string
}

const (
	pythonImage = "test/python:1" // this machine's Python
	smallImage  = "test/small:1"  // busybox and nothing else, as Alpine is
)

// imageStore has images made of this machine's files.
func imageStore(t testing.TB) *image.Store {
	t.Helper()
	realEngine(t) // for its directory
	stored.once.Do(func() {
		stored.dir = filepath.Join(shared.dir, "images")
		if stored.store, stored.err = image.Open(stored.dir); stored.err != nil {
			return
		}
		python := hostimage.Python()
		if python == nil {
			stored.err = errors.New("needs the distribution's Python (package python3)")
			return
		}
		python.Programs = append(python.Programs, "/usr/bin/bash", "/usr/bin/sh", "/usr/bin/cat", "/usr/bin/id", "/usr/bin/env")
		python.Files = map[string]string{
			"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "srv/app/here": "here\n", "root/x": "closed\n", "bin": "-> usr/bin",
			"opt/hello": "#!/bin/sh\necho hello \"$@\"\n", "opt/marker": "of the image\n",
		}
		python.Config = image.Config{
			Env: []string{"PATH=/opt/bin:/usr/local/bin:/usr/bin:/bin", "LD_PRELOAD=/opt/evil.so", "HOME=/root", "OF_THE_IMAGE=yes", "USER=root",
				"PYTHONUNBUFFERED=1", "broken"},
			Workdir: "/srv/app", User: "0", Entrypoint: []string{"/opt/hello"}, Cmd: []string{"from", "image"},
		}
		if _, stored.err = hostimage.Add(context.Background(), stored.store, pythonImage, *python); stored.err != nil {
			return
		}
		small := hostimage.Contents{Programs: []string{"/usr/bin/busybox"},
			Files: map[string]string{"usr/bin/sh": "-> /usr/bin/busybox", "usr/bin/id": "-> busybox", "usr/bin/cat": "-> busybox",
				"bin": "-> usr/bin"}}
		_, stored.err = hostimage.Add(context.Background(), stored.store, smallImage, small)
	})
	if stored.err != nil {
		t.Fatal(stored.err)
	}
	return stored.store
}

// imageEngine runs on images; environ is where it looks for this machine's toolchains, nil for as usual.
func imageEngine(t testing.TB, environ []string, o Options) *Executor {
	t.Helper()
	store := imageStore(t)
	o.Images = StoredImages(func() (*image.Store, error) { return store, nil })
	o.Toolchains = &toolchain.Finder{Store: filepath.Join(t.TempDir(), "toolchains"), Environ: environ}
	o.Kit, o.WarmDir = realEngine(t).opts.Kit, realEngine(t).opts.WarmDir
	return New(shared.manager, o)
}

func TestPythonOnAnImage(t *testing.T) {
	e := imageEngine(t, nil, Options{})
	const code = `import os, sys, pwd
print(open("/opt/marker").read().strip(), sys.executable, os.getuid(), os.getcwd(), pwd.getpwuid(os.getuid()).pw_dir)
print(*(os.environ.get(n) for n in ("OF_THE_IMAGE", "LD_PRELOAD", "HOME", "USER", "PATH")))
try: open("/opt/marker", "w")
except OSError as e: print(e.strerror)
print(os.path.exists("/usr/bin/gcc"), os.path.exists("/usr/bin/ls"))
`
	for range 2 { // the second knows the toolchain already
		r := expectOn(t, e, Request{Image: pythonImage, Language: "python", Code: code},
			want{stdout: "of the image /usr/bin/python3 1000 /workspace /home/sandbox\n" +
				"yes None /home/sandbox sandbox /opt/bin:/usr/local/bin:/usr/bin:/bin\nRead-only file system\nFalse False\n"})
		if r.Image == nil || r.Image.Reference != pythonImage || !strings.HasPrefix(r.Image.Digest, "sha256:") ||
			!strings.HasPrefix(r.Image.ID, "sha256:") {
			t.Errorf("%+v", r.Image)
		}
		if !strings.HasPrefix(r.Version, "3.") {
			t.Errorf("version %q", r.Version)
		}
	}
	// The same limits and walls.
	expectOn(t, e, Request{Image: pythonImage, Language: "python", Code: "x = bytearray(300 << 20)",
		Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}}, want{verdict: sandbox.VerdictMemoryLimit, exit: 0})
	expectOn(t, e, Request{Image: pythonImage, Language: "python", Code: "print("}, want{verdict: sandbox.VerdictCompileError})
	expectOn(t, e, Request{Image: pythonImage, Language: "shell", Code: "echo $0 $BASH_VERSION"}, want{has: []string{"main.sh 5."}})
	expectOn(t, e, Request{Image: pythonImage, Language: "sql", Code: "select 6*7 as x;"}, want{has: []string{"42"}})
	// What is used can not be taken away meanwhile, and can be afterwards.
	r, err := e.Execute(t.Context(), Request{Image: pythonImage, Language: "python", Code: "print(1)", OnPlan: func(*Plan) {
		if _, _, err := imageStore(t).Remove(pythonImage, false); !errors.Is(err, image.ErrInUse) {
			t.Errorf("it can be removed while it is used: %v", err)
		}
	}})
	if err != nil || !r.Success() {
		t.Errorf("%+v, %v", r, err)
	}
	img, err := imageStore(t).Lookup(pythonImage)
	if err != nil {
		t.Fatal(err)
	}
	if lease, err := imageStore(t).Use(img); err != nil {
		t.Error(err)
	} else if err := lease.Close(); err != nil {
		t.Error(err)
	}
}

// An image with a C library of its own kind, or none, and no more than one file.
func TestSmallImage(t *testing.T) {
	e := imageEngine(t, nil, Options{})
	expectOn(t, e, Request{Image: smallImage, Language: "shell", Code: "id -u; cat /etc/hostname"}, want{stdout: "1000\nsandbox\n"})
	_, err := e.Execute(t.Context(), Request{Image: smallImage, Language: "python", Code: "1"})
	var missing *toolchain.Missing
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "no python in the image "+smallImage) {
		t.Errorf("%v", err)
	}
	_, err = e.Execute(t.Context(), Request{Image: smallImage, Language: "shell", Code: "1",
		Options: LanguageOptions{Commands: []string{"ls"}}})
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "image") {
		t.Errorf("%v", err)
	}
}

func TestImageThatIsNotHere(t *testing.T) {
	e := imageEngine(t, nil, Options{})
	for ref, how := range map[string]string{
		"alpine:3": "sandbox-run image pull alpine:3", "sandbox-run/rust": "sandbox-run image build rust",
		"sandbox-run/rust:latest": "sandbox-run image build rust",
	} {
		_, err := e.Execute(t.Context(), Request{Image: ref, Language: "python", Code: "1"})
		var none *NoImage
		if !errors.As(err, &none) || !errors.Is(err, sandbox.ErrNotFound) || none.How() != how || !strings.Contains(err.Error(), how) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, err := e.Execute(t.Context(), Request{Image: "Not A Reference", Language: "python", Code: "1"}); !errors.Is(err,
		sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// An image of another processor says so, and not what the kernel says of its programs.
func TestImageOfAnotherMachine(t *testing.T) {
	other := map[string]string{"amd64": "s390x"}[runtime.GOARCH]
	if other == "" {
		other = "amd64"
	}
	for _, platform := range []string{"windows/" + runtime.GOARCH, "linux/386", "linux/arm/v7", ""} {
		if err := runsHere(platform); err == nil || !strings.Contains(err.Error(), "linux/"+runtime.GOARCH) {
			t.Errorf("%s: %v", platform, err)
		}
	}
	for _, platform := range []string{"linux/" + runtime.GOARCH, "linux/" + runtime.GOARCH + "/v8"} {
		if err := runsHere(platform); err != nil {
			t.Errorf("%s: %v", platform, err)
		}
	}
	store, err := image.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hostimage.Add(t.Context(), store, "other",
		hostimage.Contents{Architecture: other, Files: map[string]string{"x": "y"}}); err != nil {
		t.Fatal(err)
	}
	_, err = StoredImages(func() (*image.Store, error) { return store, nil }).Image(t.Context(), "other")
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "linux/"+other) ||
		!strings.Contains(err.Error(), "--platform") {
		t.Errorf("%v", err)
	}
}

// Where this machine has no toolchain, the language's image stands in, if it is here; if not, it is offered.
func TestImageInTheToolchainsPlace(t *testing.T) {
	bare := []string{"PATH=" + t.TempDir(), "HOME=" + t.TempDir()}
	hide := func(e *Executor) *Executor {
		for _, l := range e.languages { // a language that no place of this machine has
			if l.Name == "python" {
				hidden := *l
				c := &custom{run: []string{"no-such-python", "{file}"},
					toolchain: toolchain.Custom{Name: "python", Programs: []string{"no-such-python"}}}
				var err error
				if hidden.Toolchain, err = c.toolchain.Description(); err != nil {
					t.Fatal(err)
				}
				hidden.Plan = c.plan
				e.languages = append([]*Language{&hidden}, e.languages...)
				break
			}
		}
		return e
	}
	log, err := audit.Open(filepath.Join(t.TempDir(), "log"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		images map[string]string
		says   string
	}{
		"offered":        {map[string]string{"python": "python:3.13"}, "no python on this machine"},
		"none":           {map[string]string{"python": "none"}, "no python on this machine"},
		"but lacks that": {map[string]string{"python": smallImage}, "no python in the image " + smallImage},
	} {
		_, err := hide(imageEngine(t, bare, Options{DefaultImages: c.images})).Execute(t.Context(), Request{Language: "python", Code: "print(1)"})
		var missing *toolchain.Missing
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		var none *NoImage
		if offered := errors.As(err, &none); offered != (name == "offered") || offered &&
			!strings.Contains(err.Error(), "sandbox-run image pull python:3.13") {
			t.Errorf("%s: offered %v: %v", name, offered, err)
		}
	}
	e := imageEngine(t, bare, Options{DefaultImages: map[string]string{"lisp": pythonImage}, Audit: log})
	c := &custom{run: []string{"/opt/hello", "{file}"}, toolchain: toolchain.Custom{Name: "lisp", Programs: []string{"/opt/hello"}}}
	description, err := c.toolchain.Description()
	if err != nil {
		t.Fatal(err)
	}
	e.languages = append(e.languages, &Language{
		Name: "lisp", Title: "Lisp", Source: "main.lisp", Mains: []string{"main.lisp"}, Toolchain: description, Plan: c.plan,
	})
	r := expectOn(t, e, Request{Language: "lisp", Code: "x"}, want{stdout: "hello /workspace/main.lisp\n"})
	if r.Image == nil || r.Image.Reference != pythonImage || !strings.Contains(strings.Join(r.Notes, "\n"), "no Lisp on this machine") {
		t.Errorf("%+v %q", r.Image, r.Notes)
	}
	text, err := os.ReadFile(log.Path())
	if err != nil || !strings.Contains(string(text), `"image":"`+pythonImage+`","image_digest":"`+r.Image.Digest+`"`) {
		t.Errorf("%v: %s", err, text)
	}
}

// What an image says about running it, as far as it is honoured.
func TestImageApply(t *testing.T) {
	store := imageStore(t)
	img, err := StoredImages(func() (*image.Store, error) { return store, nil }).Image(t.Context(), pythonImage)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	for dir, c := range map[string]struct{ want, note string }{
		"/srv/app": {"/srv/app", ""}, "/srv//app/": {"/srv/app", ""}, "": {"", ""}, "/": {"", ""}, "/tmp": {"/tmp", ""},
		"/workspace": {"/workspace", ""},
		"/nowhere":   {"", "does not exist"}, "/opt/marker": {"", "not a directory"}, "relative": {"", "not an absolute path"},
		"/bin/..":       {"", ""},
		"/../../../etc": {"/etc", ""},
	} {
		img.Workdir = dir
		var s sandbox.Spec
		notes := strings.Join(img.Apply(&s), "\n")
		if s.Workdir != c.want || (notes == "") != (c.note == "") || !strings.Contains(notes, c.note) {
			t.Errorf("%q: %q, %q", dir, s.Workdir, notes)
		}
	}
	s := sandbox.Spec{Workdir: "/tmp", Env: map[string]string{"OF_THE_IMAGE": "mine", "LD_PRELOAD": "mine"}}
	img.Apply(&s)
	if s.Workdir != "/tmp" || s.Env["OF_THE_IMAGE"] != "mine" || s.Env["LD_PRELOAD"] != "mine" || s.Env["HOME"] != "" || s.Root.Dir == "" ||
		s.Root.Image != "" {
		t.Errorf("%+v", s)
	}
}

func TestExecuteCommandOnAnImage(t *testing.T) {
	store := imageStore(t)
	t.Setenv("SANDBOX_RUN_IMAGES", store.Dir())
	t.Setenv("SANDBOX_RUN_AUDIT_LOG", "off")
	c := NewCodeExecutor(0)
	defer c.Close()
	r, err := c.ExecuteCommand(t.Context(), "pwd; cat here /opt/marker; id -u", SandboxConfig{Image: pythonImage})
	if err != nil || r.Error != nil || r.Stdout != "/srv/app\nhere\nof the image\n1000\n" {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = c.ExecuteCommand(t.Context(), "pwd; cat x", SandboxConfig{Image: pythonImage}, MountedFile{Path: "x", Content: []byte("mine")})
	if err != nil || r.Error != nil || r.Stdout != "/workspace\nmine" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := c.ExecuteCommand(t.Context(), "true", SandboxConfig{Image: "alpine:3"}); !errors.Is(err, sandbox.ErrNotFound) ||
		!strings.Contains(err.Error(), "alpine:3") {
		t.Errorf("%v", err)
	}
}
