package native

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// needV2 skips where programs join v1 cgroups: clone can not start a process in one.
func needV2(t testing.TB) {
	t.Helper()
	needRoot(t)
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Skip("needs a machine with cgroup v2 alone, as in scripts/guest.sh")
	}
}

// watched is a backend that records its instances for a test.
type watched struct {
	*Backend
	last *instance
}

func (w *watched) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	i, err := w.Backend.Create(ctx, spec)
	if err == nil {
		w.last = i.(*instance)
	}
	return i, err
}

// fullAtTen tries to start more than ten processes, counts them, and reports when it is done.
const fullAtTen = "n=0; while [ $n -lt 20 ] && (sleep 20 &) 2>/dev/null; do n=$((n+1)); done; echo $n; sleep 1"

// A program starts in the cgroup that limits it, beside its init's cgroup and not in it. If the kernel refuses that, the
// program joins the cgroup and has the same limits. If it can not join either, it does not run.
func TestBornInGroup(t *testing.T) {
	needV2(t)
	b := &watched{Backend: newBackend(t, Options{})}
	m := sandbox.NewManager(b, sandbox.Options{})
	defer func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		name       string
		born, join bool
	}{{"born", true, false}, {"refused, joins", false, true}, {"refused, can not join", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			id, err := m.Create(context.Background(), sandbox.Spec{Limits: sandbox.Limits{Processes: 10, Wall: time.Minute}})
			if err != nil {
				t.Fatal(err)
			}
			p := b.last.Spare()
			run := p.Group.Dirs()[0]
			phaseDir := filepath.Dir(run)
			if p.Born == nil || filepath.Base(run) != "run" {
				t.Fatalf("nothing to be born in: %s", run)
			}
			if got := groupOf(t, p.Init.PID()); !strings.HasSuffix(phaseDir+"/init", got) {
				t.Errorf("the init is in %s, not in %s/init", got, phaseDir)
			}
			if got, want := ownedBy(t, phaseDir, b.last.ID.Init),
				[]string{phaseDir + "/cgroup.procs", run + "/cgroup.procs"}; !slices.Equal(got, want) {
				t.Errorf("the init's user owns %v, want %v", got, want)
			}
			if !c.born {
				if err := os.Chown(phaseDir+"/cgroup.procs", 0, 0); err != nil {
					t.Fatal(err)
				}
			}
			if !c.join {
				for _, f := range p.Join {
					_ = f.Close()
				}
				p.Join = nil
			}
			var members []int
			res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"sh", "-c", fullAtTen}},
				sandbox.IO{OnEvent: func(ev sandbox.Event) {
					if ev.Kind == sandbox.EventStdout && members == nil {
						members, _ = p.Group.Procs()
					}
				}})
			if !c.born && !c.join {
				if err == nil || !strings.Contains(err.Error(), "cgroup") {
					t.Errorf("a program without a group ran: %+v, %v", res, err)
				}
			} else if err != nil {
				t.Error(err)
			} else if n, err := strconv.Atoi(strings.TrimSpace(string(res.Stdout.Bytes()))); err != nil || n < 5 || n > 10 || len(members) < 5 ||
				len(members) > 10 {
				t.Errorf("%d processes with a limit of 10, in the group %v: %q %q", n, members, res.Stdout.Bytes(), res.Stderr.Bytes())
			}
			if err := m.Delete(context.Background(), id); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(phaseDir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", phaseDir, err)
			}
		})
	}
}

// groupOf returns the v2 cgroup of a process.
func groupOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, group, _ := strings.Cut(strings.TrimSpace(string(text)), "::")
	return group
}

// ownedBy lists the files below dir that belong to a user.
func ownedBy(t *testing.T, dir string, uid int) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err == nil && int(st.Uid) == uid {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The cost of a sandbox without a program, from creation to removal; and of one more program in an existing sandbox.
func BenchmarkTrue(b *testing.B) {
	backend := newBackend(b, Options{})
	m := sandbox.NewManager(backend, sandbox.Options{})
	defer func() { _ = errors.Join(m.Close(), backend.Close()) }()
	ctx := context.Background()
	create := func() string {
		id, err := m.Create(ctx, sandbox.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		return id
	}
	run := func(id string) {
		if res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"true"}}, sandbox.IO{}); err != nil || !res.Success() {
			b.Fatal(res, err)
		}
	}
	b.Run("sandbox", func(b *testing.B) {
		median(b, func() {
			id := create()
			run(id)
			if err := m.Delete(ctx, id); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("program", func(b *testing.B) {
		id := create()
		stay, end := context.WithCancel(ctx)
		started := make(chan struct{}, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = m.Run(stay, id, sandbox.Process{Args: []string{"sh", "-c", "echo; sleep 600"}}, sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Kind == sandbox.EventStdout {
					started <- struct{}{}
				}
			}})
		}()
		<-started
		median(b, func() { run(id) })
		end()
		<-ended
	})
}

// median reports the median beside the mean, because other load on the machine distorts the mean.
func median(b *testing.B, f func()) {
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		f()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "p90-µs")
}
