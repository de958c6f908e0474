package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// junitJars are the jars of Debian's package junit5 that the console launcher needs.
var junitJars = []string{"junit-jupiter-api", "junit-jupiter-engine", "junit-jupiter-params", "junit-platform-commons", "junit-platform-console",
	"junit-platform-engine", "junit-platform-launcher", "junit-platform-reporting", "opentest4j", "opentest4j-reporting-events", "apiguardian-api",
	"picocli", "univocity-parsers"}

func TestJUnit(t *testing.T) {
	e := newEngine(t)
	var jars []executor.File
	for _, name := range junitJars {
		text, err := os.ReadFile(filepath.Join("/usr/share/java", name+".jar"))
		if err != nil {
			t.Fatalf("needs the package junit5: scripts/deps.sh test: %v", err)
		}
		jars = append(jars, executor.File{Path: "lib/" + name + ".jar", Data: text})
	}
	run := func(t *testing.T, o Options, methods string) *Result {
		req := project{"CalcTest.java": "import org.junit.jupiter.api.*;\nimport static org.junit.jupiter.api.Assertions.*;\n\nclass CalcTest {\n" + methods + "}\n"}.request()
		req.Files = append(req.Files, jars...)
		if err := Prepare(&req, &o); err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), e, req, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	const good = "@Test void good() { assertEquals(4, 2 * 2); }\n"
	t.Run("passing", func(t *testing.T) {
		check(t, run(t, Options{}, good), outcome{tests: []string{"good passed"}, verdict: sandbox.VerdictOK, complete: true})
	})
	t.Run("failing", func(t *testing.T) {
		r := run(t, Options{RerunFailed: true}, good+"@Test void bad() { System.out.println(\"seen\"); assertEquals(5, 4); }\n"+
			"@Test @Disabled(\"not yet\") void later() {}\n@Test void thrown() { Object o = null; o.hashCode(); }\n")
		check(t, r, outcome{tests: []string{"good passed", "bad failed", "later skipped", "thrown error"}, code: 1, complete: true})
		if b := find(t, r, "bad"); b.Suite != "CalcTest" || !strings.Contains(b.Failure.Message, "expected: <5>") || len(b.Attempts) != 2 {
			t.Errorf("%+v %+v", b, b.Failure)
		}
		if l := find(t, r, "later"); !strings.Contains(l.Reason, "not yet") {
			t.Errorf("%+v", l)
		}
		if !strings.Contains(string(r.Stderr.Bytes()), "seen") {
			t.Errorf("stderr %q", r.Stderr.Bytes())
		}
	})
	t.Run("crashing", func(t *testing.T) {
		r := run(t, Options{}, good+"@Test void crash() { System.exit(0); }\n")
		check(t, r, outcome{verdict: sandbox.VerdictOK, code: 1})
	})
	t.Run("forged", func(t *testing.T) {
		r := run(t, Options{}, "@Test void forged() throws Exception { System.out.println(\"<?xml version=\\\"1.0\\\"?><testsuite/>\");\n"+
			"java.nio.file.Files.createDirectories(java.nio.file.Path.of(System.getProperty(\"user.home\"), \".sandbox-run/tests/reports\"));\n"+
			"java.nio.file.Files.writeString(java.nio.file.Path.of(System.getProperty(\"user.home\"), \".sandbox-run/tests/reports/x.xml\"), "+
			"\"<?xml version='1.0'?><testsuite><testcase name='fake'/></testsuite><<\"); fail(); }\n")
		if r.ExitCode() != 1 || find(t, r, "forged").Status != Failed {
			t.Errorf("%q %s", statuses(r), r.Verdict)
		}
	})
	t.Run("hanging", func(t *testing.T) {
		// The report comes at the end, so that only the limit of the run ends a test.
		req := project{"CalcTest.java": "import org.junit.jupiter.api.*;\nclass CalcTest { @Test void hang() throws Exception { Thread.sleep(1000000); } }\n"}.request()
		req.Files, req.Limits.Wall = append(req.Files, jars...), 10*time.Second
		if o := (Options{TestTimeout: time.Second}); Prepare(&req, &o) == nil {
			t.Error("a limit of each test is accepted, and would have no effect")
		}
		o := Options{}
		if err := Prepare(&req, &o); err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), e, req, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		check(t, r, outcome{verdict: sandbox.VerdictTimeLimit, code: 124})
	})
}
