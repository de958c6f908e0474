package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
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
		"a/real/file": "a/real/file", "a/one/file": "a/real/file", "two/file": "a/real/file", "three": "a/real/file", "two/../one/file": "a/real/file",
		"a//real/.": "a/real", "two/": "a/real",
	} {
		r, err := resolve(w.dir + "/" + p)
		if err != nil || r.real != w.at(want) {
			t.Errorf("%s is %s (%v), want %s", p, r.real, err, want)
		}
	}
	r, err := resolve(w.at("two/file"))
	if err != nil || !slices.Equal(r.via, []string{w.at("two/file"), w.at("a/one/file"), w.at("a/real/file")}) || !slices.Equal(r.links, []string{w.at("two"), w.at("a/one")}) {
		t.Errorf("%+v %v", r, err)
	}
	for p, want := range map[string]string{"loop": "too many links", "dangling": "no such file", "a/real/file/x": "not a directory"} {
		if _, err := resolve(w.at(p)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", p, err, want)
		}
	}
	if _, err := resolve("relative"); err == nil {
		t.Error("a relative path was resolved")
	}
	if r, err := resolve("/"); err != nil || r.real != "/" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestNixStore(t *testing.T) {
	w := newWorld(t)
	w.script("nix/store/abc-node-20/bin/node", strings.ReplaceAll(fakeNode, "%", "20.0.0"))
	w.link(w.at("nix/store/abc-node-20/bin/node"), "profile/bin/node")
	h := newHunt(context.Background(), map[string]string{}, 0, nil)
	v := h.view(Node)
	v.nix = w.at("nix/store")
	if err := v.show(w.at("profile/bin/node")); err != nil {
		t.Fatal(err)
	}
	if err := v.show(w.at("nix/store/abc-node-20")); err != nil {
		t.Fatal(err)
	}
	want := []sandbox.Mount{same(w.at("nix/store")), {Source: w.at("nix/store/abc-node-20/bin/node"), Target: w.at("profile/bin/node")}}
	if got := v.list(); !slices.Equal(got, want) {
		t.Errorf("mounts are %v\nwant %v", got, want)
	}
}

// Nothing that holds more than a toolchain is ever shown as one.
func TestBroad(t *testing.T) {
	w := newWorld(t)
	h := newHunt(context.Background(), map[string]string{"HOME": w.home}, 0, nil)
	w.mkdir("home/me/.cargo")
	w.mkdir("home/me/.local")
	w.mkdir("home/me/.pyenv/versions/3.12")
	for _, p := range []string{"/", "/etc", "/opt", "/root", "/home", "/var", "/var/tmp", w.home, w.at("home"), w.dir, w.at("home/me/.cargo"), w.at("home/me/.local"), w.at("home/me/.pyenv")} {
		if v := h.view("x"); exists(p) && v.show(p) == nil {
			t.Errorf("%s was shown: %v", p, v.list())
		}
	}
	v := h.view("x")
	if err := v.show(w.at("home/me/.pyenv/versions/3.12")); err != nil || len(v.list()) != 1 { // the control
		t.Errorf("%v %v", err, v.list())
	}
	// Through a program that lies about itself, too.
	w.script("bin/go", `printf '%s\n' "$HOME" go1.26.0`)
	w.script("home/me/bin/go", "")
	w.mkdir("home/me/src/fmt")
	if m := w.missing(golang()); len(m.Tried) != 1 || !strings.Contains(m.Tried[0], "holds more than a toolchain") {
		t.Errorf("%v", m)
	}
}

