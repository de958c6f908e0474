package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// put copies files in, which must succeed.
func (e *env) put(id string, files ...sandbox.File) {
	e.Helper()
	if err := e.m.Put(e.Context(), id, files); err != nil {
		e.Fatalf("put: %v", err)
	}
}

func text(path, content string) sandbox.File { return sandbox.File{Path: path, Data: []byte(content)} }

// taken is the result of take.
type taken struct {
	order   []string
	files   map[string]string
	modes   map[string]fs.FileMode
	untaken map[string]string
}

// take copies files out, which must succeed and end in time whatever the sandbox contains.
func (e *env) take(id string, s sandbox.Selection) taken {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), ample(caseTimeout))
	defer cancel()
	got := taken{files: map[string]string{}, modes: map[string]fs.FileMode{}, untaken: map[string]string{}}
	untaken, err := e.m.Take(ctx, id, s, func(f sandbox.File, size sandbox.Size, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err == nil && sandbox.Size(len(data)) != size {
			e.Errorf("%s: %d bytes of %d", f.Path, len(data), size)
		}
		got.order = append(got.order, f.Path)
		got.files[f.Path], got.modes[f.Path] = string(data), f.Mode
		return err
	})
	if err != nil {
		e.Fatalf("take %q: %v", s.Patterns, err)
	}
	for _, u := range untaken {
		got.untaken[u.Path] = u.Reason
	}
	return got
}

func (e *env) takeAll(id string, patterns ...string) taken {
	e.Helper()
	return e.take(id, sandbox.Selection{Patterns: patterns})
}

// oddNames are unusual and valid.
var oddNames = []string{"a b", "-rf", "*", "[x]", "ü", "\n", ".hidden", "..x", `back\slash`, "'", "\xff\xfe", "CON", "nul", "A", "a",
	strings.Repeat("x", 255)}

