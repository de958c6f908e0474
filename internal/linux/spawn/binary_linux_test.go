package spawn

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"golang.org/x/sys/unix"
)

// The init runs from a place where no process can write to it any more (F1).
func TestProtected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, []byte("code"), 0o755); err != nil {
		t.Fatal(err)
	}
	writable := func(path string) bool {
		for _, flag := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC} {
			if w, err := os.OpenFile(path, flag, 0); err == nil {
				_, err := w.Write([]byte("x"))
				w.Close()
				if err == nil {
					return true
				}
			}
		}
		return os.Truncate(path, 1) == nil || os.Chmod(path, 0o700) == nil && os.Truncate(path, 1) == nil
	}
	for name, way := range map[string]func(string) (*os.File, error){"sealed": seal, "pinned": pin} {
		f, err := way(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if writable(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) {
			t.Errorf("%s: the init can be written to", name)
		}
		if _, err := way("/nowhere"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "sealed" {
			seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
			if want := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE; err != nil || seals&want != want {
				t.Errorf("seals %#x, %v", seals, err)
			}
		}
	}
	if !writable(path) {
		t.Error("the file itself can not be written to either: this test proves nothing")
	}
	first, _, err := protectedInit()
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := protectedInit(); err != nil || again != first {
		t.Errorf("a second one: %v", err)
	}
}

// An executable that is linked to other files must be able to open them.
func TestIsStatic(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/bin/true": false, text: false, staticProgram(t): true} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := isStatic(f); got != want {
			t.Errorf("%s: %v", path, got)
		}
		f.Close()
	}
}

// staticProgram is a program that Go has linked, at least one of the toolchain.
func staticProgram(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		return filepath.Join(dir, initproc.Name)
	}
	path := filepath.Join(t.TempDir(), "static")
	source := path + ".go"
	if err := os.WriteFile(source, []byte("package main\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	return path
}

// An init that only root may execute, that is being written to, or that lies where nothing may be executed, is
// copied even by a process that makes one sandbox.
func TestUnpinned(t *testing.T) {
	path := filepath.Join(t.TempDir(), initproc.Name)
	text, err := os.ReadFile(staticProgram(t))
	if err == nil {
		err = os.WriteFile(path, text, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if f, err := pin(path); !errors.Is(err, unix.EACCES) {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := pin(t.TempDir()); !errors.Is(err, unix.EACCES) {
		t.Errorf("a directory: %v, %v", f, err)
	}
	f, err := seal(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	fifo := path + ".fifo"
	if err := unix.Mkfifo(fifo, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{fifo, "/dev/zero", t.TempDir()} {
		if _, err := seal(p); err == nil {
			t.Errorf("%s was copied", p)
		}
	}
}

func TestFindBinary(t *testing.T) {
	t.Setenv(binaryVariable, "/some/where")
	if got := findBinary(); got != "/some/where" {
		t.Errorf("%q", got)
	}
	t.Setenv(binaryVariable, "")
	if got := findBinary(); got != "/proc/self/exe" && filepath.Base(got) != initproc.Name {
		t.Errorf("%q", got)
	}
	if _, err := seal("/nowhere/at-all"); err == nil || !strings.Contains(err.Error(), "/nowhere/at-all") {
		t.Error(err)
	}
}

func TestCandidates(t *testing.T) {
	for _, c := range []struct{ name, path, want string }{
		{"sh", "/usr/bin:/bin", "/usr/bin/sh /bin/sh"}, {"./sh", "/bin", "./sh"}, {"/bin/sh", "/x", "/bin/sh"}, {"a/b", "/x", "a/b"},
		{"sh", "", "./sh"}, {"sh", "/a::/b:.", "/a/sh ./sh /b/sh"},
	} {
		if got := strings.Join(Candidates(c.name, c.path), " "); got != c.want {
			t.Errorf("%q in %q: %q, want %q", c.name, c.path, got, c.want)
		}
	}
}

// A search is bounded, whatever the name and however long the PATH.
func TestCandidatesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	many := make([]string, 10_000)
	for i := range many {
		many[i] = fmt.Sprintf("/d%d", i)
	}
	if got := Candidates(long, strings.Join(many, ":")); len(got) != 1 {
		t.Errorf("%d of a long name", len(got))
	}
	if got := Candidates("sh", strings.Join(many, ":")); len(got) != maxCandidates {
		t.Errorf("%d of many directories", len(got))
	}
	if got := Candidates("sh", strings.Repeat(":", 50_000)+"/"+long+":/bin"); !slices.Equal(got, []string{"./sh", "/bin/sh"}) {
		t.Errorf("%d of empty and long ones", len(got))
	}
}
