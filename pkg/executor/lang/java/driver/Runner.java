package run.sandbox.warm;

import java.lang.invoke.MethodHandles;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import jdk.internal.vm.annotation.Hidden;

/**
 * Runner is the machine that waits for a program. It is on the boot class path, where the machine lets a method hide itself from stack
 * traces, and goes about with care: no thread is started, and the main thread takes as many identity hash codes as the launcher would
 * have, because programs print both.
 */
public final class Runner {
  private Runner() {}

  /** Takes the directory of the driver and the first directory of the class path. */
  @Hidden
  public static void main(String[] own) throws Throwable {
    int burn = Integer.parseInt(new String(Message.read(own[0] + "/burn"), "UTF-8"));
    Errand.begin(own[0], own[1]);
    String[] args = Message.await();
    int at = 1; // past the options of the machine, which it was started with
    while (args[at].startsWith("-")) at += args[at].equals("-cp") ? 2 : 1;
    String[] rest = new String[args.length - at - 1];
    System.arraycopy(args, at + 1, rest, 0, rest.length);
    StringBuilder command = new StringBuilder(args[at]);
    for (String arg : rest) command.append(' ').append(arg);
    System.setProperty("sun.java.command", command.toString());
    for (int i = 0; i < burn; i++) new Object().hashCode(); // those that loading the first class takes
    Called program = program(args[at]);
    if (program == null) {
      // Whatever is wrong with it, a machine of its own says.
      Runtime.getRuntime().halt(new ProcessBuilder(args).inheritIO().start().waitFor());
    }
    own = args = null;
    command = null;
    program.main(rest);
  }

  /** What calls the main of a class, after the launcher's own checks; null if it would have something to say. */
  private static Called program(String name) {
    try {
      Class<?> main = Class.forName(name, false, ClassLoader.getSystemClassLoader());
      Method method = main.getMethod("main", String[].class);
      // One of an interface is called in another way.
      if (!Modifier.isStatic(method.getModifiers()) || method.getReturnType() != void.class || main.isInterface()) return null;
      return Errand.call(main);
    } catch (Throwable e) {
      return null;
    }
  }

  /** For Key alone, which is loaded by another loader. */
  public static void unlock(MethodHandles.Lookup lookup) {
    Errand.unlock(lookup);
  }
}
