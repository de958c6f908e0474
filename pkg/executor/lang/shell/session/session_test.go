//go:build unix

package session

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol/drivertest"
)

// start starts the driver in the bash of the machine.
func start(t *testing.T) *drivertest.Driver {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	file := filepath.Join(t.TempDir(), "driver.sh")
	if err := os.WriteFile(file, driver, 0o644); err != nil {
		t.Fatal(err)
	}
	d, ready := drivertest.Start(t, []string{"LC_ALL=C.UTF-8"}, "sh", "-c", `trap : INT; "$@"; echo "status $?" >&2`, "sh", bash, file)
	if ready.Protocol != protocol.Version || ready.Language != "shell" || ready.Version == "" {
		t.Errorf("%+v", ready)
	}
	return d
}

// session is a driver whose output is compared cell by cell.
type session struct {
	*testing.T
	*drivertest.Driver
	seen int // bytes of standard output
}

func newSession(t *testing.T) *session {
	t.Helper()
	return &session{T: t, Driver: start(t)}
}

// prints waits until the cells have printed a text since the last call, and nothing else.
func (s *session) prints(want string) {
	s.Helper()
	const mark = "the end of this output\n"
	if c := s.Execute("builtin echo '" + strings.TrimSpace(mark) + "'"); !c.OK {
		s.Fatalf("%+v", c)
	}
	deadline := time.Now().Add(time.Minute)
	for !strings.HasSuffix(s.Stdout()[s.seen:], mark) {
		if time.Now().After(deadline) {
			s.Fatal("no end")
		}
		time.Sleep(time.Millisecond)
	}
	got := strings.TrimSuffix(s.Stdout()[s.seen:], mark)
	if got != want {
		s.Errorf("printed %q instead of %q", got, want)
	}
	s.seen = len(s.Stdout())
}

// shows runs a cell that must succeed and print a text.
func (s *session) shows(code, want string, lines ...string) {
	s.Helper()
	if c := s.Execute(code, lines...); !c.OK || c.Status != 0 {
		s.Errorf("%q: %+v %+v\n%s", code, c.Done, c.Error, s.Stderr())
	}
	s.prints(want)
}

// fails runs a cell that must fail with a status, after it has printed a text.
func (s *session) fails(code string, status int, want string) drivertest.Cell {
	s.Helper()
	c := s.Execute(code)
	if c.OK || c.Status != status || c.Error == nil || c.Interrupted {
		s.Errorf("%q: %+v %+v", code, c.Done, c.Error)
	}
	s.prints(want)
	return c
}

func TestState(t *testing.T) {
	s := newSession(t)
	s.shows("x=1; declare -a list=(1 'b c'); declare -A map=([k]=v); f() { echo \"f $1 $x\"; }; alias hi='echo hello'", "")
	s.shows("f a; echo ${#list[@]} ${list[1]} ${map[k]}; hi", "f a 1\n2 b c v\nhello\n")
	s.shows("mkdir d; cd d; shopt -s extglob nullglob; set -- one 'two three'; exec 5>file; umask 077; OPTIND=4", "")
	s.shows("echo ${PWD##*/} $# \"$2\" +(x)* $(umask) $OPTIND; echo text >&5; cat file", "d 2 two three 0077 4\ntext\n")
	s.fails("(exit 3)", 3, "")
	if c := s.Execute("builtin return 4"); c.OK { // prints: can only return from a function
		t.Errorf("%+v", c)
	}
	s.shows("sleep 0.01 & echo ${!:+pid}; wait $!; echo $?", "pid\n0\n")
	s.shows("[[ $BASHPID == $$ ]] && echo main", "main\n")
	s.shows("set -x", "")
	s.shows("echo quiet", "quiet\n")
	s.shows("set +x; set -u", "")
	s.shows("set +u; trap 'echo usr' USR1; kill -USR1 $$; trap - USR1", "usr\n")
	if strings.Contains(s.Stderr(), "__sandbox_") {
		t.Errorf("the driver is traced: %s", s.Stderr())
	}
}

// TestStatus: $? is that of the cell before. prints would change it.
func TestStatus(t *testing.T) {
	s := newSession(t)
	if c := s.Execute("(exit 42)"); c.OK || c.Status != 42 {
		t.Errorf("%+v", c)
	}
	s.shows("echo $?", "42\n")
}

