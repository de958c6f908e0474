package run.sandbox.session;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.regex.Pattern;
import jdk.jshell.JShell;
import jdk.jshell.Snippet;
import jdk.jshell.SourceCodeAnalysis;

/** Traces replaces the classes that JShell makes of snippets by cells and their lines. */
final class Traces {
  /** The place of a snippet. */
  private static final class Origin {
    private final long cell;
    private final int line;

    Origin(long cell, int line) {
      this.cell = cell;
      this.line = line;
    }
  }

  private static final String WRAPPER = "REPL.$JShell$";
  private static final String BODY = "do_it$"; // the method with a snippet's statements
  private static final Pattern PREFIX = Pattern.compile("REPL\\.\\$JShell\\$[0-9]+[A-Z]*\\$");

  private final JShell shell;
  private final SourceCodeAnalysis analysis;
  private final Map<Snippet, Origin> origins = new WeakHashMap<>();

  Traces(JShell shell, SourceCodeAnalysis analysis) {
    this.shell = shell;
    this.analysis = analysis;
  }

  void add(Snippet snippet, long cell, String text, Cells.Piece piece) {
    origins.put(snippet, new Origin(cell, line(text, piece.start + offset(piece, snippet))));
  }

  int lineOf(Snippet snippet) {
    Origin o = origins.get(snippet);
    return o == null ? 0 : o.line;
  }

  /** Returns the number of the line at an offset. */
  static int line(String text, int offset) {
    int line = 1;
    for (int i = 0; i < offset; i++) if (text.charAt(i) == '\n') line++;
    return line;
  }

  /** Returns where the source of a snippet begins in its piece. */
  static int offset(Cells.Piece piece, Snippet snippet) {
    return Math.max(0, piece.source.indexOf(snippet.source()));
  }

  /** Returns a text with the names of classes as cells have them. */
  static String plain(String text) {
    return PREFIX.matcher(text).replaceAll("");
  }

  /** Changes the traces of an exception and its causes. Returns the line of the cell that the trace begins with; 0: none. */
  int map(Throwable thrown, long cell) {
    Map<String, Snippet> snippets = new HashMap<>();
    shell.snippets().forEach(s -> {
      if (origins.containsKey(s)) snippets.put(analysis.wrapper(s).fullClassName(), s);
    });
    Set<Throwable> seen = Collections.newSetFromMap(new IdentityHashMap<>());
    List<Throwable> all = new ArrayList<>(List.of(thrown));
    for (int i = 0; i < all.size(); i++) {
      Throwable e = all.get(i);
      if (e == null || !seen.add(e)) continue;
      e.setStackTrace(map(e.getStackTrace(), snippets));
      all.add(e.getCause());
      all.addAll(List.of(e.getSuppressed()));
    }
    String file = file(cell);
    for (StackTraceElement frame : thrown.getStackTrace()) if (file.equals(frame.getFileName())) return frame.getLineNumber();
    return 0;
  }

  static String file(long cell) {
    return "<cell " + cell + ">";
  }

  /** Returns the frames above the driver's, with the lines of cells. */
  private StackTraceElement[] map(StackTraceElement[] frames, Map<String, Snippet> snippets) {
    int end = frames.length;
    while (end > 0 && (isDriver(frames[end - 1]))) end--;
    for (int i = end - 1; i >= 0; i--) {
      if (frames[i].getClassName().startsWith(WRAPPER) && frames[i].getMethodName().equals(BODY)) {
        end = i + 1;
        break;
      }
    }
    StackTraceElement[] mapped = new StackTraceElement[end];
    for (int i = 0; i < end; i++) mapped[i] = map(frames[i], snippets);
    return mapped;
  }

  private static boolean isDriver(StackTraceElement frame) {
    String name = frame.getClassName();
    return name.startsWith(Execution.class.getName()) || name.startsWith(Cells.class.getName()) || name.startsWith("jdk.jshell.");
  }

  private StackTraceElement map(StackTraceElement frame, Map<String, Snippet> snippets) {
    String name = frame.getClassName();
    if (!name.startsWith(WRAPPER)) return frame;
    int inner = name.indexOf('$', WRAPPER.length());
    Snippet snippet = snippets.get(inner < 0 ? name : name.substring(0, inner));
    if (snippet == null) return frame;
    Origin origin = origins.get(snippet);
    String type = inner < 0 ? "cell" : name.substring(inner + 1);
    int line = origin.line + lineIn(analysis.wrapper(snippet), frame.getLineNumber());
    return new StackTraceElement(type, frame.getMethodName().replace(BODY, "main"), file(origin.cell), line);
  }

  /** Returns the line of a snippet, from 0, that became a line of its class. */
  private static int lineIn(SourceCodeAnalysis.SnippetWrapper wrapper, int wanted) {
    String source = wrapper.source();
    String wrapped = wrapper.wrapped();
    int best = 0;
    int distance = Integer.MAX_VALUE;
    for (int at = 0, number = 0; at <= source.length(); number++) {
      int end = source.indexOf('\n', at);
      if (end < 0) end = source.length();
      while (at < end && Character.isWhitespace(source.charAt(at))) at++;
      int inside = at < end ? wrapper.sourceToWrappedPosition(at) : -1;
      int before = inside >= 0 && inside <= wrapped.length() ? wanted - line(wrapped, inside) : -1;
      if (before >= 0 && before < distance) {
        best = number;
        distance = before;
      }
      at = end + 1;
    }
    return best;
  }
}
