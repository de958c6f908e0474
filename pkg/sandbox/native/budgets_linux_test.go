package native

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The kernel has budgets that the whole machine shares. The part that a program can take must be bounded, or zero (R6).
// Each of these was once a way to harm the host from inside.

// inProbed runs the probe program in a sandbox of its own and returns the result.
func inProbed(t *testing.T, spec sandbox.Spec, onEvent func(sandbox.Event), args ...string) *sandbox.Result {
	t.Helper()
	b := newBackend(t, Options{})
	defer b.Close()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	probe := conformance.Probe(t)
	spec.Volumes = []sandbox.Volume{{Source: filepath.Dir(probe), Target: "/probe"}}
	id, err := m.Create(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	res, err := m.Run(context.Background(), id, sandbox.Process{Args: append([]string{"/probe/" + filepath.Base(probe)}, args...)},
		sandbox.IO{OnEvent: onEvent})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// onHost is the positive control: the same probe program, outside.
func onHost(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(conformance.Probe(t), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Freeing thousands of filters at once deadlocks a kernel's workers.
func TestR6NoFiltersAndNoKernelAIO(t *testing.T) {
	needRoot(t)
	if got, want := onHost(t, "filters"), "socket ok\nprctl ok\naio ok\n"; got != want {
		t.Fatalf("control: %q, want %q", got, want)
	}
	res := inProbed(t, sandbox.Spec{}, nil, "filters")
	if got, want := string(res.Stdout.Bytes()), "socket errno 92\nprctl EINVAL\naio ENOSYS\n"; got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
}

// Instances are counted against the owner of the user namespace as well.
func TestR6InotifyInstancesAreTheSandboxsOwn(t *testing.T) {
	needRoot(t)
	made := 0
	res := inProbed(t, sandbox.Spec{}, func(ev sandbox.Event) {
		if ev.Kind != sandbox.EventStdout || made > 0 {
			return
		}
		made, _ = strconv.Atoi(strings.Fields(string(ev.Data))[0])
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			t.Errorf("the host has no inotify instance left: %v", err)
			return
		}
		_ = unix.Close(fd)
	}, "watchers", "100000", "500ms")
	if !res.Success() || made < 16 {
		t.Errorf("verdict %s, %d instances: the probe did not use any up", res.Verdict, made)
	}
}

// cgroup v1 counts the buffers of TCP sockets apart from memory.
func TestR4TCPBuffersAreBounded(t *testing.T) {
	needRoot(t)
	queued := func(out string) int {
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatalf("said %q", out)
		}
		return n
	}
	if n := queued(onHost(t, "queue", "96")); n < 64 {
		t.Fatalf("control: only %d MiB could be queued on the host", n)
	}
	res := inProbed(t, sandbox.Spec{Network: sandbox.NetworkLocalhost,
		Limits: sandbox.Limits{Memory: 32 * sandbox.MiB, Wall: time.Minute}}, nil, "queue", "300")
	switch res.Verdict {
	case sandbox.VerdictMemoryLimit: // v2 counts them as memory
	case sandbox.VerdictOK:
		if n := queued(string(res.Stdout.Bytes())); n >= 64 {
			t.Errorf("%d MiB were queued with a memory limit of 32", n)
		}
	default:
		t.Errorf("verdict %s: %s", res.Verdict, res.Stderr.Bytes())
	}
}
