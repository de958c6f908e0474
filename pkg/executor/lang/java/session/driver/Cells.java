package run.sandbox.session;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.JShell;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.SourceCodeAnalysis.Completeness;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.spi.ExecutionControl;
import jdk.jshell.spi.ExecutionControlProvider;
import jdk.jshell.spi.ExecutionEnv;

/** Cells executes cells: each snippet of a cell is evaluated by JShell, in order. */
final class Cells {
  /** A snippet's text in a cell. */
  static final class Piece {
    final String source;
    final int start;
    final boolean isBroken; // it can not be a snippet

    Piece(String source, int start, boolean isBroken) {
      this.source = source;
      this.start = start;
      this.isBroken = isBroken;
    }
  }

  private static final List<String> IMPORTS = List.of("java.io", "java.math", "java.net", "java.nio.file", "java.util",
      "java.util.concurrent", "java.util.function", "java.util.prefs", "java.util.regex", "java.util.stream"); // those of the jshell tool
  private static final int KEPT = 100; // unnamed values ($1, …), whose number slows every cell
  private static final int PRACTICE = 4;

  private final Link link;
  private final Execution execution;
  private final JShell shell;
  private final SourceCodeAnalysis analysis;
  private final Traces traces;
  private final Questions questions;
  private final Deque<Snippet> unnamed = new ArrayDeque<>();
  private String prefix = "$practice"; // of their names
  private int values;

  Cells(Link link, Execution execution, String classPath) throws Exception {
    this.link = link;
    this.execution = execution;
    System.setProperty("java.class.path", classPath); // without the driver
    shell = JShell.builder().compilerOptions("-proc:none").tempVariableNameGenerator(() -> prefix + ++values)
        .executionEngine(new Provider(execution), Map.of()).build();
    execution.prepare();
    for (String name : IMPORTS) shell.eval("import " + name + ".*;");
    analysis = shell.sourceCodeAnalysis();
    traces = new Traces(shell, analysis);
    questions = new Questions(this, shell, analysis, execution);
  }

  private static final class Provider implements ExecutionControlProvider {
    private final Execution execution;

    Provider(Execution execution) {
      this.execution = execution;
    }

    @Override
    public String name() {
      return "session";
    }

    @Override
    public ExecutionControl generate(ExecutionEnv env, Map<String, String> parameters) {
      return execution;
    }
  }

  /** Evaluates a little, so that the first cell is fast, as long as no frame has come. */
  void practise(BooleanSupplier idle) {
    for (int i = 0; i < PRACTICE && idle.getAsBoolean(); i++) {
      for (Piece p : split("1 + 1")) shell.eval(p.source).forEach(e -> shell.drop(e.snippet()));
    }
    prefix = "$";
    values = 0;
  }

  String answer(Link.Frame frame) {
    return questions.answer(frame);
  }

  /** Executes a cell and returns the body of the frame done. */
  String execute(long id, String text) throws Exception {
    text = text.replace("\r\n", "\n").replace('\r', '\n');
    List<Piece> pieces = split(text);
    if (!pieces.isEmpty() && pieces.get(pieces.size() - 1).isBroken) { // then nothing of the cell runs
      Piece broken = pieces.get(pieces.size() - 1);
      execution.isRefusing = true;
      try {
        List<SnippetEvent> events = shell.eval(broken.source);
        return reject(id, text, broken, events.isEmpty() ? null : events.get(0).snippet());
      } finally {
        execution.isRefusing = false;
      }
    }
    List<Snippet> declared = new ArrayList<>();
    String value = null;
    for (Piece piece : pieces) {
      value = null;
      int line = Traces.line(text, piece.start);
      if (execution.isInterrupted()) return interrupted(id, line);
      execution.failure = null;
      execution.isStopped = false;
      for (SnippetEvent event : shell.eval(piece.source)) {
        Snippet snippet = event.snippet();
        if (event.causeSnippet() != null) continue; // another snippet, that depends on this one
        traces.add(snippet, id, text, piece);
        if (event.status() == Snippet.Status.REJECTED) return reject(id, text, piece, snippet);
        if (event.exception() instanceof UnresolvedReferenceException) {
          return unresolved(id, line, ((UnresolvedReferenceException) event.exception()).getSnippet());
        }
        if (snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND) keep(snippet);
        if (snippet instanceof DeclarationSnippet) declared.add(snippet);
        if (isExpression(snippet)) value = event.value();
      }
      if (execution.failure != null) return fail(id, execution.failure);
      if (execution.isStopped) return interrupted(id, line);
    }
    for (Snippet snippet : declared) note(id, snippet);
    if (value != null) {
      link.send("display", id, "{\"data\":{\"text/plain\":" + Link.quote(Link.cut(value, Link.LIMIT_TEXT)) + "},\"result\":true}");
    }
    return "{\"ok\":true}";
  }

  private static boolean isExpression(Snippet snippet) {
    return snippet.kind() == Snippet.Kind.EXPRESSION || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
  }

  private void keep(Snippet snippet) {
    unnamed.add(snippet);
    if (unnamed.size() > KEPT) shell.drop(unnamed.remove());
  }

  /** Splits code into the texts of snippets. Of code that can not be split, the last is broken. */
  List<Piece> split(String text) {
    List<Piece> pieces = new ArrayList<>();
    for (int at = begin(text, 0); at < text.length(); ) {
      String rest = text.substring(at);
      CompletionInfo info = analysis.analyzeCompletion(rest);
      Completeness c = info.completeness();
      if (c == Completeness.EMPTY) break;
      boolean isBroken = c == Completeness.DEFINITELY_INCOMPLETE || c == Completeness.UNKNOWN || info.source() == null;
      pieces.add(new Piece(isBroken ? rest : info.source(), at, isBroken));
      int next = text.length() - info.remaining().length();
      if (isBroken || c == Completeness.CONSIDERED_INCOMPLETE || next <= at) break;
      at = begin(text, next);
    }
    return pieces;
  }

