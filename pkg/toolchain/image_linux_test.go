package toolchain_test

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

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/golang"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/java"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/javascript"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/postgres"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/rust"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/shell"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
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
func answers(asked *[]string, said map[string]toolchain.Answer) func(context.Context, ...string) (toolchain.Answer, error) {
	return func(_ context.Context, args ...string) (toolchain.Answer, error) {
		*asked = append(*asked, args[0])
		a, ok := said[args[0]]
		if !ok {
			return toolchain.Answer{}, &sandbox.Error{Op: args[0], Kind: sandbox.ErrNotStarted, Err: fs.ErrNotExist}
		}
		return a, nil
	}
}

const (
	pythonSays = "noise\n" + toolchain.Mark + "version=3.12.4\n" + toolchain.Mark + "executable=/usr/local/bin/python3.12\n" + toolchain.Mark +
		"prefix=/usr/local\n" + toolchain.Mark + "base=/usr/local\n"
	nodeSays = toolchain.Mark + "version=22.1.0\n" + toolchain.Mark + "executable=/usr/local/bin/node\n"
	rustSays = "rustc 1.80.0\nrelease: 1.80.0\nhost: x86_64-unknown-linux-gnu\n"
	javaSays = "    java.home = /opt/java/openjdk\n    java.version = 21.0.2\n"
)

