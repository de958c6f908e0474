package executor

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

const (
	goHello   = "package main\n\nfunc main() { println(1) }\n"
	javaHello = "public class Hello { public static void main(String[] a) {} }\n"
	cargoText = "[package]\nname = \"tool\"\nversion = \"0.1.0\"\n"
)

// compiledPlan is a request's plan, with fake toolchains and a directory for what they prepare.
func compiledPlan(t *testing.T, req Request) (*Plan, error) {
	t.Helper()
	j := fakeJob(t, req)
	j.WarmDir = "/var/cache/warm"
	return newPlan(j, bigMachine)
}

func TestPlansOfCompiled(t *testing.T) {
	test := LanguageOptions{Test: true}
	for name, req := range map[string]Request{
		"go":          {Language: "go", Code: goHello, Args: []string{"a"}},
		"go-snippet":  {Language: "go", Code: "fmt.Println(1)"},
		"go-files":    {Files: tree("main.go", goHello, "b.go", "package main\n")},
		"go-module":   {Files: tree("go.mod", "module m\n", "cmd/a/main.go", goHello, "lib/lib.go", "package lib\n")},
		"go-vendored": {Files: tree("go.mod", "module m\n", "main.go", goHello, "vendor/modules.txt", "")},
		"go-entry":    {Entry: "cmd/b", Files: tree("go.mod", "module m\n", "cmd/a/main.go", goHello, "cmd/b/main.go", goHello)},
		"go-test":     {Files: tree("a.go", "package a\n", "a_test.go", "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {}\n")},
		"go-test-asked": {Options: test, Files: tree("go.mod", "module m\n", "main.go", goHello, "a/a_test.go", "package a\n", "b/b_test.go",
			"package b\n"), Args: []string{"-v", "-run=A"}},
		"go-txtar": {Language: "go", Code: "-- main.go --\n" + goHello + "-- go.mod --\nmodule m\n"},
		"go-volume": {Language: "go", Code: goHello,
			Policy: Policy{Volumes: []sandbox.Volume{{Source: "/srv/data", Target: sandbox.WorkspaceDir}}}},
		"go-memory":    {Language: "go", Code: goHello, Limits: sandbox.Limits{Memory: 1 * sandbox.GiB}},
		"rust":         {Language: "rust", Code: "fn main() {}", Args: []string{"a"}},
		"rust-modules": {Files: tree("main.rs", "mod a;", "a.rs", "")},
		"rust-options": {Language: "rs", Code: "fn main() {}", Options: LanguageOptions{Release: true, Edition: "2018", Test: true}},
		"rust-cargo":   {Files: tree("Cargo.toml", cargoText, "src/main.rs", "")},
		"rust-cargo-bin": {Entry: "src/bin/x.rs", Options: LanguageOptions{Release: true},
			Files: tree("Cargo.toml", cargoText, "src/main.rs", "", "src/bin/x.rs", "")},
		"rust-cargo-member": {Entry: "b", Files: tree("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\n", "a/Cargo.toml", cargoText,
			"a/src/main.rs", "", "b/Cargo.toml", strings.ReplaceAll(cargoText, "tool", "other"), "b/src/main.rs", "")},
		"rust-cargo-test": {Options: test, Files: tree("Cargo.toml", cargoText, "src/lib.rs", "")},
		"java":            {Language: "java", Code: javaHello, Args: []string{"a"}},
		"java-tree": {Files: tree("src/main/java/p/A.java", "package p; public class A { public static void main(String[] a) {} }",
			"src/main/java/p/B.java", "package p; class B {}", "lib/x.jar", "", "src/test/java/T.java", "class T {}")},
		"java-resources": {Files: tree("a/src/main/java/A.java", "public class A { public static void main(String[] a) {} }",
			"a/src/main/resources/x/a.txt", "", "b/src/main/resources/b.txt", "", "b/src/test/resources/c.txt", "")},
		"java-entry": {Entry: "p.B", Files: tree("p/A.java", "package p; class A { static void main(String[] a) {} }", "p/B.java",
			"package p; class B { static void main(String[] a) {} }")},
		"java-compact": {Language: "java", Code: "void main() { }"},
		"java-snippet": {Language: "java", Code: "System.out.println(1);"},
		"java-test": {Options: LanguageOptions{Test: true, EnableAssertions: true}, Files: tree("src/main/java/A.java", "public class A {}",
			"src/test/java/p/ATest.java", "package p; public class ATest { @Test void f() {} }", "lib/junit-platform-console-standalone-1.9.jar", "")},
		"java-test-4": {Options: test, Entry: "BTest", Files: tree("ATest.java", "public class ATest { @Test public void f() {} }", "BTest.java",
			"public class BTest { @Test public void f() {} }", "junit-4.13.jar", "", "hamcrest.jar", "")},
		"go-library":   {Language: "go", Code: "package a\n"},
		"rust-snippet": {Language: "rust", Code: "println!(\"{}\", 1);"},
		"java-memory":  {Language: "java", Code: javaHello, Limits: sandbox.Limits{Memory: 128 * sandbox.MiB}},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := compiledPlan(t, req)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("plan", name+".golden"), plan)
		})
	}
}

