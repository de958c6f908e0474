package scratch

import (
	"bufio"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The whole life cycle: made here, attached in a sandbox's namespaces, dropped here after the sandbox was killed.
func TestAttachedElsewhere(t *testing.T) {
	dir := needDisk(t)
	s, err := Disk(Options{Bytes: 10 * mib, Inodes: 100, CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "attach")
	cmd.ExtraFiles = []*os.File{s.File()}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: all, GidMappings: all}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Errorf("the child could not attach it: %q", line)
	}
	if u, err := s.Usage(); err != nil || u.InodesUsed != 1 || u.BytesUsed < mib {
		t.Errorf("what was written there is not seen here: %+v, %v", u, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("dropped in %v", time.Since(start))
	noLoops(t, dir)
}

// A process that is forked while a disk is open has its descriptors until its exec.
func TestCloseDuringForks(t *testing.T) {
	dir := needDisk(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	for range 40 {
		s, err := Disk(Options{Bytes: mib, Inodes: 10, CacheDir: dir})
		if err != nil {
			t.Error(err)
			break
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		noLoops(t, dir)
	}
	close(stop)
	wg.Wait()
}

// Killed at any time: no device stays, and the files in the cache directory work.
func TestKilledAnywhere(t *testing.T) {
	dir := needDisk(t)
	for i := range 25 {
		if i%5 == 0 { // so that it also dies while it makes an image file
			for _, f := range must(filepath.Glob(dir + "/*")) {
				_ = os.Remove(f)
			}
		}
		cmd := command(t, "churn", dir, "20")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		loopsGo(t, dir)
	}
	if err := churn(dir, 3); err != nil {
		t.Error(err)
	}
	for _, f := range must(filepath.Glob(dir + "/*")) {
		if !strings.HasSuffix(f, ".ext4") {
			t.Errorf("left: %s", f)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The host's disk is smaller than the scratch: the program gets an error, and nothing hangs.
func TestHostIsFull(t *testing.T) {
	dir := needDisk(t)
	inSmallHost(t, dir, "20m", func() {
		s, err := Disk(Options{Bytes: 100 * mib, Inodes: 100, CacheDir: dir})
		if err != nil {
			t.Error(err)
			return
		}
		n, err := fill(int(s.File().Fd()), "x", 80*mib)
		if err == nil {
			fd, oerr := unix.Openat(int(s.File().Fd()), "x", unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if oerr != nil {
				t.Error(oerr)
				return
			}
			err = unix.Fsync(fd)
			_ = unix.Close(fd)
		}
		if err == nil {
			t.Error("80 MB were written safely to a host that has 20")
		}
		t.Logf("after %d bytes: %v", n, err)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
