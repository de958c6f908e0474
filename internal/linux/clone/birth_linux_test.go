//go:build linux && (amd64 || arm64)

package clone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
)

// group makes a v2 cgroup, without controllers, in the one of this process. Hybrid machines have a v2 tree too.
func group(t *testing.T) (dir string, fd int) {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if err := unix.Statfs(mount, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir = filepath.Join(mount, member(t, os.Getpid()), fmt.Sprintf("test-birth-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("can not make a group: %v", err)
		}
		t.Cleanup(func() {
			err := unix.Rmdir(dir)
			for deadline := time.Now().Add(5 * time.Second); errors.Is(err, unix.EBUSY) &&
				time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				err = unix.Rmdir(dir)
			}
			if err != nil {
				t.Error(err)
			}
		})
		return dir, opened(t, dir, unix.O_PATH|unix.O_DIRECTORY)
	}
	t.Skip("no cgroup v2 tree is mounted")
	return "", -1
}

// member is the v2 cgroup of a process.
func member(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, found := strings.Cut("\n"+string(text), "\n0::")
	if !found {
		t.Skip("this process is in no v2 group")
	}
	path, _, _ = strings.Cut(path, "\n")
	return path
}

func TestBornInGroup(t *testing.T) {
	dir, fd := group(t)
	p := shell(t, "exec sleep 60")
	check := func(what string, intoCgroup int, inside bool) {
		t.Helper()
		p.IntoCgroup = intoCgroup
		pid, stage, err := StartProgram(p)
		if err != nil {
			t.Fatalf("%s: %s, %v", what, stage, err)
		}
		defer await(t, pid)
		defer unix.Kill(pid, unix.SIGKILL)
		if got := strings.HasSuffix(dir, member(t, pid)) && member(t, pid) != member(t, os.Getpid()); got != inside {
			t.Errorf("%s: in %s", what, member(t, pid))
		}
	}
	check("control", 0, false)
	check("born", fd, true)

	join := opened(t, dir+"/cgroup.procs", os.O_WRONLY)
	p.Cgroups = []int{join}
	check("joined", 0, true)
	check("born, though it could join", fd, true)
	check("refused, joins", null(t), true)
	p.Cgroups = []int{9999} // not used by a process that clone started in the cgroup
	check("born, and could not join", fd, true)
	if _, stage, err := StartProgram(p.with(null(t))); stage != initproto.StageCgroup || !errors.Is(err, unix.EBADF) {
		t.Errorf("neither way in: %s, %v", stage, err)
	}
	p.Cgroups = nil
	if pid, stage, err := StartProgram(p.with(null(t))); stage != initproto.StageCgroup || err == nil || pid != 0 {
		t.Errorf("refused, and no other way in: %d, %s, %v", pid, stage, err)
	}
}

func (p Program) with(intoCgroup int) Program {
	p.IntoCgroup = intoCgroup
	return p
}

func TestInitBornInGroup(t *testing.T) {
	dir, fd := group(t)
	sleep := opened(t, "/bin/sleep", os.O_RDONLY)
	for _, namespaces := range []uintptr{0, unix.CLONE_NEWPID | unix.CLONE_NEWNS} {
		if namespaces != 0 && os.Geteuid() != 0 {
			continue
		}
		for _, c := range []struct {
			cgroup int
			inside bool
		}{{fd, true}, {0, false}, {null(t), false}} { // refused: the child stays in its parent's cgroup
			pid, pidfd, err := StartInit(Init{Binary: sleep, Args: []string{"sleep", "60"}, Files: []int{null(t)}, Namespaces: namespaces,
				Cgroup: c.cgroup})
			if err != nil {
				t.Fatal(err)
			}
			if got := member(t, pid) != member(t, os.Getpid()) && strings.HasSuffix(dir, member(t, pid)); got != c.inside {
				t.Errorf("in %s, %+v", member(t, pid), c)
			}
			if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
				t.Error(err)
			}
			await(t, pid)
			unix.Close(pidfd)
		}
	}
}

// The kernel writes to and reads from the shared memory while other threads use it.
func TestManyBornAtOnce(t *testing.T) {
	_, fd := group(t)
	var wg sync.WaitGroup
	for n := range 8 {
		p := shell(t, "exit "+string(rune('0'+n))).with(fd)
		wg.Go(func() {
			for range 20 {
				pid, _, err := StartProgram(p)
				if err != nil {
					t.Error(err)
					return
				}
				if ws := await(t, pid); ws.ExitStatus() != n {
					t.Errorf("%d ended with %d", n, ws.ExitStatus())
				}
			}
		})
	}
	wg.Wait()
}
