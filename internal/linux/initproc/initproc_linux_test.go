package initproc

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// This process is no init: every check that protects the host's mounts refuses it.
func TestChecksRefuseThisProcess(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var f *failure
	for _, m := range []*initproto.Setup{{Namespaced: true}, {Namespaced: true, HostMountNS: 1, HostUserNS: 1}, {Housed: true}} {
		if err := standsInFreshNamespaces(m); !errors.As(err, &f) || f.stage != initproto.StageNamespaces {
			t.Errorf("%+v: %v", m, err)
		}
		if fds, err := prepare(m, nil, new(initproto.Posture)); !errors.As(err, &f) || f.stage != initproto.StageNamespaces || fds != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || string(after) != string(before) {
		t.Error("the mounts of this process have changed")
	}
	// -1 means every process of the machine to a process that is not first in its namespace.
	namespaceTree{}.signal(0)
	namespaceTree{}.kill()
}

func TestFailure(t *testing.T) {
	if failed(initproto.StageExec, "x", nil) != nil {
		t.Error("no error is a failure")
	}
	if got := failed(initproto.StageRootfs, "mount proc", unix.EPERM).Error(); got != "rootfs: mount proc: operation not permitted" {
		t.Errorf("%q", got)
	}
	for s := initproto.StageProtocol; s <= initproto.StageExec; s++ {
		if d := describe(&initproto.Exec{Args: []string{"prog"}, Paths: []string{"a", "b"}, Dir: "/d"}, s); d == "" {
			t.Errorf("%s is not described", s)
		}
	}
}

func TestVerifyProc(t *testing.T) {
	if err := verifyProc(); err != nil {
		t.Error(err)
	}
}

func TestTargetFollowsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir + "/link", dir + "/link/passwd"} {
		if fd, err := target(p); !errors.Is(err, unix.ELOOP) {
			unix.Close(fd)
			t.Errorf("%s: %v", p, err)
		}
		if err := makeTarget(p+"/x", false); err == nil {
			t.Errorf("made something behind %s", p)
		}
	}
	for _, file := range []bool{false, true} {
		p := dir + "/a/b/" + map[bool]string{true: "file", false: "dir"}[file]
		if err := makeTarget(p, file); err != nil {
			t.Error(err)
		}
		if st, err := os.Lstat(p); err != nil || st.IsDir() == file {
			t.Errorf("%v, %v", st, err)
		}
	}
}

// Descendants are found however they hide, and other processes are not among them.
func TestDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "setsid sleep 30 & sleep 30 & echo ready; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = out.Read(make([]byte, 10))
	all := descendants{}.of(os.Getpid())
	if len(all) < 3 || !slices.Contains(all, cmd.Process.Pid) || slices.Contains(all, os.Getppid()) || slices.Contains(all, os.Getpid()) {
		t.Errorf("%v", all)
	}
	for _, pid := range all {
		var line []byte
		for end := time.Now().Add(25 * time.Second); len(line) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			line, _ = os.ReadFile("/proc/" + itoa(pid) + "/cmdline") // a process in its exec has none
		}
		if !strings.Contains(string(line), "sleep") {
			t.Errorf("%d is %q", pid, line)
		}
	}
	descendants{}.signal(syscall.SIGKILL)
	_ = cmd.Wait()
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}
