package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// newPuller makes a screen with its own image store, and a registry with an image of a small and a large layer.
func newPuller(t *testing.T) (*screen, *testRegistry, string) {
	t.Helper()
	s, from := newScreen(t), newTestRegistry()
	t.Cleanup(from.Close)
	if err := from.addImage("two:1", randomLayer(t, "small", 20<<10), randomLayer(t, "large", 2<<20)); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, app.ImagesVariable+"="+filepath.Join(t.TempDir(), "images"), "HOME="+t.TempDir())
	return s, from, from.host() + "/two:1"
}

// A pull shows a line for the image and for each layer, redrawn in place, also in a window that changes its size.
func TestPullProgress(t *testing.T) {
	s, from, ref := newPuller(t)
	from.pause.Store(int64(20 * time.Millisecond))
	cmd := s.start("image", "pull", "--insecure", "--platform", "linux/amd64", ref)
	s.waitFor("[#")
	s.resize(30, 60)
	s.waitFor("KiB/s")
	s.resize(30, 100)
	if code := exitCode(t, cmd.Wait()); code != 0 {
		t.Fatalf("exit code %d\n%q", code, s.text())
	}
	s.waitFor(" MiB\r\n")
	shown := s.text()
	for _, want := range []string{"downloading", "[##", " of 2.0 MiB", "\x1b[3A"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q was never shown", want)
		}
	}
	p := &testenv.Paper{Rows: 30, Cols: 100}
	p.Write(t, shown)
	end := strings.Join(p.Lines, "\n")
	want := regexp.MustCompile(`^` + regexp.QuoteMeta(ref) + ` done
[0-9a-f]{12}   done, 2[0-9]\.[0-9]+ KiB
[0-9a-f]{12}   done, 2 MiB
` + regexp.QuoteMeta(ref) + `  [0-9a-f]{12}  2\.02 MiB$`)
	if !want.MatchString(end) {
		t.Errorf("in the end there is\n%s", end)
	}
}

// Ctrl-C ends a pull at once. The next pull resumes the download.
func TestPullCancelled(t *testing.T) {
	s, from, ref := newPuller(t)
	from.pause.Store(int64(50 * time.Millisecond))
	cmd := s.start("image", "pull", "--insecure", "--platform", "linux/amd64", ref)
	s.waitFor("[#")
	s.typeIn("\x03")
	began := time.Now()
	if code := exitCode(t, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s to end", took)
	}
	s.waitFor("sandbox-run: cancelled by Ctrl-C")
	s.waitFor(" of 2.0 MiB" + "\x1b[K")
	if !regexp.MustCompile(`   cancelled, [0-9.]+ KiB of 2\.0 MiB`).MatchString(s.text()) {
		t.Errorf("%q", s.text())
	}
	from.pause.Store(0)
	arrived := from.sent.Swap(0)
	if code := exitCode(t, s.start("image", "pull", "--insecure", "--platform", "linux/amd64", ref).Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.waitFor("already here")
	// The small layer and a part of the large one are stored. Data that was in transit is sent again.
	if again := from.sent.Load(); arrived < 50<<10 || again < 1<<20 || again > 2<<20-10<<10 {
		t.Errorf("%d bytes were sent at first, and %d again", arrived, again)
	}
}

// A dumb terminal, and a terminal with --quiet, get the output of a pipe.
func TestPullPlain(t *testing.T) {
	for name, test := range map[string]struct {
		env, flag string
		want      string
	}{
		"dumb":  {"TERM=dumb", "--insecure", "done, "},
		"quiet": {"TERM=xterm", "--quiet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, ref := newPuller(t)
			s.env = append(s.env, test.env)
			code, shown := s.run("image", "pull", test.flag, "--insecure", "--platform", "linux/amd64", ref)
			if code != 0 || strings.Contains(shown, "\x1b") || strings.Contains(shown, "done, ") != (test.want != "") {
				t.Errorf("exit code %d:\n%q", code, shown)
			}
		})
	}
}

// import and export refuse a terminal.
func TestImageArchiveOnTerminal(t *testing.T) {
	s := newScreen(t)
	s.env = append(s.env, app.ImagesVariable+"="+filepath.Join(t.TempDir(), "images"))
	if code, shown := s.run("image", "import", "-", "--name", "x"); code != 2 || !strings.Contains(shown, "standard input is a terminal") {
		t.Errorf("exit code %d: %s", code, shown)
	}
	if code, shown := newScreen(t).run("image", "export", "x"); code != 2 || !strings.Contains(shown, "an archive is nothing for a terminal") {
		t.Errorf("exit code %d: %s", code, shown)
	}
	if _, err := os.Stat(filepath.Join(t.TempDir(), "images")); err == nil {
		t.Error("a store was made")
	}
}

// An export to a closed pipe ends silently with the exit code of SIGPIPE.
func TestExportBrokenPipe(t *testing.T) {
	dir := t.TempDir()
	var archived bytes.Buffer
	if err := archive(&archived, "testdata/help"); err != nil {
		t.Fatal(err)
	}
	t.Setenv(app.ImagesVariable, filepath.Join(dir, "images"))
	take := command(t, "image", "import", "-", "--name", "mine")
	take.Stdin = &archived
	if out, err := take.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	give := command(t, "image", "export", "mine")
	give.Stdout, give.Stderr = w, &said
	if code := exitCode(t, give.Run()); code != CodeBrokenPipe || said.Len() > 0 {
		t.Errorf("exit code %d: %s", code, &said)
	}
}
