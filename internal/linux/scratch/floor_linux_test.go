package scratch

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// disk makes a disk, which the test closes.
func disk(t *testing.T, o Options) *Scratch {
	t.Helper()
	s, err := Disk(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A disk whose writes did not reach the host's is detected, also by a check after Close.
func TestCheckBacking(t *testing.T) {
	dir := needDisk(t)
	inSmallHost(t, dir, "4m", func() {
		o := Options{Bytes: 16 * mib, Inodes: 100, CacheDir: dir, Floor: 1}
		for name, write := range map[string]int{"fits": 1 * mib, "does not": 8 * mib} {
			s := disk(t, o)
			if _, err := fill(int(s.File().Fd()), "x", write); err != nil {
				t.Fatal(err)
			}
			if err := s.CheckBacking(); err != nil && name == "fits" {
				t.Errorf("%s: %v", name, err)
			}
			fd, err := unix.Openat(int(s.File().Fd()), "x", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			synced := unix.Fsync(fd) // the kernel does this by itself sooner or later
			_ = unix.Close(fd)
			lost := s.CheckBacking()
			if errors.Is(lost, ErrLost) != (name != "fits") || (synced != nil) != (name != "fits") {
				t.Errorf("%s: fsync %v, %v", name, synced, lost)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if again := s.CheckBacking(); errors.Is(again, ErrLost) != errors.Is(lost, ErrLost) {
				t.Errorf("%s, closed: %v", name, again)
			}
		}
	})
}

// An error that ext4 itself has found counts as well.
func TestCheckBackingAfterAnError(t *testing.T) {
	s := disk(t, Options{Bytes: 8 * mib, Inodes: 100, CacheDir: needDisk(t)})
	defer s.Close()
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(s.loop.path()), "trigger_fs_error")
	if err := s.CheckBacking(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckBacking(); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
}

// The disks of other processes count as long as those processes live.
func TestOvercommitOfAllProcesses(t *testing.T) {
	dir := needDisk(t)
	inSmallHost(t, dir, "200m", func() {
		o := Options{Bytes: 64 * mib, Inodes: 100, CacheDir: dir}
		over := func() uint64 {
			s := disk(t, o)
			defer s.Close()
			n, floor := s.Overcommitted()
			if floor != 10*mib {
				t.Errorf("the floor of 200 MiB is %d", floor)
			}
			return n
		}
		if n := over(); n != 0 {
			t.Fatalf("alone: %d", n)
		}
		cmd := command(t, "hold", dir, "2")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		// Three of 64 MiB, beside the floor of 10: the files have a little more.
		if n := over(); n < 2*mib || n > 12*mib {
			t.Errorf("beside two others: %d", n)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
		loopsGo(t, dir)
		if n := over(); n != 0 {
			t.Errorf("after their death: %d", n)
		}
		own := []*Scratch{disk(t, o), disk(t, o), disk(t, o)}
		if n, _ := own[2].Overcommitted(); n == 0 { // the first was made, and checked, before them
			t.Error("three of its own are not too much")
		}
		for _, s := range own {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := over(); n != 0 {
			t.Errorf("after their end: %d", n)
		}
	})
}

func TestFloor(t *testing.T) {
	dir := needDisk(t)
	inSmallHost(t, dir, "100m", func() {
		o := Options{Bytes: 16 * mib, Inodes: 100, CacheDir: dir, Floor: 50 * mib}
		s := disk(t, o)
		stopped := make(chan error, 1)
		s.OnFloor(func(err error) {
			select {
			case stopped <- err:
			default:
			}
		})
		full, err := os.Create(filepath.Join(dir, "full"))
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		if err := unix.Fallocate(int(full.Fd()), 0, 0, 60*mib); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-stopped:
			if !errors.Is(err, ErrFloor) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("nothing was stopped")
		}
		if _, err := Disk(o); !errors.Is(err, ErrFloor) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("below the floor: %v", err)
		}
		if err := errors.Join(s.CheckBacking(), s.Close(), full.Truncate(0)); err != nil {
			t.Error(err)
		}
		if err := disk(t, o).Close(); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
	noLoops(t, dir)
}
