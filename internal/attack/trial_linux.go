package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// trial is a running case.
type trial struct {
	*suite
	ctx  context.Context
	id   string
	mark string // in every process of this case

	mu       sync.Mutex
	probes   []Probe
	breaches []string
	known    []string // successful attempts where the backend is known to be open
	faults   []string
	notes    []string
	skipped  string
	others   []string // further marks
	undo     []func()
}

// aborted ends a case that can not continue; its reason is among the faults.
type aborted struct{}

// guard runs a part of a case, and recovers from abort.
func (t *trial) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			if _, ours := p.(aborted); !ours {
				panic(p)
			}
		}
	}()
	f()
}

// together runs parts of a case in parallel, two at a time: more would only wait for each other.
func (t *trial) together(parts ...func()) {
	var all sync.WaitGroup
	room := make(chan struct{}, 2)
	for _, f := range parts {
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			t.guard(f)
		})
	}
	all.Wait()
}

func (t *trial) fault(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, fmt.Sprintf(format, args...))
}

func (t *trial) abort(format string, args ...any) {
	t.fault(format, args...)
	panic(aborted{})
}

func (t *trial) breach(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.breaches = append(t.breaches, fmt.Sprintf(format, args...))
}

// note adds to the sentence of a case that held.
func (t *trial) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.notes, text) {
		t.notes = append(t.notes, text)
	}
}

// judge records an attempt.
func (t *trial) judge(held bool, name, got, control string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Probe{Name: name, Got: got, Control: control, Held: held}
	if !held {
		p.Known = t.open(name, got)
	}
	t.probes = append(t.probes, p)
	if p.Known != "" {
		t.known = append(t.known, name+": "+got+" ("+p.Known+")")
		return
	}
	switch {
	case held:
	case t.ctx.Err() != nil: // an interrupted attempt proves nothing
		t.faults = append(t.faults, name+": "+got+", as the time of the case was over; try again when the machine is less busy")
	default:
		t.breaches = append(t.breaches, name+": "+got)
	}
}

// control records that the same attempt succeeds where it is allowed. If it does not, the case proves nothing.
func (t *trial) control(ok bool, name, got string) {
	if !ok {
		t.fault("control failed: %s: %s; the attempt proves nothing", name, got)
	}
}

// later calls f at the end of the case; the last one first.
func (t *trial) later(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.undo = append(t.undo, f)
}

func (t *trial) cleanUp() {
	for {
		t.mu.Lock()
		n := len(t.undo)
		if n == 0 {
			t.mu.Unlock()
			return
		}
		f := t.undo[n-1]
		t.undo = t.undo[:n-1]
		t.mu.Unlock()
		f()
	}
}

func (t *trial) marks() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{t.mark}, t.others...)
}

// polled reports whether a control is enforced by polling, and so can be exceeded for a moment.
func (t *trial) polled(c sandbox.Control) bool { return t.iso.Controls[c] == sandbox.Polled }

// isolated reports whether the backend has namespaces.
func (t *trial) isolated() bool { return t.iso.Tier.AtLeast(sandbox.TierNamespace) }

// attackerInside is the path of the attacker in sandboxes.
const attackerInside = "/attacker"

func (t *trial) attacker() string {
	if t.isolated() {
		return attackerInside
	}
	return t.o.Executable
}

// spec is the spec of a sandbox in which an attacker can run.
func (t *trial) spec(change ...func(*sandbox.Spec)) sandbox.Spec {
	s := sandbox.Spec{
		Require: t.iso.Tier, Scratch: sandbox.ScratchMemory, Env: map[string]string{hostile.Variable: t.mark},
		Limits: sandbox.Limits{Wall: 20 * time.Second, Grace: 200 * time.Millisecond, Memory: 256 * sandbox.MiB, Disk: 64 * sandbox.MiB,
			Inodes: 16 << 10, Processes: 64, Output: sandbox.MiB},
	}
	if t.isolated() {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: t.o.Executable, Target: attackerInside})
	} else {
		countersOf(s.Env)
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// sandbox makes a sandbox that is deleted at the end of the case.
func (t *trial) sandbox(change ...func(*sandbox.Spec)) string {
	id, err := t.create(t.manager, t.spec(change...))
	if err != nil {
		t.abort("no sandbox: %v", err)
	}
	t.later(func() { t.delete(id) })
	return id
}

func (t *trial) delete(id string) {
	if err := t.manager.Delete(context.WithoutCancel(t.ctx), id); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		t.fault("delete: %v", err)
	}
}

// createTimeout is far beyond what making a sandbox, or refusing it, takes.
const createTimeout = 10 * time.Second

