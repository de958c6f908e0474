package audit

import (
	"errors"
	"fmt"
	"io/fs"
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

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/internal/userdir"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// child starts a process that appends so many entries; 0 means without end.
func child(l *Log, count int) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_LOG="+l.Path(), fmt.Sprintf("AUDIT_TEST_COUNT=%d", count), "AUDIT_TEST_SIZE=256k")
	return cmd
}

func TestManyProcesses(t *testing.T) {
	l := newLog(t, Options{Wait: time.Minute})
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			if out, err := child(l, 200).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	stop := make(chan struct{})
	looks := make(chan int)
	go func() { // a concurrent reader never sees a partial entry
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				looks <- n
				return
			default:
			}
			r, err := l.Verify()
			if missing := errors.Is(err, sandbox.ErrNotFound); !missing && (err != nil || !r.OK || len(r.Notes) > 0) {
				t.Errorf("%+v, %v", r, err)
			}
		}
	}()
	done.Wait()
	close(stop)
	if n := <-looks; n == 0 {
		t.Error("the reader read nothing")
	}
	r := intact(t, l, 1600)
	if len(r.Files) < 2 || len(r.Notes) > 0 {
		t.Errorf("%d files, %v", len(r.Files), r.Notes)
	}
	seen := map[string]int{}
	for _, e := range all(t, l, Filter{}) {
		seen[e.Run]++
	}
	for i := range 200 {
		if n := seen[fmt.Sprintf("run-%d", i)]; n != 8 {
			t.Errorf("entry %d was written %d times", i, n)
		}
	}
}

// The chain holds after many rounds of three writers that are killed at random moments.
func TestKilledAtAnyInstant(t *testing.T) {
	l := newLog(t, Options{Wait: time.Minute})
	written := func() int64 { // of all files, rotated ones included
		var all int64
		names, _ := filepath.Glob(l.Path() + "*")
		for _, name := range names {
			if info, err := os.Stat(name); err == nil && name != l.Path()+".head" {
				all += info.Size()
			}
		}
		return all
	}
	for round := range 20 {
		before := written()
		var running []*exec.Cmd
		for range 3 {
			cmd := child(l, 0)
			must(t, cmd.Start())
			running = append(running, cmd)
		}
		if round%2 == 0 { // kill after the first write; odd rounds kill at any time, perhaps before the start
			for end := time.Now().Add(time.Minute); written() < before+4<<10 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Duration(rand.IntN(50_000)) * time.Microsecond)
		for _, cmd := range running {
			must(t, cmd.Process.Kill())
			_ = cmd.Wait() // killed
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		}
		if r := verified(t, l); !r.OK {
			t.Fatalf("round %d: %+v", round, r)
		}
	}
	r := verified(t, l)
	if r.Entries < 20 {
		t.Fatalf("only %d entries: nothing was tested", r.Entries)
	}
	must(t, l.Append(sample(0)))
	after := verified(t, l)
	if !after.OK || after.Last < r.Last+1 {
		t.Fatalf("%+v", after)
	}
	t.Logf("%d entries in %d files, %d notes", after.Entries, len(after.Files), len(after.Notes))
}

// A full disk: Append fails with ENOSPC, what was written before stays whole, and it goes on when there is room.
func TestFullDisk(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=700"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	l, err := Open(filepath.Join(dir, "audit.jsonl"), Options{})
	must(t, err)
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 16<<10), 0o600))
	written := uint64(0)
	for ; written < 1000; written++ {
		if err = l.Append(sample(int(written))); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) || written == 0 {
		t.Fatalf("after %d entries: %v", written, err)
	}
	if err := l.Append(sample(0)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the second time: %v", err)
	}
	if r := intact(t, l, written); len(r.Notes) > 0 {
		t.Errorf("%v", r.Notes)
	}
	must(t, os.Remove(ballast))
	must(t, l.Append(sample(0)))
	intact(t, l, written+1)
}

// plainUser runs a test of this package again as an ordinary user.
func plainUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.count=1")
	home, err := os.MkdirTemp("", "audit-plain-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	must(t, os.Chown(home, 65534, 65534))
	cmd.Env = append(os.Environ(), "TMPDIR="+home, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	return false
}

func TestReadOnlyDirectory(t *testing.T) {
	if !plainUser(t) {
		return
	}
	l := filled(t, 1, Options{})
	dir := filepath.Dir(l.Path())
	must(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { os.Chmod(dir, 0o700) })
	must(t, l.Append(sample(1))) // the files are there, and writable
	must(t, os.Chmod(l.Path(), 0o400))
	must(t, os.Chmod(l.Path()+".head", 0o400))
	if err := l.Append(sample(2)); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	intact(t, l, 2) // reading needs no writing

	none, err := Open(filepath.Join(dir, "below", "audit.jsonl"), Options{})
	must(t, err)
	if err := none.Append(sample(0)); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v", err)
	}
}

