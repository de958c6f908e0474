/** Probe tells how many identity hash codes were taken before it. */
public class Probe {
  public static void main(String[] args) {
    for (int i = 0; i < 64; i++) System.out.println(new Object().hashCode());
  }
}
