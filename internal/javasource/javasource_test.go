package javasource

import (
	"slices"
	"strings"
	"testing"
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