var fileRows = []row{
	{"files go in", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		e.put(id) // none
		e.put(id, text("/workspace/f", "text"), text("/workspace/way/down/f", "deep"), text("/workspace/way/g", "less deep"),
			text("/workspace/binary", string(all)), sandbox.File{Path: "/workspace/empty"})
		opened := 0
		e.put(id, sandbox.File{Path: "/workspace/streamed", Open: func() (io.ReadCloser, error) {
			opened++
			return io.NopCloser(io.LimitReader(newNoise(), 300_000)), nil
		}})
		if opened != 1 {
			e.Errorf("opened %d times", opened)
		}
		stream, _ := io.ReadAll(io.LimitReader(newNoise(), 300_000))
		want := map[string]string{"f": "text", "way/down/f": "deep", "way/g": "less deep", "binary": string(all), "empty": ""}
		for name, content := range want {
			e.says(e.in(id, e.probe("get", name)...), fmt.Sprintf("ok %q", content))
		}
		want["streamed"] = string(stream)
		got := e.takeAll(id, "/workspace")
		for name, content := range want {
			if got.files["/workspace/"+name] != content {
				e.Errorf("%s was taken as %.80q", name, got.files["/workspace/"+name])
			}
		}
		if len(got.files) != len(want) || len(got.untaken) > 0 {
			e.Errorf("%q, %v", got.order, got.untaken)
		}
	}},
	{"files go everywhere they may", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		for _, dir := range sandbox.ScratchDirs() {
			e.put(id, text(dir+"/f", dir), text(dir+"/d/f", dir))
		}
		got := e.takeAll(id, sandbox.ScratchDirs()...)
		want := []string{"/home/sandbox/d/f", "/home/sandbox/f", "/tmp/d/f", "/tmp/f", "/workspace/d/f", "/workspace/f"}
		if !slices.Equal(got.order, want) {
			e.Errorf("%q", got.order)
		}
	}},
	{"files with odd names", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		for i, name := range oddNames {
			e.put(id, text("/workspace/"+name, fmt.Sprint(i)), text("/workspace/dir "+name[:min(len(name), 200)]+"/"+name, "in a directory"))
		}
		got := e.takeAll(id, "/workspace")
		for i, name := range oddNames {
			e.says(e.in(id, e.probe("get", name)...), fmt.Sprintf(`ok "%d"`, i))
			if got.files["/workspace/"+name] != fmt.Sprint(i) {
				e.Errorf("%q was taken as %q", name, got.files["/workspace/"+name])
			}
		}
		if len(got.files) != 2*len(oddNames) {
			e.Errorf("%q", got.order)
		}
	}},
	{"files are replaced", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		e.put(id, sandbox.File{Path: "/workspace/f", Data: []byte("a long first version"), Mode: 0o755}, text("/workspace/d/f", "x"))
		e.put(id, text("/workspace/f", "second"))
		e.says(e.in(id, e.probe("get", "f")...), `ok "second"`)
		e.says(e.in(id, e.probe("put", "f", "its own")...), "ok")
		e.put(id, sandbox.File{Path: "/workspace/f", Data: []byte("third"), Mode: 0o600})
		got := e.takeAll(id, "/workspace/f")
		if got.files["/workspace/f"] != "third" || got.modes["/workspace/f"] != 0o600 {
			e.Errorf("%v %v", got.files, got.modes)
		}
		for p, hint := range map[string]string{"/workspace/d": "a directory is not replaced", "/workspace/f/x": "a file is where"} {
			if err := e.m.Put(e.Context(), id, []sandbox.File{text(p, "x")}); !errors.Is(err, sandbox.ErrInvalid) ||
				!strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), p) {
				e.Errorf("%s: %v", p, err)
			}
		}
		if got := e.takeAll(id, "/workspace"); len(got.files) != 2 {
			e.Errorf("%q", got.order)
		}
	}},
	{"links go in", []Expectation{Files, Programs}, false, func(e *env) {
		id := e.create()
		link := func(p, target string) sandbox.File { return sandbox.File{Path: p, Link: target} }
		e.put(id, text("/workspace/d/f", "1"), link("/workspace/l", "d/f"), link("/workspace/way/dir", "../d"))
		e.put(id, link("/workspace/out", "/etc/hostname"))
		e.says(e.in(id, e.probe("get", "l")...), `ok "1"`)
		e.says(e.in(id, e.probe("get", "way/dir/f")...), `ok "1"`)
		// A link is replaced by a file, a file by a link, and nothing is written through a link.
		e.put(id, text("/workspace/l", "own"), link("/workspace/d/g", "f"), link("/workspace/d/g", "h"), text("/workspace/d/h", "2"))
		e.says(e.in(id, e.probe("get", "d/f")...), `ok "1"`)
		e.says(e.in(id, e.probe("get", "l")...), `ok "own"`)
		e.says(e.in(id, e.probe("get", "d/g")...), `ok "2"`)
		if err := e.m.Put(e.Context(), id, []sandbox.File{text("/workspace/way/dir/x", "x")}); !errors.Is(err, sandbox.ErrRefused) {
			e.Errorf("put through a link: %v", err)
		}
		if err := e.m.Put(e.Context(), id, []sandbox.File{link("/workspace/x", "a\x00b")}); !errors.Is(err, sandbox.ErrInvalid) {
			e.Errorf("put a link to NUL: %v", err)
		}
		got := e.takeAll(id, "/workspace")
		if len(got.files) != 3 || got.untaken["/workspace/out"] == "" {
			e.Errorf("%q, %v", got.order, got.untaken)
		}
	}},
	{"files go in and out at any time", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		if got := e.takeAll(id, "/workspace", "/tmp"); len(got.files)+len(got.untaken) > 0 {
			e.Errorf("new: %+v", got)
		}
		e.put(id, text("/workspace/first", "1"))
		e.says(e.in(id, e.probe("get", "first")...), `ok "1"`)
		e.put(id, text("/workspace/second", "2"))
		job := e.start(id, sandbox.Process{Args: e.probe("ready", "1m")}, sandbox.IO{}).ready()
		e.put(id, text("/workspace/third", "3")) // while a program runs
		e.says(e.in(id, e.probe("get", "third")...), `ok "3"`)
		e.says(e.do(id, sandbox.Process{Args: e.probe("get", "second"), Phase: "other"}, sandbox.IO{}), `ok "2"`)
		e.says(e.in(id, e.probe("put", "own", "4")...), "ok")
		want := []string{"/workspace/first", "/workspace/own", "/workspace/second", "/workspace/third"}
		if got := e.takeAll(id, "/workspace"); !slices.Equal(got.order, want) {
			e.Errorf("running: %q", got.order)
		}
		e.stop(id)
		job.result()
		if got := e.takeAll(id, "/workspace"); !slices.Equal(got.order, want) || got.files["/workspace/own"] != "4" {
			e.Errorf("stopped: %q", got.order)
		}
		e.put(id, text("/workspace/late", ""))
		if err := e.m.Delete(context.Background(), id); err != nil {
			e.Fatal(err)
		}
		if err := e.m.Put(e.Context(), id, nil); !errors.Is(err, sandbox.ErrNotFound) {
			e.Errorf("deleted: %v", err)
		}
	}},
	{"files by pattern", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		for _, p := range []string{"/workspace/a.txt", "/workspace/b.txt", "/workspace/c.md", "/workspace/d/a.txt", "/workspace/d/e/a.txt",
			"/workspace/d-e/f", "/workspace/d/e/f/g/h", "/tmp/a.txt"} {
			e.put(id, text(p, p))
		}
		for pattern, want := range map[string]string{
			"/workspace/a.txt": "a.txt", "/workspace/*.txt": "a.txt b.txt", "/workspace/?.md": "c.md", "/workspace/[ab].*": "a.txt b.txt",
			`/workspace/\a.txt`:  "a.txt",
			"/workspace/*/a.txt": "d/a.txt", "/workspace/**/a.txt": "a.txt d/a.txt d/e/a.txt", "/workspace/d/**": "d/a.txt d/e/a.txt d/e/f/g/h",
			"/workspace/**/e/**/h": "d/e/f/g/h",
			"/workspace/d":         "d/a.txt d/e/a.txt d/e/f/g/h", "/workspace/d/e/f": "d/e/f/g/h",
			"/workspace/d*":   "d-e/f d/a.txt d/e/a.txt d/e/f/g/h",
			"/workspace":      "a.txt b.txt c.md d-e/f d/a.txt d/e/a.txt d/e/f/g/h",
			"/workspace/none": "", "/workspace/*.none": "", "/workspace/a.txt/x": "", "/workspace/a.txt/**": "", "/workspace/d/none/**/x": "",
			"/home/sandbox/*": "",
		} {
			got := e.takeAll(id, pattern)
			var names []string
			for _, p := range got.order {
				names = append(names, strings.TrimPrefix(p, "/workspace/"))
			}
			if strings.Join(names, " ") != want || len(got.untaken) > 0 {
				e.Errorf("%s: %q, %v; want %s", pattern, names, got.untaken, want)
			}
		}
		got := e.takeAll(id, "/workspace/**/*.txt", "/workspace/a*", "/tmp/*", "/workspace/a.txt") // each once
		if want := []string{"/tmp/a.txt", "/workspace/a.txt", "/workspace/b.txt", "/workspace/d/a.txt",
			"/workspace/d/e/a.txt"}; !slices.Equal(got.order, want) {
			e.Errorf("%q", got.order)
		}
	}},
	{"files are bounded", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		for i := range 10 {
			e.put(id, text(fmt.Sprintf("/workspace/%d", i), strings.Repeat("x", 100)))
		}
		for _, c := range []struct {
			files int
			bytes sandbox.Size
			want  int
		}{{3, 0, 3}, {0, 450, 4}, {5, 10_000, 5}, {10, 1000, 10}, {10, 999, 9}, {100, 1, 0}} {
			got := e.take(id, sandbox.Selection{Patterns: []string{"/workspace/*"}, MaxFiles: c.files, MaxBytes: c.bytes})
			if len(got.files) != c.want || len(got.untaken) != 10-c.want {
				e.Errorf("%+v: %q, %v", c, got.order, got.untaken)
			}
		}
		e.put(id, text("/workspace/5", "small"))
		got := e.take(id, sandbox.Selection{Patterns: []string{"/workspace/*"}, MaxBytes: 250})
		if want := []string{"/workspace/0", "/workspace/1", "/workspace/5"}; !slices.Equal(got.order, want) {
			e.Errorf("%q: what still fits is taken", got.order)
		}
		stop := errors.New("enough")
		if _, err := e.m.Take(e.Context(), id, sandbox.Selection{Patterns: []string{"/workspace"}},
			func(sandbox.File, sandbox.Size, io.Reader) error { return stop }); !errors.Is(err, stop) {
			e.Errorf("%v", err)
		}
	}},
	{"files by paths that are refused", []Expectation{Files}, false, func(e *env) { // A7
		id := e.create()
		e.put(id, text("/workspace/fine", ""))
		long := "/workspace/" + strings.Repeat("d/", 2048) + "f"
		for _, p := range []string{
			"", "f", "./f", "../f", "/etc/passwd", "/", "/workspace", "/workspace/", "/workspace/../etc/x", "/workspace/./x", "/workspace//x",
			"/workspace/x/", "/workspaces/x",
			"/tmp/../etc/passwd", "/workspace/a\x00b", long, "/workspace/" + strings.Repeat("x", 256), "/home/other/x", "/proc/self/fd/0",
			"/dev/null", "C:\\x",
		} {
			err := e.m.Put(e.Context(), id, []sandbox.File{text("/workspace/before", ""), text(p, "x")})
			if !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("put %.40q: %v", p, err)
			}
			if slices.Contains([]string{"/workspace"}, p) {
				continue // as a pattern, all of it
			}
			if _, err := e.m.Take(e.Context(), id, sandbox.Selection{Patterns: []string{p}}, nil); !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("take %.40q: %v", p, err)
			}
		}
		for _, p := range []string{"/workspace/[", "/workspace/[a/b]", `/workspace/\`, "/**", "/*/x"} {
			if _, err := e.m.Take(e.Context(), id, sandbox.Selection{Patterns: []string{p}}, nil); !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("take %q: %v", p, err)
			}
		}
		if err := e.m.Put(e.Context(), id, []sandbox.File{{Path: "/workspace/s", Mode: 0o755 | fs.ModeSetuid}}); !errors.Is(err,
			sandbox.ErrInvalid) {
			e.Errorf("set-uid: %v", err)
		}
		// A list with a mistake in it puts no file.
		if got := e.takeAll(id, "/workspace"); !slices.Equal(got.order, []string{"/workspace/fine"}) {
			e.Errorf("%q", got.order)
		}
	}},
	{"files whose content fails", []Expectation{Files}, false, func(e *env) {
		id := e.create()
		broken := errors.New("broken")
		open := func(r io.Reader, err error) func() (io.ReadCloser, error) {
			return func() (io.ReadCloser, error) { return io.NopCloser(r), err }
		}
		for _, f := range []sandbox.File{
			{Path: "/workspace/f", Open: open(nil, broken)},
			{Path: "/workspace/f", Open: open(io.MultiReader(strings.NewReader("half"), errReader{broken}), nil)},
		} {
			if err := e.m.Put(e.Context(), id, []sandbox.File{f}); !errors.Is(err, broken) || !errors.Is(err, sandbox.ErrInvalid) ||
				!strings.Contains(err.Error(), "/workspace/f") {
				e.Errorf("%v", err)
			}
		}
		// A Put that waits for a slow source ends with its context.
		r, w, err := os.Pipe()
		if err != nil {
			e.Fatal(err)
		}
		defer w.Close()
		ctx, cancel := context.WithTimeout(e.Context(), 50*time.Millisecond)
		defer cancel()
		e.within(10*time.Second, "giving up", func() {
			err := e.m.Put(ctx, id, []sandbox.File{{Path: "/workspace/f", Open: func() (io.ReadCloser, error) { return r, nil }}})
			if !errors.Is(err, context.DeadlineExceeded) {
				e.Errorf("%v", err)
			}
		})
		if got := e.takeAll(id, "/workspace"); len(got.files) > 0 {
			e.Errorf("half a file is left: %q", got.files)
		}
		if _, err := e.m.Take(ctx, id, sandbox.Selection{Patterns: []string{"/workspace"}}, nil); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("take: %v", err)
		}
	}},
	{"files have their mode and owner", []Expectation{Files, Isolated}, false, func(e *env) {
		id := e.create()
		for mode, want := range map[fs.FileMode]string{0: "644", 0o600: "600", 0o755: "755", 0o400: "400", 0o777: "777", 0o1: "1"} {
			p := "/workspace/way to/" + want
			e.put(id, sandbox.File{Path: p, Mode: mode, Data: []byte("x")})
			e.says(e.in(id, e.probe("stat", p)...), "ok 1000 1000 "+want)
			if got := e.takeAll(id, p); fmt.Sprintf("%o", got.modes[p]) != want || got.files[p] != "x" {
				e.Errorf("%s was taken as %v", p, got.modes)
			}
		}
		e.says(e.in(id, e.probe("stat", "/workspace/way to")...), "ok 1000 1000 755")
		e.says(e.in(id, e.probe("put", "/workspace/way to/644", "its own to change")...), "ok")
		e.says(e.in(id, e.probe("put", "/workspace/way to/more", "its own to use")...), "ok")
	}},
	{"files as another user", []Expectation{Files, Isolated}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.User = sandbox.User{UID: 4242, GID: 4343} })
		e.put(id, text("/tmp/d/f", "x"))
		e.says(e.in(id, e.probe("stat", "/tmp/d/f")...), "ok 4242 4343 644")
		e.says(e.in(id, e.probe("stat", "/tmp/d")...), "ok 4242 4343 755")
	}},
	{"files beside volumes", []Expectation{Files, Volumes}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: e.host, Target: "/workspace/way/volume"})
		})
		e.put(id, text("/workspace/way/f", "x"))
		e.says(e.in(id, e.probe("get", "/workspace/way/f")...), `ok "x"`)
		if err := e.m.Put(e.Context(), id, []sandbox.File{text("/workspace/way/volume/f", "x")}); !errors.Is(err, sandbox.ErrInvalid) ||
			!strings.Contains(err.Error(), e.host) {
			e.Errorf("put into a volume: %v", err)
		}
		got := e.takeAll(id, "/workspace/way/f", "/workspace/way/volume")
		if len(got.files) != 1 || !strings.Contains(got.untaken["/workspace/way/volume"], e.host) {
			e.Errorf("%+v", got)
		}
	}},
	{"files that are large", []Expectation{Files, Programs}, false, func(e *env) {
		const size = 100 << 20
		name := filepath.Join(e.TempDir(), "large")
		f, err := os.Create(name)
		if err != nil {
			e.Fatal(err)
		}
		h := sha256.New()
		_, err = io.CopyN(io.MultiWriter(f, h), newNoise(), size)
		if err = errors.Join(err, f.Close()); err != nil {
			e.Fatal(err)
		}
		sum := fmt.Sprintf("%d %x", size, h.Sum(nil))
		id := e.create(func(s *sandbox.Spec) { s.Limits.Disk, s.Limits.Memory = 300*sandbox.MiB, 600*sandbox.MiB })
		e.put(id, sandbox.File{Path: "/workspace/large", Open: func() (io.ReadCloser, error) { return os.Open(name) }})
		e.says(e.in(id, e.sh(strings.Join(e.probe("digest"), " ")+" < large")...), sum)
		h.Reset()
		untaken, err := e.m.Take(e.Context(), id, sandbox.Selection{Patterns: []string{"/workspace/large"}, MaxBytes: size},
			func(_ sandbox.File, _ sandbox.Size, r io.Reader) error {
				_, err := io.Copy(h, r)
				return err
			})
		if got := fmt.Sprintf("%d %x", size, h.Sum(nil)); got != sum || err != nil || len(untaken) > 0 {
			e.Errorf("taken as %s, %v, %v", got, untaken, err)
		}
	}},
	{"files that the disk has no room for", []Expectation{Files, Disk}, false, func(e *env) {
		id := e.create(func(s *sandbox.Spec) { s.Limits.Disk, s.Limits.Inodes = 16*sandbox.MiB, 200 })
		e.put(id, sandbox.File{Path: "/workspace/fits", Data: make([]byte, 4<<20)})
		large := sandbox.File{Path: "/workspace/large", Data: bytes.Repeat([]byte("x"), 20<<20)}
		streamed := sandbox.File{Path: "/workspace/large",
			Open: func() (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(newNoise(), 1<<30)), nil }}
		var many []sandbox.File
		for i := range 400 {
			many = append(many, text(fmt.Sprintf("/tmp/%d", i), ""))
		}
		lists := [][]sandbox.File{{large}, {streamed}}
		if e.has(Inodes) {
			lists = append(lists, many)
		}
		for _, list := range lists {
			if err := e.m.Put(e.Context(), id, list); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "--disk") {
				e.Errorf("%v", err)
			}
		}
		if got := e.takeAll(id, "/workspace"); !slices.Equal(got.order, []string{"/workspace/fits"}) {
			e.Errorf("%q", got.order)
		}
	}},
	{"files while the sandbox is deleted", []Expectation{Files}, false, func(e *env) {
		spec, _ := e.spec()
		id, err := e.m.Create(e.Context(), spec)
		if err != nil {
			e.Fatal(err)
		}
		e.put(id, text("/workspace/f", "x"))
		holding := make(chan struct{})
		ended := make(chan error)
		go func() {
			_, err := e.m.Take(context.Background(), id, sandbox.Selection{Patterns: []string{"/workspace"}},
				func(_ sandbox.File, _ sandbox.Size, r io.Reader) error {
					close(holding)
					_, err := e.m.Get(id)
					for err == nil { // the sandbox is deleted while the file is open
						time.Sleep(time.Millisecond)
						_, err = e.m.Get(id)
					}
					_, err = io.ReadAll(r)
					return err
				})
			ended <- err
		}()
		<-holding
		e.within(10*time.Second, "deleting", func() {
			if err := e.m.Delete(context.Background(), id); err != nil {
				e.Errorf("delete: %v", err)
			}
		})
		if err := <-ended; e.has(Isolated) && !errors.Is(err, sandbox.ErrState) {
			e.Errorf("take: %v", err)
		}
	}},
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// holds reports whether a text was taken, under whatever name.
func (t taken) holds(secret string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(t.files)), func(s string) bool { return strings.Contains(s, secret) })
}
