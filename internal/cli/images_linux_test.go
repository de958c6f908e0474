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

// newFakeFull makes a directory with sandbox-run and a fake sandbox-rund, whose image pull copies the prepared images. It returns the path
// of sandbox-run.
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
	// Beside the target of a symlink is the real sandbox-rund.
	if err := errors.Join(os.Remove(filepath.Join(dir, "sandbox-run")), os.Link(binary(t), filepath.Join(dir, "sandbox-run"))); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho \"getting: $*\"\n[ \"$3\" = test/gone ] && exit 3\ncp -a " + prepared + " " + images + "\n"
	if err := os.WriteFile(filepath.Join(dir, "sandbox-rund"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "sandbox-run")
}

// --pull downloads a missing image, and the output of the download is not part of standard output. Without --pull there is no download.
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
		code, said := exitCode(t, err), stderr.String()
		if code != c.code || string(out) != c.out || !strings.Contains(said, c.saying) || c.saying == "" && said != "" {
			t.Errorf("%q: %d, %q, %q", c.args, code, out, stderr.String())
		}
	}
}

// On a terminal, the user is asked before a download.
func TestPullConfirmed(t *testing.T) {
	needRoot(t)
	images := filepath.Join(t.TempDir(), "images")
	t.Setenv(app.ImagesVariable, images)
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	if err := os.MkdirAll(filepath.Join(config, "sandbox-run"), 0o755); err != nil {
		t.Fatal(err)
	}
	const languages = "languages:\n  - {name: lisp, run: [lisp, \"{file}\"], image: test/box}\n"
	if err := os.WriteFile(filepath.Join(config, "sandbox-run", "languages.yaml"), []byte(languages), 0o644); err != nil {
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
