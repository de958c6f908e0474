package toolchain_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/sandboxtest"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestMain(m *testing.M) { os.Exit(sandboxtest.Main(m)) }

func manager(t *testing.T) *sandbox.Manager {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the native backend makes namespaces and cgroups as root")
	}
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
	case toolchain.Python:
		return [][]string{{tool.Path, "-c", `import sys, ssl, sqlite3, json, asyncio, ctypes, multiprocessing, zlib, hashlib; print("ran", sys.version.split()[0], sys.prefix)`}}
	case toolchain.Node:
		return [][]string{{tool.Path, "-e", `require("crypto").randomBytes(4); console.log("ran", process.versions.node)`}}
	case toolchain.Go:
		return [][]string{{tool.Path, "version"}, script(`"$1" env GOROOT; printf 'package main\n\nfunc main() { println("ran") }\n' > m.go; "$2" -l m.go; "$1" list -deps fmt | grep -q unicode/utf8; "$1" tool compile -V; echo ran`, tool.Path, p["gofmt"])}
	case toolchain.Rust:
		return [][]string{{tool.Path, "--version"}, {p["cargo"], "--version"}, script(`echo 'fn main() { println!("ran"); }' > m.rs; "$1" -C linker="$2" m.rs; ./m`, tool.Path, p["cc"])}
	case toolchain.Java:
		return [][]string{{p["javac"], "-version"}, script(`echo 'class M { public static void main(String[] a) throws Exception { java.security.MessageDigest.getInstance("SHA-256"); java.util.logging.Logger.getLogger("x"); System.out.println("ran"); } }' > M.java; "$1" M.java; "$2" -cp . M`, p["javac"], p["java"])}
	case toolchain.Shell:
		var all [][]string
		for _, role := range slices.Sorted(maps.Keys(p)) {
			all = append(all, []string{p[role], "-c", "echo ran"})
		}
		return append(all, []string{tool.Path, "-c", "echo ran"})
	case toolchain.Postgres:
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
	for _, name := range toolchain.Names() {
		t.Run(name, func(t *testing.T) {
			tool, err := f.Find(context.Background(), name)
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
