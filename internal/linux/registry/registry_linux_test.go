package registry

import (
	"bufio"
	"bytes"
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

const childEnv = "SANDBOX_RUN_REGISTRY_CHILD"

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
	switch plan[0] {
	case "live": // dir: register, wait to be killed
		e, err := Register(plan[1], []byte("record of "+strconv.Itoa(os.Getpid())))
		if err != nil {
			return err
		}
		fmt.Println(e.Slot())
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	case "churn": // dir, claims, rounds
		n, err := strconv.Atoi(plan[3])
		if err != nil {
			return err
		}
		for i := range n {
			if err := churn(plan[1], plan[2], i); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New("unknown plan")
}

// churn registers, proves that no other process has the slot, collects, and leaves, every third time as if killed. The
// proof: a file of the slot's name in another directory, made with O_EXCL and removed at the end of the slot's use.
func churn(dir, claims string, round int) error {
	e, err := Register(dir, []byte(strconv.Itoa(round)))
	if err != nil {
		return err
	}
	mark := filepath.Join(claims, e.Name())
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("slot given twice: %w", err)
	}
	_ = f.Close()
	alive := filepath.Join(claims, "alive-"+e.Name())
	if err := os.WriteFile(alive, nil, 0o600); err != nil {
		return err
	}
	dead, err := Dead(dir)
	if err != nil {
		return err
	}
	for i, o := range dead {
		if _, err := os.Stat(filepath.Join(claims, "alive-"+o.Name)); err == nil {
			return fmt.Errorf("%s lives and is reported dead", o.Name)
		}
		if i%4 == 3 { // not every collector succeeds
			if err := o.Release(); err != nil {
				return err
			}
			continue
		}
		if err := os.Remove(filepath.Join(claims, o.Name)); err != nil {
			return fmt.Errorf("collected twice: %w", err)
		}
		if err := o.Remove(); err != nil {
			return err
		}
	}
	if err := os.Remove(alive); err != nil {
		return err
	}
	if round%3 == 0 { // as after a kill: the lock is released, the file stays
		return e.finish(false)
	}
	if err := os.Remove(mark); err != nil {
		return err
	}
	return e.Close()
}

type process struct {
	cmd  *exec.Cmd
	slot int
	in   io.Closer
}

func start(t *testing.T, dir string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{childEnv + "=live " + dir, "GORACE=atexit_sleep_ms=0"}
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
	p := &process{cmd: cmd, in: in}
	t.Cleanup(p.kill)
	line, _ := bufio.NewReader(out).ReadString('\n')
	if p.slot, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatalf("%q", line)
	}
	return p
}

