package workspace

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "A-1_b.c", "0", "x.json", "x.lock", strings.Repeat("n", 64)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", ".hidden", "-flag", "a/b", "a b", "a\x00", "ä", "a\n", "../x", strings.Repeat("n", 65)} {
		if err := CheckName(name); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := Open(t.Context(), newStore(t), name, Options{}); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("open %q: %v", name, err)
		}
		if err := Remove(t.Context(), newStore(t), name); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("remove %q: %v", name, err)
		}
	}
}

func TestAWorkspaceSurvives(t *testing.T) {
	store := newStore(t)
	w := opened(t, store, "mine", Options{Cap: 8 * sandbox.MiB})
	v := w.Volume()
	if v.Target != "/workspace" || !v.Writable || v.Source != filepath.Join(store, "mine") {
		t.Errorf("%+v", v)
	}
	for path, mode := range map[string]os.FileMode{store: 0o700, v.Source: 0o700} {
		info, err := os.Lstat(path)
		must(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s: %v", path, info.Mode())
		}
	}
	must(t, os.WriteFile(filepath.Join(v.Source, "kept"), []byte("kept"), 0o644))
	must(t, os.Chmod(v.Source, 0o777)) // as a program in it can
	must(t, w.Close())
	must(t, w.Close()) // twice is fine

	again := opened(t, store, "mine", Options{})
	if most, inodes := again.Cap(); most != 8*sandbox.MiB || inodes != DefaultInodes {
		t.Errorf("the cap was not kept: %v, %d", most, inodes)
	}
	if text, err := os.ReadFile(filepath.Join(again.Volume().Source, "kept")); err != nil || string(text) != "kept" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Lstat(v.Source); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(v.Source)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("something of ours is inside: %v", entries)
	}
}

func TestAStoreBehindASymlink(t *testing.T) {
	real := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(real, link))
	w := opened(t, filepath.Join(link, "workspaces"), "w", Options{})
	if got := w.Volume().Source; got != filepath.Join(real, "workspaces", "w") {
		t.Errorf("%s: a sandbox refuses volumes with symlinks in their path", got)
	}
}

func TestOneUserAtATime(t *testing.T) {
	store := newStore(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "WORKSPACE_TEST_STORE="+store)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // open, so that it holds on; closed by Wait
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	for what, err := range map[string]error{
		"open": func() error { _, err := Open(t.Context(), store, "held", Options{}); return err }(),
		"open with wait": func() error {
			_, err := Open(t.Context(), store, "held", Options{Wait: 100 * time.Millisecond})
			return err
		}(),
		"remove": Remove(t.Context(), store, "held"),
	} {
		if !errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), "process "+pid) || !strings.Contains(err.Error(), "try: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, store, "held", Options{Wait: time.Hour}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait outlasts its context: %v", err)
	}
	info, err := Show(t.Context(), store, "held")
	must(t, err)
	if !info.Locked || strconv.Itoa(info.LockedBy) != pid {
		t.Errorf("%+v", info)
	}
	opened(t, store, "other", Options{}) // another one is free

	// Who waits gets it when the holder dies, however that dies.
	result := make(chan error, 1)
	go func() {
		w, err := Open(t.Context(), store, "held", Options{Wait: soon})
		if err == nil {
			err = w.Close()
		}
		result <- err
	}()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	must(t, <-result)
	if info, err := Show(t.Context(), store, "held"); err != nil || info.Locked {
		t.Errorf("%+v, %v", info, err)
	}
	must(t, Remove(t.Context(), store, "held"))
}

