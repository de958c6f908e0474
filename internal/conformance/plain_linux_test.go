package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// Subtrees of a killed test are removed at the next one's start; those of a running test stay.
func TestSweepPlain(t *testing.T) {
	testenv.NeedRoot(t)
	tree, err := cgroup.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	over := exec.Command("/bin/true")
	if err := over.Run(); err != nil {
		t.Fatal(err)
	}
	for _, root := range tree.Roots() {
		place := filepath.Dir(root)
		dead := filepath.Join(place, fmt.Sprintf("plain-%d-1", over.Process.Pid))
		living := filepath.Join(place, fmt.Sprintf("plain-%d-1", os.Getpid()))
		for _, g := range []string{dead, living} {
			if err := os.MkdirAll(g+"/in/sandbox-run", 0o755); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{"", "/in", "/in/sandbox-run"} {
				t.Cleanup(func() { _ = unix.Rmdir(g + d) })
			}
		}
		sweepPlain(place)
		if _, err := os.Lstat(dead); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dead, err)
		}
		if _, err := os.Lstat(living + "/in/sandbox-run"); err != nil {
			t.Error(err)
		}
	}
}
