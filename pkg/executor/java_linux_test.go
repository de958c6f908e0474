package executor

import (
	"os"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fullHeap is a snippet that fills the heap and goes on.
const fullHeap = `try {
  var all = new ArrayList<byte[]>();
  while (true) all.add(new byte[1 << 20]);
} catch (OutOfMemoryError e) {
  System.out.println("caught " + e.getMessage());
}
`

func TestJava(t *testing.T) {
	runPrograms(t, "java", []program{
		{name: "resources", req: Request{Options: LanguageOptions{EnableAssertions: true}, Files: tree("pom.xml", "<project/>",
			"src/main/java/p/A.java", "package p;\npublic class A {\n  public static void main(String[] args) throws Exception {\n"+
				"    assert args.length == 0;\n    System.out.print(new String(A.class.getResourceAsStream(\"/conf/a.txt\").readAllBytes()));\n  }\n}\n",
			"src/main/resources/conf/a.txt", "found\n")}, out: "found\n"},
		{name: "hello",
			req: Request{Code: "public class Greeter {\n  public static void main(String[] args) {\n    System.out.println(\"hello, wörld ☺\");\n" +
				"  }\n}\n"}, out: "hello, wörld ☺\n"},
		{
			name: "stdin, args, env, exit code",
			req: Request{
				Code: `import java.util.*;
class Main {
  public static void main(String... args) {
    var in = new Scanner(System.in);
    while (in.hasNextLine()) System.out.println("line " + in.nextLine());
    System.out.println(Arrays.toString(args) + " " + System.getenv("COLOUR"));
    System.exit(7);
  }
}`,
				Args: []string{"a", "b c"}, Env: map[string]string{"COLOUR": "blau"},
			},
			in: "x\nÿ\n", out: "line x\nline ÿ\n[a, b c] blau\n", verdict: sandbox.VerdictNonzeroExit, code: 7,
		},
		{
			name: "uncaught",
			req: Request{Code: "public class Main {\n  static void f() {\n    throw new IllegalStateException(\"no\");\n  }\n" +
				"  public static void main(String[] a) {\n    f();\n  }\n}\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"IllegalStateException: no", "at Main.f(Main.java:3)",
				"at Main.main(Main.java:6)"},
		},
		{
			name: "compile error", req: Request{Code: "public class Main {\n  public static void main(String[] a) {\n    int x = \"a\";\n  }\n}\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"Main.java:3: error: incompatible types"}, hasNot: []string{"/tmp"},
		},
		{name: "syntax error", req: Request{Code: "public class Main {\n  public static void main(String[] a) {\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"Main.java:2: error: reached end of file"}},
		{name: "surplus brace",
			req:     Request{Code: "public class Main {\n  void f() {}\n}\n  public static void main(String[] a) { }\n}\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"Main.java:4: error: class, interface, enum, or record expected"}},
		{
			name: "snippet", req: Request{Code: "import java.util.stream.IntStream;\nint base = 3;\nvar names = List.of(\"a\", \"b\");\n" +
				"for (var n : names) {\n  System.out.println(n + twice(base));\n}\nint twice(int n) throws RuntimeException {\n" +
				"  return base + n;\n}\nrecord P(int x) {}\nSystem.out.println(new P(IntStream.of(1, 2).sum())); // the end"},
			out: "a6\nb6\nP[x=3]\n",
		},
		{name: "error in a snippet", req: Request{Code: "int x = 1;\n\nint y = \"a\";\n"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"Main.java:3: error: incompatible types"}},
		{name: "trace of a snippet", req: Request{Code: "int[] x = {1, 2};\n\nSystem.out.println(x[2]);\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"at Main.main(Main.java:3)"}},
		{
			name: "full heap, caught", out: "caught Java heap space\ncaught Requested array size exceeds VM limit\n",
			req: Request{Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}, Code: fullHeap + `
try { int[] x = new int[Integer.MAX_VALUE]; } catch (OutOfMemoryError e) { System.out.println("caught " + e.getMessage()); }`},
		},
		{
			name: "full heap, caught before a failure", out: "caught Java heap space\n", verdict: sandbox.VerdictNonzeroExit, code: 1,
			req: Request{Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}, Code: fullHeap + "throw new Exception();"},
		},
		{
			name: "full heap as a cause", verdict: sandbox.VerdictMemoryLimit, has: []string{"Caused by: java.lang.OutOfMemoryError: Java heap space"},
			req: Request{Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}, Code: "var all = new ArrayList<byte[]>();\n" +
				"try { while (true) all.add(new byte[1 << 20]); } catch (OutOfMemoryError e) { all = null; throw new RuntimeException(e); }"},
		},
		{
			name: "array that is too long", verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"Requested array size exceeds VM limit"},
			req: Request{Code: "int[] x = new int[Integer.MAX_VALUE];"},
		},
		{name: "assertions", req: Request{Code: "assert 1 > 2 : \"no\";", Options: LanguageOptions{EnableAssertions: true}},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"AssertionError: no"}},
		{name: "no assertions", req: Request{Code: "assert 1 > 2 : \"no\";"}},
		{
			name: "modern", req: Request{Code: `import java.util.List;
sealed interface Shape permits Circle, Square {}
record Circle(double r) implements Shape {}
record Square(double s) implements Shape {}
public class Main {
  static String name(Object o) { return o instanceof Circle c ? "circle " + c.r() : "other"; }
  public static void main(String[] args) {
    String day = switch (args.length) { case 0 -> "none"; default -> "some"; };
    System.out.print("""
      text "block" {
      """ + day + " ");
    System.out.println(List.of(new Circle(2), new Square(1)).stream().map(Main::name).toList());
  }
}`}, out: "text \"block\" {\nnone [circle 2.0, other]\n",
		},
		{
			name: "packages",
			req: Request{Files: tree("src/app/Main.java",
				"package app;\nimport app.util.Names;\n"+
					"public class Main { public static void main(String[] a) throws Exception { System.out.println(Names.of() + new "+
					"String(Main.class.getResourceAsStream(\"/data.txt\").readAllBytes())); } }\n",
				"src/app/util/Names.java", "package app.util;\npublic class Names { public static String of() { return \"names \"; } }\n", "data.txt",
				"data")}, out: "names data\n",
		},
		{
			name: "one of several", req: Request{Entry: "B",
				Files: tree("A.java", "class A { public static void main(String[] a) { System.out.println(\"a\"); } }\n", "B.java",
					"class B { public static void main(String[] a) { System.out.println(\"b\"); } }\n")}, out: "b\n",
		},
		{
			name: "one of several, by file", req: Request{Entry: "p/A.java",
				Files: tree("p/A.java", "package p; class A { public static void main(String[] a) { System.out.println(\"a\"); } }\n", "p/B.java",
					"package p; class B { public static void main(String[] a) { System.out.println(\"b\"); } }\n")}, out: "a\n",
		},
		{
			name: "files", req: Request{
				Code: "import java.nio.file.*;\n" +
					"public class Main { public static void main(String[] a) throws Exception { Files.writeString(Path.of(\"out.txt\"), " +
					"Files.readString(Path.of(\"in.txt\")) + \"!\"); } }\n",
				Inputs: tree("in.txt", "in"), Outputs: sandbox.Selection{Patterns: []string{"*.txt"}},
			}, files: map[string]string{"out.txt": "in!"},
		},
		{
			name: "threads and a child", req: Request{Code: `import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
public class Main {
  public static void main(String[] a) throws Exception {
    var n = new AtomicInteger();
    var all = new Thread[100];
    var open = new CountDownLatch(1);
    for (int i = 0; i < all.length; i++) {
      all[i] = new Thread(() -> { try { open.await(); } catch (InterruptedException e) {} n.incrementAndGet(); });
      all[i].start();
    }
    open.countDown();
    for (var t : all) t.join();
    var p = new ProcessBuilder("echo", "child").start();
    System.out.print(n + " " + new String(p.getInputStream().readAllBytes()));
  }
}`}, out: "100 child\n",
		},
		{
			name: "too much memory",
			req: Request{Code: "import java.util.*;\n" +
				"public class Main { public static void main(String[] a) { var all = new ArrayList<byte[]>(); while (true) all.add(new byte[1 << " +
				"20]); } }\n"},
			verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "too much memory beside the heap",
			req: Request{Code: "import java.nio.*;\nimport java.util.*;\n" +
				"public class Main { public static void main(String[] a) { var all = new ArrayList<ByteBuffer>(); byte[] heap = new byte[300 << " +
				"20]; Arrays.fill(heap, (byte) 1); while (true) { var b = ByteBuffer.allocateDirect(1 << 20); while (b.hasRemaining()) " +
				"b.putLong(1); all.add(b); } } }\n"},
			verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "little memory", req: Request{Limits: sandbox.Limits{Memory: 64 * sandbox.MiB},
				Code: "import java.util.*;\n" +
					"public class Main { public static void main(String[] a) { var all = new ArrayList<byte[]>(); while (true) all.add(new byte[1 << " +
					"20]); } }\n"},
			verdict: sandbox.VerdictMemoryLimit,
		},
		{
			name: "little memory, and enough", req: Request{Limits: sandbox.Limits{Memory: 64 * sandbox.MiB},
				Code: "public class Main { public static void main(String[] a) { System.out.println(\"fits\"); } }\n"}, out: "fits\n",
		},
		{
			name: "much garbage", all: true,
			req: Request{Code: "public class Main { static byte[] keep; public static void main(String[] a) { var live = new byte[100][]; for " +
				"(int i = 0; i < 3000; i++) { keep = new byte[1 << 20]; live[i % 100] = keep; } System.out.println(\"done\"); } }\n"}, out: "done\n",
		},
		{
			name: "many threads are not memory",
			req: Request{Code: "public class Main { public static void main(String[] a) { for (int i = 0; i < 500; i++) { var t = new " +
				"Thread(() -> { try { Thread.sleep(100000); } catch (InterruptedException e) {} }); t.setDaemon(true); t.start(); } } }\n"},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"unable to create native thread", "at Main.main(Main.java:1)"},
		},
		{name: "too long", req: Request{Code: "public class Main { public static void main(String[] a) { while (true) {} } }\n",
			Limits: sandbox.Limits{Wall: 2 * time.Second}}, verdict: sandbox.VerdictTimeLimit, code: 143},
	})
}

// TestJavaTests runs a project with the JUnit of Debian's packages junit4 and junit5.
func TestJavaTests(t *testing.T) {
	read := func(names ...string) (files []File) {
		for _, n := range names {
			data, err := os.ReadFile("/usr/share/java/" + n)
			if err != nil {
				t.Skipf("needs the packages junit4 and junit5: %v", err)
			}
			files = append(files, File{Path: "lib/" + n, Data: data})
		}
		return files
	}
	five := read("junit-platform-console.jar", "junit-platform-reporting.jar", "junit-platform-launcher.jar", "junit-platform-engine.jar",
		"junit-platform-commons.jar", "junit-jupiter-api.jar", "junit-jupiter-engine.jar", "opentest4j.jar", "apiguardian-api.jar", "picocli.jar",
		"opentest4j-reporting-events.jar", "opentest4j-reporting-schema.jar")
	four := read("junit4.jar", "hamcrest.jar")
	project := func(jars []File, api, assert string) []File {
		return append(tree("src/main/java/shop/Price.java", "package shop; public class Price { static int of(int n) { return n * 21; } }",
			"src/test/java/shop/PriceTest.java", "package shop;\nimport "+api+".*;\npublic class PriceTest {\n  @Test public void good() { "+assert+
				".assertEquals(42, Price.of(2)); }\n}\n",
			"src/test/java/shop/BadTest.java", "package shop;\nimport "+api+".*;\npublic class BadTest {\n  @Test public void bad() { "+assert+
				".assertEquals(1, Price.of(2)); }\n}\n"), jars...)
	}
	test := LanguageOptions{Test: true}
	runPrograms(t, "java", []program{
		{name: "junit 5", req: Request{Options: test, Files: project(five, "org.junit.jupiter.api", "Assertions")},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"1 tests successful", "1 tests failed", "BadTest.java:4"}},
		{name: "junit 5, one class", req: Request{Options: test, Entry: "shop.PriceTest",
			Files: project(five, "org.junit.jupiter.api", "Assertions")}, has: []string{"1 tests successful", "0 tests failed"}},
		{name: "junit 4", req: Request{Options: test, Files: project(four, "org.junit", "Assert")},
			verdict: sandbox.VerdictNonzeroExit, code: 1, has: []string{"Tests run: 2,  Failures: 1", "BadTest.java:4"}},
		{name: "junit 4, one class", req: Request{Options: test, Entry: "PriceTest", Files: project(four, "org.junit", "Assert")},
			has: []string{"OK (1 test)"}},
	})
}
