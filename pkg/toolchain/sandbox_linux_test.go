package toolchain_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

func manager(t *testing.T) *sandbox.Manager {
	t.Helper()
	testenv.NeedRoot(t)
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-cache-") // private, so that loop devices over it are ours alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := native.New(native.Options{CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		t.Fatal(err)
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// inside runs a command in a sandbox that shows what a toolchain needs and no more.
func inside(t *testing.T, m *sandbox.Manager, mounts []sandbox.Mount, env map[string]string, args ...string) *sandbox.Result {
	t.Helper()
	ctx := context.Background()
	limits := sandbox.Limits{Wall: 2 * time.Minute, Memory: 1 << 30}
	id, err := m.Create(ctx, sandbox.Spec{Root: sandbox.Root{Add: mounts}, Env: env, Limits: limits, Require: sandbox.TierNamespace})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}()
	res, err := m.Run(ctx, id, sandbox.Process{Args: args}, sandbox.IO{})
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return res
}

// trials use each program of a toolchain as an executor would: it compiles, imports and runs something.
func trials(tool *toolchain.Toolchain) [][]string {
	script := func(text string, args ...string) []string {
		return append([]string{"/bin/sh", "-euc", text, "sh"}, args...)
	}
	p := tool.Programs
	switch tool.Name {
	case "python":
		return [][]string{{tool.Path, "-c",
			`import sys, ssl, sqlite3, json, asyncio, ctypes, multiprocessing, zlib, hashlib; print("ran", sys.version.split()[0], sys.prefix)`}}
	case "node":
		return [][]string{{tool.Path, "-e", `require("crypto").randomBytes(4); console.log("ran", process.versions.node)`}}
	case "go":
		return [][]string{{tool.Path, "version"},
			script(`"$1" env GOROOT; printf 'package main\n\nfunc main() { println("ran") }\n' > m.go; "$2" -l m.go
				"$1" list -deps fmt | grep -q unicode/utf8; "$1" tool compile -V; echo ran`, tool.Path, p["gofmt"])}
	case "rust":
		return [][]string{{tool.Path, "--version"}, {p["cargo"], "--version"},
			script(`echo 'fn main() { println!("ran"); }' > m.rs; "$1" -C linker="$2" m.rs; ./m`, tool.Path, p["cc"])}
	case "java":
		return [][]string{{p["javac"], "-version"},
			script(`echo 'class M { public static void main(String[] a) throws Exception {
				java.security.MessageDigest.getInstance("SHA-256"); java.util.logging.Logger.getLogger("x"); System.out.println("ran");
				} }' > M.java; "$1" M.java; "$2" -cp . M`, p["javac"], p["java"])}
	case "shell":
		var all [][]string
		for _, role := range slices.Sorted(maps.Keys(p)) {
			all = append(all, []string{p[role], "-c", "echo ran"})
		}
		return append(all, []string{tool.Path, "-c", "echo ran"})
	case "postgres":
		return [][]string{script(`"$1" -D /tmp/data -U me --no-sync >/dev/null
echo "select 'ran ' || 6 * 7;" | "$2" --single -D /tmp/data -j postgres
"$3" --version`, p["initdb"], tool.Path, p["psql"])}
	}
	return nil
}

// Each toolchain of this machine works in a sandbox that shows its mounts, and where it has any does not without them.
func TestInSandbox(t *testing.T) {
	m := manager(t)
	f := &toolchain.Finder{Store: filepath.Join(t.TempDir(), "cache", "toolchains.json")}
	for _, d := range descriptions() {
		t.Run(d.Name, func(t *testing.T) {
			tool, err := f.Find(context.Background(), d)
			if err != nil {
				t.Fatal(err)
			}
			for _, args := range trials(tool) {
				res := inside(t, m, tool.Mounts, tool.Env, args...)
				out := string(res.Stdout.Bytes())
				if !res.Success() || !strings.Contains(out, "ran") && !strings.Contains(out+string(res.Stderr.Bytes()), tool.Version) {
					t.Errorf("%q: %+v, verdict %s\n%s%s", args, res.Exit, res.Verdict, out, res.Stderr.Bytes())
				}
			}
			if strings.HasPrefix(tool.Path, "/usr/") {
				return // shown anyway; its mounts are configuration and the like
			}
			res := inside(t, m, nil, tool.Env, "/bin/sh", "-c", `test ! -e "$1"`, "sh", tool.Path)
			if !res.Success() {
				t.Errorf("%s is there without its mounts", tool.Path)
			}
		})
	}
}

