package scratch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// childEnv turns the test binary into a process of its own that acts on the value.
const childEnv = "SANDBOX_RUN_SCRATCH_CHILD"

func TestMain(m *testing.M) {
	if plan := os.Getenv(childEnv); plan != "" {
		if err := child(strings.Fields(plan)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(plan []string) error {
	number := func(i int) int {
		n, err := strconv.Atoi(plan[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch plan[0] {
	case "hold": // dir, disks: make them, dirty them, wait to be killed
		for range number(2) {
			s, err := Disk(Options{Bytes: 64 << 20, Inodes: 1000, CacheDir: plan[1]})
			if err != nil {
				return err
			}
			if _, err := fill(int(s.File().Fd()), "data", 20<<20); err != nil {
				return err
			}
		}
		fmt.Println("ready")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "churn": // dir, disks: make them all at once, use them, close them
		return churn(plan[1], number(2))
	case "unprivileged": // dir: the errors for a user other than root
		if err := unix.Setresuid(65534, 65534, 65534); err != nil {
			return err
		}
		_, disk := Disk(Options{Bytes: 1 << 20, Inodes: 10, CacheDir: plan[1]})
		_, memory := Memory(Options{Bytes: 1 << 20, Inodes: 10})
		fmt.Printf("available: %v\ndisk: %v\nmemory: %v\n", DiskAvailable(plan[1]), disk, memory)
		return nil
	case "attach": // descriptor 3, as a sandbox's init does; then wait to be killed
		for _, err := range []error{
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.MoveMount(3, "", unix.AT_FDCWD, "/mnt", unix.MOVE_MOUNT_F_EMPTY_PATH),
			unix.Close(3),
			os.WriteFile("/mnt/file", make([]byte, 1<<20), 0o644),
		} {
			if err != nil {
				return err
			}
		}
		fmt.Println("ready")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "write": // MiB, to descriptor 3, once told to
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		n, err := fill(3, "big", number(1)<<20)
		fmt.Println(n)
		return err
	}
	return errors.New("unknown plan")
}

func churn(dir string, disks int) error {
	var wg sync.WaitGroup
	errs := make([]error, disks)
	for i := range disks {
		wg.Go(func() {
			s, err := Disk(Options{Bytes: 16 << 20, Inodes: 500, CacheDir: dir})
			if err != nil {
				errs[i] = err
				return
			}
			err = s.Mkdir("workspace", 0o755, 1000, 1000)
			if u, uerr := s.Usage(); uerr != nil || u.InodesUsed != 1 {
				err = errors.Join(err, fmt.Errorf("a fresh disk has %d inodes in use: %w", u.InodesUsed, uerr))
			}
			errs[i] = errors.Join(err, s.Close())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fill writes n bytes to a new file below a directory and returns the number of written bytes.
func fill(at int, name string, n int) (int, error) {
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 256<<10)
	for i := range buf {
		buf[i] = byte(i)
	}
	written := 0
	for written < n {
		m, err := unix.Write(fd, buf[:min(len(buf), n-written)])
		if err != nil {
			return written, err
		}
		written += m
	}
	return written, nil
}

func command(t *testing.T, plan ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{childEnv + "=" + strings.Join(plan, " "), "GORACE=atexit_sleep_ms=0"}
	return cmd
}

// needDisk skips where disks are not possible, and returns a cache directory on a real file system.
func needDisk(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "scratch-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := DiskAvailable(dir); err != nil {
		t.Skip(err)
	}
	return dir
}

func needRoot(t testing.TB) {
	t.Helper()
	testenv.NeedRoot(t)
}

// loopsOf lists the loop devices whose backing file is below dir: those of this test only.
func loopsOf(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir+"/") {
			ours = append(ours, f+": "+strings.TrimSpace(string(text)))
		}
	}
	return ours
}

func noLoops(t testing.TB, dir string) {
	t.Helper()
	if left := loopsOf(t, dir); len(left) > 0 {
		t.Errorf("loop devices left: %q", left)
	}
}

// loopsGo waits for the end of loop devices whose last user is another process: the kernel releases them asynchronously,
// and a process that searches a free device may have this one open meanwhile.
func loopsGo(t testing.TB, dir string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); len(loopsOf(t, dir)) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	noLoops(t, dir)
}

// inSmallHost calls do on a host whose disk, at dir, has this size and no other files.
func inSmallHost(t *testing.T, dir, size string, do func()) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // the thread, with its mount namespace, ends with the goroutine
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		forget()
		defer forget()
		do()
	})
	wg.Wait()
}

// both runs a test against memory and disk.
func both(t *testing.T, o Options, test func(t *testing.T, s *Scratch)) {
	t.Run("memory", func(t *testing.T) {
		needRoot(t)
		s, err := Memory(o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		test(t, s)
	})
	t.Run("disk", func(t *testing.T) {
		o := o
		o.CacheDir = needDisk(t)
		s, err := Disk(o)
		if err != nil {
			t.Fatal(err)
		}
		test(t, s)
		if len(loopsOf(t, o.CacheDir)) != 1 {
			t.Error("positive control: the disk in use is not seen among the loop devices")
		}
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		noLoops(t, o.CacheDir)
	})
}
