//go:build unix

package session

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol/drivertest"
)

// machines are the JDKs on this machine that have the driver's parts.
func machines(t *testing.T) []string {
	t.Helper()
	testenv.NeedSystem(t)
	list := []string{"java"}
	if testenv.All() {
		more, _ := filepath.Glob("/usr/lib/jvm/*-jdk-*/bin/java")
		list = append(list, more...)
	}
	return list
}

// start starts the driver below a shell that prints its exit status.
func start(t *testing.T, java string) (*drivertest.Driver, protocol.Ready) {
	t.Helper()
	if out, err := exec.Command(java, "--describe-module", "jdk.jshell").CombinedOutput(); err != nil {
		t.Skipf("needs a JDK with jdk.jshell: %v %s", err, out)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "JavaSession.java")
	if err := os.WriteFile(file, Source(), 0o644); err != nil {
		t.Fatal(err)
	}
	const shell = `trap : INT; "$@"; echo "status $?" >&2`
	return drivertest.Start(t, nil, "sh", "-c", shell, "sh", java, "-XX:+UseSerialGC", "-Xmx192m", "-XX:MaxJavaStackTraceDepth=9",
		"-Dfile.encoding=UTF-8", "-cp", dir, file, dir)
}

// ok runs a cell that must succeed, and returns the text of its result.
func ok(t *testing.T, d *drivertest.Driver, code string, lines ...string) string {
	t.Helper()
	c := d.Execute(code, lines...)
	if !c.OK {
		t.Fatalf("%q: %+v\n%s", code, c.Error, d.Stderr())
	}
	return c.Result()
}

// expect runs a cell that must succeed with a result.
func expect(t *testing.T, d *drivertest.Driver, code, result string, lines ...string) {
	t.Helper()
	if got := ok(t, d, code, lines...); got != result {
		t.Errorf("%q: %q instead of %q", code, got, result)
	}
}

// fails runs a cell that must fail with an error of a kind in a line.
func fails(t *testing.T, d *drivertest.Driver, code, kind string, line int) drivertest.Cell {
	t.Helper()
	c := d.Execute(code)
	if c.OK || c.Error == nil || c.Error.Name != kind || c.Error.Line != line || c.Status != 1 {
		t.Errorf("%q: %+v %+v instead of %s in line %d", code, c.Done, c.Error, kind, line)
	}
	return c
}

// TestMachines runs the cells in every JDK of the machine.
func TestMachines(t *testing.T) {
	for _, java := range machines(t) {
		t.Run(java, func(t *testing.T) {
			d, ready := start(t, java)
			if ready.Protocol != protocol.Version || ready.Language != "java" || ready.Version == "" {
				t.Errorf("%+v", ready)
			}
			state(t, d)
			failures(t, d)
			streams(t, d)
			interrupts(t, d)
			questions(t, d)
			d.Execute("new Thread(() -> { while (true); }).start()") // threads do not keep the driver
			if err := d.Write(protocol.KindClose, 0, ""); err != nil {
				t.Fatal(err)
			}
			d.Printed("status 0\n")
		})
	}
}

func state(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	expect(t, d, "int a = 20;\nint f() { return a + 1; }", "")
	expect(t, d, "f() * 2", "42")
	expect(t, d, "$1 + 1", "43")
	expect(t, d, "String a = \"späť \\\"\\n\"", "")
	expect(t, d, "a", `"späť \"\n"`)
	expect(t, d, "a = \"b\";", `"b"`)
	expect(t, d, "int f() { return 7; }\nf()", "7")
	expect(t, d, "List.of(1, 2).stream().map(n -> n * 2).collect(Collectors.toList())", "[2, 4]")
	expect(t, d, "new int[]{1, 2}", "int[2] { 1, 2 }")
	expect(t, d, "(Object) null", "null")
	expect(t, d, "'x'", "'x'")
	expect(t, d, "for (int i = 0; i < 2; i++) System.out.println(\"line \" + i);", "")
	d.Printed("line 0\nline 1\n")
	expect(t, d, "import java.time.*;\n// a comment\nrecord P(int x) {\n  int twice() { return 2 * x; }\n}\nvar p = new P(4);\np.twice()", "8")
	expect(t, d, "int even(int n) { return n == 0 ? 1 : odd(n - 1); }\nint odd(int n) { return n == 0 ? 0 : even(n - 1); }\neven(4)", "1")
	expect(t, d, "", "")
	expect(t, d, "// nothing", "")
	expect(t, d, "System.getProperty(\"user.dir\").isEmpty()\r\n", "false")
}

