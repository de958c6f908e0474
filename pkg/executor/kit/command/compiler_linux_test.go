package command_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
)

// waitingCompiler is `cat` as a compiler of a source that is not there yet: when it is returned, it reads.
func waitingCompiler(t *testing.T, dir string) (cmd *exec.Cmd, stdin io.WriteCloser, stdout *bytes.Buffer, stderr *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	cmd = exec.CommandContext(t.Context(), self, "compiler", "--source", "source", "--", "/bin/cat", "source")
	stdout = &bytes.Buffer{}
	cmd.Args[0], cmd.Dir, cmd.Stdout, cmd.Stderr = kitpath.Name, dir, stdout, w
	if stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	said := make([]byte, len(kitpath.Waiting))
	if _, err := io.ReadFull(r, said); err != nil || string(said) != kitpath.Waiting {
		t.Fatalf("it says %q: %v", said, err)
	}
	return cmd, stdin, stdout, r
}

func order(t *testing.T, args ...string) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"args": args})
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// A waiting compiler leaves no file, and compiles the source that exists when the order arrives.
func TestCompilerWaits(t *testing.T) {
	dir := t.TempDir()
	cmd, stdin, stdout, stderr := waitingCompiler(t, dir)
	source := filepath.Join(dir, "source")
	if _, err := os.Lstat(source); !os.IsNotExist(err) {
		t.Errorf("the pipe is still there: %v", err)
	}
	text := strings.Repeat("more than a pipe holds\n", 1<<15)
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write(order(t, "/bin/cat", "source")); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(stderr); err != nil || len(said) > 0 {
		t.Errorf("it says %q: %v", said, err)
	}
	if err := cmd.Wait(); err != nil || stdout.String() != text {
		t.Errorf("%v; %d bytes", err, stdout.Len())
	}
}

// Without a source, the compiler is killed instead of compiling an empty file.
func TestCompilerStarves(t *testing.T) {
	for name, o := range map[string][]byte{
		"another command": order(t, "/bin/cat", "other"),
		"no source":       order(t, "/bin/cat", "source"),
		"no order":        nil,
	} {
		cmd, stdin, _, stderr := waitingCompiler(t, t.TempDir())
		if _, err := stdin.Write(o); err != nil {
			t.Fatal(err)
		}
		_ = stdin.Close()
		said, _ := io.ReadAll(stderr)
		_ = cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL ||
			!strings.Contains(string(said), "sandbox-kit: ") {
			t.Errorf("%s: %v; it says %q", name, cmd.ProcessState, said)
		}
	}
}