func TestCustom(t *testing.T) {
	w := newWorld(t)
	w.script("bin/zig", `echo "0.13.0-dev.2+g1"`)
	w.script("bin2/helper", "true")
	w.mkdir("home/me/zig-lib")
	c := Custom{Name: "zig", Programs: []string{"zig", "helper"}, VersionCommand: []string{"zig", "version"}, Paths: []string{"~/zig-lib"}}
	got, err := w.finder().Custom(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != "0.13.0-dev.2+g1" || got.Path != w.at("bin/zig") || got.Programs["helper"] != w.at("bin2/helper") {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("bin/zig"), same("bin2/helper"), same("home/me/zig-lib"))
	for want, change := range map[string]func(c *Custom){
		"gone is not there": func(c *Custom) { c.Programs = []string{"zig", "gone"} },
		"no zag on this machine": func(c *Custom) {
			c.Name, c.Programs = "zag", []string{"zag"}
		},
		"/no/such/lib is not there":           func(c *Custom) { c.Paths = []string{"/no/such/lib"} },
		"prints no version":                   func(c *Custom) { c.VersionCommand = []string{"helper"} },
		"which would say the version, is not": func(c *Custom) { c.VersionCommand = []string{"gone"} },
	} {
		other := c
		change(&other)
		if _, err := w.finder().Custom(context.Background(), other); isMissing(err) == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for want, change := range map[string]func(c *Custom){
		`"" is not a name`:                    func(c *Custom) { c.Name = "" },
		`"../x" is not a name`:                func(c *Custom) { c.Name = "../x" },
		"it names no program":                 func(c *Custom) { c.Programs = nil },
		`"./zig" is neither`:                  func(c *Custom) { c.Programs = []string{"./zig"} },
		`"z*" is neither`:                     func(c *Custom) { c.Programs = []string{"z*"} },
		`path "lib" is not absolute`:          func(c *Custom) { c.Paths = []string{"lib"} },
		`"" is not a program or an argument`:  func(c *Custom) { c.VersionCommand = []string{""} },
		`"x\x00" is not a program or an argu`: func(c *Custom) { c.Programs = []string{"x\x00"} },
	} {
		other := c
		change(&other)
		if _, err := w.finder().Custom(context.Background(), other); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestShellOutside(t *testing.T) {
	w := newWorld(t)
	w.script("opt/bash-5.3/bin/bash", `echo "GNU bash, version 5.3.0(1)-release (x86_64)"`)
	w.link(w.at("opt/bash-5.3/bin/bash"), "bin/bash")
	w.link(w.at("opt/bash-5.3/bin/bash"), "bin/sh")
	got := w.mustFind(w.finder(), shell())
	if got.Version != "5.3.0" || got.Path != w.at("opt/bash-5.3/bin/bash") || !strings.HasPrefix(got.Programs["sh"], "/") || strings.HasPrefix(got.Programs["sh"], w.dir) {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("opt/bash-5.3/bin/bash"))
}

func TestCompareVersions(t *testing.T) {
	names := []string{"v9.11.2", "v18.20.1", "v18.3.0", "v22.0.0-rc1", "3.9", "3.10", "3.010", "jdk", ""}
	slices.SortFunc(names, compareVersions)
	if got := fmt.Sprint(names); got != "[ 3.9 3.10 3.010 jdk v9.11.2 v18.3.0 v18.20.1 v22.0.0-rc1]" {
		t.Error(got)
	}
}

func TestInstallHints(t *testing.T) {
	w := newWorld(t)
	w.script("bin/apk", "true")
	h := newHunt(context.Background(), map[string]string{"PATH": w.at("bin")}, 0, []string{})
	for _, name := range append(Names(), "cc", "libc") {
		hints := h.install(name)
		if len(hints) != len(managers) || !strings.HasPrefix(hints[0], "apk add ") && !exists("/usr/bin/apt-get") {
			t.Errorf("%s: %q", name, hints)
		}
		for _, hint := range hints {
			if strings.HasSuffix(hint, " ") {
				t.Errorf("%s: %q names no package", name, hint)
			}
		}
	}
	if h.install("klingon") != nil {
		t.Error("a hint for what is not known")
	}
}

// linkageOf says of real files what the machine's own tools say of them.
func TestLinkage(t *testing.T) {
	l, err := linkageOf("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	_ = l // static or not, as the tests were built
	r, err := resolve("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if l, err = linkageOf(r.real); err != nil || !strings.Contains(l.interpreter, "ld-") || !slices.ContainsFunc(l.needed, func(s string) bool { return strings.HasPrefix(s, "libc.") }) {
		t.Errorf("%+v %v", l, err)
	}
	if _, err := linkageOf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := linkageOf("/etc/passwd"); !errors.Is(err, errNotELF) {
		t.Error(err)
	}
}
