package executor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// keyFor is a key as a digest would be.
func keyFor(n int) string { return fmt.Sprintf("%064x", n+1) }

func put(t *testing.T, c *Cache, key, content string) {
	t.Helper()
	e, err := c.begin(key)
	if err != nil {
		t.Fatal(err)
	}
	defer e.abandon()
	if err := e.add(sandbox.File{Path: "/tmp/build/program", Mode: 0o755}, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if err := e.commit(); err != nil {
		t.Fatal(err)
	}
}

// got is the content of an entry's only file, and whether there is one.
func got(t *testing.T, c *Cache, key string) (string, bool) {
	t.Helper()
	files, ok := c.get(key)
	if !ok {
		return "", false
	}
	if len(files) != 1 || files[0].Path != "/tmp/build/program" || files[0].Mode != 0o755 {
		t.Fatalf("%+v", files)
	}
	r, err := files[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), true
}

func TestCache(t *testing.T) {
	c := &Cache{Dir: filepath.Join(t.TempDir(), "made", "on", "demand")}
	if _, ok := got(t, c, keyFor(0)); ok {
		t.Error("there is something in an empty cache")
	}
	put(t, c, keyFor(0), "zero")
	put(t, c, keyFor(1), "one")
	put(t, c, keyFor(0), "again") // the first entry stays
	if s, _ := got(t, c, keyFor(0)); s != "zero" {
		t.Errorf("%q", s)
	}
	if s, _ := got(t, c, keyFor(1)); s != "one" {
		t.Errorf("%q", s)
	}
	if st, err := os.Stat(c.Dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v: other users can write to the cache", st, err)
	}
	empty, err := c.begin(keyFor(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := empty.commit(); err == nil {
		t.Error("an entry of nothing was kept")
	}
	empty.abandon()
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "new-*")); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

// What a power failure or a hand has damaged is made anew.
func TestCacheDamaged(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"cut short":         func(dir string) error { return os.WriteFile(filepath.Join(dir, "0"), []byte("o"), 0o600) },
		"file gone":         func(dir string) error { return os.Remove(filepath.Join(dir, "0")) },
		"manifest gone":     func(dir string) error { return os.Remove(filepath.Join(dir, manifestName)) },
		"manifest empty":    func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestName), nil, 0o600) },
		"manifest nonsense": func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestName), []byte("{"), 0o600) },
		"a directory": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "0")), os.Mkdir(filepath.Join(dir, "0"), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Cache{Dir: t.TempDir()}
			put(t, c, keyFor(0), "one")
			if err := damage(c.dir(keyFor(0))); err != nil {
				t.Fatal(err)
			}
			if s, ok := got(t, c, keyFor(0)); ok {
				t.Fatalf("%q was taken for whole", s)
			}
			put(t, c, keyFor(0), "two")
			if s, _ := got(t, c, keyFor(0)); s != "two" {
				t.Errorf("%q", s)
			}
		})
	}
}

// The cache ignores files that another user can have put there. It neither follows nor waits for what is no regular file.
func TestCacheOfOthers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("files have no such owners here")
	}
	c := &Cache{Dir: t.TempDir()}
	if err := os.Chmod(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, c, keyFor(0), "mine")
	if _, ok := got(t, c, keyFor(0)); !ok {
		t.Fatal("what was put is not there")
	}
	if err := os.Chmod(c.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, ok := got(t, c, keyFor(0)); ok {
		t.Error("anybody could have written it")
	}
	if _, err := c.begin(keyFor(1)); err == nil || !strings.Contains(err.Error(), "can be written to by others") {
		t.Error(err)
	}
	if err := os.Chmod(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.dir(keyFor(0)), "0")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.Rename(file, elsewhere), os.Symlink(elsewhere, file)); err != nil {
		t.Fatal(err)
	}
	if _, ok := got(t, c, keyFor(0)); ok {
		t.Error("a link was followed")
	}
	if err := errors.Join(os.Remove(file), exec.Command("mkfifo", file).Run()); err != nil {
		t.Fatal(err)
	}
	if _, ok := got(t, c, keyFor(0)); ok {
		t.Error("a pipe was taken for a file")
	}
}

