package run.sandbox.warm;

import java.io.File;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import jdk.internal.vm.annotation.Hidden;

/** Compiler is the machine that waits for something to compile, and has compiled something of ours before. */
public final class Compiler {
  private Compiler() {}

  /** Takes the directory of the driver, an empty directory of its own, and how often to practise; with a fourth argument that is all. */
  @Hidden
  public static void main(String[] own) throws Throwable {
    Class<?> javac = Class.forName("com.sun.tools.javac.Main", true, ClassLoader.getSystemClassLoader());
    MethodHandles.Lookup lookup = MethodHandles.publicLookup();
    MethodHandle compile = lookup.findStatic(javac, "compile", MethodType.methodType(int.class, String[].class, PrintWriter.class));
    MethodHandle main = lookup.findStatic(javac, "main", MethodType.methodType(void.class, String[].class));
    String[] right = {"-encoding", "UTF-8", "-proc:none", "-nowarn", "-XDsuppressNotes", "-d", own[1], "-cp", own[1], own[0] + "/Training.java"};
    String[] wrong = right.clone();
    wrong[9] = own[0] + "/Wrong.java";
    for (int i = Integer.parseInt(own[2]); i > 0; i--) {
      int ok = (int) compile.invokeExact(right, new PrintWriter(new StringWriter()));
      int no = (int) compile.invokeExact(wrong, new PrintWriter(new StringWriter()));
      if (ok != 0 || no != 1) Runtime.getRuntime().halt(70);
    }
    remove(new File(own[1]));
    if (own.length > 3) return;
    System.gc();
    String[] args = Message.await();
    int n = 0; // without the options of the machine, which it was started with
    for (int i = 1; i < args.length; i++) if (!args[i].startsWith("-J")) args[n++] = args[i];
    String[] rest = new String[n];
    System.arraycopy(args, 0, rest, 0, n);
    main.invokeExact(rest);
  }

  private static void remove(File f) {
    File[] below = f.listFiles();
    if (below != null) for (File b : below) remove(b);
    f.delete();
  }
}
