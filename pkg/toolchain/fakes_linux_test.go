package toolchain_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// world is a directory with a home and version managers of a test's own making. Its programs are shell scripts that
// answer as the real ones do; what is found with real ones is tested elsewhere.
type world struct {
	*testing.T
	dir, home string
	environ   []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "toolchain-") // /tmp is every sandbox's own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, dir: dir, home: filepath.Join(dir, "home", "me")}
	w.mkdir("home/me")
	w.environ = []string{"HOME=" + w.home, "PATH=" + w.at("bin") + ":" + w.at("bin2")}
	w.mkdir("bin")
	w.mkdir("bin2")
	return w
}

func (w *world) at(p string) string { return filepath.Join(w.dir, p) }

func (w *world) mkdir(p string) {
	w.Helper()
	if err := os.MkdirAll(w.at(p), 0o755); err != nil {
		w.Fatal(err)
	}
}

func (w *world) write(p, text string, mode os.FileMode) string {
	w.Helper()
	w.mkdir(filepath.Dir(p))
	if err := os.WriteFile(w.at(p), []byte(text), mode); err != nil {
		w.Fatal(err)
	}
	if err := os.Chmod(w.at(p), mode); err != nil { // whatever the umask is
		w.Fatal(err)
	}
	return w.at(p)
}

// script writes a program. @ in its text is the world's directory.
func (w *world) script(p, text string) string {
	w.Helper()
	return w.write(p, "#!/bin/sh\n"+strings.ReplaceAll(text, "@", w.dir)+"\n", 0o755)
}

