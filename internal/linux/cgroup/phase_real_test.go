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

// cloneInto is an action of the probe: as another user, it clones a child into the group of descriptor 3.
func cloneInto(uid int) int {
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
	fmt.Println("cloned", cmd.Process.Pid)
	_ = cmd.Wait() // killed
	return 0
}

// An init without rights on the host may clone programs into its own phase cgroup, and into no other. Each way to remove a
// phase cgroup removes all of it.
func TestPhaseGroup(t *testing.T) {
	testenv.NeedRoot(t)
	tree := realTree(t)
	const owner, otherUser = 0x7ffffff0, 0x7ffffff2
	sup := realGroup(t, tree, Limits{})
	n := tree.PhaseGroup(sup.Path()+"/7", owner)
	initDir, err := n.OpenInitLeaf()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Programs().Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	programDir := n.OpenProgramLeaf()
	if !tree.supportsCloneInto() {
		if initDir != nil || programDir != nil || n.Programs().Path() != sup.Path()+"/7" || n.Remove(t.Context()) != nil ||
			!n.Programs().Exists() {
			t.Errorf("a phase cgroup where limits are in %s: %v, %v, %s", tree.Version(), initDir, programDir, n.Programs().Path())
		}
		return
	}
	defer initDir.Close()
	defer programDir.Close()
	again, err := n.OpenInitLeaf()
	if err != nil {
		t.Errorf("for a second init: %v", err)
	}
	again.Close()
	tryClones(t, n, initDir, programDir, owner, otherUser)
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
		initDir, err := n.OpenInitLeaf()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Programs().Make(Limits{}); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(initDir.Fd())}
		err = cmd.Start()
		initDir.Close()
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

// tryClones tries, from the init leaves of two phase cgroups, to clone into both.
func tryClones(t *testing.T, n *PhaseGroup, initDir, programDir *os.File, owner, otherUser int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := n.tree.PhaseGroup(filepath.Dir(n.path)+"/8", otherUser)
	otherInit, err := other.OpenInitLeaf()
	if err != nil {
		t.Fatal(err)
	}
	defer otherInit.Close()
	if err := other.Programs().Make(Limits{}); err != nil {
		t.Fatal(err)
	}
	otherPrograms := other.OpenProgramLeaf()
	defer otherPrograms.Close()
	for _, c := range []struct {
		what     string
		from, to *os.File
		uid      int
		want     string
	}{
		{"its own", initDir, programDir, owner, "cloned"},
		{"its own, as another user", initDir, programDir, otherUser, "permission denied"},
		{"the other", initDir, otherPrograms, owner, "permission denied"},
		{"the other, as its user, from outside", initDir, otherPrograms, otherUser, "permission denied"},
		{"from the other", otherInit, programDir, owner, "permission denied"},
		{"the other as its user", otherInit, otherPrograms, otherUser, "cloned"},
	} {
		cmd := exec.Command(self)
		cmd.Env = []string{fmt.Sprintf("%s=clone %d", childEnv, c.uid)}
		cmd.ExtraFiles = []*os.File{c.to}
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(c.from.Fd())}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		got, buf := "", make([]byte, 256)
		for !strings.Contains(got, "cloned") {
			k, err := out.Read(buf)
			got += string(buf[:k])
			if err != nil {
				break
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
		var pid int
		if _, err := fmt.Sscanf(got[max(0, strings.Index(got, "cloned")):], "cloned %d", &pid); err == nil {
			target := n
			if c.to == otherPrograms {
				target = other
			}
			if pids, err := target.Programs().Procs(); err != nil || !slices.Contains(pids, pid) {
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
