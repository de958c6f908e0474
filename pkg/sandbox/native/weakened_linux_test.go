package native

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// weakness is a step that a backend omits, and the attacks that must detect it. Controls that are removed in the product
// itself are in package weaken.
type weakness struct {
	name string
	ids  []string
	weak func(*weakBackend)
	also func(t *testing.T, o *attack.Options)
	all  bool // takes long: for the whole matrix only
	busy bool // a busy machine may hide it for a while
}

func weaknesses() []weakness {
	return []weakness{
		{name: "no process limit", ids: []string{"R1"}, weak: func(b *weakBackend) { b.limits = func(l *sandbox.Limits) { l.Processes = 1000 } }},
		{name: "no memory limit", ids: []string{"R4", "R9"},
			weak: func(b *weakBackend) { b.limits = func(l *sandbox.Limits) { l.Memory = sandbox.GiB } }},
		{name: "no disk limit", ids: []string{"F9", "F15"}, weak: func(b *weakBackend) {
			b.spec = func(s *sandbox.Spec) { s.Limits.Disk, s.Limits.Inodes = 512*sandbox.MiB, 1<<16 }
		}},
		{name: "no limit of processor time", ids: []string{"R5"}, busy: true, weak: func(b *weakBackend) { b.blind = true }},
		{name: "no share of processors", ids: []string{"R5"}, busy: true, weak: func(b *weakBackend) {
			b.limits = func(l *sandbox.Limits) { l.CPUs = max(l.CPUs, 1) }
		}},
		{name: "roots that are not looked at", ids: []string{"F3"},
			weak: func(b *weakBackend) { b.spec = func(s *sandbox.Spec) { s.Root.Dir = "" } }},
		{name: "links that are followed", ids: []string{"F6", "F7", "F10"}, weak: func(b *weakBackend) {
			b.spec = func(s *sandbox.Spec) {
				for i, v := range s.Volumes {
					if real, err := filepath.EvalSymlinks(v.Source); err == nil {
						s.Volumes[i].Source = real
					}
				}
			}
		}},
		{name: "files carried through links", ids: []string{"F7", "F8"}, weak: func(b *weakBackend) { b.careless = true }},
		{name: "files that are waited for", ids: []string{"F7"}, weak: func(b *weakBackend) { b.waits = true }, all: true},
		{name: "work outside for what is inside", ids: []string{"S10"}, weak: func(b *weakBackend) { b.busy = true }},
		{name: "late killing", ids: []string{"R2"}, weak: func(b *weakBackend) { b.patient = true }, all: true},
		{name: "slow neighbours", ids: []string{"R13"}, weak: func(b *weakBackend) { b.slow = true }, all: true},
		{name: "kill(0)", ids: []string{"R12"}, weak: func(b *weakBackend) { b.everybody = true }, also: ownGroup},
		{name: "waiting for a pipe", ids: []string{"F7", "F10"}, all: true, also: func(_ *testing.T, o *attack.Options) {
			var reported atomic.Int32 // cases
			o.OnResult = func(attack.Result) { reported.Add(1) }
			o.Backend.(*weakBackend).spec = func(s *sandbox.Spec) {
				for _, v := range s.Volumes {
					if !strings.HasSuffix(v.Source, "/fifo") {
						continue
					}
					for before := reported.Load(); reported.Load() == before; time.Sleep(10 * time.Millisecond) { // until the suite has given up
					}
				}
			}
		}},
		{name: "slow clean-up", ids: []string{"F14"}, weak: func(b *weakBackend) { b.linger = 20500 * time.Millisecond }, all: true},
		{name: "slow ends", ids: []string{"R7", "R8"}, weak: func(b *weakBackend) { b.finish = 5500 * time.Millisecond }, all: true},
		{name: "nothing escaped", ids: []string{"A6"}, also: func(_ *testing.T,
			o *attack.Options) {
			o.Escape = func(s string) string { return s }
		}},
		{name: "a supervisor that leaves something", ids: []string{"W6"}, also: func(_ *testing.T, o *attack.Options) {
			victim := o.Victim
			o.Victim = func(mark string) *exec.Cmd {
				cmd := victim(mark)
				return exec.Command("/bin/sh", append([]string{"-c", `LEFT=` + mark + ` setsid sleep 20 & exec "$@"`, "victim"}, cmd.Args...)...)
			}
		}},
	}
}