func failures(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	ok(t, d, "int g(int n) {\n  if (n == 0)\n    throw new IllegalStateException(\"deep\");\n  return g(n - 1);\n}")
	c := fails(t, d, "int z = 1;\n\n  g(2);", "java.lang.IllegalStateException", 3)
	if c.Error.Message != "deep" {
		t.Errorf("%+v", c.Error)
	}
	d.Printed("Exception in thread \"main\" java.lang.IllegalStateException: deep\n")
	said := d.Stderr()
	if !strings.Contains(said, ">:3)\n\tat cell.g(<cell ") || strings.Contains(said, "Execution") || strings.Contains(said, "REPL") {
		t.Errorf("%s", said)
	}
	ok(t, d, "class Mine extends Exception {\n  Mine(String m, Throwable c) { super(m, c); }\n}")
	fails(t, d, "try { g(0); }\ncatch (Exception e) {\n  throw new Mine(\"more\", e);\n}", "Mine", 3)
	d.Printed("\" Mine: more\n")
	d.Printed("Caused by: java.lang.IllegalStateException: deep\n")
	fails(t, d, "int q = 5;\nint r = \"a\";\n", "CompileError", 2)
	d.Printed(">:2: error: incompatible types: java.lang.String cannot be converted to int\nint r = \"a\";\n        ^")
	expect(t, d, "q", "5")
	fails(t, d, "q = 6;\n1 + + ;", "CompileError", 2)
	expect(t, d, "q", "5") // nothing of a cell runs that can not be parsed
	fails(t, d, "q = 6;\nclass B {", "CompileError", 2)
	fails(t, d, "missing + 1", "CompileError", 1)
	d.Printed("symbol:   variable missing\n")
	fails(t, d, "\nvoid h() { later(); }\nh()", "CompileError", 3)
	ok(t, d, "void later() {}\nh()")
	fails(t, d, "new Object() { public String toString() { throw new UnsupportedOperationException(); } }",
		"java.lang.UnsupportedOperationException", 1)
	fails(t, d, "int deep(int n) { return deep(n + 1); }\ndeep(0)", "java.lang.StackOverflowError", 1)
	c = fails(t, d, "var kept = new ArrayList<byte[]>();\nwhile (true) kept.add(new byte[1 << 20]);", "java.lang.OutOfMemoryError", 2)
	if c.Error.Message != "Java heap space" {
		t.Errorf("%+v", c.Error)
	}
	d.Printed("Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n")
	expect(t, d, "kept = null", "null")
	expect(t, d, "new byte[60 << 20].length", "62914560")
}

func streams(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	expect(t, d, "var in = new Scanner(System.in);\nin.nextLine() + in.nextInt()", `"one2"`, "one", "2")
	expect(t, d, "in = new Scanner(System.in);\nin.hasNextLine()", "false")
	ok(t, d, "System.out.close(); System.err.close();")
	ok(t, d, "System.out.println(\"open again\"); System.err.println(\"and this\");")
	d.Printed("open again\n")
	d.Printed("and this\n")
	// A program that inherits the streams does not get the session's socket.
	ok(t, d, "int left = new ProcessBuilder(\"sh\", \"-c\", \"ls -l /proc/self/fd; cat; echo after\").inheritIO().start().waitFor()")
	d.Printed("after\n")
	if strings.Contains(d.Stdout(), "socket:") {
		t.Errorf("a program has the socket:\n%s", d.Stdout())
	}
	expect(t, d, "\"x\".repeat(3 << 20).length()", "3145728")
	if got := ok(t, d, "\"x\".repeat(3 << 20)"); len(got) < 1<<20 || len(got) > 2<<20 {
		t.Errorf("a text of %d bytes", len(got))
	}
}

func interrupts(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	ok(t, d, "int kept = 5;\nString marker;\nvoid begin() { try { new File(marker).createNewFile(); } catch (IOException e) { } }")
	interrupt(t, d, "for (begin(); ; );", 1)
	interrupt(t, d, "int n = 0;\nfor (begin(); ; n++) {\n  try { Thread.sleep(1); } catch (Exception e) { }\n}", 3)
	interrupt(t, d, "{\n  begin();\n  Thread.sleep(1000000);\n}", 3)
	interrupt(t, d, "int spin(int n) {\n  begin();\n  while (true) n++;\n}\nspin(1)", 3)
	interrupt(t, d, "new Object() {\n  public String toString() {\n    begin();\n    while (true);\n  }\n}", 4)
	d.Interrupt() // ignored, unless it is late and meets the next cell
	c := d.Execute("kept")
	for c.Interrupted {
		c = d.Execute("kept")
	}
	if c.Result() != "5" {
		t.Errorf("%+v", c)
	}
	id := d.Send("new Scanner(System.in).nextLine()")
	f, err := d.Read()
	if err != nil || f.Kind != protocol.KindInput {
		t.Fatalf("%+v %v", f, err)
	}
	d.Interrupt()
	if c := d.Finish(id); c.OK || !c.Interrupted {
		t.Errorf("%+v %+v", c.Done, c.Error)
	}
	expect(t, d, "kept", "5")
}

