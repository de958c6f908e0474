import java.util.*;
import java.util.function.*;
import java.util.stream.*;

public class Training {
  interface Shape { double area(); }
  enum Kind { ROUND, SQUARE }
  static class Box<T extends Comparable<T>> implements Iterable<T> {
    private final List<T> all = new ArrayList<>();
    void add(T t) { all.add(t); }
    @Override public Iterator<T> iterator() { return all.iterator(); }
  }
  static int count(String... words) throws IllegalArgumentException {
    int n = 0;
    for (String w : words) { if (w.isEmpty()) continue; n += w.length() > 3 ? 1 : 0; }
    return n;
  }
  public static void main(String[] args) {
    Map<String, Integer> m = new HashMap<>();
    for (int i = 0; i < 10; i++) { m.merge("k" + i % 3, i, Integer::sum); }
    Box<String> box = new Box<>();
    box.add("x");
    for (String s : box) System.out.printf("%s %d%n", s, count(s, "word"));
    Function<Integer, Integer> twice = n -> 2 * n;
    Shape shape = new Shape() { public double area() { return Math.PI; } };
    var text = Stream.of(3, 1, 2).map(twice).filter(n -> n > 2).sorted().map(String::valueOf).collect(Collectors.joining(", "));
    switch (Kind.valueOf("ROUND")) { case ROUND: System.out.println(text + shape.area()); break; default: break; }
    try (Scanner in = new Scanner(System.in)) { while (in.hasNextLine()) System.out.println(in.nextLine()); }
    catch (RuntimeException e) { throw new IllegalStateException("no", e); } finally { long[] a = {1L, 2L}; Arrays.sort(a); }
  }
}