// ownGroup makes this process the only one in its group, and makes it ignore the signal that the test sends.
func ownGroup(t *testing.T, _ *attack.Options) {
	old := unix.Getpgrp()
	if err := unix.Setpgid(0, 0); err != nil {
		t.Skip("this process leads a session: ", err)
	}
	deaf := make(chan os.Signal, 1)
	signal.Notify(deaf, syscall.SIGTERM) // not ignored: children would inherit that
	t.Cleanup(func() {
		signal.Stop(deaf)
		_ = unix.Setpgid(0, old)
	})
}

// A suite that can not fail proves nothing: each control is removed in turn, and the attacks that it stops succeed.
func TestAttackWeakened(t *testing.T) {
	needRoot(t)
	for _, w := range weaknesses() {
		t.Run(w.name, func(t *testing.T) {
			if w.all {
				testenv.NeedAll(t, "the other walls")
			}
			real := newBackend(t, Options{})
			defer real.Close()
			b := &weakBackend{Backend: real}
			if w.weak != nil {
				w.weak(b)
			}
			o := attackOptions(t, b, w.ids...)
			if w.also != nil {
				w.also(t, &o)
			}
			r := carryOut(t, o)
			for n := 0; w.busy && r.OK && n < 20; n++ { // on a busy machine the program got no more than the limit
				r = carryOut(t, o)
			}
			if r.OK || r.Grade != attack.GradeF {
				t.Errorf("grade %s, ok %v", r.Grade, r.OK)
			}
			for _, res := range r.Results {
				if res.Outcome != attack.Breached {
					t.Errorf("%s %s: %s: %+v", res.ID, res.Outcome, res.Detail, res.Probes)
				} else {
					t.Logf("%s breached: %s", res.ID, res.Detail)
				}
			}
		})
	}
}

// A cancelled suite leaves nothing, and gives no verdict on a case that did not finish.
func TestAttackCancelled(t *testing.T) {
	needRoot(t)
	b, _ := managed(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	o := attackOptions(t, b, "F2", "R1", "R5")
	o.OnStart = func(id, _ string) {
		if id == "R1" {
			time.AfterFunc(50*time.Millisecond, cancel) // of 400 that it takes at the least
		}
	}
	began := time.Now()
	r, err := attack.Run(ctx, o)
	if err == nil || len(r.Results) != 1 || r.Results[0].Outcome != attack.Held {
		t.Errorf("%v, %+v", err, r)
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("took %v", took)
	}
}

// weakBackend is a backend with a missing control.
type weakBackend struct {
	sandbox.Backend
	spec      func(*sandbox.Spec)
	limits    func(*sandbox.Limits)
	blind     bool // samples show nothing
	busy      bool // uses a processor of the host while a program runs
	patient   bool // kills much later
	slow      bool // makes one sandbox wait for another
	everybody bool // signals more processes than it should
	careless  bool // follows links when it carries files
	waits     bool // for the other end of a pipe
	linger    time.Duration
	finish    time.Duration

	running atomic.Int32
	crowded atomic.Bool
	alone   atomic.Int64 // how long the last sandbox took, before it was crowded
}

func (b *weakBackend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	weaker := *spec
	weaker.Volumes = slices.Clone(spec.Volumes)
	if b.spec != nil {
		b.spec(&weaker)
	}
	if b.limits != nil {
		b.limits(&weaker.Limits)
	}
	if b.slow && b.running.Load() > 0 {
		b.crowded.Store(true)
		time.Sleep(min(700*time.Millisecond+9*time.Duration(b.alone.Load()), 15*time.Second)) // beyond the bound, at any speed of the machine
	}
	began := time.Now()
	i, err := b.Backend.Create(ctx, &weaker)
	if err != nil {
		return nil, err
	}
	return &weakInstance{i.(*instance), b, began}, nil
}

type weakInstance struct {
	*instance
	b     *weakBackend
	began time.Time
}

var _ sandbox.Filer = (*weakInstance)(nil)

// resolveCarelessly resolves a path of the scratch without protection against links.
func (i *weakInstance) resolveCarelessly(p string) string {
	rest, _ := files.Beneath(p)
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(i.Scratch.File().Fd())), rest)
}

