package run.sandbox.warm;

import java.io.File;
import java.io.FileOutputStream;
import java.lang.invoke.MethodHandles;

/**
 * Errand does what would cost the main thread identity hash codes, by a thread that every machine has: the finalizer's. Each thread has a
 * sequence of its own.
 */
final class Errand {
  /** key may define classes among the program's; Key sets it through Runner. */
  private static MethodHandles.Lookup key;

  /** turn is where the finalizer waits. The main thread does not: the first thread that waits may pay with a hash code. */
  private static final Object turn = new Object();

  private static final long PATIENCE = 20_000_000_000L;

  private static volatile boolean ready;
  private static volatile Class<?> wanted;
  private static volatile Called made;
  private static volatile Throwable failed;

  private final String driver;
  private final String classes;

  private Errand(String driver, String classes) {
    this.driver = driver;
    this.classes = classes;
  }

  /** Begins it, and returns when it is ready for the program. */
  static void begin(String driver, String classes) throws Throwable {
    new Errand(driver, classes); // unreachable at once
    System.gc();
    for (long since = System.nanoTime(); !ready && failed == null; Thread.yield()) {
      if (System.nanoTime() - since > PATIENCE) throw new Exception("there is no finalizer");
    }
    if (failed != null) throw failed;
  }

  /** Makes what calls a program's main; null if that can not be. */
  static Called call(Class<?> main) {
    synchronized (turn) {
      wanted = main;
      turn.notify();
    }
    while (made == null && failed == null) Thread.yield();
    Called it = made;
    made = null;
    return it;
  }

  static void unlock(MethodHandles.Lookup lookup) {
    key = lookup;
  }

  @Override
  @SuppressWarnings({"deprecation", "removal"})
  protected void finalize() {
    try {
      byte[] template = Message.read(driver + "/Bridge.class");
      bridge(rehearsal(), template).main(null);
      synchronized (turn) {
        ready = true;
        while (wanted == null) turn.wait();
      }
      made = bridge(wanted, template);
      wanted = null;
      key = null;
    } catch (Throwable e) {
      failed = e;
    }
  }

  /** Has a class of ours loaded by the program's own loader, and leaves nothing of it behind. */
  private Class<?> rehearsal() throws Exception {
    new File(classes, ".sandbox-run").delete(); // it has made the directory be there
    File at = new File(classes + "/run/sandbox/warm");
    at.mkdirs();
    File file = new File(at, "Key.class");
    FileOutputStream out = new FileOutputStream(file);
    out.write(Message.read(driver + "/Key.class"));
    out.close();
    Class<?> loaded = Class.forName("run.sandbox.warm.Key", true, ClassLoader.getSystemClassLoader());
    file.delete();
    for (int i = 0; i < 3; i++, at = at.getParentFile()) at.delete();
    return loaded;
  }

  /** Makes a class beside the program's that calls its main: nothing else can without a frame in between. */
  private static Called bridge(Class<?> main, byte[] template) throws Throwable {
    String name = main.getName().replace('.', '/');
    String beside = name.substring(0, name.lastIndexOf('/') + 1) + "Bridge";
    byte[] bytes = Message.rename(template, "run/sandbox/warm/Bridge", beside, "run/sandbox/warm/Program", name);
    MethodHandles.privateLookupIn(main, key).defineHiddenClass(bytes, true);
    Called it = Called.it;
    Called.it = null;
    return it;
  }
}
