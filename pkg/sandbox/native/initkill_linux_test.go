package native

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// inits lists the children of this process that are inits: of sandboxes, and the spare one.
func inits() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, l := range lists {
		text, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(text)) {
			if line, _ := os.ReadFile("/proc/" + f + "/cmdline"); strings.HasPrefix(string(line), "sandbox-init\x00") {
				pid, _ := strconv.Atoi(f)
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killChild kills a child of this process by pidfd, so never a later process with the same number.
func killChild(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && strings.Contains(string(text), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) &&
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// Inits are killed at random times: as spare inits, while they build a root, while they start a program, while they
// supervise it. The run reports that or is not affected; and nothing is left, neither on the host nor in this process.
func TestFaultInitKilled(t *testing.T) {
	kills := int64(60)
	if testenv.All() {
		kills = 600
	}
	b, m := managed(t, Options{})
	ctx := context.Background()
	mark := fmt.Sprintf("initkill-%d-%d", os.Getpid(), rand.Uint64())
	var number atomic.Int64
	once := func() (*sandbox.Result, error) {
		n := number.Add(1)
		spec := smallSpec()
		spec.Env = map[string]string{"SANDBOXTEST_MARK": mark}
		spec.Scratch = []sandbox.ScratchMode{sandbox.ScratchMemory, sandbox.ScratchDisk}[n%2]
		id, err := m.Create(ctx, spec)
		if err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
		p := sandbox.Process{Args: []string{"/bin/sh", "-c", "echo hello; (setsid sleep 60 &) ; sleep 0.0" + strconv.Itoa(int(n%4))}}
		if n%3 == 0 {
			p.TTY = &sandbox.TTY{Rows: 5, Cols: 5}
		}
		res, err := m.Run(ctx, id, p, sandbox.IO{})
		if e := m.Delete(ctx, id); e != nil {
			return nil, fmt.Errorf("delete after %w: %w", err, e)
		}
		return res, err
	}
	for range 4 {
		if res, err := once(); err != nil || res.Verdict != sandbox.VerdictOK {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	files, goroutines := len(openNow()), runtime.NumGoroutine()

	var killed, ended, failed atomic.Int64
	var all sync.WaitGroup
	deadline := time.Now().Add(2 * time.Minute)
	more := func() bool {
		return (killed.Load() < kills || ended.Load() == 0) && time.Now().Before(deadline) && !t.Failed()
	}
	for range 3 {
		all.Go(func() {
			for more() {
				res, err := once()
				switch {
				case err != nil:
					if failed.Add(1); !nextStep.MatchString(err.Error()) || !strings.Contains(err.Error(), "init") {
						t.Errorf("the error is not clear: %v", err)
					} else if failed.Load() < 4 {
						t.Log(err)
					}
				case res.Verdict == sandbox.VerdictOK:
					if !strings.HasPrefix(string(res.Stdout.Bytes()), "hello") {
						t.Errorf("succeeded, and said %q", res.Stdout.Bytes())
					}
				case res.Verdict == sandbox.VerdictSignaled && res.Exit.Signal == int(syscall.SIGKILL):
					if ended.Add(1); len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "init was killed from outside") {
						t.Errorf("it does not say what happened: %q", res.Notes)
					}
				default:
					t.Errorf("%s, %+v", res.Verdict, res)
				}
			}
		})
	}
	all.Go(func() {
		for n := 0; more(); n++ {
			// Kills are rare enough that a program can run on a slow machine.
			time.Sleep(rand.N(time.Duration([]int{4, 16, 100}[n%3]) * time.Millisecond))
			if list := inits(); len(list) > 0 && killChild(list[rand.IntN(len(list))]) {
				killed.Add(1)
			}
		}
	})
	all.Wait()
	t.Logf("%d inits killed: %d runs of %d ended by it, %d could not start", killed.Load(), ended.Load(), number.Load(), failed.Load())
	if ended.Load() == 0 {
		t.Error("no run was hit")
	}
	b.inits.mu.Lock()
	b.inits.inFlight.Wait()
	b.inits.mu.Unlock()
	if alive := conformance.Marked(mark); len(alive) > 0 {
		t.Errorf("alive: %q", alive)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if len(openNow()) <= files+2 && runtime.NumGoroutine() <= goroutines { // the spare init may or may not exist
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d descriptors, %d before; %d goroutines, %d before: %q", len(openNow()), files, runtime.NumGoroutine(), goroutines, openNow())
			break
		}
	}
	if left := groupsOf(b); len(left) > 0 {
		t.Errorf("cgroups left: %q", left)
	}
}

// An init that is killed while it takes over a later phase does not remove the sandbox's files.
func TestFaultLaterInitKilled(t *testing.T) {
	for _, spec := range []sandbox.Spec{smallSpec(), writable(t, smallSpec())} {
		_, m := managed(t, Options{})
		ctx := context.Background()
		id, err := m.Create(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		run := func(phase, script string) (*sandbox.Result, error) {
			return m.Run(ctx, id, sandbox.Process{Phase: phase, Args: []string{"/bin/sh", "-c", script}}, sandbox.IO{})
		}
		if res, err := run("first", "echo kept > $HOME/x; touch /y 2>/dev/null; true"); err != nil || res.Verdict != sandbox.VerdictOK {
			t.Fatalf("%+v, %v", res, err)
		}
		hit := 0
		for n := range 60 {
			over := make(chan struct{})
			go func() {
				defer close(over)
				for end := time.Now().Add(rand.N(14 * time.Millisecond)); time.Now().Before(end); {
					runtime.Gosched()
				}
				for _, pid := range inits() {
					killChild(pid)
				}
			}()
			res, err := run("p"+strconv.Itoa(n), "true")
			<-over
			if err != nil || res.Verdict != sandbox.VerdictOK {
				hit++
			}
		}
		if hit == 0 {
			t.Error("no run was hit")
		}
		want := "kept\n"
		if spec.WritableRoot {
			want += "/y\n"
		}
		t.Logf("%d of 60 were hit", hit)
		if res, err := run("last", "cat $HOME/x; ls /y 2>/dev/null; true"); err != nil || string(res.Stdout.Bytes()) != want {
			t.Errorf("after %d hits: %+v, %v", hit, res, err)
		}
	}
}

// groupsOf lists the cgroups of a backend's sandboxes. On v2 the spare init has a cgroup of its own already, which
// belongs to no sandbox and is no leftover.
func groupsOf(b *Backend) (list []string) {
	name := filepath.Dir(b.inits.supervisor.NewGroup().Path())
	kept := ""
	b.inits.mu.Lock()
	if next := b.inits.spare; next != nil {
		rest, _ := strings.CutPrefix(next.cgroup.Programs().Path(), name+"/")
		kept, _, _ = strings.Cut(rest, "/")
	}
	b.inits.mu.Unlock()
	for _, root := range b.host.Cgroups.Roots() {
		entries, _ := os.ReadDir(filepath.Join(root, name))
		for _, e := range entries {
			if e.IsDir() && e.Name() != kept {
				list = append(list, filepath.Join(root, name, e.Name()))
			}
		}
	}
	return list
}
