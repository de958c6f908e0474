package run.sandbox.session;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import jdk.jshell.JShell;
import jdk.jshell.Snippet;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.SourceCodeAnalysis.Completeness;
import jdk.jshell.SourceCodeAnalysis.Documentation;
import jdk.jshell.SourceCodeAnalysis.Suggestion;
import jdk.jshell.VarSnippet;

/** Questions answers the frames other than cells. */
final class Questions {
  private static final int LIMIT_MATCHES = 500;
  private static final int LIMIT_VARIABLES = 1000;
  private static final int LIMIT_VALUE = 200; // characters of a variable's value
  private static final int LIMIT_SIGNATURES = 20;

  private final Cells cells;
  private final JShell shell;
  private final SourceCodeAnalysis analysis;
  private final Execution execution;

  Questions(Cells cells, JShell shell, SourceCodeAnalysis analysis, Execution execution) {
    this.cells = cells;
    this.shell = shell;
    this.analysis = analysis;
    this.execution = execution;
  }

  String answer(Link.Frame frame) {
    switch (frame.kind) {
      case "check":
        return check(frame.body);
      case "complete":
        return complete(frame.body, frame.argument);
      case "inspect":
        return inspect(frame.body.strip());
      case "variables":
        return variables();
      default:
        addPackages(frame.body);
        return "{}";
    }
  }

  private String check(String code) {
    List<Cells.Piece> pieces = cells.split(code);
    String status = "complete";
    if (!pieces.isEmpty()) {
      Cells.Piece last = pieces.get(pieces.size() - 1);
      Completeness c = analysis.analyzeCompletion(last.source).completeness();
      if (last.isBroken) status = c == Completeness.UNKNOWN ? "invalid" : "incomplete";
    } else if (analysis.analyzeCompletion(code).completeness() == Completeness.DEFINITELY_INCOMPLETE) {
      status = "incomplete";
    }
    String indent = status.equals("incomplete") ? indent(code) : "";
    return "{\"status\":\"" + status + "\"" + (indent.isEmpty() ? "" : ",\"indent\":" + Link.quote(indent)) + "}";
  }

  /** Returns the indent of the next line: that of the last one, and four more columns after an open brace. */
  private static String indent(String code) {
    String text = code.stripTrailing();
    String last = text.substring(text.lastIndexOf('\n') + 1);
    String indent = last.substring(0, last.length() - last.stripLeading().length());
    return last.endsWith("{") ? indent + "    " : indent;
  }

  private String complete(String code, int cursor) {
    byte[] bytes = code.getBytes(StandardCharsets.UTF_8);
    String before = new String(bytes, 0, Math.min(cursor, bytes.length), StandardCharsets.UTF_8);
    List<Cells.Piece> pieces = cells.split(before);
    int at = pieces.isEmpty() ? 0 : pieces.get(pieces.size() - 1).start;
    int[] anchor = {before.length() - at};
    List<Suggestion> found = analysis.completionSuggestions(before.substring(at), before.length() - at, anchor);
    Set<String> matches = new LinkedHashSet<>();
    for (Suggestion s : found) if (s.matchesType()) matches.add(s.continuation());
    for (Suggestion s : found) matches.add(s.continuation());
    String list = matches.stream().limit(LIMIT_MATCHES).map(Link::quote).collect(Collectors.joining(","));
    int start = before.substring(0, at + anchor[0]).getBytes(StandardCharsets.UTF_8).length;
    return "{\"matches\":[" + list + "],\"start\":" + start + ",\"end\":" + before.getBytes(StandardCharsets.UTF_8).length + "}";
  }

  private String inspect(String code) {
    List<String> found = new ArrayList<>();
    shell.variables().filter(v -> v.name().equals(code))
        .forEach(v -> found.add(v.typeName() + " " + code + " = " + value(v, Link.LIMIT_TEXT)));
    Stream.concat(shell.methods().filter(m -> m.name().equals(code)), shell.types().filter(t -> t.name().equals(code)))
        .forEach(s -> found.add(s.source().strip()));
    if (found.isEmpty()) {
      document(code, found);
      if (found.isEmpty()) document(code + "(", found);
    }
    if (found.isEmpty() && !code.isEmpty()) {
      String type = analysis.analyzeType(code, code.length());
      if (type != null) found.add(type);
    }
    if (found.isEmpty()) return "{\"found\":false}";
    return "{\"found\":true,\"text\":" + Link.quote(Link.cut(String.join("\n\n", found), Link.LIMIT_TEXT)) + "}";
  }

  /** Adds the signatures of what the code names, and the documentation if the JDK has its sources. */
  private void document(String code, List<String> found) {
    for (Documentation d : analysis.documentation(code, code.length(), true)) {
      if (found.size() == LIMIT_SIGNATURES) return;
      String text = d.javadoc();
      found.add(text == null || text.isBlank() ? d.signature() : d.signature() + "\n" + text.strip());
    }
  }

  private String variables() {
    List<String> list = new ArrayList<>();
    boolean truncated = false;
    for (VarSnippet v : shell.variables().collect(Collectors.toList())) {
      if (v.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND) continue;
      if (list.size() == LIMIT_VARIABLES || execution.isInterrupted()) {
        truncated = true;
        break;
      }
      list.add("{\"name\":" + Link.quote(v.name()) + ",\"type\":" + Link.quote(v.typeName()) + ",\"value\":"
          + Link.quote(value(v, LIMIT_VALUE)) + "}");
    }
    return "{\"variables\":[" + String.join(",", list) + "]" + (truncated ? ",\"truncated\":true" : "") + "}";
  }

  private String value(VarSnippet variable, int limit) {
    try {
      String text = shell.varValue(variable);
      if (text.length() <= limit) return text;
      return limit == LIMIT_VALUE ? text.substring(0, limit) + "..." : Link.cut(text, limit);
    } catch (IllegalStateException | IllegalArgumentException e) {
      return ""; // it is not declared yet, or was interrupted
    }
  }

  /** Adds the jars below a directory to the class path; without any, the directory. */
  private void addPackages(String directory) {
    List<Path> jars = List.of();
    try (Stream<Path> files = Files.walk(Path.of(directory))) {
      jars = files.filter(f -> f.toString().endsWith(".jar")).sorted().collect(Collectors.toList());
    } catch (IOException e) {
      System.err.println("sandbox-run: packages: " + e.getMessage());
    }
    if (jars.isEmpty()) shell.addToClasspath(directory);
    for (Path jar : jars) shell.addToClasspath(jar.toString());
  }
}
