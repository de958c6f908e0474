package native

import (
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// A program that is open for writing starts as soon as it is closed: a process that is forked while a file is put into a
// sandbox has the file open for a moment.
func TestProgramThatIsBusy(t *testing.T) {
	b := newBackend(t, Options{})
	defer b.Close()
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	id, err := m.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	run := func(phase, command string) *sandbox.Result {
		r, err := m.Run(t.Context(), id, sandbox.Process{Phase: phase, Args: []string{"/bin/sh", "-c", command}}, sandbox.IO{})
		if err != nil {
			t.Error(err)
			return &sandbox.Result{}
		}
		return r
	}
	run("make", "cp /bin/echo /tmp/busy && chmod +x /tmp/busy")
	var held sync.WaitGroup
	held.Go(func() {
		run("hold", "exec 3>>/tmp/busy; >/tmp/held; while ! test -e /tmp/tried; do sleep 0.01; done; sleep 0.2")
	})
	// The control: while the file is open for writing, it can not be started.
	if r := run("wait", "while ! test -e /tmp/held; do sleep 0.01; done; /tmp/busy started; "+
		">/tmp/tried"); !strings.Contains(string(r.Stderr.Bytes()), "busy") {
		t.Errorf("it is not busy: %s%s", r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	r, err := m.Run(t.Context(), id, sandbox.Process{Args: []string{"/tmp/busy", "started"}}, sandbox.IO{})
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Stdout.Bytes()) != "started\n" {
		t.Errorf("%s: %s%s", r.Verdict, r.Stdout.Bytes(), r.Stderr.Bytes())
	}
	held.Wait()
}