// interrupt runs a cell that calls begin, and interrupts it then, in a line.
func interrupt(t *testing.T, d *drivertest.Driver, code string, line int) {
	t.Helper()
	marker := filepath.Join(t.TempDir(), "begun")
	ok(t, d, "marker = \""+marker+"\";")
	id := d.Send(code)
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	d.Interrupt()
	c := d.Finish(id)
	if c.OK || !c.Interrupted || c.Error == nil || c.Error.Name != "java.lang.InterruptedException" {
		t.Errorf("%q: %+v %+v", code, c.Done, c.Error)
	} else if c.Error.Line > line || c.Error.Line < line-1 { // it may still be in begin
		t.Errorf("%q: line %d", code, c.Error.Line)
	}
}

func questions(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	for code, want := range map[string]protocol.Checked{
		"1": {Status: "complete"}, "int x = 1;\nx": {Status: "complete"}, "class A {": {Status: "incomplete", Indent: "    "},
		"f(1,": {Status: "incomplete"}, "1 +": {Status: "incomplete"}, "/* a": {Status: "incomplete"}, "1 + + ;": {Status: "invalid"},
		"": {Status: "complete"}, "void f() {\n  g(": {Status: "incomplete", Indent: "  "}, "if (true) f()": {Status: "complete"},
		"for (;;) {\n    x();\n}": {Status: "complete"}, "// a": {Status: "complete"},
	} {
		var got protocol.Checked
		d.Ask(protocol.KindCheck, code, &got)
		if got != want {
			t.Errorf("check %q: %+v instead of %+v", code, got, want)
		}
	}
	ok(t, d, "int číslo = 4;")
	var completed protocol.Completed
	const code = "/* ü */ int y = 1; číslo + Math.ma"
	d.Ask(protocol.KindComplete, code, &completed, "37")
	if len(code) != 37 || strings.Join(completed.Matches, " ") != "max(" || completed.Start != 35 || completed.End != 37 {
		t.Errorf("%d %+v", len(code), completed)
	}
	d.Ask(protocol.KindComplete, "čís", &completed, "5")
	if strings.Join(completed.Matches, " ") != "číslo" || completed.Start != 0 || completed.End != 5 {
		t.Errorf("%+v", completed)
	}
	for code, want := range map[string]string{
		"číslo": "int číslo = 4", "Math.max": "int Math.max(int a, int b)", "String": "java.lang.String", "even": "odd(n - 1)",
		"1 + 1L": "long",
	} {
		var got protocol.Inspected
		if d.Ask(protocol.KindInspect, code, &got); !got.Found || !strings.Contains(got.Text, want) {
			t.Errorf("inspect %q: %+v instead of %q", code, got, want)
		}
	}
	var got protocol.Inspected
	if d.Ask(protocol.KindInspect, "nothing", &got); got.Found {
		t.Errorf("%+v", got)
	}
	var vars protocol.Variables
	d.Ask(protocol.KindVariables, "", &vars)
	found := false
	for _, v := range vars.Variables {
		found = found || v == protocol.Variable{Name: "číslo", Type: "int", Value: "4"}
		if strings.HasPrefix(v.Name, "$") {
			t.Errorf("%+v", v)
		}
	}
	if !found {
		t.Errorf("%+v", vars)
	}
	packages(t, d)
}

// packages adds a directory with a class, and one with a jar.
func packages(t *testing.T, d *drivertest.Driver) {
	t.Helper()
	dir := t.TempDir()
	ok(t, d, `void make(String dir, String name) throws Exception {
  var source = Path.of(dir, name + ".java");
  Files.writeString(source, "package pack; public class " + name + " { public static int n() { return 6; } }");
  javax.tools.ToolProvider.getSystemJavaCompiler().run(null, null, null, "-d", dir, source.toString());
}`)
	ok(t, d, "make(\""+dir+"\", \"Loose\")")
	var none struct{}
	d.Ask(protocol.KindPackages, dir, &none)
	expect(t, d, "pack.Loose.n()", "6")
	jars := t.TempDir()
	ok(t, d, "make(\""+jars+"\", \"Packed\");\nvar tool = java.util.spi.ToolProvider.findFirst(\"jar\").get();\n"+
		"tool.run(System.out, System.err, \"cf\", \""+jars+"/a.jar\", \"-C\", \""+jars+"\", \"pack\")")
	d.Ask(protocol.KindPackages, jars, &none)
	expect(t, d, "import pack.Packed;\nPacked.n()", "6")
}

// TestExit ends the driver by cells.
func TestExit(t *testing.T) {
	for _, java := range machines(t)[:1] {
		d, _ := start(t, java)
		d.Send("System.out.print(\"last\"); System.exit(7);")
		d.Printed("last")
		d.Printed("status 7\n")
		for _, code := range []string{"System.inheritedChannel().close();", "new FileOutputStream(FileDescriptor.out).close();"} {
			d, _ = start(t, java)
			d.Send(code)
			d.Printed("status 1\n")
		}
	}
}
