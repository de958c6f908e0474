package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/registry"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

// victimVariable makes the test binary a supervisor that keeps resources until it is killed.
const victimVariable = "SANDBOX_RUN_SUPERVISOR_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" {
		os.Exit(victim())
	}
	goleak.VerifyTestMain(m)
}

func victim() int {
	tree, err := cgroup.Open()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s, err := Open(tree)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	g := s.NewGroup()
	dir, err := s.NewDir()
	if err == nil {
		err = g.Make(cgroup.Limits{Memory: 64 << 20, Pids: 10})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600)
	}
	sleeper := exec.Command("sleep", "300") // a process that does not end with the supervisor
	if err == nil {
		err = sleeper.Start()
	}
	for _, group := range g.Dirs() {
		if err == nil {
			err = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0)
		}
	}
	fmt.Println(s.entry.Name(), dir, err)
	select {}
}

func open(t *testing.T) *Supervisor {
	t.Helper()
	testenv.NeedRoot(t)
	tree, err := cgroup.Open()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(tree)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		tree.Close()
	})
	return s
}

func TestIDs(t *testing.T) {
	a, b := open(t), open(t)
	seen := map[int]bool{}
	var roots []int
	for range MaxConcurrent {
		root, user, err := a.IDs()
		if err != nil {
			t.Fatal(err)
		}
		if seen[root] || seen[user] || root == user || root < FirstID || user > 0x7fffffff {
			t.Fatalf("%d, %d", root, user)
		}
		seen[root], seen[user] = true, true
		roots = append(roots, root)
	}
	if _, _, err := a.IDs(); err == nil {
		t.Error("more ids than there are")
	}
	a.Release(roots[77])
	if root, _, err := a.IDs(); err != nil || root != roots[77] {
		t.Errorf("%d, %v", root, err)
	}
	if root, user, err := b.IDs(); err != nil || seen[root] || seen[user] {
		t.Errorf("two supervisors share %d, %d (%v)", root, user, err)
	}
}

