package python

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// TestInspect: an environment is used if its version is the interpreter's and nothing on its path is a link.
func TestInspect(t *testing.T) {
	const packages = "lib/python3.11/site-packages"
	for name, c := range map[string]struct {
		cfg    string
		make   func(t *testing.T, dir string)
		files  []language.File
		tool   map[string]string
		image  *language.Image
		used   bool
		unused string
	}{
		"fits":                  {cfg: "home = /usr/bin\nversion = 3.11.2\n", used: true},
		"fits, of uv":           {cfg: "home = /usr/bin\nversion_info = 3.11.2.final.0\n", used: true},
		"another version":       {cfg: "version = 3.1.2\n", unused: "for Python 3.1.2, and the interpreter is 3.11.7"},
		"no version":            {cfg: "home = /usr/bin\n", unused: "for Python , "},
		"on an image":           {cfg: "version = 3.11.2\n", image: &language.Image{}, unused: "not for the image"},
		"another one is chosen": {cfg: "version = 3.11.2\n", tool: map[string]string{"VIRTUAL_ENV": "/x"}},
		"without packages": {cfg: "version = 3.11.2\n", unused: "has no " + packages, make: func(t *testing.T, dir string) {
			_ = os.RemoveAll(filepath.Join(dir, ".venv/lib"))
		}},
		"packages elsewhere": {cfg: "version = 3.11.2\n", unused: "has no " + packages, make: func(t *testing.T, dir string) {
			_ = os.RemoveAll(filepath.Join(dir, ".venv", packages))
			link(t, t.TempDir(), filepath.Join(dir, ".venv", packages))
		}},
		"a link to one": {cfg: "version = 3.11.2\n", make: func(t *testing.T, dir string) {
			_ = os.Rename(filepath.Join(dir, ".venv"), filepath.Join(dir, "real"))
			link(t, "real", filepath.Join(dir, ".venv"))
		}},
		"a link to its description": {make: func(t *testing.T, dir string) { link(t, "/etc/passwd", filepath.Join(dir, ".venv/pyvenv.cfg")) }},
		"among the files": {files: []language.File{{Path: ".venv/pyvenv.cfg", Data: []byte("version = 3.11.2")},
			{Path: ".venv/" + packages + "/six.py"}}, used: true},
		"none": {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, ".venv", packages), 0o755); err != nil {
				t.Fatal(err)
			}
			if c.cfg != "" {
				if err := os.WriteFile(filepath.Join(dir, ".venv/pyvenv.cfg"), []byte(c.cfg), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if c.make != nil {
				c.make(t, dir)
			}
			j := &language.Job{HostDir: dir, Files: c.files, Tool: &toolchain.Toolchain{Version: "3.11.7", Env: c.tool}, Image: c.image}
			if err := inspect(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			found := j.Inspected.(*inspected)
			if (found.env != nil) != c.used || (found.unused == "") != (c.unused == "") || !strings.Contains(found.unused, c.unused) {
				t.Errorf("%+v %+v", found, found.env)
			}
			if c.used && c.files == nil && found.env.source != filepath.Join(dir, ".venv", packages) {
				t.Errorf("%+v", found.env)
			}
		})
	}
}

func link(t *testing.T, target, at string) {
	t.Helper()
	if err := os.Symlink(target, at); err != nil {
		t.Fatal(err)
	}
}

func TestFindEntry(t *testing.T) {
	for _, c := range []struct{ text, asked, want string }{
		{"[project.scripts]\na = \"m:f\"\n", "", "a"},
		{"[project.scripts]\na = \"m:f\"\nb = \"m:g\"\n", "", ""},
		{"[project]\nname = \"b\"\n[project.scripts]\na = \"m:f\"\nb = \"m:g\"\n", "", "b"},
		{"[project.scripts] # x\n\"a-b\" = 'm.n:C.f [extra]'\n", "a-b", "a-b"},
		{"[project.scripts]\na = \"m:f\"\n", "c", ""},
		{"[project.scripts]\na = \"m\"\nb = \"m:f()\"\n../c = \"m:f\"\nd = \"m; import os:f\"\n", "", ""},
		{"[tool.other]\na = \"m:f\"\n", "", ""},
	} {
		files := []language.File{{Path: "pyproject.toml", Data: []byte(c.text)}}
		if got := findEntry(files, c.asked); got != c.want {
			t.Errorf("%q, %q: %q instead of %q", c.text, c.asked, got, c.want)
		}
	}
}
