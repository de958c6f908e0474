import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Array;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.TimeUnit;

/** Runs the snippet against cases, which the template puts into SandboxHarnessCases. */
public class SandboxHarness {
  static final int MOST_LINES = 200;

  // JSON: null, Boolean, BigDecimal, String, List and Map. The text was written by the harness's
  // maker: it is valid.
  static String text;
  static int at;

  static Object value() {
    space();
    switch (text.charAt(at)) {
      case 'n': at += 4; return null;
      case 't': at += 4; return true;
      case 'f': at += 5; return false;
      case '"': return string();
      case '[':
        List<Object> list = new ArrayList<>();
        while (more(']')) list.add(value());
        return list;
      case '{':
        Map<String, Object> map = new TreeMap<>();
        while (more('}')) {
          String key = string();
          space();
          at++;
          map.put(key, value());
        }
        return map;
    }
    int start = at;
    while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) at++;
    return new BigDecimal(text.substring(start, at));
  }

  static void space() {
    while (Character.isWhitespace(text.charAt(at))) at++;
  }

  // more goes over the opening bracket or a comma; false at the closing one.
  static boolean more(char close) {
    space();
    if (text.charAt(at) != close) {
      at++;
      space();
    }
    if (text.charAt(at) != close) return true;
    at++;
    return false;
  }

  static String string() {
    space();
    at++;
    StringBuilder out = new StringBuilder();
    for (;;) {
      char c = text.charAt(at++);
      if (c == '"') return out.toString();
      if (c != '\\') {
        out.append(c);
        continue;
      }
      c = text.charAt(at++);
      switch (c) {
        case 'n': out.append('\n'); break;
        case 'r': out.append('\r'); break;
        case 't': out.append('\t'); break;
        case 'b': out.append('\b'); break;
        case 'f': out.append('\f'); break;
        case 'u':
          out.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
          at += 4;
          break;
        default: out.append(c);
      }
    }
  }

  static String show(Object value, String indent) {
    String inner = indent + "  ";
    List<String> lines = new ArrayList<>();
    if (value instanceof String) return indent.isEmpty() ? (String) value : quotedText((String) value);
    if (value instanceof List) {
      for (Object item : (List<?>) value) lines.add(inner + show(item, inner));
      return lines.isEmpty() ? "[]" : "[\n" + String.join(",\n", lines) + "\n" + indent + "]";
    }
    if (value instanceof Map) {
      for (Map.Entry<?, ?> e : ((Map<?, ?>) value).entrySet()) lines.add(inner + quotedText((String) e.getKey()) + ": " + show(e.getValue(), inner));
      return lines.isEmpty() ? "{}" : "{\n" + String.join(",\n", lines) + "\n" + indent + "}";
    }
    return value instanceof BigDecimal ? ((BigDecimal) value).toPlainString() : String.valueOf(value);
  }

  static String quotedText(String s) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : s.toCharArray()) {
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c == '\n') out.append("\\n");
      else if (c < ' ') out.append(String.format("\\x%02x", (int) c));
      else out.append(c);
    }
    return out.append('"').toString();
  }

  /** What JSON has words for; anything else is an error. NaN and infinity stay what they are. */
  static Object plain(Object value) {
    if (value == null || value instanceof Boolean || value instanceof String) return value;
    if (value instanceof Character) return value.toString();
    if (value instanceof Double || value instanceof Float) {
      double d = ((Number) value).doubleValue();
      return Double.isFinite(d) ? (Object) new BigDecimal(value.toString()) : (Object) d;
    }
    if (value instanceof Number) return new BigDecimal(value.toString());
    if (value instanceof Optional) return plain(((Optional<?>) value).orElse(null));
    if (value.getClass().isArray()) {
      List<Object> list = new ArrayList<>();
      for (int i = 0; i < Array.getLength(value); i++) list.add(plain(Array.get(value, i)));
      return list;
    }
    if (value instanceof Set && !(value instanceof LinkedHashSet)) {
      List<Object> list = new ArrayList<>();
      for (Object item : (Set<?>) value) list.add(plain(item));
      list.sort(Comparator.comparing(item -> show(item, " ")));
      return list;
    }
    if (value instanceof Iterable) {
      List<Object> list = new ArrayList<>();
      for (Object item : (Iterable<?>) value) list.add(plain(item));
      return list;
    }
    if (value instanceof Map) {
      Map<String, Object> map = new TreeMap<>();
      for (Map.Entry<?, ?> e : ((Map<?, ?>) value).entrySet()) map.put(String.valueOf(e.getKey()), plain(e.getValue()));
      return map;
    }
    throw new IllegalArgumentException("the result is a " + value.getClass().getName() + ", which cases can not express");
  }

  /** An argument, as the type of the parameter. */
  static Object argument(Object value, Type type) {
    Class<?> raw = type instanceof Class ? (Class<?>) type : type instanceof ParameterizedType ? (Class<?>) ((ParameterizedType) type).getRawType() : Object.class;
    Type[] inner = type instanceof ParameterizedType ? ((ParameterizedType) type).getActualTypeArguments() : new Type[] {Object.class, Object.class};
    if (value instanceof BigDecimal) {
      BigDecimal n = (BigDecimal) value;
      if (raw == int.class || raw == Integer.class) return n.intValueExact();
      if (raw == long.class || raw == Long.class) return n.longValueExact();
      if (raw == short.class || raw == Short.class) return n.shortValueExact();
      if (raw == byte.class || raw == Byte.class) return n.byteValueExact();
      if (raw == double.class || raw == Double.class) return n.doubleValue();
      if (raw == float.class || raw == Float.class) return n.floatValue();
      if (raw == BigInteger.class) return n.toBigIntegerExact();
      if (raw == BigDecimal.class) return n;
      if (raw.isAssignableFrom(Integer.class)) {
        if (n.scale() > 0) return n.doubleValue();
        return n.abs().compareTo(BigDecimal.valueOf(Integer.MAX_VALUE)) <= 0 ? (Object) n.intValueExact() : (Object) n.longValueExact();
      }
    }
    if (value instanceof String && (raw == char.class || raw == Character.class) && ((String) value).length() == 1) return ((String) value).charAt(0);
    if (value instanceof List) {
      List<?> list = (List<?>) value;
      if (raw.isArray()) {
        Object array = Array.newInstance(raw.getComponentType(), list.size());
        for (int i = 0; i < list.size(); i++) Array.set(array, i, argument(list.get(i), raw.getComponentType()));
        return array;
      }
      Collection<Object> items = Set.class.isAssignableFrom(raw) ? new LinkedHashSet<>() : Deque.class.isAssignableFrom(raw) || raw == Queue.class ? new ArrayDeque<>() : new ArrayList<>();
      for (Object item : list) items.add(argument(item, inner[0]));
      if (raw.isInstance(items)) return items;
    }
    if (value instanceof Map && raw.isAssignableFrom(LinkedHashMap.class)) {
      Map<String, Object> map = new LinkedHashMap<>();
      for (Map.Entry<?, ?> e : ((Map<?, ?>) value).entrySet()) map.put((String) e.getKey(), argument(e.getValue(), inner[1]));
      return map;
    }
    if (raw == boolean.class && value instanceof Boolean || value == null && !raw.isPrimitive() || raw.isInstance(value)) return value;
    throw new IllegalArgumentException(show(value, " ") + " is no " + type.getTypeName());
  }

  static boolean same(Object want, Object got, Map<?, ?> test) {
    if (want instanceof BigDecimal && got instanceof BigDecimal) {
      BigDecimal difference = ((BigDecimal) want).subtract((BigDecimal) got).abs();
      return difference.compareTo((BigDecimal) test.get("tolerance")) <= 0;
    }
    if (want instanceof String && got instanceof String) return clean((String) want, test).equals(clean((String) got, test));
    if (want instanceof List && got instanceof List) {
      List<?> w = (List<?>) want, g = (List<?>) got;
      for (int i = 0; i < Math.min(w.size(), g.size()); i++) if (!same(w.get(i), g.get(i), test)) return false;
      return w.size() == g.size();
    }
    if (want instanceof Map && got instanceof Map) {
      Map<?, ?> w = (Map<?, ?>) want, g = (Map<?, ?>) got;
      if (!w.keySet().equals(g.keySet())) return false;
      for (Object key : w.keySet()) if (!same(w.get(key), g.get(key), test)) return false;
      return true;
    }
    return Objects.equals(want, got);
  }

  static String clean(String s, Map<?, ?> test) {
    if (test.get("ignore_trailing_space") != Boolean.TRUE) return s;
    List<String> lines = new ArrayList<>();
    for (String line : s.split("\n", -1)) lines.add(line.stripTrailing());
    return String.join("\n", lines).stripTrailing();
  }

  /** The method: of the named class (Solution.solve), or of the first that has it. */
  static Method method() throws ReflectiveOperationException {
    int dot = SandboxHarnessCases.FUNCTION.lastIndexOf('.');
    String name = SandboxHarnessCases.FUNCTION.substring(dot + 1), owner = dot < 0 ? "" : SandboxHarnessCases.FUNCTION.substring(0, dot);
    for (String className : SandboxHarnessCases.CLASSES) {
      if (!owner.isEmpty() && !className.equals(owner) && !className.endsWith("." + owner)) continue;
      for (Method m : Class.forName(className).getDeclaredMethods())
        if (m.getName().equals(name) && !m.isSynthetic()) {
          m.setAccessible(true);
          return m;
        }
    }
    throw new NoSuchMethodException("the snippet has no method " + SandboxHarnessCases.FUNCTION);
  }

  static Object owner(Method m) throws ReflectiveOperationException {
    if (Modifier.isStatic(m.getModifiers())) return null;
    var constructor = m.getDeclaringClass().getDeclaredConstructor();
    constructor.setAccessible(true);
    return constructor.newInstance();
  }

  /** Calls the method for one case, in a process of its own. */
  static void child(Map<?, ?> test, String result) throws Exception {
    String report;
    try {
      Method m = method();
      List<?> given = (List<?>) test.get("args");
      Type[] types = m.getGenericParameterTypes();
      if (given.size() != types.length) throw new IllegalArgumentException("the method takes " + types.length + " arguments, the case has " + given.size());
      Object[] args = new Object[types.length];
      for (int i = 0; i < args.length; i++) args[i] = argument(given.get(i), types[i]);
      Object got = plain(m.invoke(owner(m), args));
      report = same(test.get("want"), got, test) ? "pass\n" : "fail\n" + show(got, "");
    } catch (InvocationTargetException wrapped) {
      trace(wrapped.getCause());
      report = "note\n" + wrapped.getCause();
    } catch (Exception e) {
      report = "note\n" + e.getMessage();
    }
    Files.writeString(Path.of(result), report);
    System.out.flush();
    Runtime.getRuntime().halt(0); // threads that the snippet left do not hold it up
  }

  // The trace ends where the snippet does.
  static void trace(Throwable error) {
    List<StackTraceElement> frames = new ArrayList<>();
    for (StackTraceElement frame : error.getStackTrace()) {
      if (frame.getClassName().contains("reflect.") || frame.getClassName().equals("SandboxHarness")) break;
      frames.add(frame);
    }
    error.setStackTrace(frames.toArray(new StackTraceElement[0]));
    error.printStackTrace();
  }

  static String read(File file) throws IOException {
    try (var in = Files.newInputStream(file.toPath())) {
      return new String(in.readNBytes(8 << 20), StandardCharsets.UTF_8);
    }
  }

  /** Runs one case; gives what is wrong (or nothing), what the case gave (or null), and what it printed. */
  static String[] run(int number, Map<?, ?> test, Path work) throws Exception {
    File in = work.resolve(number + ".in").toFile(), out = work.resolve(number + ".out").toFile(), err = work.resolve(number + ".err").toFile();
    Path result = work.resolve(number + ".result");
    Files.writeString(in.toPath(), (String) test.get("stdin"));
    List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"));
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), "SandboxHarness"));
    if (SandboxHarnessCases.KIND.equals("stdio")) for (Object arg : (List<?>) test.get("args")) command.add((String) arg);
    ProcessBuilder builder = new ProcessBuilder(command).redirectInput(in).redirectOutput(out).redirectError(err);
    builder.environment().put("SANDBOX_CASE", String.valueOf(number));
    builder.environment().put("SANDBOX_RESULT", result.toString());
    Process process = builder.start();
    long limit = ((BigDecimal) test.get("timeout_ms")).longValue();
    boolean ended = process.waitFor(limit, TimeUnit.MILLISECONDS);
    process.descendants().forEach(ProcessHandle::destroyForcibly);
    if (!ended) process.destroyForcibly().waitFor();
    String stdout = read(out), stderr = read(err);
    int code = process.exitValue();
    if (!ended) return new String[] {"timed out after " + limit + " ms", null, stdout, stderr};
    if (SandboxHarnessCases.KIND.equals("call")) {
      if (!Files.exists(result)) return new String[] {"exited with code " + code + " before the function returned", null, stdout, stderr};
      String[] report = Files.readString(result).split("\n", 2);
      if (report[0].equals("pass")) return new String[] {"", null, "", ""};
      if (report[0].equals("note")) return new String[] {report[1], null, stdout, stderr};
      return new String[] {"wrong result", report[1], stdout, stderr};
    }
    List<String> notes = new ArrayList<>();
    int expected = ((BigDecimal) test.get("exit_code")).intValue();
    if (code != expected) notes.add("exit code " + code + ", not " + expected);
    if (!clean((String) test.get("want"), test).equals(clean(stdout, test))) notes.add("wrong output");
    return new String[] {String.join("; ", notes), stdout, "", stderr};
  }

  /** A unified diff of one hunk. */
  static List<String> differences(String wantText, String gotText) {
    String[] want = wantText.split("\n", -1), got = gotText.split("\n", -1);
    int head = 0, tail = 0;
    while (head < want.length && head < got.length && want[head].equals(got[head])) head++;
    if (head == want.length && head == got.length) return List.of();
    while (tail < want.length - head && tail < got.length - head && want[want.length - 1 - tail].equals(got[got.length - 1 - tail])) tail++;
    int before = Math.max(0, head - 3), after = Math.max(0, tail - 3);
    List<String> lines = new ArrayList<>(List.of("--- want", "+++ got",
        "@@ -" + (before + 1) + "," + (want.length - after - before) + " +" + (before + 1) + "," + (got.length - after - before) + " @@"));
    for (int i = before; i < head; i++) lines.add(" " + want[i]);
    middle(Arrays.copyOfRange(want, head, want.length - tail), Arrays.copyOfRange(got, head, got.length - tail), lines);
    for (int i = want.length - tail; i < want.length - after; i++) lines.add(" " + want[i]);
    return shorten(lines);
  }

  /** What two texts without common ends have in common: the longest common subsequence. */
  static void middle(String[] want, String[] got, List<String> lines) {
    boolean large = (long) want.length * got.length > 1_000_000;
    int[][] common = new int[want.length + 1][large ? 1 : got.length + 1];
    for (int i = want.length - 1; i >= 0 && !large; i--)
      for (int j = got.length - 1; j >= 0; j--)
        common[i][j] = want[i].equals(got[j]) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    int i = 0, j = 0;
    while (i < want.length || j < got.length) {
      if (!large && i < want.length && j < got.length && want[i].equals(got[j])) {
        lines.add(" " + want[i++]);
        j++;
      } else if (j == got.length || i < want.length && (large || common[i + 1][j] >= common[i][j + 1])) lines.add("-" + want[i++]);
      else lines.add("+" + got[j++]);
    }
  }

  static List<String> shorten(List<String> lines) {
    if (lines.size() <= MOST_LINES) return lines;
    List<String> out = new ArrayList<>(lines.subList(0, MOST_LINES));
    out.add("\u2026 " + (lines.size() - MOST_LINES) + " more lines");
    return out;
  }

  static List<String> quoted(String title, String s) {
    List<String> out = new ArrayList<>();
    if (s.isEmpty()) return out;
    out.add(title + ":");
    for (String line : shorten(Arrays.asList(s.stripTrailing().split("\n", -1)))) out.add("  | " + line);
    return out;
  }

  public static void main(String[] args) throws Throwable {
    text = SandboxHarnessCases.CASES;
    List<?> cases = (List<?>) value();
    String number = System.getenv("SANDBOX_CASE");
    if (number != null) {
      if (SandboxHarnessCases.KIND.equals("call")) child((Map<?, ?>) cases.get(Integer.parseInt(number)), System.getenv("SANDBOX_RESULT"));
      Method m = method();
      try {
        m.invoke(owner(m), m.getParameterCount() == 0 ? new Object[0] : new Object[] {args});
      } catch (InvocationTargetException wrapped) {
        System.out.flush();
        trace(wrapped.getCause());
        System.exit(1);
      }
      return;
    }
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    Path work = Files.createTempDirectory("cases-");
    List<String> details = new ArrayList<>();
    int failed = 0;
    out.println(((Map<?, ?>) cases.get(0)).get("heading") + "  RESULT     TIME  NOTE");
    for (int i = 0; i < cases.size(); i++) {
      Map<?, ?> test = (Map<?, ?>) cases.get(i);
      long start = System.nanoTime();
      String[] outcome = run(i, test, work);
      String note = outcome[0], state = note.isEmpty() ? "pass" : "FAIL";
      long took = (System.nanoTime() - start) / 1_000_000;
      out.println((test.get("label") + "  " + state + String.format("  %6d ms  ", took) + note.split("\n")[0]).stripTrailing());
      if (note.isEmpty()) continue;
      failed++;
      details.addAll(List.of("", "FAIL " + test.get("name") + ": " + note));
      if (outcome[1] != null) details.addAll(differences(show(test.get("want"), ""), outcome[1]));
      details.addAll(quoted("stdout", outcome[2]));
      details.addAll(quoted("stderr", outcome[3]));
    }
    try (var files = Files.list(work)) {
      for (Path file : (Iterable<Path>) files::iterator) Files.delete(file);
    }
    Files.delete(work);
    details.addAll(List.of("", (cases.size() - failed) + " passed, " + failed + " failed"));
    out.println(String.join("\n", details));
    System.exit(failed == 0 ? 0 : 1);
  }
}

