package run.sandbox.session;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import sun.misc.Signal;

/** Driver serves the frames of a session: see session.go. */
final class Driver {
  private static final List<String> PRACTICE = List.of("int a = 1;\nint f(int n) { return n + a; }", "f(1)",
      "for (var s : List.of(\"\")) System.out.print(s);\nrecord P(int x) {}\nnew P(1)", "a = ;", "1+1", "1 + f(2)");

  private final Link link;
  private final Execution execution = new Execution();
  private final Streams streams;
  private final Cells cells;
  private final LinkedBlockingQueue<Link.Frame> work = new LinkedBlockingQueue<>();

  private Driver(Link link, String classPath) throws Exception {
    this.link = link;
    streams = new Streams(link, execution);
    cells = new Cells(link, execution, classPath);
  }

  /** Takes the class path of the cells. With a second argument the driver serves a few frames of its own, for an archive of its classes. */
  public static void main(String[] args) throws Exception {
    if (args.length > 1) {
      Driver driver = new Driver(Link.practise(), args[0]);
      long id = 0;
      for (String cell : PRACTICE) driver.serve(new Link.Frame("execute", ++id, 0, cell));
      for (String kind : List.of("check", "complete", "variables")) driver.serve(new Link.Frame(kind, ++id, 1, "f"));
      System.exit(0);
    }
    new Driver(Link.take(), args[0]).run();
  }

  private void run() throws Exception {
    Signal.handle(new Signal("INT"), signal -> execution.interrupt());
    Thread reader = new Thread(null, this::read, "session reader");
    reader.setDaemon(true);
    reader.start();
    String version = System.getProperty("java.version");
    link.send("ready", 0, "{\"protocol\":1,\"language\":\"java\",\"version\":" + Link.quote(version) + ",\"banner\":"
        + Link.quote("JShell " + version) + ",\"features\":[\"check\",\"complete\",\"inspect\",\"variables\",\"packages\"]}");
    cells.practise(work::isEmpty);
    while (true) {
      Link.Frame frame = work.take();
      if (frame.kind.equals("close")) System.exit(0);
      serve(frame);
    }
  }

  /** Reads frames, also while a cell runs. */
  private void read() {
    try {
      for (Link.Frame f = link.read(); f != null; f = link.read()) {
        switch (f.kind) {
          case "input":
          case "end_input":
            streams.answer(f);
            break;
          case "close":
            if (execution.isBusy()) Runtime.getRuntime().halt(0);
            work.add(f);
            break;
          case "execute":
          case "check":
          case "complete":
          case "inspect":
          case "variables":
          case "packages":
            execution.arrive();
            work.add(f);
            break;
          default: // none that this driver has offered
        }
      }
    } catch (IOException e) {
      Runtime.getRuntime().halt(1);
    }
    if (execution.isBusy()) Runtime.getRuntime().halt(1);
    work.add(new Link.Frame("close", 0, 0, ""));
  }

  private void serve(Link.Frame frame) throws Exception {
    String reply = "{}";
    boolean isCell = frame.kind.equals("execute");
    try {
      if (isCell) {
        streams.setCell(frame.id);
        reply = cells.execute(frame.id, frame.body);
      } else {
        reply = cells.answer(frame);
      }
    } catch (OutOfMemoryError e) { // of the driver itself, because cells keep the memory
      System.err.println("Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space");
      reply = isCell ? Cells.failed("java.lang.OutOfMemoryError", "Java heap space", 0, false) : "{}";
    } catch (RuntimeException | Error e) {
      System.err.println("sandbox-run: JShell failed: " + e);
      reply = isCell ? Cells.failed(e.getClass().getName(), String.valueOf(e.getMessage()), 0, false) : "{}";
    }
    streams.setCell(0);
    streams.restore();
    execution.finish();
    link.send(isCell ? "done" : "reply", frame.id, reply);
  }
}
