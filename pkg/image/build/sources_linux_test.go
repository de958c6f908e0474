package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const targets = `MetaKey: main/binary-amd64/Packages
Component: main
Release: bookworm
Repo-URI: http://mirror.example/debian/

Component: main
Release: bookworm
Repo-URI: http://mirror.example/debian/

Component: contrib
Release: bookworm
Repo-URI: http://mirror.example/debian/

Component: main
Release: bookworm-security
Repo-URI: http://mirror.example/debian-security/

Component: main
Release: bookworm-backports
Repo-URI: http://mirror.example/debian/

Component: stable
Release: bookworm
Repo-URI: https://download.docker.com/linux/debian/

Component: main
Release: bookworm-pgdg
Repo-URI: http://apt.postgresql.org/pub/repos/apt/

Component: main
Release: nodistro
Repo-URI: https://deb.nodesource.com/node_20.x/`

func TestMachinesSources(t *testing.T) {
	got := debianRepos(parseTargets([]byte(targets)), "bookworm")
	want := []repo{{"http://mirror.example/debian/", "bookworm"}, {"http://mirror.example/debian-security/", "bookworm-security"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := debianRepos(parseTargets([]byte(targets)), "trixie"); got != nil {
		t.Errorf("sources of another release: %v", got)
	}
	if got := debianRepos([]target{{"http://x/", "bookworm-updates", "main"}}, "bookworm"); got != nil {
		t.Errorf("updates of what is not there: %v", got)
	}
}

func FuzzTargets(f *testing.F) {
	f.Add([]byte(targets))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, r := range debianRepos(parseTargets(text), "bookworm") {
			// What a line of a sources.list is made of.
			if strings.ContainsAny(r.uri+r.suite, " \t\n[]") || r.uri == "" {
				t.Errorf("%q", r)
			}
		}
	})
}