func (i *weakInstance) Put(ctx context.Context, list []sandbox.File) error {
	if !i.b.careless {
		return i.instance.Put(ctx, list)
	}
	for _, f := range list {
		p := i.resolveCarelessly(f.Path)
		if st, err := os.Stat(p); err == nil && !st.Mode().IsRegular() {
			continue // it would wait for the other end of a pipe
		}
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, f.Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (i *weakInstance) Take(ctx context.Context, s sandbox.Selection,
	each func(f sandbox.File, size sandbox.Size, r io.Reader) error) ([]sandbox.Untaken, error) {
	if i.b.waits && slices.Contains(s.Patterns, "/workspace/fifo") {
		<-ctx.Done()
	}
	if !i.b.careless {
		return i.instance.Take(ctx, s, each)
	}
	for _, pattern := range s.Patterns {
		matches, _ := filepath.Glob(i.resolveCarelessly(pattern))
		if pattern == sandbox.WorkspaceDir {
			matches, _ = filepath.Glob(i.resolveCarelessly(pattern) + "/*")
		}
		for _, p := range matches {
			if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() {
				continue
			}
			text, err := os.ReadFile(p)
			if err == nil {
				err = each(sandbox.File{Path: "/workspace/" + filepath.Base(p)}, sandbox.Size(len(text)), bytes.NewReader(text))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

func (i *weakInstance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	weaker := *p
	if i.b.limits != nil {
		i.b.limits(&weaker.Limits)
	}
	t, err := i.instance.Start(ctx, &weaker)
	if err != nil {
		return nil, err
	}
	i.b.running.Add(1)
	w := &weakTask{Task: t, b: i.b}
	if i.b.busy && slices.Contains(p.Args, "flood") {
		// The program gets as much CPU time as on an idle machine.
		used := func() time.Duration {
			var u unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		began := used()
		for range 2 {
			w.spinning.Go(func() {
				for !w.over.Load() || used()-began < time.Second {
				}
			})
		}
	}
	return w, nil
}

func (i *weakInstance) Destroy(ctx context.Context) error {
	time.Sleep(i.b.linger)
	err := i.instance.Destroy(ctx)
	if !i.b.crowded.Load() {
		i.b.alone.Store(int64(time.Since(i.began)))
	}
	return err
}

type weakTask struct {
	sandbox.Task
	b        *weakBackend
	over     atomic.Bool
	spinning sync.WaitGroup
}

func (t *weakTask) Sample() (monitor.Sample, error) {
	if t.b.blind {
		return monitor.Sample{}, nil
	}
	return t.Task.Sample()
}

func (t *weakTask) Kill() error {
	if t.b.patient {
		time.AfterFunc(5*time.Second, func() { _ = t.Task.Kill() })
		return nil
	}
	if t.b.everybody {
		_ = unix.Kill(0, unix.SIGTERM)
	}
	return t.Task.Kill()
}

func (t *weakTask) Finish(ctx context.Context) (monitor.Sample, error) {
	t.over.Store(true)
	t.spinning.Wait()
	t.b.running.Add(-1)
	time.Sleep(t.b.finish)
	return t.Task.Finish(ctx)
}
