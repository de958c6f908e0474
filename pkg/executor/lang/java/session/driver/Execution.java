package run.sandbox.session;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.concurrent.Callable;
import jdk.jshell.execution.LocalExecutionControl;
import jdk.jshell.spi.ExecutionControl.RunException;
import jdk.jshell.spi.SPIResolutionException;

/**
 * Execution runs foreign code: the methods that JShell has made of snippets, and what values do when they are shown. Its monitor guards
 * which piece of work is under way; a thread that holds it is not stopped.
 */
final class Execution extends LocalExecutionControl {
  /** A thread in which foreign code runs. */
  private static final class Foreign extends Thread {
    private final Callable<String> body;
    private String value;
    private Throwable failure;
    private boolean finished; // not stopped

    Foreign(Callable<String> body) {
      super(group, null, "main");
      this.body = body;
      setDaemon(false);
    }

    @Override
    public void run() {
      try {
        try {
          value = body.call();
        } finally {
          System.out.flush();
          System.err.flush();
        }
      } catch (InvocationTargetException e) {
        failure = e.getCause();
      } catch (Throwable e) {
        failure = e;
      }
      if (failure instanceof OutOfMemoryError) reserve = null;
      finished = true;
    }
  }

  /** Interrupted is thrown by a stream of the driver in a thread that is interrupted. */
  static final class Interrupted extends Error {
    private static final long serialVersionUID = 1;
  }

  private static final int STEP = 20; // milliseconds between the means of an interrupt
  private static final int RESERVE = 8 << 20;
  private static final ThreadGroup group = new ThreadGroup("cells");

  private static volatile byte[] reserve; // memory for what follows an OutOfMemoryError

  private Field stop; // JDK 20 and later: what code of snippets looks at in its loops
  private volatile Foreign current;
  private volatile boolean interrupted;
  private int waiting; // pieces of work that are not finished
  private volatile long piece; // the number of the next one, or of the one that is under way

  /** Whether the snippets of a cell must not run. */
  boolean isRefusing;

  /** What the last foreign code has thrown. */
  Throwable failure;

  /** Whether an interrupt has ended the last foreign code, or kept it from beginning. */
  boolean isStopped;

  /** Where foreign code was when it was interrupted; null if it was not. */
  volatile StackTraceElement[] place;

  /** Finds the means of JDK 20 and later to stop code, which is in a class that LocalExecutionControl loads at its first call. */
  void prepare() throws Exception {
    super.invoke(Thread.class.getMethod("yield"));
    try {
      stop = findClass("REPL.$Cancel$").getDeclaredField("allStop");
    } catch (ClassNotFoundException e) {
      stop = null;
    }
    refill();
  }

  private static void refill() {
    if (reserve != null) return;
    try {
      reserve = new byte[(int) Math.min(RESERVE, Runtime.getRuntime().maxMemory() / 32)];
    } catch (OutOfMemoryError e) {
      reserve = null;
    }
  }

  /** Counts a piece of work that can be interrupted from now on. */
  synchronized void arrive() {
    waiting++;
  }

  /** Ends the piece of work that is under way. */
  void finish() throws IllegalAccessException {
    refill();
    synchronized (this) {
      waiting--;
      piece++;
      interrupted = false;
      if (stop != null) stop.set(null, false);
      notifyAll();
    }
    place = null;
  }

  synchronized boolean isBusy() {
    return waiting > 0;
  }

  boolean isInterrupted() {
    return interrupted;
  }

  /** Interrupts the piece of work that is under way, and returns at its end. Without one it does nothing. */
  void interrupt() {
    long mine;
    synchronized (this) {
      if (waiting == 0 || interrupted) return;
      interrupted = true;
      mine = piece;
    }
    try {
      for (Foreign seen = null; piece == mine; Thread.sleep(STEP)) {
        synchronized (this) {
          Foreign foreign = current;
          if (foreign == null || piece != mine) continue;
          if (foreign != seen) place = foreign.getStackTrace();
          foreign.interrupt();
          if (foreign == seen) halt(foreign);
          seen = foreign;
        }
      }
    } catch (InterruptedException | ReflectiveOperationException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Stops a thread that did not end at an interrupt. */
  private void halt(Thread thread) throws ReflectiveOperationException {
    if (stop != null) stop.set(null, true);
    else Thread.class.getMethod("stop").invoke(thread);
  }

  @Override
  protected String invoke(Method snippet) throws Exception {
    String value = run(() -> {
      Object result;
      try {
        result = snippet.invoke(null);
      } catch (InvocationTargetException e) {
        if (e.getCause() instanceof OutOfMemoryError) reserve = null;
        throw e;
      }
      return valueString(result);
    });
    if (failure instanceof SPIResolutionException) {
      SPIResolutionException unresolved = (SPIResolutionException) failure;
      failure = null;
      throw unresolved;
    }
    return value == null ? "null" : value;
  }

  @Override
  public String varValue(String className, String name) throws RunException {
    try {
      Field field = findClass(className).getDeclaredField(name);
      field.setAccessible(true);
      Object value = field.get(null);
      String text = run(() -> valueString(value));
      return text == null ? "" : text;
    } catch (ReflectiveOperationException e) {
      return "";
    }
  }

  /** Runs a body in a thread of its own. Returns null, and sets failure, if it throws. */
  String run(Callable<String> body) throws RunException {
    failure = null;
    isStopped = interrupted || isRefusing;
    if (isStopped) throw new StoppedException();
    Foreign foreign = new Foreign(body);
    foreign.start();
    current = foreign;
    while (foreign.isAlive()) {
      try {
        foreign.join();
      } catch (InterruptedException e) {
        continue; // by foreign code
      }
    }
    synchronized (this) {
      current = null;
    }
    failure = foreign.failure;
    if (!foreign.finished || failure instanceof Interrupted || isDeath(failure)) {
      failure = null;
      isStopped = true;
      throw new StoppedException();
    }
    return foreign.value;
  }

  private static boolean isDeath(Throwable e) {
    return e != null && e.getClass().getName().equals("java.lang.ThreadDeath");
  }
}
