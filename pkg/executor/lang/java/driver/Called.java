package run.sandbox.warm;

/** Called calls the program. */
public abstract class Called {
  public static Called it;

  public abstract void main(String[] args) throws Throwable;
}