// What can not be compiled as it was given is refused, in words that say what to do.
func TestPlansRefused(t *testing.T) {
	for name, c := range map[string]struct {
		req  Request
		says []string
	}{
		"two programs in a module": {Request{Files: tree("go.mod", "module m\n", "a/main.go", goHello, "b/main.go", goHello)},
			[]string{"a, b", "--entry a"}},
		"two programs in a place": {Request{Files: tree("a.go", goHello, "b.go", goHello)}, []string{"a.go, b.go", "--entry a.go"}},
		"Java tests without JUnit": {Request{Files: tree("T.java", "class T { @Test void f() {} }", "U.java", "class U {}"),
			Options: LanguageOptions{Test: true}}, []string{"no jar", "--deps org.junit.platform:junit-platform-console-standalone:"}},
		"no program": {Request{Files: tree("go.mod", "module m\n", "a.go", "package a\n")},
			[]string{"neither a package main nor a test"}},
		"no tests": {Request{Language: "go", Code: goHello, Options: LanguageOptions{Test: true}},
			[]string{"no tests", "_test.go"}},
		"no tests in a tree": {Request{Files: tree("a.go", goHello, "b.go", "package main\n"), Options: LanguageOptions{Test: true}},
			[]string{"no tests"}},
		"archive that climbs": {Request{Language: "go", Code: "-- ../x.go --\npackage main\n"}, []string{"../x.go"}},
		"archive with a name twice": {Request{Language: "go", Code: "-- x.go --\npackage main\n-- x.go --\npackage main\n"},
			[]string{"two files"}},
		"line break in a name": {Request{Language: "go", Code: "x := 1", Name: "a\nb.go"}, []string{"line break"}},
		"unknown edition": {Request{Language: "rust", Code: "fn main() {}", Options: LanguageOptions{Edition: "2020"}},
			[]string{"2020", "2021"}},
		"edition of a project": {Request{Files: tree("Cargo.toml", cargoText, "src/main.rs", ""),
			Options: LanguageOptions{Edition: "2021"}}, []string{"Cargo.toml"}},
		"several programs of Cargo": {Request{Files: tree("Cargo.toml", cargoText, "src/bin/a.rs", "", "src/bin/b.rs", "")},
			[]string{"src/bin/a.rs, src/bin/b.rs", "--entry"}},
		"library of Cargo":         {Request{Files: tree("Cargo.toml", cargoText, "src/lib.rs", "")}, []string{"no program", "--test"}},
		"Rust without a main file": {Request{Language: "rust", Files: tree("a.rs", "", "b.rs", "")}, []string{"main.rs", "--entry"}},
		"several mains in Java": {Request{Files: tree("A.java", "class A { static void main(String[] a) {} }", "B.java",
			"class B { static void main(String[] a) {} }")}, []string{"A, B", "--entry A"}},
		"no such class": {Request{Entry: "C",
			Files: tree("A.java", "class A { static void main(String[] a) {} }", "B.java", "class B {}")}, []string{`"C" has no main`, "A"}},
		"file that javac would read": {Request{Files: tree("@a.java", "class A { static void main(String[] a) {} }")}, []string{"@a.java"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := compiledPlan(t, c.req)
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Fatalf("accepted, or another error: %v", err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("no %q in: %v", s, err)
				}
			}
		})
	}
}