// place is a directory outside of what every sandbox shows or has of its own.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "toolchain-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// want runs a command inside and compares what it prints.
func want(t *testing.T, m *sandbox.Manager, tool *toolchain.Toolchain, wanted string, args ...string) {
	t.Helper()
	res := inside(t, m, tool.Mounts, tool.Env, args...)
	if got := strings.TrimSpace(string(res.Stdout.Bytes())); !res.Success() || got != wanted {
		t.Errorf("%q: %s %+v: %q, want %q\n%s", args, res.Verdict, res.Exit, got, wanted, res.Stderr.Bytes())
	}
}

// A real virtual environment, over a real Python that goes by a link, with a module of its own.
func TestVirtualEnvironmentInSandbox(t *testing.T) {
	m := manager(t)
	ctx := context.Background()
	base, err := (&toolchain.Finder{NoStore: true}).Find(ctx, python.Language.Toolchain)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("elsewhere, over a link", func(t *testing.T) {
		dir := place(t)
		if err := os.Symlink(base.Home, dir+"/python"); err != nil {
			t.Fatal(err)
		}
		environmentInSandbox(t, m, dir+"/python/bin/"+filepath.Base(base.Path), dir)
	})
	t.Run("in the sandbox's own /tmp", func(t *testing.T) { environmentInSandbox(t, m, base.Path, t.TempDir()) })
	t.Run("over a link in /tmp", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink(base.Home, dir+"/python"); err != nil {
			t.Fatal(err)
		}
		run(t, dir+"/python/bin/"+filepath.Base(base.Path), "-m", "venv", "--without-pip", dir+"/venv")
		f := &toolchain.Finder{NoStore: true, Environ: append(os.Environ(), "VIRTUAL_ENV="+dir+"/venv")}
		tool, err := f.Find(ctx, python.Language.Toolchain) // another serves
		if err != nil || len(tool.Skipped) == 0 || !strings.Contains(tool.Skipped[0], "which is the sandbox's own inside") {
			t.Errorf("%+v %v", tool, err)
		}
	})
}

