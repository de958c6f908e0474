package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// javaWarmth is an archive of javac's own classes, as the virtual machine reads them fastest: it takes a third off what
// compiling a small program costs. The user's own JDK makes it, from a program of ours; a machine that it does not fit ignores it.
type javaWarmth struct {
	dir  string
	tool *toolchain.Toolchain
}

const (
	// javaArchive is where the archive is shown.
	javaArchive = ToolDir + "/javac.jsa"
	// javaArchiveFlag makes javac's machine use it.
	javaArchiveFlag = "-J-XX:SharedArchiveFile=" + javaArchive
	// javaArchivePatience bounds its making, which takes about a second.
	javaArchivePatience = time.Minute
)

// javaTraining uses what programs use, so that the classes which compile it are in the archive.
const javaTraining = `import java.util.*;
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
`

func (w *javaWarmth) archive() string { return filepath.Join(w.dir, "javac.jsa") }

// prepare makes the archive the first time. One that can not be made is done without.
func (w *javaWarmth) prepare(ctx context.Context, p *Plan, compiling bool, on prepareHook) (func(), error) {
	release, err := useWarm(w.dir)
	if err != nil {
		w.without(p)
		return func() {}, nil
	}
	if compiling {
		err = w.fill(ctx, on)
	} else {
		_, err = os.Stat(w.archive())
	}
	if err == nil {
		return release, nil
	}
	release()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	w.without(p)
	return func() {}, nil
}

// without changes a plan so that it needs no archive.
func (w *javaWarmth) without(p *Plan) {
	p.Spec.Root.Add = slices.DeleteFunc(slices.Clone(p.Spec.Root.Add), func(m sandbox.Mount) bool { return m.Target == javaArchive })
	for i := range p.Phases {
		args := &p.Phases[i].Process.Args
		*args = slices.DeleteFunc(slices.Clone(*args), func(a string) bool { return a == javaArchiveFlag })
	}
}

// errNoArchive: it was tried before, and this JDK makes none.
var errNoArchive = errors.New("this JDK makes no archive")

func (w *javaWarmth) fill(ctx context.Context, on prepareHook) error {
	there := func() error {
		st, err := os.Stat(w.archive())
		if err == nil && st.Size() == 0 {
			return errNoArchive
		}
		return err
	}
	if err := there(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fillWarm(ctx, w.dir, "preparing the Java compiler, once", on, func() error {
		if err := there(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		dropWarm(ctx, w.dir)
		return w.make(ctx)
	})
}

func (w *javaWarmth) make(ctx context.Context) error {
	home, leave, err := workshop(ctx, w.dir)
	if err != nil {
		return err
	}
	defer leave()
	made := filepath.Join(home, "javac.jsa")
	if err := w.train(ctx, home, made); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// An empty one says that it was tried.
		return errors.Join(err, os.WriteFile(w.archive(), nil, 0o600))
	}
	return errors.Join(os.Chmod(made, 0o644), os.Rename(made, w.archive()))
}

// train compiles the program and has the machine write down which classes that took.
func (w *javaWarmth) train(ctx context.Context, home, made string) error {
	ctx, cancel := context.WithTimeout(ctx, javaArchivePatience)
	defer cancel()
	source := filepath.Join(home, "Training.java")
	if err := os.WriteFile(source, []byte(javaTraining), 0o600); err != nil {
		return err
	}
	args := append(javacFlags(256*sandbox.MiB), "-J-XX:ArchiveClassesAtExit="+made, "-d", filepath.Join(home, "out"), source)
	cmd := exec.Command(onHost(w.tool, w.tool.Programs["javac"]), args...)
	cmd.Env = []string{"LANG=C.UTF-8"}
	if err := runTool(ctx, w.tool, cmd, home); err != nil {
		return fmt.Errorf("javac: %w", err)
	}
	_, err := os.Stat(made)
	return err
}
