package executor

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// greetCrates are a crate, what it needs, one with a feature, and one with a build script, which has no network.
var greetCrates = []testregistry.Crate{
	{Name: "words", Version: "1.0.0", Files: map[string]string{"src/lib.rs": "pub const WORLD: &str = \"old\";\n"}},
	{Name: "words", Version: "1.2.0", Files: map[string]string{"src/lib.rs": "pub const WORLD: &str = \"world\";\n"}},
	{Name: "greet", Version: "1.1.0", Requires: map[string]string{"words": "^1"}, Features: map[string][]string{"loud": {}},
		Files: map[string]string{"src/lib.rs": `pub fn hello() -> String {
    format!("hello {}{}", words::WORLD, if cfg!(feature = "loud") { "!" } else { "" })
}
`}},
	{Name: "built", Version: "0.3.1", Files: map[string]string{
		"build.rs": `fn main() {
    let net = std::net::TcpStream::connect("1.1.1.1:80").is_ok();
    println!("cargo:rustc-env=NET={}", net);
}
`,
		"src/lib.rs": "pub const NET: &str = env!(\"NET\");\n"}},
}

func rustPackages(t *testing.T, crates ...testregistry.Crate) (*Executor, *testregistry.Server) {
	t.Helper()
	s := testregistry.New(t, testregistry.Crates(crates...))
	return packageEngine(t, map[string]string{"crates": s.URL + "/index/"}), s
}

// TestRustPackages: declared crates and what they depend on are installed once, and a lock installs the same layer.
func TestRustPackages(t *testing.T) {
	e, s := rustPackages(t, greetCrates...)
	req := Request{Language: "rust", Code: "println!(\"{}\", greet::hello());\n"}
	req.Options.Deps = []string{"greet[loud]@>=1", "<2"}
	first := expectOn(t, e, req, want{stdout: "hello world!\n"})
	d := first.Deps
	if d.Cached || len(d.Packages) != 2 || d.Packages[1].Name != "words" || d.Packages[1].Version != "1.2.0" ||
		!strings.HasPrefix(d.Packages[1].Hash, "sha256:") || len(lockOf(t, e, first).Files) != 2 {
		t.Errorf("%+v", d)
	}
	if len(first.Violations) > 0 {
		t.Errorf("%+v", first.Violations)
	}
	asked := len(s.Requests())
	files := req
	files.Code, files.Files = "", []File{{Path: "prog.rs", Data: []byte("mod own;\n\nfn main() { own::say() }\n\n#[test]\nfn works() {}\n")},
		{Path: "own.rs", Data: []byte("pub fn say() { println!(\"{}\", greet::hello()) }\n")}}
	files.Entry = "prog.rs"
	second := expectOn(t, e, files, want{stdout: "hello world!\n"})
	if d := second.Deps; !d.Cached || d.Layer != first.Deps.Layer || len(s.Requests()) != asked {
		t.Errorf("%+v, %q", d, s.Requests()[asked:])
	}
	files.Options.Test = true
	expectOn(t, e, files, want{has: []string{"test works ... ok"}})
	locked := req
	locked.Options = LanguageOptions{Lock: lockText(t, e, first), Frozen: true}
	frozen := expectOn(t, e, locked, want{stdout: "hello world!\n"})
	if d := frozen.Deps; d.Cached || d.Layer != first.Deps.Layer || lockText(t, e, frozen) != lockText(t, e, first) {
		t.Errorf("%+v instead of %+v", d, first.Deps)
	}
	req.Options.DepsRefresh = true
	if again := expectOn(t, e, req, want{stdout: "hello world!\n"}); again.Deps.Cached || again.Deps.Layer != first.Deps.Layer {
		t.Errorf("%+v instead of %+v", again.Deps, first.Deps)
	}
	edition := locked
	edition.Options.Edition = "2018"
	expectRefused(t, e, edition, "another edition")
	locked.Options.Deps = []string{"words"}
	expectRefused(t, e, locked, "words is not among")
	req.Options = LanguageOptions{Deps: []string{"built"}}
	req.Code = "println!(\"{}\", built::NET);\n"
	expectOn(t, e, req, want{stdout: "false\n"})
}

