package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/app"
)

// newFakeFull is a directory with an executable of ours, and beside it one that gets images as sandbox-rund does, from no farther than
// the prepared ones.
func newFakeFull(t *testing.T, images string) (command string) {
	t.Helper()
	prepared, err := preparedImages()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"sandbox-run", "sandbox-init", "sandbox-kit"} {
		if err := os.Symlink(filepath.Join(binDir, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	// A link would lead back to where the real one is.
	if err := errors.Join(os.Remove(filepath.Join(dir, "sandbox-run")), os.Link(binary(t), filepath.Join(dir, "sandbox-run"))); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho \"getting: $*\"\n[ \"$3\" = test/gone ] && exit 3\ncp -a " + prepared + " " + images + "\n"
	if err := os.WriteFile(filepath.Join(dir, "sandbox-rund"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "sandbox-run")
}

// An image that is not here is got when --pull says so, and its getting is not part of the output. It is never got unasked.
func TestPull(t *testing.T) {
	needRoot(t)
	images := filepath.Join(t.TempDir(), "images")
	t.Setenv(app.ImagesVariable, images)
	command := newFakeFull(t, images)
	for _, c := range []struct {
		args        []string
		code        int
		out, saying string
	}{
		{[]string{"exec", "--image", "test/box"}, 127, "", `image "test/box" is not here; try: sandbox-run image pull test/box`},
		{[]string{"exec", "--pull", "--image", "test/gone"}, 125, "", "sandbox-run image pull test/gone: exit status 3"},
		{[]string{"exec", "--pull", "--image", "test/box"}, 0, "run of image\n", "getting: image pull test/box"},
		{[]string{"exec", "--pull", "--image", "test/box"}, 0, "run of image\n", ""},
	} {
		cmd := exec.Command(command, c.args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if code := exitCode(t, err); code != c.code || string(out) != c.out || !strings.Contains(stderr.String(), c.saying) || c.saying == "" && stderr.String() != "" {
			t.Errorf("%q: %d, %q, %q", c.args, code, out, stderr.String())
		}
	}
}

// A person is asked.
func TestPullConfirmed(t *testing.T) {
	needRoot(t)
	images := filepath.Join(t.TempDir(), "images")
	t.Setenv(app.ImagesVariable, images)
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	if err := os.MkdirAll(filepath.Join(config, "sandbox-run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "sandbox-run", "languages.yaml"), []byte("languages:\n  - {name: lisp, run: [lisp, \"{file}\"], image: test/box}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command := newFakeFull(t, images)
	for _, c := range []struct {
		answer string
		code   int
		want   string
	}{
		{"n\r", 127, "no lisp on this machine"}, {"\r", 127, "sandbox-run image pull test/box"}, {"y\r", 0, "lisp of the image: /workspace/main"},
	} {
		s := newScreen(t)
		cmd := s.startAs(command, "-l", "lisp", "-c", "(print 1)")
		s.waitFor("The image test/box is not here. Run this now?\r\n  sandbox-run image pull test/box\r\n[y/N] ")
		s.typeIn(c.answer)
		if code := exitCode(t, cmd.Wait()); code != c.code {
			t.Errorf("%q: exit code %d", c.answer, code)
		}
		s.waitFor(c.want)
		if _, err := os.Stat(images); (err == nil) != (c.code == 0) {
			t.Errorf("%q: there are images: %v", c.answer, err)
		}
	}
}
