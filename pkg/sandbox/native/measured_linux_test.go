package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/box"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
)

// lowered is a control that is removed, and its name in the error.
type lowered struct {
	name    string
	control sandbox.Control
	created func(t *testing.T, i *instance) // changes a sandbox before its program is started
	forked  func(f *fork)                   // changes a fork before it is started
}

// changeLimit writes to those of the files, each followed by its value, that the phase's cgroup has on this machine.
func changeLimit(t *testing.T, ph *box.Phase, files ...string) {
	t.Helper()
	written := 0
	for n := 0; n < len(files); n += 2 {
		for _, dir := range ph.Group.Dirs() {
			f, err := os.OpenFile(filepath.Join(dir, files[n]), os.O_WRONLY, 0)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err == nil {
				_, err = f.WriteString(files[n+1])
				_ = f.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			written++
		}
	}
	if written == 0 {
		t.Fatalf("there is none of %q", files)
	}
}

// everything is a filter that allows every call.
var everything = []byte{0x06, 0, 0, 0, 0, 0, 0xff, 0x7f}

// both lists controls of cold programs and of forks.
func both() []lowered {
	return []lowered{
		{name: "no filter", control: sandbox.ControlSeccomp, created: func(_ *testing.T, i *instance) { i.Filter = nil }},
		{name: "a filter that allows everything", control: sandbox.ControlSeccomp,
			created: func(_ *testing.T, i *instance) { i.Filter = everything }},
		{name: "no memory limit", control: sandbox.ControlMemory, created: func(t *testing.T, i *instance) {
			changeLimit(t, i.Spare(), "memory.memsw.limit_in_bytes", "-1", "memory.limit_in_bytes", "-1", "memory.max", "max")
		}},
		{name: "no process limit", control: sandbox.ControlProcesses,
			created: func(t *testing.T, i *instance) { changeLimit(t, i.Spare(), "pids.max", "max") }},
		{name: "no share of processors", control: sandbox.ControlCPU, created: func(t *testing.T, i *instance) {
			changeLimit(t, i.Spare(), "cpu.cfs_quota_us", "-1", "cpu.max", "max")
		}},
		{name: "the supervisor's cgroup", control: sandbox.ControlMemory,
			created: func(t *testing.T, i *instance) { i.Spare().Join, i.Spare().Born = nil, nil }},
	}
}

// ours checks that an error is internal, and names the control.
func ours(t *testing.T, err error, control sandbox.Control) {
	t.Helper()
	if err == nil {
		t.Fatal("the program was started")
	}
	if info := sandbox.Describe(err); info.Code != "internal_error" || !strings.Contains(info.Message, string(control)) {
		t.Errorf("%s does not name %s as an error of ours", info, control)
	}
}

// allMeasured checks a report without gaps.
func allMeasured(t *testing.T, task sandbox.Task) {
	t.Helper()
	iso, measured := task.(sandbox.Measured).Isolation()
	if !measured || iso.Tier != sandbox.TierContainer {
		t.Errorf("measured %v: %+v", measured, iso)
	}
	for _, c := range measure.Measurable() {
		if iso.Controls[c] != sandbox.Enforced {
			t.Errorf("%s is %s: %+v", c, iso.Controls[c], iso.Missing)
		}
	}
}

func (l lowered) create(t *testing.T) (b *Backend, i *instance, p *sandbox.Process) {
	t.Helper()
	b = newBackend(t, Options{})
	t.Cleanup(func() { b.Close() })
	in, err := b.Create(context.Background(), warmSpec())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if l.created != nil {
		l.created(t, in.(*instance))
	}
	return b, in.(*instance), warmProcess()
}

// A program that lacks a control is not started: the run fails with an internal error that names the control. A program
// that lacks none is measured. TestWeakenedMeasured (internal/cli) has the controls that only a build with the tag
// weaken can remove.
func TestMeasuredCold(t *testing.T) {
	needRoot(t)
	for _, l := range append(both(), lowered{name: "nothing"}) {
		t.Run(l.name, func(t *testing.T) {
			_, i, p := l.create(t)
			p.Args = []string{"/usr/bin/touch", "/workspace/ran"}
			task, err := i.Start(context.Background(), p)
			if l.control != "" {
				ours(t, err, l.control)
				_, _ = i.Take(context.Background(), sandbox.Selection{Patterns: []string{"/workspace/ran"}, MaxFiles: 1, MaxBytes: 1},
					func(sandbox.File, sandbox.Size, io.Reader) error {
						t.Error("foreign code ran")
						return nil
					})
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			follow(context.Background(), t, task, "")
			allMeasured(t, task)
		})
	}
}

// The same for forks of a zygote, which the kernel does not let join namespaces of the host.
func TestMeasuredForks(t *testing.T) {
	needRoot(t)
	for _, l := range append(both(), []lowered{
		{name: "nothing"},
		{name: "no Landlock", control: sandbox.ControlLandlock, forked: func(f *fork) {
			_ = f.foreign.Ruleset.Close()
			f.foreign.Ruleset = nil
		}},
	}...) {
		t.Run(l.name, func(t *testing.T) {
			b, i, p := l.create(t)
			z := newZygote(t, b, warmSpec(), p)
			ctx := context.Background()
			if err := i.Put(ctx, []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644,
				Data: []byte("open('/workspace/ran', 'w')")}}); err != nil {
				t.Fatal(err)
			}
			f, err := z.Fork(ctx, i, p)
			if err != nil {
				t.Fatal(err)
			}
			if l.forked != nil {
				l.forked(f.(*fork))
			}
			task, err := f.Start(ctx, p)
			if l.control != "" {
				ours(t, err, l.control)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			follow(ctx, t, task, "")
			allMeasured(t, task)
		})
	}
}

// A process without any control: every one is named.
func TestMeasuredNothing(t *testing.T) {
	asked := sandbox.NewIsolation("x")
	asked.Enforce(measure.Measurable()...)
	w := measure.Program{Asked: asked, Grade: (*sandbox.Isolation).Grade}
	err := w.Examine(&seccomp.Probe{PID: os.Getpid()})
	if err == nil {
		t.Fatal("this process is taken for a sandboxed one")
	}
	for _, c := range append(sandbox.WallControls(), sandbox.ControlLandlock, sandbox.ControlOpenFiles) {
		if c == sandbox.ControlSeccomp || c == sandbox.ControlNoNewPrivs || c == sandbox.ControlCapabilities {
			continue // the test itself may run in a container
		}
		if !strings.Contains(err.Error(), string(c)+": ") {
			t.Errorf("%s is not named: %v", c, err)
		}
	}
	// A program that was not measured is not reported as measured, and is still a container.
	iso := w.Isolation(false)
	if iso.Check(sandbox.TierContainer, false) != nil || iso.Check(sandbox.TierContainer, true) == nil {
		t.Errorf("%+v", iso)
	}
	for _, c := range measure.Measurable() {
		if iso.Controls[c] != sandbox.Declared {
			t.Errorf("%s is %s", c, iso.Controls[c])
		}
	}
}

// With --strict, a program that can not be held for measurement is refused before it runs, cold or forked; otherwise it
// runs, and its controls are declared.
func TestMeasuredStrict(t *testing.T) {
	needRoot(t)
	for _, strict := range []bool{true, false} {
		for _, warm := range []bool{false, true} {
			t.Run(fmt.Sprintf("strict %v warm %v", strict, warm), func(t *testing.T) {
				b, i, p := lowered{created: func(t *testing.T, i *instance) {
					i.Spec.Strict, i.Policy.Notify = strict, false
					var err error
					if i.Filter, err = i.Host.Filter(i.Policy); err != nil {
						t.Fatal(err)
					}
				}}.create(t)
				ctx := context.Background()
				if err := i.Put(ctx, []sandbox.File{{Path: "/workspace/main.py", Mode: 0o644,
					Data: []byte("open('/workspace/ran', 'w')")}}); err != nil {
					t.Fatal(err)
				}
				start := i.Start
				if warm {
					z := newZygote(t, b, warmSpec(), p)
					start = func(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) { return z.Start(ctx, i, p) }
				}
				task, err := start(ctx, p)
				if err == nil {
					follow(ctx, t, task, "")
					if iso, _ := task.(sandbox.Measured).Isolation(); iso.Controls[sandbox.ControlSeccomp] != sandbox.Declared {
						t.Errorf("%+v", iso)
					}
				} else if !warm && !errors.Is(err, sandbox.ErrRefused) {
					t.Error(err)
				}
				ran := false
				_, _ = i.Take(ctx, sandbox.Selection{Patterns: []string{"/workspace/ran"}, MaxFiles: 1, MaxBytes: 1},
					func(sandbox.File, sandbox.Size, io.Reader) error {
						ran = true
						return nil
					})
				if ran == strict || (err != nil) != strict {
					t.Errorf("ran %v, error %v", ran, err)
				}
			})
		}
	}
}

// A program can not take the socket name that the Landlock check of the phase's next program uses.
func TestMeasuredNameTaken(t *testing.T) {
	needRoot(t)
	_, i, p := lowered{}.create(t)
	ctx := context.Background()
	p.Args = []string{"/bin/sh", "-c", "touch /dev/shm/.sandbox-run-probe; echo; exec cat"}
	first, err := i.Start(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := first.ReadOutput(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	second := *p
	second.Args = []string{"/bin/ls", "/dev/shm/.sandbox-run-probe"}
	task, err := i.Start(ctx, &second)
	if err != nil {
		t.Fatal(err)
	}
	if got := follow(ctx, t, task, ""); got.Exit.Code != 0 {
		t.Errorf("the programs share no /dev/shm: %+v", got)
	}
	allMeasured(t, task)
	follow(ctx, t, first, "")
}
