package conformance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

var rootRows = []row{
	{"volume: read-only", []Expectation{Volumes, Isolated}, false, func(e *env) {
		dir := e.dir()
		write(e, filepath.Join(dir, "f"), "text")
		id := e.create(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes,
				sandbox.Volume{Source: dir, Target: "/data"},
				sandbox.Volume{Source: filepath.Join(dir, "f"), Target: "/workspace/deep/down/file"},
				sandbox.Volume{Source: dir, Target: "/opt/a/b"})
		})
		for _, f := range []string{"/data/f", "/workspace/deep/down/file", "/opt/a/b/f"} {
			e.says(e.in(id, e.probe("get", f)...), `ok "text"`)
			e.says(e.in(id, e.probe("put", f, "x")...), "EROFS")
		}
		e.says(e.in(id, e.probe("put", "/data/new", "x")...), "EROFS")
		e.says(e.do(id, sandbox.Process{Phase: "second", Args: e.probe("get", "/data/f")}, sandbox.IO{}), `ok "text"`)
	}},
	{"volume: writable, as its owner", []Expectation{Volumes, Writable, Isolated}, false, func(e *env) {
		owners := []int{0, 4242}
		if !e.has(AnyOwner) {
			owners = owners[1:]
		}
		if os.Geteuid() != 0 {
			owners = []int{os.Geteuid()} // the test may not chown to others
		}
		for _, owner := range owners {
			dir := e.dir()
			write(e, filepath.Join(dir, "f"), "text")
			for _, p := range []string{dir, filepath.Join(dir, "f")} {
				if err := os.Chown(p, owner, owner); err != nil {
					e.Fatal(err)
				}
			}
			id := e.create(func(s *sandbox.Spec) {
				s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: "/data", Writable: true})
			})
			e.says(e.in(id, e.probe("stat", "/data/f")...), "ok 1000 1000 644")
			e.says(e.in(id, e.probe("put", "/data/f", "changed")...), "ok")
			e.says(e.in(id, e.probe("put", "/data/new", "made")...), "ok")
			e.says(e.in(id, e.probe("mkdir", "/data/sub")...), "ok")
			for _, name := range []string{"f", "new", "sub"} {
				st, err := os.Lstat(filepath.Join(dir, name))
				if err != nil {
					e.Fatal(err)
				}
				if uid := ownerOf(st); uid != owner {
					e.Errorf("%s belongs to %d outside, want %d", name, uid, owner)
				}
			}
			if got := readFile(filepath.Join(dir, "f")); string(got) != "changed" {
				e.Errorf("outside: %q", got)
			}
		}
	}},
	{"volume: no set-uid file is left on the host", []Expectation{Volumes, Writable, Isolated}, false, func(e *env) { // F11
		dir := e.dir()
		if !e.has(AnyOwner) {
			if err := os.Chown(dir, 4242, 4242); err != nil {
				e.Fatal(err)
			}
		}
		id := e.create(func(s *sandbox.Spec) {
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: "/data", Writable: true})
		})
		e.says(e.in(id, e.probe("put", "/data/f", "x")...), "ok")
		e.says(e.in(id, e.probe("chmod", "/data/f", "755")...), "ok") // control
		for _, mode := range []string{"4755", "2755", "6755"} {
			e.says(e.in(id, e.probe("chmod", "/data/f", mode)...), "EPERM")
		}
		if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode().Perm() != 0o755 || st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			e.Errorf("%v, %v", st.Mode(), err)
		}
	}},
	{"volume: sources that are refused", []Expectation{Volumes}, false, func(e *env) { // F10
		dir := e.dir()
		write(e, filepath.Join(dir, "real"), "x")
		real := filepath.Join(dir, "real")
		for _, err := range []error{
			os.Symlink(real, filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "d"), 0o755), os.Symlink(dir, filepath.Join(dir, "dlink")),
			syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644),
		} {
			if err != nil {
				e.Fatal(err)
			}
		}
		volume := func(source string) func(*sandbox.Spec) {
			return func(s *sandbox.Spec) { s.Volumes = append(s.Volumes, sandbox.Volume{Source: source, Target: "/data"}) }
		}
		e.says(e.in(e.create(volume(real)), e.probe("get", "/data")...), `ok "x"`) // control
		for source, kind := range map[string]error{
			dir + "/link":       sandbox.ErrRefused,
			dir + "/dlink/real": sandbox.ErrRefused,
			dir + "/fifo":       sandbox.ErrRefused,
			dir + "/d/../real":  sandbox.ErrInvalid,
			dir + "/none":       sandbox.ErrInvalid,
			"relative":          sandbox.ErrInvalid,
			dir + "//real":      nil,
		} {
			for _, writable := range []bool{false, true} {
				err := e.cannotCreate(volume(source), func(s *sandbox.Spec) { s.Volumes[len(s.Volumes)-1].Writable = writable })
				if kind != nil && !errors.Is(err, kind) {
					e.Errorf("%s: %v, want %v", source, err, kind)
				}
			}
		}
		for _, target := range []string{"/", "/proc", "/proc/x", "/dev/x", "/sys", "relative", "/a/../b"} {
			err := e.cannotCreate(func(s *sandbox.Spec) { s.Volumes = append(s.Volumes, sandbox.Volume{Source: real, Target: target}) })
			if !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("target %s: %v", target, err)
			}
		}
	}},
	{"volume: only from the allowed roots", []Expectation{Volumes}, false, func(e *env) { // F10
		dir, other := e.dir(), e.dir()
		if err := os.Mkdir(dir+"-evil", 0o755); err != nil {
			e.Fatal(err)
		}
		defer os.Remove(dir + "-evil")
		m := sandbox.NewManager(e.b, sandbox.Options{VolumeRoots: []string{dir}})
		defer m.Close()
		for source, ok := range map[string]bool{dir: true, other: false, dir + "-evil": false, "/": false, filepath.Dir(dir): false} {
			id, err := m.Create(e.Context(), sandbox.Spec{Limits: small(), Require: e.expect.Tier,
				Volumes: []sandbox.Volume{{Source: source, Target: "/data"}}})
			if ok != (err == nil) || err != nil && !errors.Is(err, sandbox.ErrRefused) {
				e.Errorf("%s: %v", source, err)
			}
			if err == nil {
				e.gone(m.Delete(context.Background(), id))
			}
		}
	}},
	{"writable root is thrown away", []Expectation{Roots, Isolated}, false, func(e *env) {
		image := e.image(e.rootDir())
		change := func(s *sandbox.Spec) { image(s); s.WritableRoot = true }
		id := e.create(change)
		for _, c := range [][]string{
			{"mkdir", "/mine"}, {"put", "/mine/f", "1"}, {"put", "/bin/two", "2"}, {"put", "/etc/three", "3"}, {"put", "/etc/release", "changed"},
			{"remove", "/bin/old"},
		} {
			e.says(e.in(id, append([]string{"/bin/probe"}, c...)...), "ok")
		}
		for p, want := range map[string]string{"/mine/f": `ok "1"`, "/bin/two": `ok "2"`, "/etc/three": `ok "3"`, "/etc/release": `ok "changed"`,
			"/bin/old": `ENOENT ""`} {
			e.says(e.do(id, sandbox.Process{Phase: "next", Args: []string{"/bin/probe", "get", p}}, sandbox.IO{}), want)
			if _, err := os.Lstat(p); err == nil && p != "/etc/release" {
				e.Errorf("%s is on the host", p)
			}
		}
		other := e.create(change)
		for p, want := range map[string]string{"/mine/f": `ENOENT ""`, "/bin/two": `ENOENT ""`, "/etc/three": `ENOENT ""`,
			"/etc/release": `ok "my own"`, "/bin/old": `ok "old"`} {
			e.says(e.in(other, "/bin/probe", "get", p), want)
		}
		// Written data counts as disk.
		e.verdict(e.in(id, "/bin/probe", "write", "/mine/big", "128"), sandbox.VerdictDiskLimit)
	}},
	{"writable root makes nothing readable", []Expectation{Roots, Isolated}, false, func(e *env) { // F12: a file that only root may read
		const secret = "etc/secret"
		dir := e.rootDir()
		write(e, filepath.Join(dir, secret), "root only")
		if err := os.Chmod(filepath.Join(dir, secret), 0o600); err != nil {
			e.Fatal(err)
		}
		shown := map[string]func(*sandbox.Spec){"host": func(*sandbox.Spec) {},
			"host paths": func(s *sandbox.Spec) { s.Root.HostPaths = []string{"/usr"} }}
		if os.Geteuid() == 0 { // an ordinary user's directory is readable by that user's sandboxes anyway
			shown["directory"] = func(s *sandbox.Spec) { s.Root.Dir = dir }
			e.says(e.in(e.create(shown["directory"]), "/bin/probe", "get", "/"+secret), `EACCES ""`) // control: a read-only root
		}
		for name, change := range shown {
			err := e.cannotCreate(change, func(s *sandbox.Spec) { s.WritableRoot = true })
			if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "only an image's root can be writable") {
				e.Errorf("%s: %v", name, err)
			}
		}
		// The control: a user that may run an image may read all of it.
		e.says(e.in(e.create(e.image(dir), func(s *sandbox.Spec) { s.WritableRoot = true }), "/bin/probe", "get", "/"+secret), `ok "root only"`)
	}},
	{"root from a directory", []Expectation{Roots, Isolated}, false, func(e *env) {
		for _, writable := range []bool{false, true} {
			dir := e.rootDir()
			id := e.create(e.image(dir), func(s *sandbox.Spec) { s.WritableRoot = writable })
			e.says(e.in(id, "/bin/probe", "get", "/etc/release"), `ok "my own"`)
			e.says(e.in(id, "/bin/probe", "stat", "/usr"), "ENOENT 0 0 0")
			e.says(e.in(id, "/bin/probe", "put", "/tmp/x", "x"), "ok")
			got := e.ok(e.in(id, "/bin/probe", "put", "/etc/new", "x"))
			if writable != (got == "ok\n") {
				e.Errorf("writable %v: %q", writable, got)
			}
			if _, err := os.Lstat(filepath.Join(dir, "etc/new")); err == nil {
				e.Error("the directory was changed")
			}
		}
	}},
	{"root from a directory that is made anew", []Expectation{Roots, Isolated}, false, func(e *env) {
		dir := e.rootDir()
		at := func(s *sandbox.Spec) { s.Root.Dir = dir }
		e.says(e.in(e.create(at), "/bin/probe", "get", "/etc/release"), `ok "my own"`)
		if err := os.Rename(dir, dir+".old"); err != nil {
			e.Fatal(err)
		}
		e.Cleanup(func() { os.RemoveAll(dir + ".old") })
		fillRoot(e, dir)
		write(e, filepath.Join(dir, "etc/release"), "newer")
		e.says(e.in(e.create(at), "/bin/probe", "get", "/etc/release"), `ok "newer"`)
	}},
	{"root with a place to mount on that is no directory", []Expectation{Roots, Isolated}, false, func(e *env) { // F3
		for _, place := range []string{"proc", "dev", "sys", "tmp", "workspace", "home", "home/sandbox"} {
			dir := e.rootDir()
			at := filepath.Join(dir, place)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				e.Fatal(err)
			}
			if err := os.Symlink("/etc", at); err != nil {
				e.Fatal(err)
			}
			err := e.cannotCreate(func(s *sandbox.Spec) { s.Root.Dir = dir })
			if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "symbolic link") {
				e.Errorf("%s: %v", place, err)
			}
		}
		dir := e.rootDir()
		if err := os.Symlink("/etc", filepath.Join(dir, "data")); err != nil {
			e.Fatal(err)
		}
		err := e.cannotCreate(func(s *sandbox.Spec) {
			s.Root.Dir = dir
			s.Volumes = append(s.Volumes, sandbox.Volume{Source: dir, Target: "/data/x"})
		})
		if !errors.Is(err, sandbox.ErrRefused) {
			e.Errorf("volume behind a link: %v", err)
		}
	}},
	{"image with links where the scratch belongs", []Expectation{Roots, Isolated}, false, func(e *env) { // F3
		of := sandbox.ImageRef{Reference: "hostile/image:1"}
		outside := e.dirApart()
		if err := os.Chmod(outside, 0o777); err != nil {
			e.Fatal(err)
		}
		image := func(links map[string]string) func(*sandbox.Spec) {
			dir := e.rootDir()
			for at, to := range links {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, at)), 0o755); err != nil {
					e.Fatal(err)
				}
				if err := os.Symlink(to, filepath.Join(dir, at)); err != nil {
					e.Fatal(err)
				}
			}
			return func(s *sandbox.Spec) { s.Root.Dir, s.Root.From = dir, of }
		}
		for _, writable := range []bool{false, true} {
			for _, links := range []map[string]string{
				{"tmp": outside, "workspace": "../../../../../../../../" + outside, "home": outside},
				{"tmp": "/etc", "workspace": "tmp", "home/sandbox": "/bin"},
			} {
				id := e.create(image(links), func(s *sandbox.Spec) { s.WritableRoot = writable })
				for _, place := range []string{sandbox.TmpDir, sandbox.WorkspaceDir, sandbox.HomeDir} {
					e.says(e.in(id, "/bin/probe", "list", place), "ok")
					e.says(e.in(id, "/bin/probe", "put", place+"/mine", "text"), "ok")
				}
				e.says(e.in(id, "/bin/probe", "get", "/etc/release"), `ok "my own"`) // control: it is that image
			}
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			e.Errorf("where the links lead, there is something: %v, %v", left, err)
		}
		for _, place := range []string{"proc", "dev", "sys"} {
			err := e.cannotCreate(image(map[string]string{place: "/etc"}))
			if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(),
				"image hostile/image:1: /"+place+" is, or lies behind, a symbolic link: /"+place+` leads to "/etc"`) {
				e.Errorf("%s: %v", place, err)
			}
		}
	}},
	{"root of chosen host paths", []Expectation{Roots, Isolated}, false, func(e *env) {
		dir := e.dirApart()
		write(e, filepath.Join(dir, "f"), "text")
		id := e.create(func(s *sandbox.Spec) { s.Root.HostPaths = []string{dir} })
		e.says(e.in(id, e.probe("get", dir+"/f")...), `ok "text"`)
		e.says(e.in(id, e.probe("stat", "/usr")...), "ENOENT 0 0 0")
		for _, p := range []string{dir + "/none", "/tmp/x", "/proc", "/workspace", "/", "relative"} {
			if err := e.cannotCreate(func(s *sandbox.Spec) { s.Root.HostPaths = []string{p} }); !errors.Is(err, sandbox.ErrInvalid) {
				e.Errorf("%s: %v", p, err)
			}
		}
	}},
}

