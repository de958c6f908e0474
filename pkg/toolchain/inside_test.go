package toolchain

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fakeRoot is a directory with programs, files and links ("-> target") in it.
func fakeRoot(t *testing.T, entries map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range entries {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, p)
		} else {
			err = os.WriteFile(p, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// answers is who is asked in a test: the programs that there are, and what each says to anything. It counts the questions.
func answers(asked *[]string, said map[string]Answer) func(context.Context, ...string) (Answer, error) {
	return func(_ context.Context, args ...string) (Answer, error) {
		*asked = append(*asked, args[0])
		a, ok := said[args[0]]
		if !ok {
			return Answer{}, &sandbox.Error{Op: args[0], Kind: sandbox.ErrNotStarted, Err: fs.ErrNotExist}
		}
		return a, nil
	}
}

const (
	pythonSays = "noise\n" + mark + "version=3.12.4\n" + mark + "executable=/usr/local/bin/python3.12\n" + mark + "prefix=/usr/local\n" + mark + "base=/usr/local\n"
	nodeSays   = mark + "version=22.1.0\n" + mark + "executable=/usr/local/bin/node\n"
	rustSays   = "rustc 1.80.0\nrelease: 1.80.0\nhost: x86_64-unknown-linux-gnu\n"
	javaSays   = "    java.home = /opt/java/openjdk\n    java.version = 21.0.2\n"
)

// Each language, in an image that is unpacked and in one that only a backend can see.
func TestInside(t *testing.T) {
	files := map[string]string{
		"usr/local/bin/python3": "-> python3.12", "usr/local/bin/python3.12": "x", "usr/local/bin/node": "x",
		"usr/local/go/bin/go": "x", "usr/local/go/bin/gofmt": "x", "usr/local/go/src/fmt/print.go": "x",
		"usr/local/cargo/bin/rustc": "x", "usr/local/cargo/bin/cargo": "x", "rs/bin/rustc": "x", "rs/bin/cargo": "x", "rs/lib/rustlib/x86_64-unknown-linux-gnu/lib/x": "x", "usr/bin/gcc": "x", "usr/bin/cc": "-> /usr/bin/gcc",
		"opt/java/openjdk/bin/java": "x", "opt/java/openjdk/bin/javac": "x", "usr/bin/java": "-> /opt/java/openjdk/bin/java",
		"bin/busybox": "x", "bin/sh": "-> /bin/busybox",
		"usr/lib/postgresql/9/bin/postgres": "x", "usr/lib/postgresql/15/bin/postgres": "x", "usr/lib/postgresql/15/bin/initdb": "x", "usr/lib/postgresql/15/bin/psql": "x",
	}
	const imagePath = "/usr/local/cargo/bin:/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:relative:/tmp"
	paths := map[string]Answer{
		"/usr/local/bin/python3": {Stdout: pythonSays}, "/usr/local/bin/node": {Stdout: nodeSays}, "/usr/local/go/bin/go": {Stdout: "/usr/local/go\ngo1.24.1\n"},
		"/usr/local/cargo/bin/rustc": {Stdout: "/rs\n"}, "/rs/bin/rustc": {Stdout: rustSays}, "/usr/bin/cc": {Stdout: "/usr/lib/crt1.o\n"}, "/usr/bin/java": {Stderr: javaSays},
		"/bin/sh": {}, "/usr/lib/postgresql/15/bin/postgres": {Stdout: "postgres (PostgreSQL) 15.4\n"},
	}
	names := map[string]Answer{
		"python3": {Stdout: pythonSays}, "node": {Stdout: nodeSays}, "go": {Stdout: "/usr/local/go\ngo1.24.1\n"}, "/usr/local/go/bin/gofmt": {},
		"rustc": {Stdout: "/rs\n"}, "/rs/bin/rustc": {Stdout: rustSays}, "/rs/bin/cargo": {}, "cc": {Stdout: "/usr/lib/crt1.o\n"},
		"java": {Stderr: javaSays}, "/opt/java/openjdk/bin/java": {}, "/opt/java/openjdk/bin/javac": {}, "sh": {},
		"postgres": {Stdout: "postgres (PostgreSQL) 15.4\n"}, "pg_config": {Stdout: "/pg/bin\n"}, "/pg/bin/postgres": {}, "/pg/bin/initdb": {}, "/pg/bin/psql": {},
	}
	for name, want := range map[string]Toolchain{
		Python:   {Version: "3.12.4", Path: "/usr/local/bin/python3.12", Home: "/usr/local"},
		Node:     {Version: "22.1.0", Path: "/usr/local/bin/node", Home: "/usr/local"},
		Go:       {Version: "1.24.1", Path: "/usr/local/go/bin/go", Home: "/usr/local/go", Programs: map[string]string{"gofmt": "/usr/local/go/bin/gofmt"}},
		Rust:     {Version: "1.80.0", Path: "/rs/bin/rustc", Home: "/rs", Programs: map[string]string{"cargo": "/rs/bin/cargo", "cc": "/usr/bin/cc"}},
		Java:     {Version: "21.0.2", Path: "/opt/java/openjdk/bin/java", Home: "/opt/java/openjdk", Programs: map[string]string{"java": "/opt/java/openjdk/bin/java", "javac": "/opt/java/openjdk/bin/javac"}},
		Shell:    {Path: "/bin/sh", Home: "/bin", Programs: map[string]string{"sh": "/bin/sh"}},
		Postgres: {Version: "15.4", Path: "/usr/lib/postgresql/15/bin/postgres", Home: "/usr/lib/postgresql/15/bin", Programs: map[string]string{"postgres": "/usr/lib/postgresql/15/bin/postgres", "initdb": "/usr/lib/postgresql/15/bin/initdb", "psql": "/usr/lib/postgresql/15/bin/psql"}},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			f := &Finder{NoStore: true}
			got, err := f.FindIn(t.Context(), name, Image{ID: "sha256:1", Name: "x", Dir: fakeRoot(t, files), Path: imagePath, Ask: answers(&asked, paths)})
			if err != nil {
				t.Fatal(err)
			}
			same := func(got *Toolchain, want Toolchain) {
				t.Helper()
				if got.Name != name || got.Version != want.Version || got.Path != want.Path || got.Home != want.Home || !maps.Equal(got.Programs, want.Programs) || len(got.Mounts) > 0 || got.ID == "" {
					t.Errorf("%+v\nwant %+v", got, want)
				}
			}
			same(got, want)
			// By name alone: what a program says of itself is its path, and what says nothing goes by its name.
			switch name {
			case Rust:
				want.Programs = map[string]string{"cargo": "/rs/bin/cargo", "cc": "cc"}
			case Shell:
				want.Path, want.Home, want.Programs = "sh", ".", map[string]string{"sh": "sh"}
			case Postgres:
				want.Path, want.Home, want.Programs = "/pg/bin/postgres", "/pg/bin", map[string]string{"postgres": "/pg/bin/postgres", "initdb": "/pg/bin/initdb", "psql": "/pg/bin/psql"}
			}
			if got, err = f.FindIn(t.Context(), name, Image{ID: "sha256:2", Name: "x", Path: imagePath, Ask: answers(&asked, names)}); err != nil {
				t.Fatal(err)
			}
			same(got, want)
		})
	}
}