// TestErrors: whatever ends a script ends the cell, and not the session.
func TestErrors(t *testing.T) {
	s := newSession(t)
	s.shows("x=1; list=(a 'b c'); f() { local x=2; false; echo no; }; alias hi='echo hello'; exec 5>file; readonly r=3", "")
	s.shows("declare -A map=([k]=v); trap 'echo usr' USR1; set -- p 'q r'; umask 077; shopt -s extglob; export e=5", "")
	c := s.fails("echo a\nfi\necho b", 2, "a\n")
	if c.Error.Name != "syntax error" || c.Error.Line != 2 || !strings.Contains(c.Error.Message, "`fi'") {
		t.Errorf("%+v", c.Error)
	}
	s.fails("if [", 2, "")
	s.fails("set -e; f; echo no", 1, "")
	s.shows("set +e; echo $x \"${list[1]}\" $- $r ${map[k]} $1 \"$2\" $(umask) $e; hi; kill -USR1 $$; echo text >&5; cat file",
		"1 b c hiBs 3 v p q r 0077 5\nhello\nusr\ntext\n")
	s.fails("set -euo pipefail; trap 'echo bye' EXIT; echo $nope; echo no", 1, "")
	s.shows("set +euo pipefail; echo $x; false | true", "1\n")
	s.fails("f() { set -e; return 6; }; f", 6, "")
	s.shows("set +e; (set -e; false; echo no); echo $?", "1\n")
	s.fails("command_that_does_not_exist", 127, "")
	s.fails("echo a\x00b", 1, "")
	s.shows("exec nothing_to_execute || echo survived", "survived\n")
	c = s.Execute("trap 'echo \"left with $?\"' EXIT")
	if !c.OK {
		t.Errorf("%+v", c)
	}
	s.Send("echo out; exit 7")
	s.Printed("left with 7\n")
	s.Printed("status 7\n")
}

// interrupt runs a cell, in which BEGUN is a command that is executed last before the cell waits, and interrupts it then. Bash may lose a
// signal that arrives while it starts a process; a further one follows.
func (s *session) interrupt(code string) {
	s.Helper()
	marker := filepath.Join(s.TempDir(), "begun")
	id := s.Send(strings.ReplaceAll(code, "BEGUN", ": >"+marker) + "\necho never")
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			s.Driver.Interrupt()
			select {
			case <-ended:
				return
			case <-time.After(time.Second):
			}
		}
	}()
	c := s.Finish(id)
	close(ended)
	<-stopped
	if c.OK || !c.Interrupted || c.Error == nil || c.Status != 130 {
		s.Errorf("%q: %+v %+v", code, c.Done, c.Error)
	}
}

func TestInterrupt(t *testing.T) {
	s := newSession(t)
	s.shows("x=1; sleeps() { sh -c \"$1; exec sleep 1000\"; }", "")
	for _, code := range []string{
		"BEGUN; while :; do :; done", "sleeps 'BEGUN'", "f() { BEGUN; while :; do :; done; }; f",
		"f() { BEGUN; while :; do :; done; }; eval 'eval f'",
		"sleep 1000 & BEGUN; wait", "y=$(sleeps 'BEGUN')", "(sleeps 'BEGUN')",
	} {
		s.interrupt(code)
		s.Driver.Interrupt()
		var got protocol.Checked
		s.Ask(protocol.KindCheck, "x", &got) // the interrupt was meant for no cell
		s.shows("echo $x", "1\n")
	}
	s.shows("trap 'echo trapped' INT; kill -INT $$; echo after", "trapped\nafter\n")
	s.shows("trap -p INT; trap - INT", "trap -- 'echo trapped' SIGINT\n")
}

func TestInput(t *testing.T) {
	s := newSession(t)
	s.shows("read -p 'name? ' a b; echo \"$a-$b\"", "one-two three\n", "one two three")
	s.shows("read -r x <<<here; echo $x; echo pipe | { read y; echo $y; }", "here\npipe\n")
	s.shows("read -n1 c; read rest; echo $c $rest; read || echo end", "a bc\nend\n", "abc")
	s.shows("read -ra words; echo ${#words[@]} ${words[2]}; IFS=, read u v; echo $v", "3 z\nw\n", "x y z", "v,w")
	s.shows("cat; echo none", "none\n")
	s.shows("while read -r l; do echo \"<$l>\"; done", "<1>\n<2>\n", "1", "2")
	id := s.Send("read z")
	if f, err := s.Read(); err != nil || f.Kind != protocol.KindInput {
		t.Fatalf("%+v %v", f, err)
	}
	s.Driver.Interrupt()
	if c := s.Finish(id); !c.Interrupted {
		t.Errorf("%+v", c)
	}
	if err := s.Write(protocol.KindInput, id, "late"); err != nil {
		t.Fatal(err)
	}
	s.shows("echo \"<$z>\"", "<>\n")
}

// TestDescriptors: commands do not inherit the driver's descriptors, and what a cell closes is its own loss.
func TestDescriptors(t *testing.T) {
	s := newSession(t)
	s.shows("bash -c 'for i in {50..80}; do [[ -e /dev/fd/$i ]] && echo $i; done; :'", "")
	s.shows("exec 3<&- 4>&- 7>file; echo 7 >&7; cat file", "7\n")
	if c := s.Execute("exec 1>&- 2>&-"); !c.OK {
		t.Errorf("%+v", c)
	}
	if c := s.Execute("x=1"); !c.OK {
		t.Errorf("%+v", c)
	}
	s.Send("exec 63>&-")
	if f, err := s.Read(); err == nil {
		t.Errorf("%+v", f)
	}
}

