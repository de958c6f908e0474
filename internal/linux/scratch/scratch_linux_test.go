package scratch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func TestFillBytes(t *testing.T) {
	both(t, Options{Bytes: 50 * mib, Inodes: 1000}, func(t *testing.T, s *Scratch) {
		n, err := fill(int(s.File().Fd()), "one huge file", 60*mib)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("filling: %v, want ENOSPC", err)
		}
		if n < 50*mib*97/100 || n > 50*mib*105/100 {
			t.Errorf("%d bytes went in, %d were asked for", n, 50*mib)
		}
		u, err := s.Usage()
		if err != nil || !u.Full || u.BytesUsed < uint64(n)*99/100 || u.BytesTotal < 50*mib || u.BytesTotal > 50*mib*103/100 {
			t.Errorf("usage when full: %+v, %v", u, err)
		}
		if err := unix.Unlinkat(int(s.File().Fd()), "one huge file", 0); err != nil {
			t.Error(err)
		}
		if u, err := s.Usage(); err != nil || u.Full || u.BytesUsed > mib {
			t.Errorf("usage after deleting: %+v, %v", u, err)
		}
	})
}

func TestFillInodes(t *testing.T) {
	both(t, Options{Bytes: 20 * mib, Inodes: 1000}, func(t *testing.T, s *Scratch) {
		made := 0
		var err error
		for ; made < 5000; made++ {
			var fd int
			if fd, err = unix.Openat(int(s.File().Fd()), strconv.Itoa(made), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644); err != nil {
				break
			}
			_ = unix.Close(fd)
		}
		if !errors.Is(err, unix.ENOSPC) || made < 1000 || made > 1064 {
			t.Errorf("%d files, then %v; want 1000 and ENOSPC", made, err)
		}
		if u, err := s.Usage(); err != nil || !u.Full || u.InodesUsed != uint64(made) || u.InodesTotal != uint64(made) {
			t.Errorf("usage: %+v, %v", u, err)
		}
	})
}

func TestSparseFile(t *testing.T) {
	both(t, Options{Bytes: 20 * mib, Inodes: 100}, func(t *testing.T, s *Scratch) {
		fd, err := unix.Openat(int(s.File().Fd()), "sparse", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, 1<<42); err != nil {
			t.Error(err)
		}
		if u, err := s.Usage(); err != nil || u.BytesUsed > 64<<10 || u.Full {
			t.Errorf("a hole uses space: %+v, %v", u, err)
		}
		buf := make([]byte, mib)
		wrote := 0
		for at := int64(0); ; at += 1 << 30 { // a block here, a block there
			n, err := unix.Pwrite(fd, buf, at)
			wrote += n
			if err != nil || n < len(buf) {
				break
			}
		}
		if wrote > 21*mib || wrote < 19*mib {
			t.Errorf("%d bytes went into holes", wrote)
		}
		if err := unix.Fallocate(fd, 0, 0, 1<<35); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("fallocate of 32 GiB: %v", err)
		}
	})
}

