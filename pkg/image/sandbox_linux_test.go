package image_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// runOn runs a shell script in a sandbox whose root is an image.
func runOn(t *testing.T, s *image.Store, img *image.Image, spec sandbox.Spec, script string) string {
	t.Helper()
	backend, err := native.New(native.Options{CacheDir: filepath.Join(t.TempDir(), "cache")})
	must(t, err)
	defer backend.Close()
	m := sandbox.NewManager(backend, sandbox.Options{})
	defer m.Close()
	l, err := s.Use(img)
	must(t, err)
	defer l.Close()
	spec.Root.Dir, spec.Scratch = l.Dir(), sandbox.ScratchMemory
	id, err := m.Create(context.Background(), spec)
	must(t, err)
	defer func() { must(t, m.Delete(context.Background(), id)) }()
	r, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"/bin/dash", "-c", script}}, sandbox.IO{})
	must(t, err)
	if !r.Success() {
		t.Errorf("%s: %q", r.Verdict, r.Stderr.Bytes())
	}
	return string(r.Stdout.Bytes())
}

// A program runs on an image: it sees what the image gives to everybody and to user 1000, nothing else, and can change none of it.
func testInASandbox(t *testing.T, tier sandbox.Tier) {
	s := newStore(t)
	img := added(t, s, "x", gzipped(t, busyRoot(t)),
		archive(t, file("message", "from an image\n"), file("gone", "x"),
			owned(withMode(file("private", "of user 1000\n"), 0o600), 1000, 1000), owned(dir("home/app", 0o700), 1000, 1000),
			owned(withMode(file("home/app/f", "at home\n"), 0o640), 1000, 1000),
			owned(withMode(file("secret", "of root\n"), 0o600), 0, 0)),
		archive(t, file(".wh.gone", "")))
	const script = `cat /message /private /home/app/f; test -e /gone && echo gone is there; id -u
		(echo x >/message) 2>/dev/null && echo written; (echo x >/private) 2>/dev/null && echo written
		ls -d /proc/self /dev/null >/dev/null && echo mounted`
	got := runOn(t, s, img, sandbox.Spec{Require: tier}, script)
	if got != "from an image\nof user 1000\nat home\n1000\nmounted\n" {
		t.Errorf("%q", got)
	}
	if os.Geteuid() == 0 { // an ordinary user owns everything, and so does the program
		if got := runOn(t, s, img, sandbox.Spec{Require: tier}, `cat /secret 2>&1; echo`); strings.Contains(got, "of root") {
			t.Errorf("%q", got)
		}
	}
	if read(t, used(t, s, img), "message") != "from an image\n" {
		t.Error("the image was changed")
	}
}

func TestInASandbox(t *testing.T) {
	testenv.NeedRoot(t)
	testInASandbox(t, sandbox.TierContainer)
}

func TestInASandboxAsUser(t *testing.T) {
	testenv.NeedSystem(t)
	if !asUser(t) {
		testInASandbox(t, sandbox.TierNamespace)
	}
}
