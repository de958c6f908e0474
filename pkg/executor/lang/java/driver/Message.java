package run.sandbox.warm;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;

/** Message is what says which program to run. */
final class Message {
  private final String text;
  private int at;

  private Message(String text) {
    this.text = text;
  }

  /** Says that all is ready, and returns the arguments that the one message has. Not one byte more is read. */
  static String[] await() throws IOException {
    new FileOutputStream(FileDescriptor.err).write("sandbox-run: ready\n".getBytes("UTF-8"));
    FileInputStream in = new FileInputStream(FileDescriptor.in);
    byte[] length = fill(in, new byte[4]);
    int n = (length[0] & 255) << 24 | (length[1] & 255) << 16 | (length[2] & 255) << 8 | length[3] & 255;
    return new Message(new String(fill(in, new byte[n]), "UTF-8")).args();
  }

  private static byte[] fill(FileInputStream in, byte[] b) throws IOException {
    for (int n = 0; n < b.length; ) {
      int more = in.read(b, n, b.length - n);
      if (more < 0) Runtime.getRuntime().halt(70); // the pool has closed the pipe
      n += more;
    }
    return b;
  }

  /** The list "args" of the object. The rest is as it is already. */
  private String[] args() throws IOException {
    expect('{');
    while (true) {
      String name = string();
      expect(':');
      if (name.equals("args")) return strings();
      skip();
      expect(',');
    }
  }

  private String[] strings() throws IOException {
    String[] all = new String[0];
    expect('[');
    do {
      String[] longer = new String[all.length + 1];
      System.arraycopy(all, 0, longer, 0, all.length);
      longer[all.length] = string();
      all = longer;
    } while (next() == ',');
    return all;
  }

  private char next() {
    while (Character.isWhitespace(text.charAt(at))) at++;
    return text.charAt(at++);
  }

  private void expect(char c) throws IOException {
    if (next() != c) throw new IOException("message: no " + c + " at " + (at - 1));
  }

  private String string() throws IOException {
    expect('"');
    StringBuilder s = new StringBuilder();
    while (true) {
      char c = text.charAt(at++);
      if (c == '"') return s.toString();
      if (c == '\\') {
        c = text.charAt(at++);
        int plain = "bfnrt".indexOf(c);
        if (plain >= 0) {
          c = "\b\f\n\r\t".charAt(plain);
        } else if (c == 'u') {
          c = (char) Integer.parseInt(text.substring(at, at + 4), 16);
          at += 4;
        }
      }
      s.append(c);
    }
  }

  /** Goes past a value that consists of strings and signs. */
  private void skip() throws IOException {
    int depth = 0;
    do {
      char c = next();
      if (c == '"') {
        at--;
        string();
      } else if (c == '{' || c == '[') {
        depth++;
      } else if (c == '}' || c == ']') {
        depth--;
      }
    } while (depth > 0);
  }

  static byte[] read(String name) throws IOException {
    FileInputStream in = new FileInputStream(name);
    byte[] all = in.readAllBytes();
    in.close();
    return all;
  }

  /** Writes a class anew with two names replaced. */
  static byte[] rename(byte[] b, String first, String firstTo, String second, String secondTo) throws IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(b));
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    out.writeLong(in.readLong());
    int n = in.readUnsignedShort();
    out.writeShort(n);
    for (int i = 1; i < n; i++) {
      int tag = in.readUnsignedByte();
      out.writeByte(tag);
      switch (tag) {
        case 1: // text
          String s = in.readUTF();
          out.writeUTF(s.equals(first) ? firstTo : s.equals(second) ? secondTo : s);
          break;
        case 7: // class
        case 8: // string
          out.writeShort(in.readUnsignedShort());
          break;
        default: // a field, a method, or a name and its type: nothing else is in the template
          out.writeInt(in.readInt());
      }
    }
    in.transferTo(out);
    return bytes.toByteArray();
  }
}