func TestFreshAndUnattached(t *testing.T) {
	both(t, Options{Bytes: 5 * mib, Inodes: 100}, func(t *testing.T, s *Scratch) {
		fd, err := unix.Openat(int(s.File().Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		d := os.NewFile(uintptr(fd), "root")
		defer d.Close()
		if names, err := d.Readdirnames(-1); err != nil || len(names) != 0 {
			t.Errorf("a fresh scratch holds %q, %v", names, err)
		}
		info, err := d.Stat()
		if err != nil || info.Mode().Perm() != 0o755 || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("root directory: %v, %v", info, err)
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(fd, &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
			t.Errorf("flags %#x, %v", st.Flags, err)
		}
		if s.loop != nil {
			if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(s.loop.path()+" ")) {
				t.Errorf("the scratch is visible in the host's mounts, or %v", err)
			}
		}
		if u, err := s.Usage(); err != nil || u.BytesUsed != 0 || u.InodesUsed != 0 || u.InodesTotal < 100 || u.InodesTotal > 164 {
			t.Errorf("usage: %+v, %v", u, err)
		}
	})
}

func TestMkdir(t *testing.T) {
	both(t, Options{Bytes: 5 * mib, Inodes: 100}, func(t *testing.T, s *Scratch) {
		at := int(s.File().Fd())
		defer unix.Umask(unix.Umask(0o077))
		if err := s.Mkdir("tmp", 0o1777, 1000, 1001); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(at, "tmp", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Uid != 1000 || st.Gid != 1001 ||
			st.Mode != unix.S_IFDIR|0o1777 {
			t.Errorf("%o %d:%d, %v", st.Mode, st.Uid, st.Gid, err)
		}
		if err := unix.Symlinkat("/etc", at, "link"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", ".", "..", "a/b", "/abs", "nul\x00", "tmp", "link", strings.Repeat("x", 300)} {
			if err := s.Mkdir(name, 0o755, 0, 0); err == nil {
				t.Errorf("%q was made", name)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, o := range []Options{{}, {Bytes: 1}, {Inodes: 1}, {Bytes: 1 << 63, Inodes: 5}, {Bytes: 5, Inodes: 1 << 63}} {
		if s, err := Memory(o); err == nil {
			t.Errorf("memory %+v was made", o)
			_ = s.Close()
		}
		if s, err := Disk(o); err == nil {
			t.Errorf("disk %+v was made", o)
			_ = s.Close()
		}
	}
	if s, err := Disk(Options{Bytes: maxDiskBytes + 1, Inodes: 10}); !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v %v", s, err)
	}
}

// Usual and unusual sizes.
func TestDiskSizes(t *testing.T) {
	dir := needDisk(t)
	for _, o := range []Options{
		{Bytes: 1, Inodes: 1},
		{Bytes: 100_000, Inodes: 10},
		{Bytes: mib, Inodes: 65536}, // more in tables than in data
		{Bytes: 10 * mib, Inodes: 200_000},
		{Bytes: 100 * mib, Inodes: 1},
		{Bytes: 127 * mib, Inodes: 1000}, {Bytes: 128 * mib, Inodes: 1000}, {Bytes: 129 * mib, Inodes: 1000}, // around a block group
		{Bytes: 200 * mib, Inodes: 65536}, {Bytes: 300 * mib, Inodes: 65536}, {Bytes: 700 * mib, Inodes: 65536}, // where mkfs rounds
		{Bytes: 512 * mib, Inodes: 65536},
		{Bytes: 1 << 30, Inodes: 65536},
		{Bytes: 10 << 30, Inodes: 1 << 20},
		{Bytes: 1 << 40, Inodes: 1 << 20},
	} {
		o.CacheDir = dir
		s, err := Disk(o)
		if err != nil {
			t.Errorf("%+v: %v", o, err)
			continue
		}
		u, err := s.Usage()
		if err != nil || u.BytesTotal < o.Bytes || u.BytesTotal > max(o.Bytes, minDiskBlocks*blockSize)*103/100+64<<10 {
			t.Errorf("%d bytes asked for, %d given; %v", o.Bytes, u.BytesTotal, err)
		}
		if groups := o.Bytes/(128*mib) + 9; u.InodesTotal < o.Inodes || u.InodesTotal > o.Inodes+16*groups {
			t.Errorf("%d inodes asked for, %d given (%d bytes)", o.Inodes, u.InodesTotal, o.Bytes)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	noLoops(t, dir)
}

func TestIndependentOfMemory(t *testing.T) {
	dir := needDisk(t)
	const v1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(v1 + "/memory.limit_in_bytes"); err != nil {
		t.Skipf("needs a memory hierarchy of cgroup v1: %v", err)
	}
	group := filepath.Join(v1, fmt.Sprintf("scratch-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		err := os.Remove(group)
		for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			err = os.Remove(group) // the last process may still be leaving
		}
		if err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(group+"/memory.limit_in_bytes", []byte(strconv.Itoa(128*mib)), 0o644); err != nil {
		t.Fatal(err)
	}
	write := func(s *Scratch) (string, error) {
		cmd := command(t, "write", "500")
		cmd.ExtraFiles = []*os.File{s.File()}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(in, "\n")
		_ = in.Close()
		err = cmd.Wait()
		return out.String(), err
	}
	o := Options{Bytes: 1 << 30, Inodes: 1000, CacheDir: dir}
	s, err := Disk(o)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := write(s); err != nil || out != "524288000\n" {
		t.Errorf("500 MiB to disk under 128 MiB of memory: %q, %v", out, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	noLoops(t, dir)
	m, err := Memory(o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if out, err := write(m); err == nil {
		t.Errorf("positive control: 500 MiB of tmpfs fitted under 128 MiB of memory (%s)", out)
	}
}

// The space that a disk has taken is freed. The host's disk is a small one without other users: their writes would
// count, and compilers write hundreds of megabytes.
func TestHostSpaceComesBack(t *testing.T) {
	dir := needDisk(t)
	inSmallHost(t, dir, "128m", func() {
		free := func() int64 {
			var st unix.Statfs_t
			if err := unix.Statfs(dir, &st); err != nil {
				t.Error(err)
			}
			return int64(st.Bfree) * st.Bsize
		}
		const size, more = 64 * mib, 8 * mib // an image file, and the metadata of an ext4
		before := free()
		s, err := Disk(Options{Bytes: size, Inodes: 100, CacheDir: dir})
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := fill(int(s.File().Fd()), "x", size*99/100); err != nil {
			t.Error(err)
		}
		fd, err := unix.Openat(int(s.File().Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if err := unix.Syncfs(fd); err != nil {
			t.Error(err)
		}
		_ = unix.Close(fd)
		if used := before - free(); used < size-more {
			t.Errorf("positive control: only %d bytes of the host's disk are in use", used)
		}
		start := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("dropped %d MiB in %v", size/mib, time.Since(start))
		for end := time.Now().Add(30 * time.Second); before-free() > more; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%d bytes of the host's disk did not come back", before-free())
				return
			}
		}
	})
}

func TestConcurrent(t *testing.T) {
	dir := needDisk(t)
	var out [2]bytes.Buffer
	done := make(chan error, 2)
	for i := range 2 {
		cmd := command(t, "churn", dir, "50")
		cmd.Stdout, cmd.Stderr = &out[i], &out[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { done <- cmd.Wait() }()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("%v: %s %s", err, &out[0], &out[1])
		}
	}
	noLoops(t, dir)
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 1 {
		t.Errorf("cache directory holds %q", names)
	}
}

func TestKilledHolder(t *testing.T) {
	dir := needDisk(t)
	cmd := command(t, "hold", dir, "3")
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
	line, _ := bufio.NewReader(out).ReadString('\n')
	if held := loopsOf(t, dir); line != "ready\n" || len(held) != 3 {
		t.Errorf("positive control: %q, %q", line, held)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	loopsGo(t, dir)
}

func TestCloseWhileHeld(t *testing.T) {
	t.Parallel() // Close waits
	dir := needDisk(t)
	s, err := Disk(Options{Bytes: mib, Inodes: 10, CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Openat(int(s.File().Fd()), ".", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, ErrHeld) {
		t.Errorf("closed under a holder: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := s.Usage(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("usage after close: %v", err)
	}
	if err := s.Mkdir("x", 0o755, 0, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("mkdir after close: %v", err)
	}
	_ = unix.Close(other)
	loopsGo(t, dir)
}
