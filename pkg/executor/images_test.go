package executor

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fakeImage is an image of no machine. kept is one that the backend keeps itself.
func fakeImage(kept bool) *Image {
	i := &Image{
		ImageInfo: sandbox.ImageInfo{
			ImageRef: sandbox.ImageRef{Reference: "lang:1", ID: "sha256:1d", Digest: "sha256:d1"},
			Env:      []string{"PATH=/usr/local/bin:/bin", "HOME=/root", "LANG=C", "GOPATH=/go"}, Workdir: "/app",
		},
		Dir: "/images/1d/root",
	}
	if kept {
		i.Dir = ""
	}
	return i
}

// TestPlansOnImages: nothing of the host is in them but the kit, and that is a file where the backend keeps the image.
func TestPlansOnImages(t *testing.T) {
	requests := map[string]Request{
		"python": {Language: "python", Code: "1"}, "javascript": {Language: "js", Code: "1"}, "typescript": {Language: "ts", Code: "1"},
		"go": {Language: "go", Code: goHello}, "rust": {Language: "rust", Code: "fn main() {}"}, "java": {Language: "java", Code: javaHello},
		"shell": {Language: "sh", Code: "ls"}, "sql": {Language: "sql", Code: "select 1"}, "postgres": {Language: "pg", Code: "select 1"},
		"python-own": {Language: "python", Code: "1", Env: map[string]string{"PATH": "/mine", "HOME": "/tmp"}, Policy: Policy{Workdir: "/tmp"}},
	}
	for name, req := range requests {
		for _, kept := range []bool{false, true} {
			file := "image-" + name
			if kept {
				file = "kept-" + name
			}
			t.Run(file, func(t *testing.T) {
				j := fakeJob(t, req)
				j.image = fakeImage(kept)
				if j.tool != nil {
					j.tool.Mounts = nil
				}
				plan, err := newPlan(j, bigMachine)
				if kept && name == "postgres" {
					if !errors.Is(err, sandbox.ErrUnsupported) {
						t.Errorf("%v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if kept && len(plan.Spec.Root.Add)+len(plan.Spec.Root.HostPaths) > 0 {
					t.Errorf("of the host: %+v", plan.Spec.Root)
				}
				for i := range plan.Files { // the kit of no machine has no content
					if plan.Files[i].Path == kitCopied {
						plan.Files[i].Open = nil
					}
				}
				golden(t, filepath.Join("plan", file+".golden"), plan)
			})
		}
	}
}

func TestHowToGetAnImage(t *testing.T) {
	pin := "@sha256:" + strings.Repeat("0", 64)
	for ref, want := range map[string][2]string{
		"python":                  {"sandbox-run image pull python", "docker pull python"},
		"sandbox-run/go":          {"sandbox-run image build go", "sandbox-run image build go && sandbox-run image export sandbox-run/go | docker load"},
		"sandbox-run/go:latest":   {"sandbox-run image build go", "sandbox-run image build go && sandbox-run image export sandbox-run/go:latest | docker load"},
		"sandbox-run/go:v2":       {"sandbox-run image build --tag sandbox-run/go:v2 go", "sandbox-run image build --tag sandbox-run/go:v2 go && sandbox-run image export sandbox-run/go:v2 | docker load"},
		"sandbox-run/go" + pin:    {"sandbox-run image build go", "sandbox-run image build go && sandbox-run image export sandbox-run/go" + pin + " | docker load"},
		"sandbox-run/go:v2" + pin: {"sandbox-run image build go", "sandbox-run image build go && sandbox-run image export sandbox-run/go:v2" + pin + " | docker load"},
	} {
		if got := [2]string{(&NoImage{Reference: ref}).How(), (&NoImage{Reference: ref, Backend: "docker"}).How()}; got != want {
			t.Errorf("%s: %q", ref, got)
		}
	}
}

// What was compiled on one image is not used on another, nor on this machine.
func TestCacheKeyNamesTheImage(t *testing.T) {
	keys := map[string]string{}
	for name, change := range map[string]func(*job){
		"host": func(*job) {}, "image": func(j *job) { j.image = fakeImage(false) },
		"another": func(j *job) { j.image = fakeImage(false); j.image.ID = "sha256:2e" }, "kept": func(j *job) { j.image = fakeImage(true) },
	} {
		j := fakeJob(t, Request{Language: "rust", Code: "fn main() {}"})
		change(j)
		plan, err := newPlan(j, bigMachine)
		if err != nil {
			t.Fatal(err)
		}
		contents, err := plan.contents()
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = plan.key(&plan.Phases[0], contents)
	}
	if keys["image"] != keys["kept"] { // the same image, wherever it lies
		t.Error("an image is another one where the backend keeps it")
	}
	delete(keys, "kept")
	if distinct := slices.Compact(slices.Sorted(maps.Values(keys))); len(distinct) != len(keys) {
		t.Errorf("%v", keys)
	}
}

func TestImageEnv(t *testing.T) {
	got := imageEnv([]string{
		"PATH=/a:/b", "LANG=de", "EMPTY=", "A=b=c", "LD_LIBRARY_PATH=/opt/lib", // these are honoured
		"LD_PRELOAD=/x.so", "LD_AUDIT=/x.so", "GLIBC_TUNABLES=x", "HOME=/root", "USER=root", "LOGNAME=root", "TMPDIR=/x", "HOSTNAME=h", "PWD=/", "SHELL=/bin/x",
		"XDG_CACHE_HOME=/x", "SANDBOX_RUN_KIT=/x", "TERM=x", "=x", "nothing", "N\x00L=x", "V=\x00", "LONG=" + strings.Repeat("x", maxImageVariable),
	})
	if want := map[string]string{"PATH": "/a:/b", "LANG": "de", "EMPTY": "", "A": "b=c", "LD_LIBRARY_PATH": "/opt/lib"}; !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	var many []string
	for i := range 1000 {
		many = append(many, strings.Repeat("x", i+1)+"=")
	}
	if n := len(imageEnv(many)); n != maxImageVariables {
		t.Errorf("%d variables", n)
	}
}

// FuzzImageEnv: whatever an image says, its sandboxes can be made, and have their own say.
func FuzzImageEnv(f *testing.F) {
	f.Add("PATH=/x\nLD_PRELOAD=y")
	f.Add("=\n==\n\x00\nHOME")
	f.Fuzz(func(t *testing.T, text string) {
		for k, v := range imageEnv(strings.Split(text, "\n")) {
			if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) || slices.Contains(withheld(), k) || k == "LD_PRELOAD" {
				t.Errorf("%q=%q", k, v)
			}
		}
	})
}

func TestImageCommand(t *testing.T) {
	text := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		entrypoint, cmd []string
		own             *string
		args            []string
		want            string
	}{
		"its own":            {[]string{"/e", "x"}, []string{"c"}, nil, nil, "/e x c"},
		"command":            {nil, []string{"c", "d"}, nil, nil, "c d"},
		"arguments":          {[]string{"/e"}, []string{"c"}, nil, []string{"a", "b"}, "/e a b"},
		"no entrypoint":      {nil, []string{"c"}, nil, []string{"a"}, "a"},
		"another":            {[]string{"/e"}, []string{"c"}, text("/o"), nil, "/o"},
		"another, arguments": {[]string{"/e"}, []string{"c"}, text("/o"), []string{"a"}, "/o a"},
		"none of it":         {[]string{"/e"}, []string{"c"}, text(""), []string{"a"}, "a"},
		"nothing":            {nil, nil, nil, nil, ""},
		"nothing left":       {[]string{"/e"}, []string{"c"}, text(""), nil, ""},
	} {
		i := &Image{ImageInfo: sandbox.ImageInfo{Entrypoint: c.entrypoint, Cmd: c.cmd}}
		got, err := i.Command(c.own, c.args)
		if strings.Join(got, " ") != c.want || (err != nil) != (c.want == "") || err != nil && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestDefaultImage(t *testing.T) {
	e := New(nil, Options{DefaultImages: map[string]string{"python": "python:3.13", "rust": "none", "lua": "lua:5"}})
	for name, want := range map[string]string{"python": "python:3.13", "rust": "", "go": "sandbox-run/go", "javascript": "sandbox-run/node", "postgres": ""} {
		l, err := e.lookUp(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.defaultImage(l); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	languages, err := parseLanguages([]byte("languages:\n  - {name: lua, run: [lua, \"{file}\"], image: \"nick/lua\"}\n  - {name: c, run: [tcc, \"{file}\"], image: \"gcc:14\"}\nimages: {python: x}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := e.defaultImage(languages[0]), e.defaultImage(languages[1]); a != "lua:5" || b != "gcc:14" {
		t.Errorf("%q %q", a, b)
	}
	images, err := parseImages([]byte("languages: []\nimages: {python: \"python:3.13\", rust: none}\n"))
	if err != nil || !maps.Equal(images, map[string]string{"python": "python:3.13", "rust": "none"}) {
		t.Errorf("%v, %v", images, err)
	}
	for _, text := range []string{"images: [a]\n", "images: {python: [a]}\n", "images: python\n"} {
		if _, err := parseImages([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	for _, l := range builtin() { // whatever the table names is a language
		delete(e.opts.DefaultImages, l.Name)
	}
	for name := range defaultImages() {
		if _, err := e.lookUp(name); err != nil {
			t.Error(err)
		}
	}
}
