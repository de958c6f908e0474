package executor

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
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
				j.Image = fakeImage(kept)
				if j.Tool != nil {
					j.Tool.Mounts = nil
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
					if plan.Files[i].Path == language.KitCopy {
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
		"python": {"sandbox-run image pull python", "docker pull python"},
		"sandbox-run/go": {"sandbox-run image build go",
			"sandbox-run image build go && sandbox-run image export sandbox-run/go | docker load"},
		"sandbox-run/go:latest": {"sandbox-run image build go",
			"sandbox-run image build go && sandbox-run image export sandbox-run/go:latest | docker load"},
		"sandbox-run/go:v2": {"sandbox-run image build --tag sandbox-run/go:v2 go",
			"sandbox-run image build --tag sandbox-run/go:v2 go && sandbox-run image export sandbox-run/go:v2 | docker load"},
		"sandbox-run/go" + pin: {"sandbox-run image build go",
			"sandbox-run image build go && sandbox-run image export sandbox-run/go" + pin + " | docker load"},
		"sandbox-run/go:v2" + pin: {"sandbox-run image build go",
			"sandbox-run image build go && sandbox-run image export sandbox-run/go:v2" + pin + " | docker load"},
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
		"host": func(*job) {}, "image": func(j *job) { j.Image = fakeImage(false) },
		"another": func(j *job) { j.Image = fakeImage(false); j.Image.ID = "sha256:2e" }, "kept": func(j *job) { j.Image = fakeImage(true) },
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

func TestDefaultImage(t *testing.T) {
	e := New(nil, Options{DefaultImages: map[string]string{"python": "python:3.13", "rust": "none", "lua": "lua:5"}})
	for name, want := range map[string]string{"python": "python:3.13", "rust": "", "go": "sandbox-run/go", "javascript": "sandbox-run/node",
		"postgres": ""} {
		l, err := e.lookUp(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.defaultImage(l); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	languages, err := parseLanguages([]byte("languages:\n  - {name: lua, run: [lua, \"{file}\"], image: \"nick/lua\"}\n" +
		"  - {name: c, run: [tcc, \"{file}\"], image: \"gcc:14\"}\nimages: {python: x}\n"))
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
}