func TestDirectories(t *testing.T) {
	s := open(t)
	var mu sync.Mutex
	var dirs []string
	var wg sync.WaitGroup
	for range 20 { // the first of them make the parent, all at once
		wg.Go(func() {
			d, err := s.NewDir()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			dirs = append(dirs, d)
		})
	}
	wg.Wait()
	slices.Sort(dirs)
	if len(slices.Compact(dirs)) != 20 {
		t.Errorf("%q", dirs)
	}
	for _, d := range []string{dirs[0], filepath.Dir(dirs[0])} {
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v", d, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(dirs[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// A directory of that name that belongs to another user is not used; one of an earlier supervisor of that name is
// replaced.
func TestForeignDirectory(t *testing.T) {
	s := open(t)
	parent := dirName(s.entry.Name())
	if err := os.Mkdir(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	if os.Geteuid() == 0 {
		if err := os.Chown(parent, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if d, err := s.NewDir(); err == nil {
			t.Errorf("made %s", d)
		}
		if err := os.Chown(parent, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(parent, 0o700), os.Mkdir(filepath.Join(parent, "state"), 0o700)); err != nil {
		t.Fatal(err)
	}
	held, err := hold(parent)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := s.NewDir(); err == nil {
		t.Errorf("made %s in another's", d)
	}
	if _, err := os.Stat(filepath.Join(parent, "state")); err != nil {
		t.Error(err)
	}
	_ = held.Close()
	d, err := s.NewDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(parent, "state")); filepath.Dir(d) != parent || err == nil {
		t.Errorf("%s, %v", d, err)
	}
}

// A directory that was made after the collection of its supervisor is found, and none of a supervisor that has a name.
func TestForgotten(t *testing.T) {
	living := open(t)
	kept, err := living.NewDir()
	if err != nil {
		t.Fatal(err)
	}
	gone := open(t)
	name := gone.entry.Name()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	late := filepath.Join(dirName(name), "state")
	defer os.RemoveAll(dirName(name))
	// A living supervisor may be registered elsewhere: another environment has another runtime directory. A supervisor
	// of the same name may have died here.
	elsewhere, namesake := open(t), open(t)
	other, others := dirName(elsewhere.entry.Name()), dirName(namesake.entry.Name())
	if err := errors.Join(elsewhere.Close(), namesake.entry.Abandon()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{other, others} {
		held, err := makeHeld(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = errors.Join(os.Remove(dir), held.Close()) })
		if err := os.Chmod(dir, 0o711); err != nil { // the mode does not matter
			t.Fatal(err)
		}
	}
	told := func(found []Found) bool {
		return slices.ContainsFunc(found, func(f Found) bool { return f.Name == dirName(name) })
	}
	for _, dryRun := range []bool{true, false} {
		// Another collector on this machine may remove it first.
		for tries := 1; ; tries++ {
			if err := os.MkdirAll(late, 0o700); err != nil { // as runc and crun do
				t.Fatal(err)
			}
			found, err := Collect(context.Background(), dryRun)
			_, gone := os.Stat(late)
			if err == nil && told(found) && (gone == nil) == dryRun && !registry.Alive(RuntimeDir(), name) {
				break
			}
			if tries == 10 {
				t.Fatalf("dry run %v: %+v, %v, %v", dryRun, found, err, gone)
			}
		}
	}
	if _, err := os.Lstat(dirName(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(RuntimeDir(), name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a registration is left: %v", err)
	}
	for _, dir := range []string{kept, other, others} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// Supervisors that make directories of a name that collectors remove get them nevertheless, and no collector removes a
// directory that is in use.
func TestDirectoryWhileCollected(t *testing.T) {
	s := open(t)
	name := dirName(s.entry.Name())
	if err := s.Close(); err != nil { // no longer registered here, but elsewhere
		t.Fatal(err)
	}
	defer os.RemoveAll(name)
	stop := make(chan struct{})
	var collectors sync.WaitGroup
	for range 2 {
		collectors.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if dir, err := hold(name); err == nil {
					_ = removal.Tree(context.Background(), name)
					_ = dir.Close()
				}
			}
		})
	}
	for range 300 {
		dir, err := makeHeld(name)
		if err != nil {
			t.Error(err)
			break
		}
		if err := os.WriteFile(filepath.Join(name, "file"), nil, 0o600); err != nil {
			t.Error(err)
		}
		runtime.Gosched()
		if err := os.Remove(filepath.Join(name, "file")); err != nil {
			t.Error(err)
		}
		_ = dir.Close()
	}
	close(stop)
	collectors.Wait()
}

func TestCollect(t *testing.T) {
	living := open(t)
	g := living.NewGroup()
	if err := g.Make(cgroup.Limits{Pids: 5}); err != nil {
		t.Fatal(err)
	}
	kept, err := living.NewDir()
	if err != nil {
		t.Fatal(err)
	}
	// Another collector on this machine may remove it first.
	for tries := 1; !collectVictim(t, living.entry.Name()) && !t.Failed(); tries++ {
		if tries == 10 {
			t.Fatal("others have collected it, each time")
		}
	}
	if _, err := os.Stat(kept); err != nil || !g.Exists() {
		t.Errorf("a supervisor that lives lost something: %v", err)
	}
	if err := g.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}

// collectVictim kills a supervisor and collects its leftovers. It returns false if another collector was faster.
func collectVictim(t *testing.T, living string) bool {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), victimVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	f := strings.Fields(line)
	if len(f) != 3 || f[2] != "<nil>" {
		t.Fatalf("the victim says %q", line)
	}
	name, dir := f[0], f[1]
	of := func(found []Found) (mine []Found) {
		for _, f := range found {
			if strings.HasSuffix(f.Name, name) {
				mine = append(mine, f)
			}
			if strings.HasSuffix(f.Name, living) {
				t.Errorf("a supervisor that lives was collected: %+v", f)
			}
		}
		return mine
	}
	if found, _ := Collect(context.Background(), false); len(of(found)) > 0 {
		t.Errorf("it lives: %+v", found)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	looked, err := Collect(context.Background(), true)
	_, there := os.Stat(filepath.Join(dir, "f"))
	began := time.Now()
	found, collected := Collect(context.Background(), false)
	took := time.Since(began)
	var kinds []string
	for _, f := range of(found) {
		kinds = append(kinds, f.Kind)
	}
	if all := []string{"cgroup", "directory", "registration"}; len(of(looked)) != len(all) || !slices.Equal(kinds, all) {
		t.Logf("looked at %+v, collected %+v; others may be at it", of(looked), of(found))
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Lstat(filepath.Join(RuntimeDir(), name)); errors.Is(err, os.ErrNotExist) {
				return false
			}
		}
		t.Errorf("%s was not collected", name)
		return false
	}
	if mine := of(looked); err != nil || mine[0].Removed || mine[1].Removed || mine[2].Removed {
		t.Errorf("dry run: %+v, %v", mine, err)
	}
	if there != nil {
		t.Errorf("a dry run removed it: %v", there)
	}
	for _, f := range of(found) {
		if !f.Removed || f.Problem != nil {
			t.Errorf("%+v", f)
		}
	}
	if collected != nil {
		t.Error(collected)
	}
	if took > collectTimeout+10*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := os.Lstat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	if again, _ := Collect(context.Background(), false); len(of(again)) > 0 {
		t.Errorf("a second time: %+v", of(again))
	}
	return true
}