  /** Returns where code begins after blanks and comments: the compiler gives statements the line where their snippet begins. */
  private static int begin(String text, int at) {
    while (at < text.length()) {
      boolean isLong = text.startsWith("/*", at);
      if (Character.isWhitespace(text.charAt(at))) {
        at++;
      } else if (isLong || text.startsWith("//", at)) {
        int end = text.indexOf(isLong ? "*/" : "\n", at + 2);
        if (end < 0) return isLong ? at : text.length();
        at = end + (isLong ? 2 : 1);
      } else {
        break;
      }
    }
    return at;
  }

  /** Says of a declaration what it lacks before it can be used. */
  private void note(long id, Snippet snippet) {
    Snippet.Status status = shell.status(snippet);
    if (status != Snippet.Status.RECOVERABLE_DEFINED && status != Snippet.Status.RECOVERABLE_NOT_DEFINED) return;
    DeclarationSnippet declaration = (DeclarationSnippet) snippet;
    System.err.println("<cell " + id + ">:" + traces.lineOf(snippet) + ": note: " + declaration.name() + " can not be used until "
        + missing(declaration) + " is declared");
  }

  private String missing(DeclarationSnippet declaration) {
    String names = shell.unresolvedDependencies(declaration).collect(Collectors.joining(", "));
    return names.isEmpty() ? "what it needs" : names;
  }

  private String unresolved(long id, int line, DeclarationSnippet needed) {
    String message = needed.name() + " can not be used until " + missing(needed) + " is declared";
    System.err.println("<cell " + id + ">:" + line + ": error: " + message);
    return failed("CompileError", message, line, false);
  }

  /** Prints errors of the compiler as javac does. */
  private String reject(long id, String text, Piece piece, Snippet snippet) {
    if (execution.isInterrupted()) return interrupted(id, Traces.line(text, piece.start));
    StringBuilder out = new StringBuilder();
    String first = "the code is incomplete";
    int firstLine = Traces.line(text, text.length());
    int count = 0;
    List<Diag> diags = snippet == null ? List.of() : shell.diagnostics(snippet).filter(Diag::isError).collect(Collectors.toList());
    for (Diag d : diags) {
      String[] message = d.getMessage(null).split("\n");
      int at = Math.min(text.length(), piece.start + Traces.offset(piece, snippet) + (int) Math.max(0, d.getPosition()));
      if (at == text.length()) at = Math.max(0, text.stripTrailing().length() - 1); // javac points at the last character
      int begin = text.lastIndexOf('\n', at - 1) + 1;
      int end = text.indexOf('\n', begin);
      int line = Traces.line(text, at);
      if (count++ == 0) {
        first = message[0];
        firstLine = line;
      }
      out.append("<cell ").append(id).append(">:").append(line).append(": error: ").append(message[0]).append('\n');
      out.append(text, begin, end < 0 ? text.length() : end).append('\n').append(" ".repeat(Math.max(0, at - begin))).append("^\n");
      for (int i = 1; i < message.length; i++) {
        if (!message[i].strip().equals("location: class")) out.append(message[i]).append('\n');
      }
    }
    if (count == 0) out.append("<cell ").append(id).append(">:").append(firstLine).append(": error: ").append(first).append('\n');
    System.err.print(out.append(count > 1 ? count + " errors\n" : "1 error\n"));
    return failed("CompileError", first, firstLine, false);
  }

  /** Prints an exception and returns the frame done. Methods of the exception are foreign code. */
  private String fail(long id, Throwable e) throws Exception {
    if (e.getClass() == InterruptedException.class) return report(id, e);
    String[] report = new String[1];
    try {
      execution.run(() -> report[0] = report(id, e));
    } catch (ExecutionControl.StoppedException stopped) {
      execution.failure = null;
    }
    if (report[0] != null) return report[0];
    String name = Traces.plain(e.getClass().getName());
    System.err.println("Exception in thread \"main\" " + name);
    return failed(name, null, 0, execution.isInterrupted());
  }

  private String report(long id, Throwable e) {
    int line = traces.map(e, id);
    StringWriter trace = new StringWriter();
    e.printStackTrace(new PrintWriter(trace));
    System.err.print("Exception in thread \"main\" " + Traces.plain(trace.toString()));
    return failed(Traces.plain(e.getClass().getName()), e.getMessage(), line, execution.isInterrupted());
  }

  /** Prints where the cell was when it was interrupted: in a snippet, or before the one of a line. */
  private String interrupted(long id, int next) {
    InterruptedException e = new InterruptedException("the cell was interrupted");
    StackTraceElement[] place = execution.place;
    e.setStackTrace(place == null ? new StackTraceElement[] {new StackTraceElement("cell", "main", Traces.file(id), next)} : place);
    return report(id, e);
  }

  /** Returns the body of the frame done of a cell that has failed. */
  static String failed(String name, String message, int line, boolean interrupted) {
    String text = message == null ? "" : ",\"message\":" + Link.quote(Link.cut(Traces.plain(message), Link.LIMIT_MESSAGE));
    return "{\"ok\":false,\"status\":1" + (interrupted ? ",\"interrupted\":true" : "") + ",\"error\":{\"name\":" + Link.quote(name) + text
        + (line > 0 ? ",\"line\":" + line : "") + "}}";
  }
}