// dir is a directory on the host that sandboxes may be shown, without a symlink in its path.
func (e *env) dir() string {
	e.Helper()
	d, err := filepath.EvalSymlinks(e.TempDir())
	if err != nil {
		e.Fatal(err)
	}
	for p := d; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			e.Fatal(err)
		}
	}
	return d
}

// dirApart is one that is in no directory of the sandbox's own, as /tmp is.
func (e *env) dirApart() string {
	e.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-")
	if err == nil {
		e.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		e.Fatal(err)
	}
	return dir
}

func write(e *env, name, text string) {
	e.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		e.Fatal(err)
	}
}

// rootDir is a whole root with nothing but the probe in it.
func (e *env) rootDir() string {
	e.Helper()
	dir := filepath.Join(e.dir(), "root")
	fillRoot(e, dir)
	return dir
}

// image makes a directory the root, as an image's.
func (e *env) image(dir string) func(*sandbox.Spec) {
	return func(s *sandbox.Spec) {
		s.Root.Dir, s.Root.From = dir, sandbox.ImageRef{Reference: "sandboxtest/root:1"}
	}
}

func fillRoot(e *env, dir string) {
	e.Helper()
	for _, d := range []string{"bin", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			e.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/probe"), readFile(e.host), 0o755); err != nil {
		e.Fatal(err)
	}
	write(e, filepath.Join(dir, "etc/release"), "my own")
	write(e, filepath.Join(dir, "bin/old"), "old")
}

func ownerOf(st os.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }
