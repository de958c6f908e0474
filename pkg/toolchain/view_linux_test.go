package toolchain_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/golang"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/shell"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestResolve(t *testing.T) {
	w := newWorld(t)
	w.write("a/real/file", "", 0o644)
	w.link("real", "a/one")
	w.link(w.at("a/one"), "two")
	w.link("two/../real/./file", "three") // ".." is a/'s: two leads into a/real
	w.link("loop", "loop")
	w.link("nowhere", "dangling")
	for p, want := range map[string]string{
		"a/real/file": "a/real/file", "a/one/file": "a/real/file", "two/file": "a/real/file", "three": "a/real/file",
		"two/../one/file": "a/real/file",
		"a//real/.":       "a/real", "two/": "a/real",
	} {
		r, err := toolchain.Resolve(w.dir + "/" + p)
		if err != nil || r.Real() != w.at(want) {
			t.Errorf("%s is %s (%v), want %s", p, r.Real(), err, want)
		}
	}
	r, err := toolchain.Resolve(w.at("two/file"))
	if err != nil || !slices.Equal(r.Via(), []string{w.at("two/file"), w.at("a/one/file"), w.at("a/real/file")}) ||
		!slices.Equal(r.Links(), []string{w.at("two"), w.at("a/one")}) {
		t.Errorf("%+v %v", r, err)
	}
	for p, want := range map[string]string{"loop": "too many links", "dangling": "no such file", "a/real/file/x": "not a directory"} {
		if _, err := toolchain.Resolve(w.at(p)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", p, err, want)
		}
	}
	if _, err := toolchain.Resolve("relative"); err == nil {
		t.Error("a relative path was resolved")
	}
	if r, err := toolchain.Resolve("/"); err != nil || r.Real() != "/" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestNixStore(t *testing.T) {
	w := newWorld(t)
	w.script("nix/store/abc-node-20/bin/node", strings.ReplaceAll(fakeNode, "%", "20.0.0"))
	w.link(w.at("nix/store/abc-node-20/bin/node"), "profile/bin/node")
	v := toolchain.NewSearch("node", map[string]string{}, nil).View()
	v.SetNix(w.at("nix/store"))
	if err := v.Show(w.at("profile/bin/node")); err != nil {
		t.Fatal(err)
	}
	if err := v.Show(w.at("nix/store/abc-node-20")); err != nil {
		t.Fatal(err)
	}
	want := []sandbox.Mount{same(w.at("nix/store")), {Source: w.at("nix/store/abc-node-20/bin/node"), Target: w.at("profile/bin/node")}}
	if got := v.List(); !slices.Equal(got, want) {
		t.Errorf("mounts are %v\nwant %v", got, want)
	}
}

// Nothing that holds more than a toolchain is ever shown as one.
func TestBroad(t *testing.T) {
	w := newWorld(t)
	s := toolchain.NewSearch("x", map[string]string{"HOME": w.home}, nil)
	w.mkdir("home/me/.cargo")
	w.mkdir("home/me/.local")
	w.mkdir("home/me/.pyenv/versions/3.12")
	for _, p := range []string{"/", "/etc", "/opt", "/root", "/home", "/var", "/var/tmp", w.home, w.at("home"), w.dir, w.at("home/me/.cargo"),
		w.at("home/me/.local"), w.at("home/me/.pyenv")} {
		if v := s.View(); toolchain.Exists(p) && v.Show(p) == nil {
			t.Errorf("%s was shown: %v", p, v.List())
		}
	}
	v := s.View()
	if err := v.Show(w.at("home/me/.pyenv/versions/3.12")); err != nil || len(v.List()) != 1 { // the control
		t.Errorf("%v %v", err, v.List())
	}
	// Through a program that lies about itself, too.
	w.script("bin/go", `printf '%s\n' "$HOME" go1.26.0`)
	w.script("home/me/bin/go", "")
	w.mkdir("home/me/src/fmt")
	if m := w.missing(golang.Language.Toolchain); len(m.Tried) != 1 || !strings.Contains(m.Tried[0], "holds more than a toolchain") {
		t.Errorf("%v", m)
	}
}

func TestCustom(t *testing.T) {
	w := newWorld(t)
	w.script("bin/zig", `echo "0.13.0-dev.2+g1"`)
	w.script("bin2/helper", "true")
	w.mkdir("home/me/zig-lib")
	c := toolchain.Custom{Name: "zig", Programs: []string{"zig", "helper"}, VersionCommand: []string{"zig", "version"},
		Paths: []string{"~/zig-lib"}}
	got, err := w.custom(c)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != "0.13.0-dev.2+g1" || got.Path != w.at("bin/zig") || got.Programs["helper"] != w.at("bin2/helper") {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("bin/zig"), same("bin2/helper"), same("home/me/zig-lib"))
	for want, change := range map[string]func(c *toolchain.Custom){
		"gone is not there": func(c *toolchain.Custom) { c.Programs = []string{"zig", "gone"} },
		"no zag on this machine": func(c *toolchain.Custom) {
			c.Name, c.Programs = "zag", []string{"zag"}
		},
		"/no/such/lib is not there":           func(c *toolchain.Custom) { c.Paths = []string{"/no/such/lib"} },
		"prints no version":                   func(c *toolchain.Custom) { c.VersionCommand = []string{"helper"} },
		"which would say the version, is not": func(c *toolchain.Custom) { c.VersionCommand = []string{"gone"} },
	} {
		other := c
		change(&other)
		if _, err := w.custom(other); isMissing(err) == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for want, change := range map[string]func(c *toolchain.Custom){
		`"" is not a name`:                    func(c *toolchain.Custom) { c.Name = "" },
		`"../x" is not a name`:                func(c *toolchain.Custom) { c.Name = "../x" },
		"it names no program":                 func(c *toolchain.Custom) { c.Programs = nil },
		`"./zig" is neither`:                  func(c *toolchain.Custom) { c.Programs = []string{"./zig"} },
		`"z*" is neither`:                     func(c *toolchain.Custom) { c.Programs = []string{"z*"} },
		`path "lib" is not absolute`:          func(c *toolchain.Custom) { c.Paths = []string{"lib"} },
		`"" is not a program or an argument`:  func(c *toolchain.Custom) { c.VersionCommand = []string{""} },
		`"x\x00" is not a program or an argu`: func(c *toolchain.Custom) { c.Programs = []string{"x\x00"} },
	} {
		other := c
		change(&other)
		if _, err := w.custom(other); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestShellOutside(t *testing.T) {
	w := newWorld(t)
	w.script("opt/bash-5.3/bin/bash", `echo "GNU bash, version 5.3.0(1)-release (x86_64)"`)
	w.link(w.at("opt/bash-5.3/bin/bash"), "bin/bash")
	w.link(w.at("opt/bash-5.3/bin/bash"), "bin/sh")
	got := w.mustFind(w.finder(), shell.Language.Toolchain)
	if got.Version != "5.3.0" || got.Path != w.at("opt/bash-5.3/bin/bash") || !strings.HasPrefix(got.Programs["sh"], "/") ||
		strings.HasPrefix(got.Programs["sh"], w.dir) {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("opt/bash-5.3/bin/bash"))
}

func TestInstallHints(t *testing.T) {
	w := newWorld(t)
	w.script("bin/apk", "true")
	s := toolchain.NewSearch("x", map[string]string{"PATH": w.at("bin")}, []string{})
	for _, d := range descriptions() {
		hints := s.Install(d.Packages)
		if len(hints) != toolchain.Managers() || !strings.HasPrefix(hints[0], "apk add ") && !toolchain.Exists("/usr/bin/apt-get") {
			t.Errorf("%s: %q", d.Name, hints)
		}
		for _, hint := range hints {
			if strings.HasSuffix(hint, " ") {
				t.Errorf("%s: %q names no package", d.Name, hint)
			}
		}
	}
	if s.Install(toolchain.Packages{}) != nil {
		t.Error("a hint for what is not known")
	}
}
