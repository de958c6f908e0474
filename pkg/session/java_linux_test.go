package session

import (
	"os/exec"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestJavaSession(t *testing.T) {
	if _, err := exec.LookPath("jshell"); err != nil {
		t.Skip("needs a JDK with jdk.jshell")
	}
	m := newManager(t, Options{})
	create(t, m, in("java")).Close() // the driver is prepared once
	began := time.Now()
	s := create(t, m, in("java"))
	t.Logf("started in %v", time.Since(began))
	s.shows("Class.forName(\"run.sandbox.session.Driver\").getSimpleName()", `"Driver"`) // prepared, and not compiled at the start
	s.shows("int x = 40;", "")
	s.shows("System.out.println(\"a\"); x + 2", "a\n42")
	r := s.do("int zero = 0;\n1 / zero")
	if r.Verdict != sandbox.VerdictNonzeroExit || r.Error == nil || r.Error.Name != "java.lang.ArithmeticException" || r.Error.Line != 2 {
		t.Errorf("%s %+v %s", r.Verdict, r.Error, r.Stderr.Bytes())
	}
	const cells = 100
	before := s.Info().Usage
	began = time.Now()
	for range cells {
		s.shows("1+1", "2")
	}
	perCell := time.Since(began) / cells
	after := s.Info().Usage
	t.Logf("%v a cell, of which %v of processors", perCell, (after.CPUUser+after.CPUSystem-before.CPUUser-before.CPUSystem)/cells)
	r = s.cell(Cell{Code: "while (true);", Limits: sandbox.Limits{Wall: 300 * time.Millisecond}})
	if r.Verdict != sandbox.VerdictTimeLimit || r.State != StateIdle {
		t.Errorf("%s %s", r.Verdict, r.State)
	}
	r = s.do("var kept = new ArrayList<byte[]>();\nwhile (true) kept.add(new byte[1 << 20]);")
	if r.Verdict != sandbox.VerdictMemoryLimit || r.State != StateIdle {
		t.Errorf("%s %s %s", r.Verdict, r.State, r.Stderr.Bytes())
	}
	s.shows("kept = null; x", "40")
	t.Logf("%+v", s.Info().Usage)
	if r = s.do("System.exit(7)"); r.Exit.Code != 7 || r.State != StateEnded {
		t.Errorf("%s %+v %s", r.Verdict, r.Exit, r.State)
	}
}