func (w *world) link(to, p string) {
	w.Helper()
	w.mkdir(filepath.Dir(p))
	_ = os.Remove(w.at(p))
	if err := os.Symlink(to, w.at(p)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) finder() *toolchain.Finder {
	return &toolchain.Finder{Store: w.at("cache/toolchains.json"), Environ: w.environ, Timeout: time.Minute}
}

// find looks for a language in this world alone: the real machine's places are left out.
func (w *world) find(f *toolchain.Finder, d *toolchain.Description) (*toolchain.Toolchain, error) {
	own := *d
	own.Places = slices.DeleteFunc(slices.Clone(d.Places), filepath.IsAbs)
	return f.Find(context.Background(), &own)
}

// custom looks for a toolchain that a languages.yaml describes.
func (w *world) custom(c toolchain.Custom) (*toolchain.Toolchain, error) {
	d, err := c.Description()
	if err != nil {
		return nil, err
	}
	return w.finder().Find(context.Background(), d)
}

// descriptions are those of all languages.
func descriptions() []*toolchain.Description {
	return []*toolchain.Description{
		python.Language.Toolchain, &javascript.Node, golang.Language.Toolchain, rust.Language.Toolchain, java.Language.Toolchain,
		shell.Language.Toolchain,
		postgres.Language.Toolchain,
	}
}

func (w *world) mustFind(f *toolchain.Finder, d *toolchain.Description) *toolchain.Toolchain {
	w.Helper()
	t, err := w.find(f, d)
	if err != nil {
		w.Fatal(err)
	}
	return t
}

// isMissing is the error as a *toolchain.Missing, or nil.
func isMissing(err error) *toolchain.Missing {
	var m *toolchain.Missing
	if errors.As(err, &m) {
		return m
	}
	return nil
}

func (w *world) missing(d *toolchain.Description) *toolchain.Missing {
	w.Helper()
	t, err := w.find(w.finder(), d)
	m := isMissing(err)
	if m == nil {
		w.Fatalf("found %+v, %v; want it missing", t, err)
	}
	if !errors.Is(err, sandbox.ErrUnsupported) {
		w.Errorf("%v is no error of the known kinds", err)
	}
	return m
}

// wantMounts compares mounts; a path that is not absolute is one of the world's.
func (w *world) wantMounts(t *toolchain.Toolchain, want ...sandbox.Mount) {
	w.Helper()
	for i, m := range want {
		if !filepath.IsAbs(m.Source) {
			want[i].Source = w.at(m.Source)
		}
		if !filepath.IsAbs(m.Target) {
			want[i].Target = w.at(m.Target)
		}
	}
	if !slices.Equal(t.Mounts, want) {
		w.Errorf("mounts are %v\nwant %v", t.Mounts, want)
	}
}

func same(p string) sandbox.Mount { return sandbox.Mount{Source: p, Target: p} }

// pythonAt makes a Python whose prefix is p.
func (w *world) pythonAt(p, version string) {
	w.Helper()
	w.mkdir(p + "/lib/python")
	w.script(p+"/bin/python3.x", fakePython("${0%/bin/*}", "${0%/bin/*}", version))
	w.link("python3.x", p+"/bin/python3")
}

func fakePython(prefix, base, version string) string {
	return `me=$0
echo "a line of sitecustomize"
echo "sandbox-run.version=` + version + `"
echo "sandbox-run.executable=$me"
echo "sandbox-run.prefix=` + prefix + `"
echo "sandbox-run.base=` + base + `"
echo "sandbox-run.base_exec=` + base + `"
echo "sandbox-run.library=` + base + `/lib/python"`
}

func TestPyenvShim(t *testing.T) {
	w := newWorld(t)
	w.pythonAt("home/me/.pyenv/versions/3.11.7", "3.11.7")
	w.pythonAt("home/me/.pyenv/versions/3.12.1", "3.12.1")
	w.pythonAt("home/me/.pyenv/versions/3.6.15", "3.6.15")
	w.link("3.11.7", "home/me/.pyenv/versions/3.11")
	w.script("home/me/.pyenv/shims/python3", `v=$(cat "@/home/me/.pyenv/version") && exec "@/home/me/.pyenv/versions/$v/bin/${0##*/}" "$@"`)
	w.write("home/me/.pyenv/version", "3.11\n", 0o644)
	w.link(w.at("home/me/.pyenv/shims/python3"), "bin/python3")
	f := w.finder()
	got := w.mustFind(f, python.Language.Toolchain)
	if got.Version != "3.11.7" || got.Found != w.at("bin/python3") || got.Path != w.at("home/me/.pyenv/versions/3.11.7/bin/python3.x") {
		t.Errorf("found %+v", got)
	}
	// The version's own directory, under the name that the interpreter gives its prefix as well; nothing else of pyenv.
	w.wantMounts(got,
		sandbox.Mount{Source: "home/me/.pyenv/versions/3.11.7", Target: "home/me/.pyenv/versions/3.11"}, same("home/me/.pyenv/versions/3.11.7"))

	// What the user chooses afterwards counts, in this process and in the next one.
	w.write("home/me/.pyenv/version", "3.12.1\n", 0o644)
	for _, f := range []*toolchain.Finder{f, w.finder()} {
		if got := w.mustFind(f, python.Language.Toolchain); got.Version != "3.12.1" {
			t.Errorf("found %s after another was chosen", got.Version)
		}
	}
	// One that is too old is passed over for one that is nowhere on PATH.
	w.write("home/me/.pyenv/version", "3.6.15\n", 0o644)
	got = w.mustFind(f, python.Language.Toolchain)
	if got.Version != "3.12.1" || len(got.Skipped) != 1 || !strings.Contains(got.Skipped[0], "Python 3.6.15 is older than 3.9") {
		t.Errorf("found %s; passed over %q", got.Version, got.Skipped)
	}
}

func TestRustupProxy(t *testing.T) {
	w := newWorld(t)
	chain := "home/me/.rustup/toolchains/stable-host"
	w.script("home/me/.cargo/bin/rustup", `[ "$RUSTUP_AUTO_INSTALL" = 0 ] && [ "$PWD" = / ] || { echo "installing" >&2; exit 1; }
exec "@/`+chain+`/bin/${0##*/}" "$@"`)
	for _, name := range []string{"rustc", "cargo"} {
		w.link("rustup", "home/me/.cargo/bin/"+name)
	}
	w.write("home/me/.cargo/credentials.toml", "token", 0o600)
	w.script(chain+"/bin/rustc", `case $1 in --print) echo "@/`+chain+`";; -vV) printf 'rustc 1.80.0\nhost: host\nrelease: 1.80.0\n';; esac`)
	w.script(chain+"/bin/cargo", "true")
	w.mkdir(chain + "/lib/rustlib/host/lib")
	w.script("bin/cc", `echo "@/crt1.o"`)
	w.environ[1] = "PATH=" + w.at("home/me/.cargo/bin") + ":" + w.at("bin")
	got := w.mustFind(w.finder(), rust.Language.Toolchain)
	if got.Version != "1.80.0" || got.Path != w.at(chain+"/bin/rustc") || got.Programs["cargo"] != w.at(chain+"/bin/cargo") ||
		got.Programs["cc"] != w.at("bin/cc") {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("bin/cc"), same(chain))

	// Another build of the same version is another toolchain.
	w.script(chain+"/bin/rustc", `case $1 in --print) echo "@/`+chain+
		`";; -vV) printf 'rustc 1.80.0\ncommit: 2\nhost: host\nrelease: 1.80.0\n';; esac`)
	if again := w.mustFind(w.finder(), rust.Language.Toolchain); again.ID == got.ID {
		t.Error("another build has the same ID")
	}
}

func TestRustWithoutLibrary(t *testing.T) {
	w := newWorld(t)
	w.script("opt/rust/bin/rustc", `case $1 in --print) echo "@/opt/rust";; -vV) printf 'host: host\nrelease: 1.80.0\n';; esac`)
	w.link(w.at("opt/rust/bin/rustc"), "bin/rustc")
	m := w.missing(rust.Language.Toolchain)
	if m.Partial == nil || m.Partial.Version != "1.80.0" || !strings.Contains(m.Error(), "rustup component add rust-std") {
		t.Errorf("%v", m)
	}
	w.mkdir("opt/rust/lib/rustlib/host/lib")
	w.script("bin/cc", "echo crt1.o")
	if m := w.missing(rust.Language.Toolchain); m.Partial == nil || !strings.Contains(m.Error(), "libc6-dev") ||
		!strings.Contains(m.Error(), "crt1.o") {
		t.Errorf("%v", m)
	}
	w.script("bin/cc", "echo /usr/lib/crt1.o")
	w.mustFind(w.finder(), rust.Language.Toolchain)
}

// javaAt makes a JDK, or with no javac a JRE.
func (w *world) javaAt(p, version string, programs ...string) {
	w.Helper()
	w.script(p+"/bin/java", `printf 'Property settings:\n    java.home = @/`+p+`\n    java.version = `+version+`\n' >&2`)
	for _, name := range programs {
		w.script(p+"/bin/"+name, "true")
	}
	w.write(p+"/lib/modules", version, 0o644)
}

func TestJavaAlternatives(t *testing.T) {
	w := newWorld(t)
	w.javaAt("jvm/java-21", "21.0.3", "javac", "jar")
	w.mkdir("jvm/java-21/conf")
	w.write("settings/java-21/net.properties", "", 0o644)
	w.link(w.at("settings/java-21/net.properties"), "jvm/java-21/conf/net.properties")
	w.link("java-21", "jvm/default")
	w.link(w.at("jvm/default/bin/java"), "alternatives/java")
	w.link(w.at("alternatives/java"), "bin/java")
	f := w.finder()
	got := w.mustFind(f, java.Language.Toolchain)
	if got.Version != "21.0.3" || got.Home != w.at("jvm/java-21") || got.Programs["javac"] != w.at("jvm/java-21/bin/javac") ||
		got.Env["JAVA_HOME"] != got.Home {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("jvm/java-21"), same("settings/java-21/net.properties"))
	// The administrator's other choice.
	w.javaAt("jvm/java-25", "25", "javac")
	w.link("java-25", "jvm/default")
	if got := w.mustFind(f, java.Language.Toolchain); got.Version != "25" {
		t.Errorf("found %s after the link was changed", got.Version)
	}
}

func TestJavaRuntimeOnly(t *testing.T) {
	w := newWorld(t)
	w.javaAt("jvm/jre-17", "17.0.2")
	w.link(w.at("jvm/jre-17/bin/java"), "bin/java")
	m := w.missing(java.Language.Toolchain)
	if m.Partial == nil || m.Partial.Version != "17.0.2" || !strings.Contains(m.Error(), "javac") ||
		!slices.Contains(m.Install, "apt-get install openjdk-17-jdk-headless") {
		t.Errorf("%v", m)
	}
	// sdkman has a whole one, by a link; the runtime is passed over.
	w.javaAt("home/me/.sdkman/candidates/java/21.0.1-tem", "21.0.1", "javac")
	w.link("21.0.1-tem", "home/me/.sdkman/candidates/java/current")
	got := w.mustFind(w.finder(), java.Language.Toolchain)
	if got.Version != "21.0.1" || got.Home != w.at("home/me/.sdkman/candidates/java/21.0.1-tem") || len(got.Skipped) != 1 {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("home/me/.sdkman/candidates/java/21.0.1-tem"))
}

const fakeNode = `echo "sandbox-run.version=%"; echo "sandbox-run.executable=$0"`

func (w *world) nodeAt(p, version string) string {
	w.Helper()
	w.mkdir(filepath.Dir(filepath.Dir(p)) + "/include/node")
	return w.script(p, strings.ReplaceAll(fakeNode, "%", version))
}

func TestNodeManagers(t *testing.T) {
	t.Run("nvm", func(t *testing.T) {
		w := newWorld(t)
		w.nodeAt("home/me/.nvm/versions/node/v9.11.2/bin/node", "9.11.2")
		w.nodeAt("home/me/.nvm/versions/node/v18.20.1/bin/node", "18.20.1")
		f := w.finder()
		got := w.mustFind(f, &javascript.Node)
		if got.Version != "18.20.1" {
			t.Errorf("found %s", got.Version)
		}
		w.wantMounts(got, same("home/me/.nvm/versions/node/v18.20.1"))
		w.nodeAt("home/me/.nvm/versions/node/v22.1.0/bin/node", "22.1.0")
		if got := w.mustFind(f, &javascript.Node); got.Version != "22.1.0" {
			t.Errorf("found %s though a newer one was installed", got.Version)
		}
	})
	t.Run("asdf", func(t *testing.T) {
		w := newWorld(t)
		w.nodeAt("home/me/.asdf/installs/nodejs/20.1.0/bin/node", "20.1.0")
		w.script("home/me/.asdf/shims/node", `read -r _ v < "$HOME/.tool-versions"; exec "$HOME/.asdf/installs/nodejs/$v/bin/node" "$@"`)
		w.write("home/me/.tool-versions", "nodejs 20.1.0\n", 0o644)
		w.environ[1] = "PATH=" + w.at("home/me/.asdf/shims")
		got := w.mustFind(w.finder(), &javascript.Node)
		if got.Found != w.at("home/me/.asdf/shims/node") || got.Path != w.at("home/me/.asdf/installs/nodejs/20.1.0/bin/node") {
			t.Errorf("found %+v", got)
		}
		w.wantMounts(got, same("home/me/.asdf/installs/nodejs/20.1.0"))
	})
	t.Run("homebrew", func(t *testing.T) {
		w := newWorld(t)
		w.nodeAt("brew/Cellar/node/21.1.0/bin/node", "21.1.0")
		w.link("../Cellar/node/21.1.0/bin/node", "brew/bin/node")
		w.environ[1] = "PATH=" + w.at("brew/bin")
		w.wantMounts(w.mustFind(w.finder(), &javascript.Node), same("brew/Cellar/node/21.1.0"))
	})
	t.Run("a lone file in a home", func(t *testing.T) {
		w := newWorld(t)
		w.nodeAt("home/me/bin/node", "21.1.0")
		w.environ[1] = "PATH=" + w.at("home/me/bin")
		w.wantMounts(w.mustFind(w.finder(), &javascript.Node), same("home/me/bin/node"))
	})
	t.Run("in a directory of the sandbox's own", func(t *testing.T) {
		w := newWorld(t)
		w.dir = t.TempDir() // below /tmp
		w.nodeAt("node/bin/node", "21.1.0")
		w.environ[1] = "PATH=" + w.at("node/bin")
		got := w.mustFind(w.finder(), &javascript.Node)
		w.wantMounts(got, sandbox.Mount{Source: "node", Target: "/opt/sandbox-run/node"})
		if got.Path != "/opt/sandbox-run/node/bin/node" || got.Home != "/opt/sandbox-run/node" {
			t.Errorf("found %+v", got)
		}
	})
}

func TestVirtualEnvironment(t *testing.T) {
	w := newWorld(t)
	w.pythonAt("py/3.12", "3.12.0")
	w.script("py/3.12/bin/python3.x", `case $0 in */venv/*) prefix=@/project/venv;; *) prefix=@/py/3.12;; esac
`+fakePython("$prefix", "@/py/3.12", "3.12.0"))
	w.write("project/secret", "", 0o644)
	w.write("project/venv/pyvenv.cfg", "home = "+w.at("py/3.12/bin"), 0o644)
	w.mkdir("project/venv/lib/python/site-packages")
	w.link(w.at("py/3.12/bin/python3"), "project/venv/bin/python3")
	w.environ = append(w.environ, "VIRTUAL_ENV="+w.at("project/venv"))
	got := w.mustFind(w.finder(), python.Language.Toolchain)
	if got.Path != w.at("project/venv/bin/python3") || got.Home != w.at("project/venv") || got.Env["VIRTUAL_ENV"] != got.Home {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("project/venv/bin"), same("project/venv/lib"), same("project/venv/pyvenv.cfg"), same("py/3.12"))
}

// Of a prefix that is shared with everything else, only what the interpreter needs.
func TestPythonInSharedPrefix(t *testing.T) {
	w := newWorld(t)
	w.pythonAt("home/me/.local", "3.12.0")
	w.write("home/me/.local/share/keyrings/login", "", 0o600)
	w.environ[1] = "PATH=" + w.at("home/me/.local/bin")
	w.wantMounts(w.mustFind(w.finder(), python.Language.Toolchain), same("home/me/.local/bin/python3.x"), same("home/me/.local/lib/python"))

	w = newWorld(t)
	w.pythonAt("conda", "3.12.0")
	w.mkdir("conda/conda-meta")
	w.mkdir("conda/envs/other")
	w.environ[1] = "PATH=" + w.at("conda/bin")
	w.wantMounts(w.mustFind(w.finder(), python.Language.Toolchain), same("conda/bin"), same("conda/lib"))
}

func TestGoElsewhere(t *testing.T) {
	w := newWorld(t)
	w.script("sdk/go1.26/bin/go", `[ "$GOTOOLCHAIN$GOENV$GOPROXY" = localoffoff ] || exit 1
printf '%s\n' "@/sdk/go1.26" go1.26.1`)
	w.mkdir("sdk/go1.26/src/fmt")
	w.link(w.at("sdk/go1.26/bin/go"), "bin/go")
	got := w.mustFind(w.finder(), golang.Language.Toolchain)
	if got.Version != "1.26.1" || got.Env["GOROOT"] != w.at("sdk/go1.26") {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("sdk/go1.26"))
}

func TestPostgresInPrefix(t *testing.T) {
	w := newWorld(t)
	w.script("pg/bin/postgres", `echo "postgres (PostgreSQL) 16.2 (Debian 16.2-1)"`)
	w.script("pg/bin/initdb", "true")
	w.link(w.at("pg/bin/postgres"), "bin/postgres")
	if m := w.missing(postgres.Language.Toolchain); m.Partial == nil || m.Partial.Version != "16.2" ||
		!strings.Contains(m.Error(), "psql is not there") {
		t.Errorf("%v", m)
	}
	w.script("pg/bin/psql", "true")
	w.write("pg/share/postgres.bki", "", 0o644)
	got := w.mustFind(w.finder(), postgres.Language.Toolchain)
	if got.Version != "16.2" || got.Home != w.at("pg/bin") || got.Programs["psql"] != w.at("pg/bin/psql") {
		t.Errorf("found %+v", got)
	}
	w.wantMounts(got, same("pg"))
}
