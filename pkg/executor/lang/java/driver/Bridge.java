package run.sandbox.warm;

/** Bridge is a template: both names in it are replaced. */
final class Bridge extends Called {
  static {
    it = new Bridge();
  }

  @Override
  public void main(String[] args) throws Throwable {
    Program.main(args);
  }
}

final class Program {
  static void main(String[] args) throws Throwable {}
}
