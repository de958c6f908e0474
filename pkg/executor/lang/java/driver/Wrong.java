import java.util.*;

public class Wrong {
  static int f(List<String> l) { return l; }
  public static void main(String[] args) {
    int x = "a";
    String s = undefined + g(1);
    for (String t : 5) { t.nothing(); }
  }
}