// What was found once is not asked again, by this process or the next, as long as it is the same image.
func TestInsideIsKept(t *testing.T) {
	var asked []string
	store := filepath.Join(t.TempDir(), "toolchains.json")
	img := Image{ID: "sha256:1", Name: "x", Dir: fakeRoot(t, map[string]string{"usr/bin/python3": "x"}), Ask: answers(&asked, map[string]Answer{"/usr/bin/python3": {Stdout: pythonSays}})}
	find := func(f *Finder, img Image, questions int) *Toolchain {
		t.Helper()
		asked = nil
		tool, err := f.FindIn(t.Context(), Python, img)
		if err != nil {
			t.Fatal(err)
		}
		if len(asked) != questions {
			t.Errorf("asked %q", asked)
		}
		return tool
	}
	f := &Finder{Store: store}
	first := find(f, img, 1)
	if again := find(f, img, 0); again.ID != first.ID {
		t.Error("another ID")
	}
	if next := find(&Finder{Store: store}, img, 0); next.ID != first.ID || next.Path != first.Path || next.Version != first.Version {
		t.Errorf("%+v", next)
	}
	other := img
	other.ID = "sha256:2"
	if find(f, other, 1).ID == first.ID {
		t.Error("what is of another image has the same ID")
	}
	other.Path = "/usr/bin"
	find(f, other, 1)
	other.ID = "" // nobody knows what it is
	find(f, other, 1)
	find(f, other, 1)
}

