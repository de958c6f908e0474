package run.sandbox.session;

import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Streams are the standard streams of foreign code. */
final class Streams {
  /** An output that stays open when foreign code closes it. */
  private static final class Output extends FileOutputStream {
    private volatile boolean isClosed;

    Output(FileDescriptor descriptor) {
      super(descriptor);
    }

    @Override
    public void close() {
      isClosed = true;
    }
  }

  /** Standard input: it asks the client for lines. */
  private final class Lines extends InputStream {
    private byte[] rest = {};

    @Override
    public int read() throws InterruptedIOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] into, int offset, int length) throws InterruptedIOException {
      if (length == 0) return 0;
      synchronized (execution) {
        if (rest.length == 0) {
          String line = ask();
          if (line == null) return -1;
          rest = (line + "\n").getBytes(StandardCharsets.UTF_8);
        }
        int n = Math.min(length, rest.length);
        System.arraycopy(rest, 0, into, offset, n);
        rest = Arrays.copyOfRange(rest, n, rest.length);
        return n;
      }
    }

    @Override
    public int available() {
      synchronized (execution) {
        return rest.length;
      }
    }
  }

  private final Link link;
  private final Execution execution; // its monitor guards the fields below
  private long cell; // that runs; 0: none
  private boolean isAsking;
  private Link.Frame answer;
  private Output out;
  private Output err;
  private PrintStream madeOut;
  private PrintStream madeErr;

  Streams(Link link, Execution execution) {
    this.link = link;
    this.execution = execution;
    System.setIn(new Lines());
    restore();
  }

  /** Makes standard outputs usable that foreign code has closed. Their descriptors can not be restored. */
  void restore() {
    if (!FileDescriptor.out.valid() || !FileDescriptor.err.valid()) {
      System.err.println("sandbox-run: the cell has closed a descriptor of the session");
      Runtime.getRuntime().halt(1);
    }
    if (out == null || out.isClosed) {
      out = new Output(FileDescriptor.out);
      PrintStream made = print(out);
      if (System.out == madeOut || madeOut == null) System.setOut(made);
      madeOut = made;
    }
    if (err == null || err.isClosed) {
      err = new Output(FileDescriptor.err);
      PrintStream made = print(err);
      if (System.err == madeErr || madeErr == null) System.setErr(made);
      madeErr = made;
    }
  }

  private static PrintStream print(Output output) {
    return new PrintStream(new BufferedOutputStream(output), true, StandardCharsets.UTF_8);
  }

  /** Tells which cell runs; 0: none. */
  void setCell(long id) {
    synchronized (execution) {
      cell = id;
      answer = null;
      execution.notifyAll();
    }
  }

  void answer(Link.Frame frame) {
    synchronized (execution) {
      if (isAsking && frame.id == cell) answer = frame;
      execution.notifyAll();
    }
  }

  /** Returns the client's next line without its end; null at the end of file. The caller holds the monitor. */
  private String ask() throws InterruptedIOException {
    long mine = cell;
    boolean asked = false;
    try {
      while (isAsking && cell == mine) execution.wait();
      if (mine == 0 || cell != mine) return null;
      isAsking = asked = true;
      link.send("input", mine, "{\"prompt\":\"\"}");
      while (answer == null && cell == mine) execution.wait();
      return answer != null && answer.kind.equals("input") ? answer.body : null;
    } catch (InterruptedException e) {
      if (execution.isInterrupted()) throw new Execution.Interrupted();
      throw new InterruptedIOException();
    } finally {
      if (asked) {
        isAsking = false;
        answer = null;
        execution.notifyAll();
      }
    }
  }
}
