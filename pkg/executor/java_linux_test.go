package executor

import (
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestJava(t *testing.T) {
	runPrograms(t, "java", []program{
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