func TestCacheForgetsTheLeastUsed(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Limit: 5000}
	content := strings.Repeat("x", 1000)
	for i := range 4 {
		put(t, c, keyFor(i), content)
		old := time.Now().Add(time.Duration(i-100) * time.Minute)
		if err := os.Chtimes(c.dir(keyFor(i)), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := got(t, c, keyFor(0)); !ok { // which makes it the latest
		t.Fatal("the first is gone already")
	}
	stale := filepath.Join(c.Dir, "new-1")
	if err := errors.Join(os.Mkdir(stale, 0o700), os.Chtimes(stale, time.Now().Add(-2*abandoned), time.Now().Add(-2*abandoned))); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(c.Dir, "new-2")
	if err := os.Mkdir(fresh, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, c, keyFor(4), content)
	for i, kept := range []bool{true, false, true, true, true} {
		if _, ok := got(t, c, keyFor(i)); ok != kept {
			t.Errorf("%d: %v", i, ok)
		}
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was abandoned is there still: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("what is under way is gone: %v", err)
	}
}

// The cache counts its size only after many additions, its own and those of other processes, and still keeps its limit.
func TestCacheLooksSeldom(t *testing.T) {
	c := &Cache{Dir: t.TempDir(), Limit: 64 * 1024} // 2 KiB of slack
	stale := filepath.Join(c.Dir, "new-1")
	plant := func() {
		long := time.Now().Add(-2 * abandoned)
		if err := errors.Join(os.MkdirAll(stale, 0o700), os.Chtimes(stale, long, long)); err != nil {
			t.Fatal(err)
		}
	}
	looks := 0
	for i := range 200 {
		plant()
		put(t, &Cache{Dir: c.Dir, Limit: c.Limit}, keyFor(i), strings.Repeat("x", 900))
		if _, err := os.Stat(stale); errors.Is(err, os.ErrNotExist) {
			looks++
		}
		if size := sizeOf(t, c.Dir); size > int64(c.Limit) {
			t.Fatalf("%d bytes after %d entries", size, i+1)
		}
	}
	if looks < 50 || looks > 120 {
		t.Errorf("it looked %d times at 200 entries, of which every second or third should do", looks)
	}
	if _, ok := got(t, c, keyFor(199)); !ok {
		t.Error("the last one is gone")
	}
	if _, ok := got(t, c, keyFor(0)); ok {
		t.Error("the first one is there still")
	}
}

// sizeOf is what all files in a directory have together, but for the count of what was added.
func sizeOf(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == addedName {
			return err
		}
		st, err := d.Info()
		if err == nil {
			total += st.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

// An entry that goes while it is read stays readable.
func TestCacheOpenEntry(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	put(t, c, keyFor(0), "one")
	files, ok := c.get(keyFor(0))
	if !ok {
		t.Fatal("not there")
	}
	if err := removeEntry(c.dir(keyFor(0))); err != nil {
		t.Fatal(err)
	}
	r, err := files[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if data, err := io.ReadAll(r); err != nil || string(data) != "one" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestCacheSideBySide(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c := &Cache{Dir: dir, Limit: 40_000} // as other processes
			for n := range 40 {
				key := keyFor((n + i) % 6)
				if s, ok := got(t, c, key); ok && s != strings.Repeat(key, 50) {
					t.Errorf("%s has %d bytes of another", key, len(s))
				}
				put(t, c, key, strings.Repeat(key, 50))
			}
		})
	}
	all.Wait()
	if left, _ := filepath.Glob(filepath.Join(dir, "new-*")); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

// Everything that goes into a compiler is in the key.
func TestKey(t *testing.T) {
	base := func() *Plan {
		return &Plan{toolchain: "id", program: 1, Plan: language.Plan{
			Language: "c", Version: "1", Spec: sandbox.Spec{Env: map[string]string{"A": "1"}},
			Files: []sandbox.File{{Path: "/workspace/a.c", Data: []byte("x")}, {Path: "/workspace/in", Data: []byte("y")}},
		}}
	}
	phase := Phase{Process: sandbox.Process{Args: []string{"cc", "a"}, Workdir: "/workspace"}, Produces: []string{"/tmp/p"}}
	key := func(p *Plan, ph Phase) string {
		t.Helper()
		contents, err := p.contents()
		if err != nil {
			t.Fatal(err)
		}
		return p.key(&ph, contents)
	}
	plain := key(base(), phase)
	if plain != key(base(), phase) || len(plain) != 64 {
		t.Fatal("it changes by itself")
	}
	other := base()
	other.Files[1].Data = []byte("other input")
	if key(other, phase) != plain {
		t.Error("inputs count")
	}
	other = base()
	other.Files[0] = sandbox.File{Path: "/workspace/a.c",
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }}
	if key(other, phase) != plain {
		t.Error("it counts how the content is given")
	}
	seen := map[string]string{plain: "nothing"}
	differs := func(name, k string) {
		if seen[k] != "" {
			t.Errorf("%s is like %s", name, seen[k])
		}
		seen[k] = name
	}
	for name, change := range map[string]func(*Plan){
		"language":  func(p *Plan) { p.Language = "d" },
		"version":   func(p *Plan) { p.Version = "2" },
		"toolchain": func(p *Plan) { p.toolchain = "other" },
		"tenant":    func(p *Plan) { p.tenant = "key" },
		"variable":  func(p *Plan) { p.Spec.Env["A"] = "2" },
		"variables": func(p *Plan) { p.Spec.Env["B"] = "" },
		"content":   func(p *Plan) { p.Files[0].Data = []byte("z") },
		"path":      func(p *Plan) { p.Files[0].Path = "/workspace/b.c" },
		"mode":      func(p *Plan) { p.Files[0].Mode = 0o755 },
		"file":      func(p *Plan) { p.program = 2 },
		"hostname":  func(p *Plan) { p.Spec.Hostname = "other" },
		"mount":     func(p *Plan) { p.Spec.Root.Add = []sandbox.Mount{{Source: "/a", Target: "/b"}} },
	} {
		p := base()
		change(p)
		differs(name, key(p, phase))
	}
	for name, change := range map[string]func(*Phase){
		"flag":        func(p *Phase) { p.Process.Args = []string{"cc", "b"} },
		"flags":       func(p *Phase) { p.Process.Args = []string{"cc", "a", ""} },
		"words":       func(p *Phase) { p.Process.Args = []string{"cca"} },
		"produces":    func(p *Phase) { p.Produces = []string{"/tmp/q"} },
		"shifted":     func(p *Phase) { p.Process.Args, p.Produces = []string{"cc", "a", "/tmp/p"}, nil },
		"workdir":     func(p *Phase) { p.Process.Workdir = "/tmp" },
		"environment": func(p *Phase) { p.Process.Env = map[string]string{"C": "1"} },
	} {
		ph := phase
		change(&ph)
		differs(name, key(base(), ph))
	}
	other = base()
	other.Files[0] = sandbox.File{Path: "/workspace/a.c", Open: func() (io.ReadCloser, error) { return nil, errors.New("gone") }}
	if _, err := other.contents(); err == nil || !strings.Contains(err.Error(), "a.c") {
		t.Error(err)
	}
}