// create makes a sandbox. Its return is part of the attack: opening a planted pipe may block for ever.
func (t *trial) create(m *sandbox.Manager, s sandbox.Spec) (string, error) {
	type made struct {
		id  string
		err error
	}
	done := make(chan made, 1)
	go func() {
		id, err := m.Create(t.ctx, s)
		done <- made{id, err}
	}()
	limit, stop := withProcessorTime(context.WithoutCancel(t.ctx), createTimeout)
	defer stop()
	select {
	case r := <-done:
		return r.id, r.err
	case <-limit.Done():
		t.breach("making a sandbox has not returned within %v", createTimeout)
		go func() {
			if r := <-done; r.err == nil {
				_ = m.Delete(context.WithoutCancel(t.ctx), r.id)
			}
		}()
		return "", errors.New("it hangs")
	}
}

// refused tries to make a sandbox, and returns the error.
func (t *trial) refused(s sandbox.Spec) error {
	id, err := t.create(t.manager, s)
	if err == nil {
		t.delete(id)
	}
	return err
}

// run runs a process to its end.
func (t *trial) run(id string, p sandbox.Process, io sandbox.IO) *sandbox.Result {
	res, err := t.manager.Run(t.ctx, id, p, io)
	if err != nil {
		t.abort("run %s: %v", strings.Join(p.Args[min(3, len(p.Args)-1):], " "), err)
	}
	return res
}

// process is an attacker as a process of a sandbox.
func (t *trial) process(verb string, args ...string) sandbox.Process {
	return sandbox.Process{Args: hostile.Args(t.attacker(), t.mark, verb, args...)}
}

// inside runs an attacker in a sandbox, and returns its answers.
func (t *trial) inside(id, verb string, args ...string) answers {
	res := t.run(id, t.process(verb, args...), sandbox.IO{})
	if !res.Success() {
		t.abort("the attacker %s ended with the verdict %s: %.300q", verb, res.Verdict, res.Stderr.Bytes())
	}
	return hostile.Parse(res.Stdout.Bytes())
}

// hostTimeout is far beyond what an attacker on the host takes.
const hostTimeout = 10 * time.Second

// outside runs an attacker on the host, in a session of its own and an empty directory: the control.
func (t *trial) outside(verb string, args ...string) answers {
	return t.outsideAs(nil, "", verb, args...)
}

func (t *trial) outsideAs(who *syscall.Credential, executable, verb string, args ...string) answers {
	ctx, cancel := withProcessorTime(t.ctx, hostTimeout)
	defer cancel()
	if executable == "" {
		executable = t.o.Executable
	}
	cmd := exec.CommandContext(ctx, executable, hostile.Args("", t.mark, verb, args...)[1:]...)
	cmd.Env = append(countersOf(nil), hostile.Variable+"="+t.mark, "PATH="+os.Getenv("PATH"))
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: who}
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if ctx.Err() != nil {
		t.abort("control: %s: the attacker on the host did not end in time", verb)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.abort("control: %s: %v", verb, err)
	}
	return hostile.Parse(out.Bytes())
}

// countersOf is the directory of the coverage counters of an attacker on the host, in a build that has them.
func countersOf(env map[string]string) []string {
	dir := os.Getenv("GOCOVERDIR")
	if !measured || dir == "" {
		return nil
	}
	if env != nil {
		env["GOCOVERDIR"] = dir
	}
	return []string{"GOCOVERDIR=" + dir}
}

// answers are the answers of an attacker.
type answers []hostile.Answer

// of is the answer to one attempt.
func (a answers) of(name string) hostile.Answer {
	for _, x := range a {
		if x.Name == name {
			return x
		}
	}
	return hostile.Answer{Name: name, Got: "no answer"}
}

// all are the answers of that name.
func (a answers) all(name string) (list []hostile.Answer) {
	for _, x := range a {
		if x.Name == name {
			list = append(list, x)
		}
	}
	return list
}

func (a answers) number(name string) int {
	n := -1
	_, _ = fmt.Sscan(a.of(name).Got, &n)
	return n
}

func say(a hostile.Answer) string {
	if a.Detail == "" {
		return a.Got
	}
	return fmt.Sprintf("%s (%.80q)", a.Got, a.Detail)
}

// dir is a directory of the host that every user may enter, that is in no sandbox, and whose path has no links.
func (t *trial) dir() string {
	dir, lock, err := newDir()
	if err != nil {
		t.abort("make a directory: %v", err)
	}
	t.later(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.fault("remove %s: %v", dir, err)
		}
		_ = unix.Close(lock)
	})
	return dir
}

func (t *trial) file(name, text string, mode os.FileMode) string {
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(text), mode)
	}
	if err == nil {
		err = os.Chmod(name, mode)
	}
	if err != nil {
		t.abort("make a file: %v", err)
	}
	return name
}

func (t *trial) must(err error) {
	if err != nil {
		t.abort("prepare: %v", err)
	}
}

// isRefusal reports that the kernel or the filter refused, and not merely that the arguments are invalid.
func isRefusal(got string) bool {
	return slices.Contains([]string{"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENOPROTOOPT"}, got)
}

// isShut reports that a file can not be opened.
func isShut(got string) bool {
	return slices.Contains([]string{"EPERM", "EACCES", "EROFS", "ENOENT", "ELOOP", "ENOTDIR", "ENXIO", "ENODEV", "EINVAL"}, got)
}