func TestACapIsKeptAndCanBeChanged(t *testing.T) {
	store := newStore(t)
	w := opened(t, store, "w", Options{Cap: 1 * sandbox.MiB, Inodes: 100})
	path := w.Volume().Source
	must(t, os.WriteFile(filepath.Join(path, "big"), make([]byte, 2<<20), 0o600))
	must(t, w.Close())

	_, err := Open(t.Context(), store, "w", Options{})
	if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "--workspace-cap") ||
		!strings.Contains(err.Error(), "of at most 1 MiB") {
		t.Fatalf("%v", err)
	}
	w = opened(t, store, "w", Options{Cap: 4 * sandbox.MiB}) // changed, and kept
	must(t, w.Close())
	w = opened(t, store, "w", Options{})
	if most, inodes := w.Cap(); most != 4*sandbox.MiB || inodes != 100 {
		t.Errorf("%v, %d", most, inodes)
	}
	must(t, w.Close())
	if _, err := Open(t.Context(), store, "w", Options{Cap: sandbox.MiB}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("lowered below what it holds: %v", err)
	}
	must(t, os.Remove(filepath.Join(path, "big")))
	for i := range 101 {
		must(t, os.WriteFile(filepath.Join(path, strconv.Itoa(i)), nil, 0o600))
	}
	if _, err := Open(t.Context(), store, "w", Options{}); !errors.Is(err, sandbox.ErrRefused) ||
		!strings.Contains(err.Error(), "files of at most 100") {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(filepath.Join(path, "7")))
	must(t, opened(t, store, "w", Options{}).Close())

	for _, o := range []Options{{Cap: 1}, {Cap: 1 << 60}, {Inodes: 1}, {Inodes: -1}, {Inodes: 1 << 30}, {Wait: -1}} {
		if _, err := Open(t.Context(), store, "w", o); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestMetadataThatWasSpoilt(t *testing.T) {
	store := newStore(t)
	must(t, opened(t, store, "w", Options{}).Close())
	meta := filepath.Join(store, ".w.json")
	for _, text := range []string{"", "{", "{}", `{"cap":1,"inodes":5}`, `{"cap":-1}`} {
		must(t, os.WriteFile(meta, []byte(text), 0o600))
		if _, err := Open(t.Context(), store, "w", Options{}); err == nil || !strings.Contains(err.Error(), meta) {
			t.Errorf("%q: %v", text, err)
		}
	}
	must(t, os.Remove(meta))
	must(t, opened(t, store, "w", Options{}).Close())
}

func TestListShowRemove(t *testing.T) {
	store := newStore(t)
	if infos, err := List(t.Context(), store); err != nil || len(infos) != 0 {
		t.Errorf("%v, %v", infos, err)
	}
	if _, err := Show(t.Context(), store, "b"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Error(err)
	}
	if err := Remove(t.Context(), store, "b"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Error(err)
	}
	used := opened(t, store, "a", Options{Cap: 3 * sandbox.MiB})
	b := opened(t, store, "b", Options{})
	must(t, os.WriteFile(filepath.Join(b.Volume().Source, "file"), make([]byte, 8<<10), 0o600))
	must(t, b.Close())
	must(t, os.WriteFile(filepath.Join(store, "stray"), nil, 0o600))
	must(t, os.Symlink("/etc", filepath.Join(store, "link")))
	infos, err := List(t.Context(), store)
	must(t, err)
	if len(infos) != 2 || infos[0].Name != "a" || !infos[0].Locked || infos[0].LockedBy != os.Getpid() || infos[0].Cap != 3*sandbox.MiB ||
		infos[1].Name != "b" || infos[1].Locked || infos[1].Usage.Inodes != 1 || infos[1].Usage.Bytes < 8<<10 || infos[1].LastUsed.IsZero() {
		t.Errorf("%+v", infos)
	}
	if err := Remove(t.Context(), store, "link"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a link for a workspace: %v", err)
	}
	must(t, Remove(t.Context(), store, "b"))
	must(t, used.Close())
	must(t, Remove(t.Context(), store, "a"))
	left, err := os.ReadDir(store)
	must(t, err)
	if len(left) != 2 { // what was never ours
		t.Errorf("%v", left)
	}
	must(t, opened(t, store, "b", Options{}).Close()) // and anew
}

// What hostile code leaves in a workspace is removed, and not followed.
func TestRemoveWhatHostileCodePlanted(t *testing.T) {
	store, outside := newStore(t), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600))
	w := opened(t, store, "w", Options{})
	plant(t, w.Volume().Source, outside)
	must(t, w.Close())
	must(t, Remove(t.Context(), store, "w"))
	if _, err := os.Lstat(filepath.Join(store, "w")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(outside, "precious")); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
}

// plant makes what makes trouble: links out, a FIFO, closed directories.
func plant(t *testing.T, dir, outside string) {
	t.Helper()
	must(t, os.Symlink(outside, filepath.Join(dir, "out")))
	must(t, os.Symlink(filepath.Join(outside, "precious"), filepath.Join(dir, "file")))
	must(t, os.Symlink("..", filepath.Join(dir, "up")))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "closed", "below"), 0o700))
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0))
}