// TestRustPackagesOfProject: Cargo.toml says what is installed, and Cargo.lock what that must be.
func TestRustPackagesOfProject(t *testing.T) {
	e, s := rustPackages(t, greetCrates...)
	const app = "[package]\nname = \"app\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\n[dependencies]\n"
	manifest := app + "greet = \"1\"\nown = { path = \"own\" }\n"
	const mirror = "[source.crates-io]\nreplace-with = \"m\"\n[source.m]\nregistry = \"sparse+http://localhost/\"\n"
	project := []File{
		{Path: "Cargo.toml", Data: []byte(manifest)},
		{Path: "src/main.rs", Data: []byte("fn main() { println!(\"{}{}\", greet::hello(), own::MARK) }\n")},
		{Path: ".cargo/config.toml", Data: []byte(mirror)},
		{Path: "own/Cargo.toml", Data: []byte("[package]\nname = \"own\"\nversion = \"1.0.0\"\nedition = \"2021\"\n")},
		{Path: "own/src/lib.rs", Data: []byte("pub const MARK: &str = \"?\";\n")},
	}
	req := Request{Language: "rust", Files: project, Options: LanguageOptions{Install: true}}
	r := expectOn(t, e, req, want{stdout: "hello world?\n"})
	if d := r.Deps; len(d.Packages) != 2 || !slices.Equal(lockOf(t, e, r).Requires, []string{"greet@1", "own"}) || len(lockOf(t, e, r).Files) != 1 {
		t.Errorf("%+v, %+v", d, lockOf(t, e, r))
	}
	lock := lockOf(t, e, r).Files["Cargo.lock"]
	if !strings.Contains(lock, "registry+https://github.com/rust-lang/crates.io-index") || strings.Contains(lock, s.Host()) {
		t.Error(lock)
	}
	withLock := func(text string) []File {
		return append(slices.Clone(project), File{Path: "Cargo.lock", Data: []byte(text)})
	}
	req.Options.Frozen = true
	expectRefused(t, e, req, "no lock")
	req.Files = withLock(lock)
	if frozen := expectOn(t, e, req, want{stdout: "hello world?\n"}); frozen.Deps.Layer != r.Deps.Layer {
		t.Errorf("%+v instead of %+v", frozen.Deps, r.Deps)
	}
	// The older version is what an older lock says; another digest than the registry's is refused.
	digest := r.Deps.Packages[1].Hash[len("sha256:"):]
	req.Files = withLock(strings.ReplaceAll(lock, digest, strings.Repeat("0", 64)))
	refused := want{verdict: sandbox.VerdictInstallError, exit: 101, said: []string{"checksum for `words v1.2.0` changed between lock files"}}
	expectOn(t, e, req, refused)
	req.Files = withLock(strings.ReplaceAll(lock, "greet", "great"))
	expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 101, said: []string{"because --locked was passed"}})

	// Packages of the command line join those of the project, and their lock has the manifest.
	req = Request{Language: "rust", Files: withLock(lock), Options: LanguageOptions{Deps: []string{"built@0.3"}}}
	req.Files[1].Data = []byte("fn main() { println!(\"{}{}\", greet::hello(), built::NET) }\n")
	more := expectOn(t, e, req, want{stdout: "hello worldfalse\n"})
	if d := more.Deps; len(d.Packages) != 3 || len(lockOf(t, e, more).Files) != 2 {
		t.Errorf("%+v", d)
	}
	req.Options = LanguageOptions{Lock: lockText(t, e, more), Frozen: true}
	if frozen := expectOn(t, e, req, want{stdout: "hello worldfalse\n"}); frozen.Deps.Layer != more.Deps.Layer {
		t.Errorf("%+v instead of %+v", frozen.Deps, more.Deps)
	}
	req.Files[0].Data = []byte(strings.Replace(manifest, "greet = \"1\"", "greet = \"1.1\"", 1))
	expectRefused(t, e, req, "another Cargo.toml")
	req.Options = LanguageOptions{Deps: []string{"greet"}}
	expectRefused(t, e, req, "declares that crate already")

	// A workspace has one lock.
	req = Request{Language: "rust", Entry: "app", Options: LanguageOptions{Install: true}, Files: []File{
		{Path: "Cargo.toml", Data: []byte("[workspace]\nmembers = [\"app\"]\nresolver = \"2\"\n")},
		{Path: "app/Cargo.toml", Data: []byte(app + "words = \"=1.0.0\"\n")},
		{Path: "app/src/main.rs", Data: []byte("fn main() { println!(\"{}\", words::WORLD) }\n")},
	}}
	if l := lockOf(t, e, expectOn(t, e, req, want{stdout: "old\n"})); l.Files["Cargo.lock"] == "" {
		t.Errorf("%+v", l)
	}
}

// TestRustPackagesThatFail: cargo's own words say why, and nothing is kept.
func TestRustPackagesThatFail(t *testing.T) {
	lib := map[string]string{"src/lib.rs": ""}
	e, _ := rustPackages(t,
		testregistry.Crate{Name: "altered", Version: "1.0.0", Files: lib, Digest: strings.Repeat("0", 64)},
		testregistry.Crate{Name: "climbing", Version: "1.0.0", Files: map[string]string{"src/lib.rs": "", "../../../escaped": "x"}},
		testregistry.Crate{Name: "needy", Version: "1.0.0", Files: lib, Requires: map[string]string{"absent": "1"}},
		testregistry.Crate{Name: "linked", Version: "1.0.0", Files: lib, Links: map[string]string{"out": "../../.."}},
	)
	for dep, said := range map[string]string{
		"altered":    "failed to verify the checksum of `altered v1.0.0",
		"linked":     "Is a directory",
		"needy":      "no matching package named `absent` found",
		"missing":    "no matching package named `missing` found",
		"needy@2":    "failed to select a version for the requirement `needy = \"^2\"`",
		"altered[x]": "does not have that feature",
	} {
		req := Request{Language: "rust", Code: "fn main() {}\n", Options: LanguageOptions{Deps: []string{dep}}}
		expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 101, said: []string{said}})
	}
	if list, err := e.opts.Layers.List(); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	// cargo leaves out what would lie elsewhere.
	const code = "for at in [\"\", \"/climbing-1.0.0\"] {\n" +
		"    println!(\"{}\", std::fs::read_dir(format!(\"/opt/sandbox-run/crates{}\", at)).unwrap().count());\n}\n"
	req := Request{Language: "rust", Code: code, Options: LanguageOptions{Deps: []string{"climbing"}}}
	expectOn(t, e, req, want{stdout: "2\n3\n"})
	for _, dep := range []string{"../x", "rand==0.8", "rand@", "x[y", "https://crates.io/crates/rand", "rand@git", "rand[a b;]", "-x"} {
		req.Options.Deps = []string{dep}
		expectRefused(t, e, req, "write it like serde[derive]@1.0")
	}
}