func environmentInSandbox(t *testing.T, m *sandbox.Manager, program, dir string) {
	t.Helper()
	ctx := context.Background()
	run(t, program, "-m", "venv", "--without-pip", dir+"/project/venv")
	packages, err := filepath.Glob(dir + "/project/venv/lib/python3*/site-packages")
	if err != nil || len(packages) != 1 {
		t.Fatalf("%q %v", packages, err)
	}
	if err := os.WriteFile(packages[0]+"/ours.py", []byte("answer = 42\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/project/secret", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f := &toolchain.Finder{NoStore: true, Environ: append(os.Environ(), "VIRTUAL_ENV="+dir+"/project/venv")}
	tool, err := f.Find(ctx, python.Language.Toolchain)
	if err != nil {
		t.Fatal(err)
	}
	venv := tool.Home
	if (venv == dir+"/project/venv") == strings.HasPrefix(dir, "/tmp/") {
		t.Errorf("it is shown at %s", venv)
	}
	want(t, m, tool, "42 "+venv, tool.Path, "-c", "import ours, sys, ssl; print(ours.answer, sys.prefix)")
	want(t, m, tool, "bin lib pyvenv.cfg", "/bin/sh", "-c", "cd "+venv+" && ls | grep -v 64 | xargs")
	want(t, m, tool, "none", "/bin/sh", "-c", "test -e "+venv+"/../secret || echo none")
}

// A language of a user's own: the C compiler, and a program with libraries of its own behind links, one of which needs
// another. The control is the same program without its mounts.
func TestCustomInSandbox(t *testing.T) {
	m := manager(t)
	f := &toolchain.Finder{NoStore: true}
	gcc, err := custom(t, f, toolchain.Custom{Name: "c", Programs: []string{"gcc"}, VersionCommand: []string{"gcc", "--version"}})
	if err != nil {
		t.Fatal(err)
	}
	if gcc.Version == "" || gcc.Programs["gcc"] != gcc.Path {
		t.Errorf("found %+v", gcc)
	}
	want(t, m, gcc, "ran", "/bin/sh", "-ec", `printf '#include <stdio.h>\nint main(void) { puts("ran"); }\n' > m.c; "$1" m.c; ./a.out`, "sh",
		gcc.Path)

	dir := place(t)
	for name, text := range map[string]string{
		"two.c": "int two(void) { return 2; }",
		"one.c": "int two(void); int one(void) { return 40 + two(); }",
		"main.c": "#include <stdio.h>\n#include <string.h>\n" +
			"int one(void); int main(int n, char **a) { if (n > 1) puts(\"odd 1.2.3\"); else printf(\"%d\\n\", one()); }",
	} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := `cd "$1" && mkdir -p Cellar/one/1/lib Cellar/two/1/lib opt bin data && chmod 755 . && echo fine > data/file &&
ln -s ../Cellar/one/1 opt/one && ln -s ../Cellar/two/1 opt/two &&
gcc -shared -fPIC -o Cellar/two/1/lib/libtwo.so.1 two.c && ln -s libtwo.so.1 Cellar/two/1/lib/libtwo.so &&
gcc -shared -fPIC -o Cellar/one/1/lib/libone.so one.c -Lopt/two/lib -ltwo -Wl,-rpath,'$ORIGIN/../../../../opt/two/lib' &&
gcc -o bin/odd main.c -Lopt/one/lib -lone -Wl,-rpath-link,opt/two/lib -Wl,-rpath,"$1/opt/one/lib" && bin/odd`
	run(t, "sh", "-ec", script, "sh", dir)
	described := toolchain.Custom{Name: "odd", Programs: []string{dir + "/bin/odd"}, VersionCommand: []string{dir + "/bin/odd", "--version"},
		Paths: []string{dir + "/data"}}
	odd, err := custom(t, f, described)
	if err != nil {
		t.Fatal(err)
	}
	if odd.Version != "1.2.3" || len(odd.Mounts) == 0 {
		t.Errorf("found %+v", odd)
	}
	want(t, m, odd, "42", odd.Path)
	want(t, m, odd, "fine", "/bin/cat", dir+"/data/file")
	want(t, m, odd, "no sources", "/bin/sh", "-c", "test -e "+dir+"/main.c || echo no sources")
	bare := []sandbox.Mount{{Source: dir + "/bin/odd", Target: dir + "/bin/odd"}}
	if res := inside(t, m, bare, nil, odd.Path); res.Success() {
		t.Error("it runs without its libraries, too: nothing was proved")
	}

	// In a directory that is the sandbox's own it is shown elsewhere.
	moved := t.TempDir()
	for p := moved; p != "/tmp"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "cp", "/bin/sh", moved+"/sh")
	run(t, "cp", "-r", dir+"/data", moved+"/data")
	tool, err := custom(t, f, toolchain.Custom{Name: "sh2", Programs: []string{moved + "/sh"}, Paths: []string{moved + "/data"}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(tool.Path, "/opt/sandbox-run/sh2") {
		t.Errorf("found %+v", tool)
	}
	want(t, m, tool, "ran", tool.Path, "-c", "echo ran")
}

// custom finds a toolchain that a languages.yaml describes.
func custom(t *testing.T, f *toolchain.Finder, c toolchain.Custom) (*toolchain.Toolchain, error) {
	t.Helper()
	d, err := c.Description()
	if err != nil {
		t.Fatal(err)
	}
	return f.Find(t.Context(), d)
}
