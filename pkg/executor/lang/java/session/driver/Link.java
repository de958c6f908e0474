package run.sandbox.session;

import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channel;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Link reads and writes the frames of pkg/session/protocol. Two threads of the driver alone use the socket: an interrupt of a thread that
 * uses a channel closes the channel.
 */
final class Link {
  static final int LIMIT_TEXT = 1 << 20; // characters of a value's text
  static final int LIMIT_MESSAGE = 8 << 10; // characters of an error's message

  /** A frame of the supervisor. */
  static final class Frame {
    final String kind;
    final long id;
    final int argument;
    final String body;

    Frame(String kind, long id, int argument, String body) {
      this.kind = kind;
      this.id = id;
      this.argument = argument;
      this.body = body;
    }
  }

  private final ReadableByteChannel in; // null: the driver practises
  private final WritableByteChannel out;
  private final ByteBuffer buffer = ByteBuffer.allocate(1 << 13).flip();
  private final LinkedBlockingQueue<byte[]> outgoing = new LinkedBlockingQueue<>();

  private Link(Channel socket) {
    in = (ReadableByteChannel) socket;
    out = (WritableByteChannel) socket;
    if (socket == null) return;
    Thread writer = new Thread(null, this::write, "session writer");
    writer.setDaemon(true);
    writer.start();
  }

  /** Takes the socket from descriptor 0: the JDK makes a copy, and puts /dev/null in the place of a standard stream that is closed. */
  static Link take() throws IOException {
    Link link = new Link(System.inheritedChannel());
    InputStream standard = new FileInputStream(FileDescriptor.in);
    standard.close();
    return link;
  }

  /** Returns a link that leads nowhere. */
  static Link practise() {
    return new Link(null);
  }

  private void write() {
    try {
      while (true) {
        ByteBuffer frame = ByteBuffer.wrap(outgoing.take());
        while (frame.hasRemaining()) out.write(frame);
      }
    } catch (IOException | InterruptedException e) {
      Runtime.getRuntime().halt(1); // the session has ended, or foreign code has closed the channel
    }
  }

  /** Sends a frame, without waiting and without a section that an interrupt could leave half-way. */
  void send(String kind, long id, String body) {
    byte[] text = body.getBytes(StandardCharsets.UTF_8);
    byte[] header = (kind + " " + id + " " + text.length + "\n").getBytes(StandardCharsets.US_ASCII);
    byte[] frame = new byte[header.length + text.length];
    System.arraycopy(header, 0, frame, 0, header.length);
    System.arraycopy(text, 0, frame, header.length, text.length);
    outgoing.add(frame);
  }

  /** Waits for the next frame; null at the end of the socket. */
  Frame read() throws IOException {
    StringBuilder header = new StringBuilder();
    for (int c = next(); c != '\n'; c = next()) {
      if (c < 0) return null;
      header.append((char) c);
    }
    String[] words = header.toString().split(" ");
    byte[] body = new byte[Integer.parseInt(words[2])];
    for (int at = 0; at < body.length; ) {
      if (!fill()) return null;
      int n = Math.min(body.length - at, buffer.remaining());
      buffer.get(body, at, n);
      at += n;
    }
    int argument = words.length > 3 ? Integer.parseInt(words[3]) : 0;
    return new Frame(words[0], Long.parseLong(words[1]), argument, new String(body, StandardCharsets.UTF_8));
  }

  private int next() throws IOException {
    return fill() ? buffer.get() : -1;
  }

  private boolean fill() throws IOException {
    if (buffer.hasRemaining()) return true;
    buffer.clear();
    int n = in.read(buffer);
    buffer.flip();
    return n > 0;
  }

  /** Returns JSON of a string. */
  static String quote(String text) {
    StringBuilder out = new StringBuilder(text.length() + 2).append('"');
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
      else out.append(c);
    }
    return out.append('"').toString();
  }

  /** Returns a text within a bound. */
  static String cut(String text, int limit) {
    if (text.length() <= limit) return text;
    return text.substring(0, limit) + "\n... (" + limit + " of " + text.length() + " characters shown)";
  }
}