// Each language, in an image that is unpacked and in one that only a backend can see.
func TestInside(t *testing.T) {
	files := map[string]string{
		"usr/local/bin/python3": "-> python3.12", "usr/local/bin/python3.12": "x", "usr/local/bin/node": "x",
		"usr/local/go/bin/go": "x", "usr/local/go/bin/gofmt": "x", "usr/local/go/src/fmt/print.go": "x",
		"usr/local/cargo/bin/rustc": "x", "usr/local/cargo/bin/cargo": "x", "rs/bin/rustc": "x", "rs/bin/cargo": "x",
		"rs/lib/rustlib/x86_64-unknown-linux-gnu/lib/x": "x", "usr/bin/gcc": "x", "usr/bin/cc": "-> /usr/bin/gcc",
		"opt/java/openjdk/bin/java": "x", "opt/java/openjdk/bin/javac": "x", "usr/bin/java": "-> /opt/java/openjdk/bin/java",
		"bin/busybox": "x", "bin/sh": "-> /bin/busybox",
		"usr/lib/postgresql/9/bin/postgres": "x", "usr/lib/postgresql/15/bin/postgres": "x", "usr/lib/postgresql/15/bin/initdb": "x",
		"usr/lib/postgresql/15/bin/psql": "x",
	}
	const imagePath = "/usr/local/cargo/bin:/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:relative:/tmp"
	paths := map[string]toolchain.Answer{
		"/usr/local/bin/python3": {Stdout: pythonSays}, "/usr/local/bin/node": {Stdout: nodeSays},
		"/usr/local/go/bin/go":       {Stdout: "/usr/local/go\ngo1.24.1\n"},
		"/usr/local/cargo/bin/rustc": {Stdout: "/rs\n"}, "/rs/bin/rustc": {Stdout: rustSays}, "/usr/bin/cc": {Stdout: "/usr/lib/crt1.o\n"},
		"/usr/bin/java": {Stderr: javaSays},
		"/bin/sh":       {}, "/usr/lib/postgresql/15/bin/postgres": {Stdout: "postgres (PostgreSQL) 15.4\n"},
	}
	names := map[string]toolchain.Answer{
		"python3": {Stdout: pythonSays}, "node": {Stdout: nodeSays}, "go": {Stdout: "/usr/local/go\ngo1.24.1\n"}, "/usr/local/go/bin/gofmt": {},
		"rustc": {Stdout: "/rs\n"}, "/rs/bin/rustc": {Stdout: rustSays}, "/rs/bin/cargo": {}, "cc": {Stdout: "/usr/lib/crt1.o\n"},
		"java": {Stderr: javaSays}, "/opt/java/openjdk/bin/java": {}, "/opt/java/openjdk/bin/javac": {}, "sh": {},
		"postgres": {Stdout: "postgres (PostgreSQL) 15.4\n"}, "pg_config": {Stdout: "/pg/bin\n"}, "/pg/bin/postgres": {}, "/pg/bin/initdb": {},
		"/pg/bin/psql": {},
	}
	for d, want := range map[*toolchain.Description]toolchain.Toolchain{
		python.Language.Toolchain: {Version: "3.12.4", Path: "/usr/local/bin/python3.12", Home: "/usr/local"},
		&javascript.Node:          {Version: "22.1.0", Path: "/usr/local/bin/node", Home: "/usr/local"},
		golang.Language.Toolchain: {Version: "1.24.1", Path: "/usr/local/go/bin/go", Home: "/usr/local/go",
			Programs: map[string]string{"gofmt": "/usr/local/go/bin/gofmt"}},
		rust.Language.Toolchain: {Version: "1.80.0", Path: "/rs/bin/rustc", Home: "/rs",
			Programs: map[string]string{"cargo": "/rs/bin/cargo", "cc": "/usr/bin/cc"}},
		java.Language.Toolchain: {Version: "21.0.2", Path: "/opt/java/openjdk/bin/java", Home: "/opt/java/openjdk",
			Programs: map[string]string{"java": "/opt/java/openjdk/bin/java", "javac": "/opt/java/openjdk/bin/javac"}},
		shell.Language.Toolchain: {Path: "/bin/sh", Home: "/bin", Programs: map[string]string{"sh": "/bin/sh"}},
		postgres.Language.Toolchain: {Version: "15.4", Path: "/usr/lib/postgresql/15/bin/postgres", Home: "/usr/lib/postgresql/15/bin",
			Programs: map[string]string{"postgres": "/usr/lib/postgresql/15/bin/postgres", "initdb": "/usr/lib/postgresql/15/bin/initdb",
				"psql": "/usr/lib/postgresql/15/bin/psql"}},
	} {
		t.Run(d.Name, func(t *testing.T) {
			var asked []string
			f := &toolchain.Finder{NoStore: true}
			got, err := f.FindIn(t.Context(), d, toolchain.Image{ID: "sha256:1", Name: "x", Dir: fakeRoot(t, files), Path: imagePath,
				Query: answers(&asked, paths)})
			if err != nil {
				t.Fatal(err)
			}
			same := func(got *toolchain.Toolchain, want toolchain.Toolchain) {
				t.Helper()
				if got.Name != d.Name || got.Version != want.Version || got.Path != want.Path || got.Home != want.Home ||
					!maps.Equal(got.Programs, want.Programs) || len(got.Mounts) > 0 || got.ID == "" {
					t.Errorf("%+v\nwant %+v", got, want)
				}
			}
			same(got, want)
			// By name alone: what a program says of itself is its path, and what says nothing goes by its name.
			switch d {
			case rust.Language.Toolchain:
				want.Programs = map[string]string{"cargo": "/rs/bin/cargo", "cc": "cc"}
			case shell.Language.Toolchain:
				want.Path, want.Home, want.Programs = "sh", ".", map[string]string{"sh": "sh"}
			case postgres.Language.Toolchain:
				want.Path, want.Home, want.Programs = "/pg/bin/postgres", "/pg/bin",
					map[string]string{"postgres": "/pg/bin/postgres", "initdb": "/pg/bin/initdb", "psql": "/pg/bin/psql"}
			}
			if got, err = f.FindIn(t.Context(), d, toolchain.Image{ID: "sha256:2", Name: "x", Path: imagePath,
				Query: answers(&asked, names)}); err != nil {
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
	img := toolchain.Image{ID: "sha256:1", Name: "x", Dir: fakeRoot(t, map[string]string{"usr/bin/python3": "x"}),
		Query: answers(&asked, map[string]toolchain.Answer{"/usr/bin/python3": {Stdout: pythonSays}})}
	find := func(f *toolchain.Finder, img toolchain.Image, questions int) *toolchain.Toolchain {
		t.Helper()
		asked = nil
		tool, err := f.FindIn(t.Context(), python.Language.Toolchain, img)
		if err != nil {
			t.Fatal(err)
		}
		if len(asked) != questions {
			t.Errorf("asked %q", asked)
		}
		return tool
	}
	f := &toolchain.Finder{Store: store}
	first := find(f, img, 1)
	if again := find(f, img, 0); again.ID != first.ID {
		t.Error("another ID")
	}
	if next := find(&toolchain.Finder{Store: store}, img, 0); next.ID != first.ID || next.Path != first.Path || next.Version != first.Version {
		t.Errorf("%+v", next)
	}
	other := img
	other.ID = "sha256:2"
	if find(f, other, 1).ID == first.ID {
		t.Error("what is of another image has the same ID")
	}
	other.Path = "/usr/bin"
	find(f, other, 1)
	other.ID = "" // an image without an id can not be stored
	find(f, other, 1)
	find(f, other, 1)
}

// What is not there, not whole, or not to be asked, is said; no link leads out.
func TestInsideTrouble(t *testing.T) {
	outside := fakeRoot(t, map[string]string{"python3": "x"})
	var asked []string
	for name, c := range map[string]struct {
		files map[string]string
		said  map[string]toolchain.Answer
		find  *toolchain.Description
		says  string
	}{
		"nothing": {nil, nil, python.Language.Toolchain, "no python in the image x"},
		"leads out": {map[string]string{"usr/bin/python3": "-> " + outside + "/python3",
			"usr/local/bin/python3": "-> ../../../../../../../.." + outside + "/python3"}, nil, python.Language.Toolchain,
			"no python in the image x"},
		"a circle": {map[string]string{"usr/bin/python3": "-> python", "usr/bin/python": "-> python3"}, nil, python.Language.Toolchain,
			"no python in the image x"},
		"a directory": {map[string]string{"usr/bin/python3/x": ""}, nil, python.Language.Toolchain, "no python in the image x"},
		"too old": {map[string]string{"usr/bin/python3": "x"},
			map[string]toolchain.Answer{"/usr/bin/python3": {Stdout: toolchain.Mark + "version=3.6.1\n"}}, python.Language.Toolchain,
			"older than 3.9"},
		"gibberish": {map[string]string{"usr/bin/node": "x"}, map[string]toolchain.Answer{"/usr/bin/node": {Stdout: "\x1b[31mhello"}},
			&javascript.Node, "does not answer as Node does"},
		"fails": {map[string]string{"usr/bin/node": "x"},
			map[string]toolchain.Answer{"/usr/bin/node": {Exit: 7, Stderr: "no\x1b such thing\n"}}, &javascript.Node, "exit code 7: no such thing"},
		"other's arch": {map[string]string{"usr/bin/node": "x"}, nil, &javascript.Node, "/usr/bin/node: "},
		"no compiler": {map[string]string{"usr/bin/java": "x"}, map[string]toolchain.Answer{"/usr/bin/java": {Stderr: javaSays}},
			java.Language.Toolchain, "java 21.0.2 (/usr/bin/java in the image x) is incomplete: a runtime without javac"},
		"no linker": {map[string]string{"usr/bin/rustc": "x"},
			map[string]toolchain.Answer{"/usr/bin/rustc": {Stdout: "/usr\nrelease: 1.2.3\n"}}, rust.Language.Toolchain, "no rust in the image"},
		"no source": {map[string]string{"usr/bin/go": "x"}, map[string]toolchain.Answer{"/usr/bin/go": {Stdout: "/usr/lib/go\ngo1.24\n"}},
			golang.Language.Toolchain, "standard library's source"},
	} {
		_, err := (&toolchain.Finder{NoStore: true}).FindIn(t.Context(), c.find,
			toolchain.Image{ID: "1", Name: "x", Dir: fakeRoot(t, c.files), Query: answers(&asked, c.said)})
		var missing *toolchain.Missing
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.says) || strings.ContainsRune(err.Error(), 0x1b) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if slices.ContainsFunc(asked, func(p string) bool { return strings.HasPrefix(p, outside) }) {
		t.Errorf("asked outside: %q", asked)
	}
	broken := errors.New("no sandboxes today")
	_, err := (&toolchain.Finder{NoStore: true}).FindIn(t.Context(), python.Language.Toolchain,
		toolchain.Image{Name: "x", Dir: fakeRoot(t, map[string]string{"usr/bin/python3": "x"}),
			Query: func(context.Context, ...string) (toolchain.Answer, error) { return toolchain.Answer{}, broken }})
	if missing := new(toolchain.Missing); !errors.Is(err, broken) || errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}

func TestCustomInside(t *testing.T) {
	var asked []string
	dir := fakeRoot(t, map[string]string{"usr/bin/tcc": "x", "opt/ld": "x"})
	c := toolchain.Custom{Name: "c", Programs: []string{"tcc", "/opt/ld"}, VersionCommand: []string{"tcc", "-v"}, Paths: []string{"/home/x"}}
	img := toolchain.Image{ID: "1", Name: "x", Dir: dir,
		Query: answers(&asked, map[string]toolchain.Answer{"/usr/bin/tcc": {Stderr: "tcc version 0.9.27\n"}})}
	got, err := findCustom(t, c, img)
	if err != nil || got.Version != "0.9.27" || got.Path != "/usr/bin/tcc" || got.Programs["ld"] != "/opt/ld" {
		t.Errorf("%+v, %v", got, err)
	}
	c.Programs = append(c.Programs, "no-such")
	var missing *toolchain.Missing
	if _, err := findCustom(t, c, img); !errors.As(err, &missing) || !strings.Contains(err.Error(), "no-such is not there") {
		t.Errorf("%v", err)
	}
}

func findCustom(t *testing.T, c toolchain.Custom, img toolchain.Image) (*toolchain.Toolchain, error) {
	d, err := c.Description()
	if err != nil {
		t.Fatal(err)
	}
	return (&toolchain.Finder{NoStore: true}).FindIn(t.Context(), d, img)
}

// FuzzStatIn: whatever links there are, none leads out of the image.
func FuzzStatIn(f *testing.F) {
	f.Add("/a/b", "/etc/passwd", "../../../../etc/passwd")
	f.Add("a", "a", "b/../../..")
	f.Fuzz(func(t *testing.T, p, first, second string) {
		dir := t.TempDir()
		if os.Symlink(first, filepath.Join(dir, "a")) != nil || os.Mkdir(filepath.Join(dir, "d"), 0o755) != nil ||
			os.Symlink(second, filepath.Join(dir, "d", "b")) != nil {
			return // no such link can be
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		for _, at := range []string{p, "/a", "/d/b", "/d/b/" + p} {
			info, err := toolchain.StatIn(root, at)
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