func TestMachinesSettings(t *testing.T) {
	got := ownSettings([]byte(`Dir "/";
Acquire::http "";
Acquire::http::Proxy "http://127.0.0.1:3142";
Acquire::http::Proxy::local.example "DIRECT";
Acquire::https::Proxy "";
Acquire::Check-Valid-Until "false";
Acquire::AllowInsecureRepositories "1";
APT::Get::AllowUnauthenticated "1";
DPkg::Pre-Invoke:: "rm -rf /";
`))
	want := []string{`Acquire::http::Proxy "http://127.0.0.1:3142";`, `Acquire::http::Proxy::local.example "DIRECT";`,
		`Acquire::Check-Valid-Until "false";`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSources(t *testing.T) {
	need(t)
	programs, err := findTools()
	must(t, err)
	s, err := findSources(t.Context(), programs, Options{Suite: "trixie", Mirror: "http://x.example/debian"})
	must(t, err)
	if s.suite != "trixie" || len(s.lines) != 1 || !strings.HasSuffix(s.lines[0], " http://x.example/debian trixie main") {
		t.Errorf("%+v", s)
	}
	s, err = findSources(t.Context(), programs, Options{Suite: "buzz"}) // which no machine has sources of
	must(t, err)
	if len(s.lines) != 3 || !strings.Contains(s.lines[2], debianSecurity+" buzz-security main") {
		t.Errorf("%+v", s)
	}
	for _, o := range []Options{{Suite: "../x"}, {Mirror: "x"}, {Mirror: "file:///srv/debian"}, {Mirror: "http:///x"},
		{Mirror: "http://x [trusted=yes]"}} {
		if _, err := findSources(t.Context(), programs, o); !strings.Contains(fmtError(err), "is no ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func fmtError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// What the programs said when each thing was wrong, on a Debian 12, and what a user is told.
func TestExplain(t *testing.T) {
	d, _ := Lookup("python")
	for said, want := range map[string]string{
		"Err:1 http://x bookworm InRelease\n  Temporary failure resolving 'x'\nE: Unable to locate package python3": ErrNetwork.Error() +
			": Temporary failure resolving 'x'; try: check the network",
		"E: Unable to locate package nosuch\nE: mmdebstrap failed to run": ErrPackage.Error() +
			": E: Unable to locate package nosuch; try: ",
		"tar: write error: No space left on device": "no space left on device: tar: write error: No space left on device; try: sandbox-run " +
			"image prune",
		"newuidmap: uid range [1-65536) -> [1-65536) not allowed": ErrNamespaces.Error() +
			": newuidmap: uid range",
		"W: GPG error: http://x InRelease: NO_PUBKEY 0E98404D386FA1D9": "try: apt-get install debian-archive-keyring",
		"dpkg: error processing package x (--configure):\n old script failed\nE: rm failed: 256": ErrPackage.Error() +
			": dpkg: error processing package x (--configure):; try: the same with --verbose",
		"E: strange\nE: rm failed: 256\nE: mmdebstrap failed to run": "E: strange; try: the same with --verbose",
	} {
		err := d.explain(t.Context(), &failure{"mmdebstrap", os.ErrInvalid}, &tail{text: []byte(said)}, Options{})
		if !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "image build python: ") {
			t.Errorf("%q: %v, want %q", said, err, want)
		}
	}
	refused := sandbox.Invalid("suite", "x")
	if err := d.explain(t.Context(), refused, &tail{}, Options{}); !errors.Is(err, refused) || err.Error() != refused.Error() {
		t.Errorf("explained twice: %v", err)
	}
}

func TestTailIsBounded(t *testing.T) {
	s, said := &steps{report: func(string) {}}, &tail{}
	for range 100 {
		block := []byte(strings.Repeat("x", 10_000))
		_, _ = s.Write(block)
		_, _ = said.Write(block)
	}
	if len(s.rest) > 2*maxTail || len(said.text) > 2*maxTail+10_000 {
		t.Errorf("%d, %d", len(s.rest), len(said.text))
	}
}

func TestWantedEpoch(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if e, err := wantedEpoch(); err != nil || e.Unix() != 1700000000 {
		t.Error(e, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := quick("sed").build(t.Context(), refuse, Options{Dir: t.TempDir()}); !errors.Is(err, sandbox.ErrInvalid) ||
		!strings.Contains(fmtError(err), "yesterday") {
		t.Error(err)
	}
}

// A build that waits for another build returns once its context is cancelled.
func TestHoldIsCancelled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "build")
	held, err := lockDirectory(t.Context(), dir)
	must(t, err)
	defer held.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := lockDirectory(ctx, dir); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(fmtError(err), "another build") {
		t.Error(err)
	}
}

func TestCacheOfPackages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "build")
	programs := &tools{root: true}
	fill := func(name string, files map[string]string, installed map[string]string) {
		t.Helper()
		w, err := newWork(t.Context(), programs, dir)
		must(t, err)
		must(t, w.linkPackages(t.Context(), name))
		for file, text := range files {
			must(t, os.WriteFile(filepath.Join(w.path("archives"), file), []byte(text), 0o644))
		}
		must(t, w.keepPackages(t.Context(), name, installed))
		must(t, w.remove())
	}
	seeded := func(name string) string {
		t.Helper()
		w, err := newWork(t.Context(), programs, dir)
		must(t, err)
		must(t, w.linkPackages(t.Context(), name))
		found, err := filepath.Glob(w.path("archives") + "/*")
		must(t, err)
		for i := range found {
			found[i] = filepath.Base(found[i])
		}
		must(t, w.remove())
		return strings.Join(found, " ")
	}
	fill("a", map[string]string{"x_1%3a2_amd64.deb": "x2", "y_1_all.deb": "y", "lock": ""}, map[string]string{"x": "1:2", "y": "1"})
	fill("b", map[string]string{"z_1_all.deb": "z"}, map[string]string{"z": "1"})
	for name, want := range map[string]string{"a": "x_1%3a2_amd64.deb y_1_all.deb", "b": "z_1_all.deb",
		"new": "x_1%3a2_amd64.deb y_1_all.deb z_1_all.deb"} {
		if got := seeded(name); got != want {
			t.Errorf("%s begins with %q, want %q", name, got, want)
		}
	}
	// A new version takes the place of the old one.
	fill("a", map[string]string{"x_1%3a3_amd64.deb": "x3"}, map[string]string{"x": "1:3", "y": "1"})
	if got, want := seeded("new"), "x_1%3a3_amd64.deb y_1_all.deb z_1_all.deb"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// One that was changed is not used.
	must(t, os.WriteFile(filepath.Join(dir, packagesName, "y_1_all.deb"), []byte("evil"), 0o644))
	if got, want := seeded("a"), "x_1%3a3_amd64.deb"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// A list that names what is no package of ours is not followed.
	must(t, os.WriteFile(filepath.Join(dir, "a.list"), []byte(strings.Repeat("0", 64)+" ../../etc/passwd.deb\n"), 0o600))
	if got, want := seeded("a"), "z_1_all.deb"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	left, err := filepath.Glob(dir + "/" + workPrefix + "*")
	if err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}
