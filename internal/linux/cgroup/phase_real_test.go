//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// bear is a probe's work: as another user, it has a child born in the group that descriptor 3 is.
func bear(uid int) int {
	if err := syscall.Setuid(uid); err != nil {
		fmt.Println(err)
		return 6
	}
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: 3}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return 7
	}
	fmt.Println("bore", cmd.Process.Pid)
	_ = cmd.Wait() // killed
	return 0
}

// An init that is nobody on the host may have programs born in its own phase, and in no other; and nothing is left, whoever
// clears up.
func TestPhase(t *testing.T) {
	testenv.NeedRoot(t)
	tree := realTree(t)
	const owner, stranger = 0x7ffffff0, 0x7ffffff2
	sup := realGroup(t, tree, Limits{})
	n := tree.PhaseGroup(sup.Path()+"/7", owner)
	initLeaf, err := n.OpenInitLeaf()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Programs().Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	place := n.OpenProgramLeaf()
	if !tree.supportsCloneInto() {
		if initLeaf != nil || place != nil || n.Programs().Path() != sup.Path()+"/7" || n.Remove(t.Context()) != nil || !n.Programs().Exists() {
			t.Errorf("a phase where limits are in %s: %v, %v, %s", tree.Version(), initLeaf, place, n.Programs().Path())
		}
		return
	}
	defer initLeaf.Close()
	defer place.Close()
	again, err := n.OpenInitLeaf()
	if err != nil {
		t.Errorf("for a second init: %v", err)
	}
	again.Close()
	tryBirths(t, n, initLeaf, place, owner, stranger)
	top := tree.Roots()[0] + "/" + sup.Path() + "/7"
	for _, clear := range []func() error{
		func() error { return errors.Join(n.Programs().Remove(t.Context()), n.Remove(t.Context())) },
		func() error { return n.Remove(t.Context()) },
		func() error {
			gc, _ := At(tree.Roots())
			defer gc.Close()
			return gc.Group(sup.Path()).Remove(t.Context())
		},
	} {
		initLeaf, err := n.OpenInitLeaf()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Programs().Make(Limits{}); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(initLeaf.Fd())}
		err = cmd.Start()
		initLeaf.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := clear(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(top); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", top, err)
		}
		_ = cmd.Wait() // killed with its group
	}
}

// tryBirths has inits of two nests try whom they may have born where.
func tryBirths(t *testing.T, n *PhaseGroup, initLeaf, place *os.File, owner, stranger int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := n.tree.PhaseGroup(filepath.Dir(n.path)+"/8", stranger)
	elsewhere, err := other.OpenInitLeaf()
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	if err := other.Programs().Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	foreign := other.OpenProgramLeaf()
	defer foreign.Close()
	for _, c := range []struct {
		what     string
		from, to *os.File
		uid      int
		want     string
	}{
		{"its own phase", initLeaf, place, owner, "bore"},
		{"its own phase, as somebody else", initLeaf, place, stranger, "permission denied"},
		{"the neighbour's", initLeaf, foreign, owner, "permission denied"},
		{"the neighbour's, as the neighbour, from outside", initLeaf, foreign, stranger, "permission denied"},
		{"from the neighbour's", elsewhere, place, owner, "permission denied"},
		{"the neighbour's own", elsewhere, foreign, stranger, "bore"},
	} {
		cmd := exec.Command(self)
		cmd.Env = []string{fmt.Sprintf("%s=bear %d", childEnv, c.uid)}
		cmd.ExtraFiles = []*os.File{c.to}
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(c.from.Fd())}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said, buf := "", make([]byte, 256)
		for !strings.Contains(said, "bore") {
			k, err := out.Read(buf)
			said += string(buf[:k])
			if err != nil {
				break
			}
		}
		if !strings.Contains(said, c.want) {
			t.Errorf("%s: %q, want %q", c.what, said, c.want)
		}
		var pid int
		if _, err := fmt.Sscanf(said[max(0, strings.Index(said, "bore")):], "bore %d", &pid); err == nil {
			born := n
			if c.to == foreign {
				born = other
			}
			if pids, err := born.Programs().Procs(); err != nil || !slices.Contains(pids, pid) {
				t.Errorf("%s: %d is not among %v (%v)", c.what, pid, pids, err)
			}
			_ = unix.Kill(pid, unix.SIGKILL) // a child of a child that waits for it: it can not be another
		}
		_ = cmd.Wait()
	}
	if err := errors.Join(other.Programs().Remove(t.Context()), other.Remove(t.Context())); err != nil {
		t.Error(err)
	}
}