func TestQuestions(t *testing.T) {
	s := newSession(t)
	for code, want := range map[string]string{
		"": "complete", "echo": "complete", "if x": "incomplete", "if x; then y; fi": "complete", "fi": "invalid", "cat <<E\nx": "incomplete",
		"a \\": "incomplete", "echo 'a": "incomplete", "f() {": "incomplete", "echo )": "invalid", "a |": "incomplete", "# \u00e9": "complete",
	} {
		var got protocol.Checked
		s.Ask(protocol.KindCheck, code, &got)
		if got.Status != want {
			t.Errorf("%q is %s instead of %s", code, got.Status, want)
		}
	}
	s.shows("number=5; body=mine; declare -a list=(1); declare -A map=([k]=v); f() { :; }; : >'a file'; mkdir folder", "")
	for code, want := range map[string]protocol.Completed{
		"echo $num":        {Matches: []string{"$number"}, Start: 5, End: 9},
		"x=1; shop":        {Matches: []string{"shopt"}, Start: 5, End: 9},
		"cat a":            {Matches: []string{"a\\ file"}, Start: 4, End: 5},
		"ls fol":           {Matches: []string{"folder/"}, Start: 3, End: 6},
		"echo \u00e9 $lis": {Matches: []string{"$list"}, Start: 8, End: 12},
		"echo none_":       {Matches: []string{}, Start: 5, End: 10},
	} {
		var got protocol.Completed
		s.Ask(protocol.KindComplete, code, &got, strconv.Itoa(len(code)))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v instead of %+v", code, got, want)
		}
	}
	for name, want := range map[string]string{
		"number": `declare -- number="5"`, "$body": `declare -- body="mine"`, "cd": "cd is a shell builtin", "f": "f is a function",
		"no_such_name": "",
	} {
		var got protocol.Inspected
		s.Ask(protocol.KindInspect, name, &got)
		if got.Found != (want != "") || !strings.HasPrefix(got.Text, want) {
			t.Errorf("%q: %+v", name, got)
		}
	}
	var got protocol.Variables
	s.Ask(protocol.KindVariables, "", &got)
	want := []protocol.Variable{
		{Name: "body", Type: "string", Value: `"mine"`}, {Name: "list", Type: "array", Value: `([0]="1")`},
		{Name: "map", Type: "map", Value: `([k]="v" )`}, {Name: "number", Type: "string", Value: `"5"`},
	}
	if !reflect.DeepEqual(got.Variables, want) || got.Truncated {
		t.Errorf("%+v", got)
	}
}

// TestFork: a fork has the state, and its changes are its own.
func TestFork(t *testing.T) {
	s := newSession(t)
	s.shows("x=1; list=(a 'b c'); f() { echo f$x; }; alias hi='echo hello'; body=mine; set -- p q", "")
	s.shows("trap 'echo usr' USR1; set -o pipefail; IFS=,", "")
	dir := t.TempDir()
	pipes := map[string]*os.File{}
	for _, name := range []string{"stdin", "stdout", "stderr", "to_driver", "from_driver"} {
		path := filepath.Join(dir, name)
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		_ = f.SetReadDeadline(time.Now().Add(time.Minute))
		pipes[name] = f
	}
	var forked protocol.Forked
	s.Ask(protocol.KindFork, dir, &forked)
	if forked.PID <= 0 {
		t.Fatalf("%+v", forked)
	}
	defer syscall.Kill(forked.PID, syscall.SIGKILL)
	c := protocol.NewConn(struct {
		io.Reader
		io.Writer
	}{pipes["from_driver"], pipes["to_driver"]})
	if f, err := c.Read(); err != nil || f.Kind != protocol.KindReady {
		t.Fatalf("%+v %v", f, err)
	}
	stdout := bufio.NewReader(pipes["stdout"])
	execute := func(id uint64, code, want string, status int) {
		t.Helper()
		if err := c.Write(protocol.KindExecute, id, code); err != nil {
			t.Fatal(err)
		}
		f, err := c.Read()
		var done protocol.Done
		if err != nil || f.Kind != protocol.KindDone || f.ID != id || f.Decode(&done) != nil || done.Status != status {
			t.Fatalf("%+v %+v %v", f, done, err)
		}
		if want == "" {
			return
		}
		if line, err := stdout.ReadString('\n'); err != nil || line != want+"\n" {
			t.Errorf("%q: %q instead of %q, %v", code, line, want, err)
		}
	}
	execute(1, `echo "$x ${list[1]} $body $1 $2 $IFS $(f) $(hi)"; x=2`, "1 b c mine p q , f1 hello", 0)
	execute(2, "set -e; false | true", "", 1)
	execute(3, "set +e; kill -USR1 $BASHPID; f", "usr", 0)
	execute(4, "sleep 0 & wait; echo", "f2", 0)
	s.shows(`echo $x`, "1\n")
	if err := c.Write(protocol.KindClose, 0, ""); err != nil {
		t.Fatal(err)
	}
}
