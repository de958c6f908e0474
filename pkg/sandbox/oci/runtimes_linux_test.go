package oci

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]string{
		"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev": "1.1.5",
		"crun version 1.8.1\nspec: 1.0.0":                                      "1.8.1",
		"runsc version 0.0~20221219.0\nspec: 1.0.2-dev":                        "20221219",
		"runsc version release-20240212.0-dirty\n":                             "20240212",
		"youki version: 0.5.7\n":                                               "0.5.7",
		"runc version 1.2.0-rc.1":                                              "1.2.0",
	} {
		if v, ok := parseVersion(text); !ok || v.String() != want {
			t.Errorf("%q: %v, %v", text, v, ok)
		}
	}
	for _, text := range []string{"", "no version", "\n1.2.3"[:1]} {
		if v, ok := parseVersion(text); ok {
			t.Errorf("%q: %v", text, v)
		}
	}
}

func FuzzParseVersion(f *testing.F) {
	f.Add("runc version 1.1.5+ds1\ncommit")
	f.Add("0.0~20221219.0")
	f.Fuzz(func(t *testing.T, text string) {
		v, ok := parseVersion(text)
		if ok != (len(v) > 0) || slices.ContainsFunc(v, func(n int) bool { return n < 0 }) {
			t.Errorf("%q: %v, %v", text, v, ok)
		}
	})
}

// script is a runtime that prints a given text.
func script(t *testing.T, name, says string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+says+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestFind(t *testing.T) {
	for _, wrong := range []string{"docker", "./runc", "/nowhere/runc", script(t, "podman", ""), t.TempDir()} {
		if f, err := find(wrong); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %+v, %v", wrong, f, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	for _, name := range append(Runtimes(), "") { // none is installed, and each error says how to get it
		f, err := find(name)
		if err != nil || f.reason == "" || f.remedy == "" || f.path != "" && name != "kata" {
			t.Errorf("%q: %+v, %v", name, f, err)
		}
	}
	link := filepath.Join(t.TempDir(), "my-runtime")
	if err := os.Symlink(script(t, "crun", ""), link); err != nil {
		t.Fatal(err)
	}
	if f, err := find(link); err != nil || f.name != "crun" || f.reason != "" {
		t.Errorf("a link to crun: %+v, %v", f, err)
	}
}

// A runtime that is too old, or prints no valid version, is refused with the reason; its answer is kept until its file
// changes.
func TestVersions(t *testing.T) {
	cache := t.TempDir()
	for says, reason := range map[string]string{
		"echo runc version 1.0.3":  "1.0.3; 1.1 is needed",
		"echo hello":               "which is none",
		"exit 3":                   "does not say its version",
		"echo runc version 1.1.12": "",
	} {
		f, err := find(script(t, "runc", says))
		if err != nil {
			t.Fatal(err)
		}
		if f.check(context.Background(), cache); !strings.Contains(f.reason, reason) || (f.reason == "") != (reason == "") {
			t.Errorf("%s: %q", says, f.reason)
		}
		if reason != "" && f.remedy == "" {
			t.Errorf("%s: without a remedy", says)
		}
	}
	file := script(t, "runc", "echo runc version 1.1.1; echo asked >> "+cache+"/asked")
	for range 3 {
		f, _ := find(file)
		if f.check(context.Background(), cache); f.version != "1.1.1" {
			t.Errorf("%+v", f)
		}
	}
	if asked, _ := os.ReadFile(cache + "/asked"); string(asked) != "asked\n" {
		t.Errorf("asked %q", asked)
	}
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho runc version 1.1.20\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, _ := find(file)
	if f.check(context.Background(), cache); f.version != "1.1.20" {
		t.Errorf("changed: %+v", f)
	}
	// A cache file that other users may write to is not used.
	if err := os.Chmod(cache+"/runtime-runc.json", 0o666); err != nil {
		t.Fatal(err)
	}
	if _, ok := readAnswer(cache + "/runtime-runc.json"); ok {
		t.Error("an answer that anybody could have written is believed")
	}
}

// A feature that the machine does not have is reported, with the remedy; nothing is made.
func TestRefusals(t *testing.T) {
	testenv.NeedRoot(t)
	for name, want := range map[string]string{"crun": "cgroups v2", "kata": "containerd", "youki": "not on PATH"} {
		if _, err := os.Stat("/usr/local/bin/youki"); name == "youki" && err == nil {
			continue
		}
		b, err := New(Options{Runtime: name, CacheDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if v := b.host.Cgroups.Version(); name == "crun" && v == "v2" {
			t.Logf("%s suits this machine's cgroups", name)
		} else {
			m := sandbox.NewManager(b, sandbox.Options{})
			_, err = m.Create(context.Background(), sandbox.Spec{})
			if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := b.Create(context.Background(), &sandbox.Spec{}); !errors.Is(err, sandbox.ErrRefused) ||
				!strings.Contains(err.Error(), "try: ") {
				t.Errorf("%s: %v", name, err)
			}
			_ = m.Close()
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A bundle drops every right, and states every setting explicitly.
func TestBundle(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		filter, err := newFilter(seccomp.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		b := &bundlePlan{
			kind: byName(runtime), spec: &sandbox.Spec{User: sandbox.DefaultUser, Limits: sandbox.DefaultLimits()},
			init: rootInit(sandbox.DefaultUser, 5000, 5001),
			dir:  "/b", scratch: "/s", network: "/n", filter: filter,
		}
		f, err := b.bundleParts(nil)
		if err != nil {
			t.Fatal(err)
		}
		text := f.Config
		var c config
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if !c.Process.NoNewPrivileges || c.Process.User.UID != 1000 || len(c.Linux.Namespaces) != 7 ||
			c.Linux.Seccomp.DefaultAction != "SCMP_ACT_ERRNO" {
			t.Errorf("%s: %s", runtime, text)
		}
		if !strings.Contains(string(text), `"capabilities":{"bounding":[],"effective":[],"inheritable":[],"permitted":[],"ambient":[]}`) {
			t.Errorf("%s: capabilities are left to the runtime: %s", runtime, text)
		}
		if named := slices.ContainsFunc(c.Process.Env, func(v string) bool {
			return strings.HasPrefix(v,
				"SANDBOX_INIT_CONTROL=")
		}); named != (runtime == "runsc") {
			t.Errorf("%s: %q", runtime, c.Process.Env)
		}
		for _, m := range c.Mounts {
			if !slices.Contains(m.Options, "nosuid") {
				t.Errorf("%s: set-uid counts on %+v", runtime, m)
			}
		}
	}
}