func (p *process) kill() {
	_ = p.in.Close()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func mustDead(t *testing.T, dir string) []*Leftover {
	t.Helper()
	dead, err := Dead(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dead
}

func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "registry")
	if dead := mustDead(t, dir); len(dead) != 0 {
		t.Errorf("%d dead in a directory that does not exist", len(dead))
	}
	a, b := start(t, dir), start(t, dir)
	me, err := Register(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if dead := mustDead(t, dir); len(dead) != 0 {
		t.Fatalf("%d of three living are reported dead", len(dead))
	}
	a.kill()
	dead := mustDead(t, dir)
	if len(dead) != 1 || dead[0].Slot != a.slot || dead[0].Name != name(a.slot) ||
		string(dead[0].Record) != "record of "+strconv.Itoa(a.cmd.Process.Pid) {
		t.Fatalf("%+v", dead)
	}
	if again := mustDead(t, dir); len(again) != 0 {
		t.Error("a leftover was given to two collectors")
	}
	if err := dead[0].Release(); err != nil {
		t.Error(err)
	}
	if dead = mustDead(t, dir); len(dead) != 1 {
		t.Fatal("a released leftover was not found again")
	}
	for _, f := range []func() error{dead[0].Remove, dead[0].Remove, dead[0].Release, me.Close, me.Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 1 || filepath.Base(left[0]) != name(b.slot) {
		t.Errorf("left: %q", left)
	}
}

// A child that was started while the lock was held must not keep it: descriptors are closed on exec.
func TestLockIsNotInherited(t *testing.T) {
	dir := t.TempDir() + "/r"
	e, err := Register(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := e.finish(false); err != nil {
		t.Fatal(err)
	}
	dead := mustDead(t, dir)
	if len(dead) != 1 {
		t.Fatalf("%d dead", len(dead))
	}
	_ = dead[0].Remove()
}

func TestSlots(t *testing.T) {
	dir := t.TempDir() + "/r"
	seen := map[int]bool{}
	for range 50 {
		e, err := Register(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close() //nolint:revive // all are held until the end
		if seen[e.Slot()] || e.Name() != fmt.Sprintf("s%04x", e.Slot()) {
			t.Errorf("slot %d, %q", e.Slot(), e.Name())
		}
		seen[e.Slot()] = true
	}
	for file, want := range map[string]bool{"s0000": true, "sffff": true, "s01a2": true, "s01A2": false, "s1": false, "x0000": false,
		"s+123": false, "s00001": false, "s_123": false} {
		if slot, ok := slotOf(file); ok != want || ok && name(slot) != file {
			t.Errorf("%s: %d %v", file, slot, ok)
		}
	}
}

func TestAllTaken(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 65536 files")
	}
	dir := t.TempDir() + "/r"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for slot := range Slots {
		if slot == 4711 {
			continue
		}
		fd, err := unix.Open(dir+"/"+name(slot), unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
	}
	e, err := Register(dir, nil)
	if err != nil || e.Slot() != 4711 {
		t.Fatalf("%v, %v", e, err)
	}
	if _, err := Register(dir, nil); !errors.Is(err, unix.EUSERS) {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(dir + "/" + newPrefix + "*"); len(left) != 0 {
		t.Errorf("a failed registration left %q", left)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestNewFilesAreCollected(t *testing.T) {
	dir := t.TempDir() + "/r"
	e, err := Register(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	crashed, living := dir+"/"+newPrefix+"crashed", dir+"/"+newPrefix+"living"
	f, err := os.Create(living)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := lock(int(f.Fd())); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, err := range []error{os.WriteFile(crashed, nil, 0o600), os.WriteFile(dir+"/README", nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if dead := mustDead(t, dir); len(dead) != 0 {
		t.Errorf("%d dead", len(dead))
	}
	for path, want := range map[string]bool{crashed: false, living: true, dir + "/README": true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Foreign entries under a slot's name are errors that hide no other entry, and never block.
func TestPlanted(t *testing.T) {
	dir := t.TempDir() + "/r"
	e, err := Register(dir, []byte("real"))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.finish(false); err != nil {
		t.Fatal(err)
	}
	free := func(n int) string { return dir + "/" + name((e.Slot()+n)%Slots) }
	for _, err := range []error{unix.Mkfifo(free(1), 0o600), os.Symlink("/etc/passwd", free(2)), os.Mkdir(free(3), 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dead, err := Dead(dir)
	if err == nil {
		t.Error("planted files went unreported")
	}
	if len(dead) != 1 || string(dead[0].Record) != "real" {
		t.Fatalf("%+v", dead)
	}
	_ = dead[0].Remove()
}

func TestForeignFileIsNotRemoved(t *testing.T) {
	dir := t.TempDir() + "/r"
	e, err := Register(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := dir + "/" + e.Name()
	if err := errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)); err != nil { // cleared, then taken by another process
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("another's registration was removed: %v", err)
	}
}

func TestDirRefused(t *testing.T) {
	base := t.TempDir()
	open, link, file := base+"/open", base+"/link", base+"/file"
	for _, err := range []error{os.Mkdir(open, 0o700), os.Chmod(open, 0o770), os.Symlink(base, link), os.WriteFile(file, nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	paths := []string{open, link, file}
	if os.Geteuid() == 0 {
		foreign := base + "/foreign"
		if err := errors.Join(os.Mkdir(foreign, 0o700), os.Chown(foreign, 1000, 1000)); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, foreign)
	}
	for _, path := range paths {
		if e, err := Register(path, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("register in %s: %v, %v", path, e, err)
		}
		if _, err := Dead(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("collect in %s: %v", path, err)
		}
	}
	if e, err := Register(base+"/good", make([]byte, MaxRecord+1)); !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v, %v", e, err)
	}
}

func TestFullAndReadOnly(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // the thread, with its mount namespace, ends with the goroutine
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k,nr_inodes=4,mode=0700"),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		if _, err := Register(dir, make([]byte, 8192)); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("no space for the record: %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("a failed registration left %v", left)
		}
		e, err := Register(dir, []byte("fits"))
		if err != nil {
			t.Errorf("positive control: %v", err)
			return
		}
		_ = e.Close()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Error(err)
		}
		if _, err := Register(dir, nil); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "writable") {
			t.Errorf("read-only: %v", err)
		}
	})
	wg.Wait()
}

func TestTwentyProcesses(t *testing.T) {
	dir, claims := t.TempDir()+"/r", t.TempDir()
	var wg sync.WaitGroup
	for range 20 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{childEnv + "=churn " + dir + " " + claims + " 100", "GORACE=atexit_sleep_ms=0", "GOMAXPROCS=2"}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
	// Some processes live meanwhile, and one of them is really killed.
	living := []*process{start(t, dir), start(t, dir), start(t, dir)}
	victim := living[2]
	if err := os.WriteFile(filepath.Join(claims, name(victim.slot)), nil, 0o600); err != nil {
		t.Error(err)
	}
	for _, p := range living {
		if err := os.WriteFile(filepath.Join(claims, "alive-"+name(p.slot)), nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	if err := os.Remove(filepath.Join(claims, "alive-"+name(victim.slot))); err != nil {
		t.Error(err)
	}
	victim.kill()
	wg.Wait()
	for _, o := range mustDead(t, dir) {
		if o.Slot == living[0].slot || o.Slot == living[1].slot {
			t.Errorf("%s lives and is reported dead", o.Name)
		}
		if err := o.Remove(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

func BenchmarkRegister(b *testing.B) {
	dir := b.TempDir() + "/r"
	for b.Loop() {
		e, err := Register(dir, []byte("record"))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Dead(dir); err != nil {
			b.Fatal(err)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