// What is not there, not whole, or not to be asked, is said; no link leads out.
func TestInsideTrouble(t *testing.T) {
	outside := fakeRoot(t, map[string]string{"python3": "x"})
	var asked []string
	for name, c := range map[string]struct {
		files map[string]string
		said  map[string]Answer
		find  string
		says  string
	}{
		"nothing":      {nil, nil, Python, "no python in the image x"},
		"leads out":    {map[string]string{"usr/bin/python3": "-> " + outside + "/python3", "usr/local/bin/python3": "-> ../../../../../../../.." + outside + "/python3"}, nil, Python, "no python in the image x"},
		"a circle":     {map[string]string{"usr/bin/python3": "-> python", "usr/bin/python": "-> python3"}, nil, Python, "no python in the image x"},
		"a directory":  {map[string]string{"usr/bin/python3/x": ""}, nil, Python, "no python in the image x"},
		"too old":      {map[string]string{"usr/bin/python3": "x"}, map[string]Answer{"/usr/bin/python3": {Stdout: mark + "version=3.6.1\n"}}, Python, "older than 3.9"},
		"gibberish":    {map[string]string{"usr/bin/node": "x"}, map[string]Answer{"/usr/bin/node": {Stdout: "\x1b[31mhello"}}, Node, "does not answer as Node does"},
		"fails":        {map[string]string{"usr/bin/node": "x"}, map[string]Answer{"/usr/bin/node": {Exit: 7, Stderr: "no\x1b such thing\n"}}, Node, "exit code 7: no such thing"},
		"other's arch": {map[string]string{"usr/bin/node": "x"}, nil, Node, "/usr/bin/node: "},
		"no compiler":  {map[string]string{"usr/bin/java": "x"}, map[string]Answer{"/usr/bin/java": {Stderr: javaSays}}, Java, "java 21.0.2 (/usr/bin/java in the image x) is incomplete: a runtime without javac"},
		"no linker":    {map[string]string{"usr/bin/rustc": "x"}, map[string]Answer{"/usr/bin/rustc": {Stdout: "/usr\nrelease: 1.2.3\n"}}, Rust, "no rust in the image"},
		"no source":    {map[string]string{"usr/bin/go": "x"}, map[string]Answer{"/usr/bin/go": {Stdout: "/usr/lib/go\ngo1.24\n"}}, Go, "standard library's source"},
	} {
		_, err := (&Finder{NoStore: true}).FindIn(t.Context(), c.find, Image{ID: "1", Name: "x", Dir: fakeRoot(t, c.files), Ask: answers(&asked, c.said)})
		var missing *Missing
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.says) || strings.ContainsRune(err.Error(), 0x1b) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if slices.ContainsFunc(asked, func(p string) bool { return strings.HasPrefix(p, outside) }) {
		t.Errorf("asked outside: %q", asked)
	}
	broken := errors.New("no sandboxes today")
	_, err := (&Finder{NoStore: true}).FindIn(t.Context(), Python, Image{Name: "x", Dir: fakeRoot(t, map[string]string{"usr/bin/python3": "x"}), Ask: func(context.Context, ...string) (Answer, error) { return Answer{}, broken }})
	if missing := new(Missing); !errors.Is(err, broken) || errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}

func TestCustomInside(t *testing.T) {
	var asked []string
	dir := fakeRoot(t, map[string]string{"usr/bin/tcc": "x", "opt/ld": "x"})
	c := Custom{Name: "c", Programs: []string{"tcc", "/opt/ld"}, VersionCommand: []string{"tcc", "-v"}, Paths: []string{"/home/x"}}
	img := Image{ID: "1", Name: "x", Dir: dir, Ask: answers(&asked, map[string]Answer{"/usr/bin/tcc": {Stderr: "tcc version 0.9.27\n"}})}
	got, err := (&Finder{NoStore: true}).CustomIn(t.Context(), c, img)
	if err != nil || got.Version != "0.9.27" || got.Path != "/usr/bin/tcc" || got.Programs["ld"] != "/opt/ld" {
		t.Errorf("%+v, %v", got, err)
	}
	c.Programs = append(c.Programs, "no-such")
	var missing *Missing
	if _, err := (&Finder{NoStore: true}).CustomIn(t.Context(), c, img); !errors.As(err, &missing) || !strings.Contains(err.Error(), "no-such is not there") {
		t.Errorf("%v", err)
	}
}

// FuzzStatIn: whatever links there are, none leads out of the image.
func FuzzStatIn(f *testing.F) {
	f.Add("/a/b", "/etc/passwd", "../../../../etc/passwd")
	f.Add("a", "a", "b/../../..")
	f.Fuzz(func(t *testing.T, p, first, second string) {
		dir := t.TempDir()
		if os.Symlink(first, filepath.Join(dir, "a")) != nil || os.Mkdir(filepath.Join(dir, "d"), 0o755) != nil || os.Symlink(second, filepath.Join(dir, "d", "b")) != nil {
			return // no such link can be
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		for _, at := range []string{p, "/a", "/d/b", "/d/b/" + p} {
			info, err := StatIn(root, at)
			if err != nil {
				continue
			}
			switch info.Name() { // the only things there are, but for the root's own name
			case "a", "d", "b", ".", filepath.Base(dir):
			default:
				t.Fatalf("%q leads to %q", at, info.Name())
			}
		}
	})
}