func TestFilesOfOtherUsersAreRefused(t *testing.T) {
	refused := func(t *testing.T, l *Log, says string) {
		t.Helper()
		if err := l.Append(sample(0)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("append: %v, want %q", err, says)
		}
	}
	precious := filepath.Join(t.TempDir(), "precious")
	must(t, os.WriteFile(precious, []byte("precious"), 0o600))
	for name, c := range map[string]struct {
		arrange func(t *testing.T, l *Log) error
		says    string
		reading bool // Open itself refuses, too
	}{
		"the log is a symlink":   {func(_ *testing.T, l *Log) error { return os.Symlink(precious, l.Path()) }, "symlink", true},
		"the head is a symlink":  {func(_ *testing.T, l *Log) error { return os.Symlink(precious, l.Path()+".head") }, "symlink", false},
		"the log is a hard link": {func(_ *testing.T, l *Log) error { return os.Link(precious, l.Path()) }, "hard link", false},
		"the log is a FIFO":      {func(_ *testing.T, l *Log) error { return unix.Mkfifo(l.Path(), 0o600) }, "not a regular file", true},
		"the head is a FIFO": {func(_ *testing.T, l *Log) error { return unix.Mkfifo(l.Path()+".head", 0o600) }, "not a regular file",
			false},
		"the log is a directory":     {func(_ *testing.T, l *Log) error { return os.Mkdir(l.Path(), 0o700) }, "directory", true},
		"others can read the log":    {func(_ *testing.T, l *Log) error { return os.WriteFile(l.Path(), nil, 0o644) }, "chmod 0600", false},
		"others can write beside it": {func(_ *testing.T, l *Log) error { return os.Chmod(filepath.Dir(l.Path()), 0o777) }, "chmod go-w", false},
		"the log is another user's": {func(t *testing.T, l *Log) error {
			testenv.NeedRoot(t)
			return errors.Join(os.WriteFile(l.Path(), nil, 0o600), os.Chown(l.Path(), 4242, 4242))
		}, "belongs to user 4242", false},
		"the directory is another user's": {func(t *testing.T, l *Log) error {
			testenv.NeedRoot(t)
			return os.Chown(filepath.Dir(l.Path()), 4242, 4242)
		}, "belongs to user 4242", false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog(t, Options{})
			must(t, os.Mkdir(filepath.Dir(l.Path()), 0o700))
			must(t, c.arrange(t, l))
			refused(t, l, c.says)
			if _, err := Open(l.Path(), Options{}); (err != nil) != c.reading {
				t.Errorf("open: %v", err)
			}
		})
	}
	t.Run("the directory is a symlink", func(t *testing.T) {
		l := newLog(t, Options{})
		must(t, os.Symlink(t.TempDir(), filepath.Dir(l.Path())))
		refused(t, l, "symlink")
	})
	t.Run("none of it", func(t *testing.T) { // the control
		l := newLog(t, Options{})
		must(t, os.Mkdir(filepath.Dir(l.Path()), 0o700))
		must(t, l.Append(sample(0)))
	})
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("what a link led to was written: %q, %v", text, err)
	}
}

func TestLockWaitIsBounded(t *testing.T) {
	l := filled(t, 1, Options{Wait: 50 * time.Millisecond})
	holder, err := os.OpenFile(l.Path()+".head", os.O_RDWR, 0)
	must(t, err)
	defer holder.Close()
	must(t, userdir.Lock(holder, false, 0))
	begin := time.Now()
	err = l.Append(sample(1))
	if !errors.Is(err, userdir.ErrBusy) || !strings.Contains(err.Error(), "50ms") || !strings.Contains(err.Error(), "try: ") {
		t.Errorf("%v", err)
	}
	if _, err := l.Verify(); !errors.Is(err, userdir.ErrBusy) {
		t.Errorf("verify: %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("waited %v", took)
	}
	must(t, holder.Close())
	must(t, l.Append(sample(1)))
	intact(t, l, 2)
}

// The directory may be removed under a long-lived process.
func TestRemovedDirectoryIsMadeAgain(t *testing.T) {
	l := filled(t, 2, Options{})
	must(t, os.RemoveAll(filepath.Dir(l.Path())))
	must(t, l.Append(sample(0)))
	intact(t, l, 1)
}

func TestNothingStaysOpen(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	l := filled(t, 20, Options{MaxSize: 4000})
	before := open()
	for i := range 20 {
		must(t, l.Append(sample(i)))
		verified(t, l)
		for range l.Query(Filter{}) {
			break
		}
		for range l.Tail(5) {
			break
		}
		must(t, os.Truncate(l.Path(), 10)) // so that Append repairs it
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

// Verify reports no fault while the first entry is written.
func TestFirstEntryWhileVerified(t *testing.T) {
	for range 300 {
		l := newLog(t, Options{Wait: time.Minute})
		var done sync.WaitGroup
		done.Go(func() {
			if err := l.Append(sample(0)); err != nil {
				t.Error(err)
			}
		})
		for {
			r, err := l.Verify()
			if missing := errors.Is(err, sandbox.ErrNotFound); !missing && (err != nil || !r.OK) {
				t.Errorf("%+v, %v", r, err)
			}
			if t.Failed() || r.Entries == 1 {
				break
			}
		}
		done.Wait()
		if t.Failed() {
			return
		}
	}
}
