package procstate

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The state of this process is what its own system calls say of it.
func TestRead(t *testing.T) {
	s, err := Read(os.Getpid(), nil)
	if err != nil || s.Hidden != nil {
		t.Fatal(err, s.Hidden)
	}
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if err != nil || s.Seccomp != mode {
		t.Errorf("mode %d, %v: %+v", mode, err, s)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || s.OpenFiles != files.Cur {
		t.Errorf("%d open files, %v: %+v", files.Cur, err, s)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &files); err != nil || s.Processes != files.Cur {
		t.Errorf("%d processes, %v: %+v", files.Cur, err, s)
	}
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil || s.Root.Inode != st.Ino || s.Root.Device != st.Dev {
		t.Errorf("%v: %+v", err, s.Root)
	}
	for n, name := range Namespaces {
		if err := unix.Stat("/proc/self/ns/"+name, &st); err != nil || s.Namespaces[n] != st.Ino {
			t.Errorf("%s: %d, %v", name, s.Namespaces[n], err)
		}
	}
	if text, err := os.ReadFile("/proc/self/cgroup"); err != nil || string(text) != string(s.Cgroups) {
		t.Errorf("%v: %q", err, s.Cgroups)
	}
}

// A process that has ended is an error.
func TestReadGone(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if s, err := Read(cmd.Process.Pid, nil); err == nil || !strings.Contains(err.Error(), "read process") {
		t.Errorf("%+v, %v", s, err)
	}
}

func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		_, _ = Read(os.Getppid(), nil)
	}
}
