package javasource

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const javaHello = "public class Hello { public static void main(String[] a) {} }\n"

func TestJavaIsRead(t *testing.T) {
	for _, c := range []struct {
		src     string
		pkg     string
		public  string
		mains   []string
		compact bool
	}{
		{src: javaHello, public: "Hello", mains: []string{"Hello"}},
		{src: "package a . b; /* class X { */ // class Y {\n" +
			"@Deprecated(since=\"class Z {\") public final class Q<T extends Comparable<T>> extends P<T> { public static final void main(final " +
			"String... a) {} }", pkg: "a.b", public: "Q", mains: []string{"Q"}},
		{src: "class A { void f() { main(); } static void g() {} }\n" +
			"class B { static void main(String[] a) { class C { void main(String[] a) {} } } }", mains: []string{"B"}},
		{src: "public record P(int x, int y) { static void main(String[] a) {} }", public: "P", mains: []string{"P"}},
		{src: "@SuppressWarnings({\"a\", \"b\"})\npublic enum E { A, B; public static void main(String[] a) {} }", public: "E",
			mains: []string{"E"}},
		{src: "public @interface N {}", public: "N"},
		{src: "class S { String s = \"\"\"\n } class X { \\\"\"\" \"\"\"; char c = '{'; char d = '\\''; public static void main(String[] a) {} }",
			mains: []string{"S"}},
		{src: "void main() { System.out.println(1); }", compact: true},
		{src: "String hi() { return \"hi\"; }\nvoid main(String[] a) {}", compact: true},
		{src: "class Unended { public static void main(String[] a) { \"", mains: []string{"Unended"}},
		{src: ""},
	} {
		s := Scan(c.src)
		if s.Package != c.pkg || s.Public != c.public || !slices.Equal(s.Mains, c.mains) || s.Compact != c.compact {
			t.Errorf("%q: %+v", c.src, s)
		}
	}
}

// However a source is written, reading it ends, and what it finds is in it.
func FuzzJava(f *testing.F) {
	for _, s := range []string{javaHello, "class A { static void main(String[] a) { } }", "\"\"\"", "'", "/*", "{}}{", "record R(int a) {}",
		"package a.b;", "@A({}) class B {", "void main() {}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		s := Scan(src)
		for _, name := range append(slices.Clone(s.Mains), s.Classes...) {
			if name == "" || !strings.Contains(src, name) {
				t.Fatalf("%q is not in %q", name, src)
			}
		}
	})
}

// The time is linear in the size of the source. Quadratic time would be 256 times as much for 16 times the source.
func TestScanIsLinear(t *testing.T) {
	for name, source := range map[string]func(n int) string{
		"words without an end": func(n int) string {
			return strings.Repeat("x ", n) + "public static " + strings.Repeat("void main(a)", n)
		},
		"classes": func(n int) string {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, "class A%d{void main(a){}}", i)
			}
			return b.String()
		},
	} {
		t.Run(name, func(t *testing.T) {
			measure := func(text string) time.Duration {
				best := time.Duration(math.MaxInt64)
				for range 3 {
					began := time.Now()
					Scan(text)
					best = min(best, time.Since(began))
				}
				return best
			}
			const n = 3_000
			if few, many := measure(source(n)), measure(source(16*n)); many > 80*few+time.Second {
				t.Errorf("%v for %d, %v for %d", few, n, many, 16*n)
			}
		})
	}
}
