package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// cancels runs a cell that prints something and then does not end by itself, and interrupts it: the session must survive that. An interrupt
// may be lost while a process starts; a further one follows.
func (t tester) cancels(code string) {
	t.Helper()
	begun, ended, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-begun:
		case <-ended:
		}
		for {
			if err := t.Interrupt(); err != nil {
				t.Error(err)
			}
			select {
			case <-ended:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	first := sync.OnceFunc(func() { close(begun) })
	r := t.cell(Cell{Code: code, OnEvent: func(e sandbox.Event) {
		if e.Kind == sandbox.EventStdout {
			first()
		}
	}})
	close(ended)
	<-stopped
	if r.Verdict != sandbox.VerdictCancelled || !r.Interrupted || r.State != StateIdle {
		t.Errorf("%.80q: %s, then %s; stderr %.300q", code, r.Verdict, r.State, r.Stderr.Bytes())
	}
}

// pace logs the mean time of 200 cells.
func (t tester) pace(code, want string) {
	t.Helper()
	began := time.Now()
	for range 200 {
		t.shows(code, want)
	}
	t.Logf("%v a cell: %s", time.Since(began)/200, code)
}

func TestShellSession(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("shell"))
	s.shows("x=40; f() { echo $((x + $1)); }; cd /tmp; list=(a 'b c')", "")
	s.shows("f 2; pwd; echo ${#list[@]}", "42\n/tmp\n2")
	if r := s.do("echo out; (exit 3)"); r.Verdict != sandbox.VerdictNonzeroExit || r.Exit.Code != 3 || shown(r) != "out" {
		t.Errorf("%s %+v %q", r.Verdict, r.Exit, shown(r))
	}
	s.shows("echo $?", "3")
	s.cancels("echo begun; while :; do :; done")
	s.cancels("sh -c 'echo begun; exec sleep 1000'")
	if r := s.do("set -e; false; echo no"); r.Verdict != sandbox.VerdictNonzeroExit || r.State != StateIdle || shown(r) != "" {
		t.Errorf("%s %s %q", r.Verdict, r.State, shown(r))
	}
	s.shows("set +e; echo $x ${list[1]}", "40 b c")
	line := func(_ context.Context, q protocol.Input) (string, bool) { return "answer to " + q.Prompt, true }
	if r := s.cell(Cell{Code: "read -p 'name' -r a; echo \"$a\"; cat", Input: line}); shown(r) != "answer to name" {
		t.Errorf("%s %q %q", r.Verdict, shown(r), r.Stderr.Bytes())
	}
	v, err := s.Variables(t.Context())
	if err != nil || len(v.Variables) < 2 {
		t.Errorf("%+v %v", v, err)
	}
	s.pace("echo 2", "2")
	r := s.do("echo bye; exit 7")
	if r.Exit.Code != 7 || r.State != StateEnded || !strings.Contains(r.Cause, "exit code 7") || shown(r) != "bye" {
		t.Errorf("%s %+v %s %q", r.Verdict, r.Exit, r.Cause, shown(r))
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.shows("echo ${x-none}", "none")
}

// TestShellSessionCommands: a session has the restricted mode of runs, and refuses other shells than bash.
func TestShellSessionCommands(t *testing.T) {
	m := newManager(t, Options{})
	req := in("shell")
	req.Options.Commands = []string{"ls"}
	s := create(t, m, req)
	s.shows("ls -d /workspace; x=$(ls -d /); echo $x", "/workspace\n/")
	if r := s.do("/bin/cat /etc/passwd"); r.Exit.Code != 127 || shown(r) != "" {
		t.Errorf("%s %+v %q", r.Verdict, r.Exit, shown(r))
	}
	if _, err := m.Create(t.Context(), in("sh")); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}
