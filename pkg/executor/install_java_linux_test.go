package executor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testregistry"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// javaJar is a jar of classes, compiled with this machine's javac; sources are path, text, ….
func javaJar(t *testing.T, resources map[string]string, sources ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("needs javac: ", err)
	}
	dir := t.TempDir()
	args := []string{"-d", filepath.Join(dir, "classes")}
	for i := 0; i < len(sources); i += 2 {
		name := filepath.Join(dir, sources[i])
		fine(t, os.MkdirAll(filepath.Dir(name), 0o755))
		fine(t, os.WriteFile(name, []byte(sources[i+1]), 0o600))
		args = append(args, name)
	}
	if out, err := exec.Command("javac", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := map[string]string{}
	for name, text := range resources {
		files[name] = text
	}
	err := filepath.WalkDir(filepath.Join(dir, "classes"), func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, err := filepath.Rel(filepath.Join(dir, "classes"), name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		files[rel] = string(text)
		return err
	})
	fine(t, err)
	return testregistry.Zip(files)
}

// javaRegistry has a library that needs another one, which has a resource.
func javaRegistry(t *testing.T) *testregistry.Server {
	t.Helper()
	words := javaJar(t, map[string]string{"words.txt": "world"}, "w/Words.java", `package w;
import java.io.*;
public class Words {
  public static String word() {
    try (var in = Words.class.getResourceAsStream("/words.txt")) { return new String(in.readAllBytes()); }
    catch (IOException e) { throw new UncheckedIOException(e); }
  }
}`)
	old := javaJar(t, nil, "w/Words.java", `package w; public class Words { public static String word() { return "old"; } }`)
	greet := javaJar(t, nil, "g/Greet.java", `package g;
public class Greet { public static String hello() throws Exception {
  return "hello " + Class.forName("w.Words").getMethod("word").invoke(null); } }`)
	return testregistry.New(t, testregistry.Maven(
		testregistry.Artifact{Name: "com.example:greet:1.0", Jar: greet,
			Inner: testregistry.Needs("com.example.words:words:1.2 <scope>runtime</scope>")},
		testregistry.Artifact{Name: "com.example.words:words:1.2", Jar: words, Checksums: map[string]string{"sha512": ""}},
		testregistry.Artifact{Name: "com.example.words:words:0.9", Jar: old},
		testregistry.Artifact{Name: "com.example:wrong:1.0", Jar: greet, Checksums: map[string]string{"sha1": strings.Repeat("0", 40)}},
		testregistry.Artifact{Name: "com.example:ranged:1.0", Jar: greet, Inner: testregistry.Needs("com.example.words:words:[1,2)")},
	))
}

const greetCode = "public class Main { public static void main(String[] a) throws Exception { System.out.println(g.Greet.hello()); } }\n"

// TestJavaPackages: a declared jar and the jars that it needs are installed once, and are on the class paths of javac and java.
func TestJavaPackages(t *testing.T) {
	s := javaRegistry(t)
	e := packageEngine(t, map[string]string{"maven": s.URL + "/"})
	req := Request{Language: "java", Code: greetCode, Options: LanguageOptions{Deps: []string{"com.example:greet:1.0"}}}
	first := expectOn(t, e, req, want{stdout: "hello world\n"})
	d := first.Deps
	if d == nil || d.Cached || len(d.Packages) != 2 || d.Packages[0].Name != "com.example.words:words" || d.Packages[0].Version != "1.2" ||
		d.Packages[0].URL != s.URL+"/com/example/words/words/1.2/words-1.2.jar" || !strings.HasPrefix(d.Packages[0].Hash, "sha256:") {
		t.Fatalf("%+v", d)
	}
	asked := len(s.Requests())
	second := expectOn(t, e, req, want{stdout: "hello world\n"})
	if d := second.Deps; d == nil || !d.Cached || d.Layer != first.Deps.Layer || len(s.Requests()) != asked {
		t.Errorf("%+v, %q", d, s.Requests()[asked:])
	}
	// The same packages are the same layer, on every machine; another class path compiles again.
	other := expectOn(t, packageEngine(t, map[string]string{"maven": s.URL + "/"}), req, want{stdout: "hello world\n"})
	if other.Deps.Cached || other.Deps.Layer != first.Deps.Layer {
		t.Errorf("%+v", other.Deps)
	}
	req.Options.Deps = append(req.Options.Deps, "com.example.words:words:0.9")
	expectOn(t, e, req, want{stdout: "hello old\n"})

	// A source can name them, if the request asks for that.
	req.Options.Deps, req.Code = nil, "//DEPS com.example:greet:1.0\n"+greetCode
	expectOn(t, e, req, want{verdict: sandbox.VerdictCompileError, exit: 1, said: []string{"package g does not exist"}})
	req.Options.Install = true
	if r := expectOn(t, e, req, want{stdout: "hello world\n"}); r.Deps.Layer != first.Deps.Layer {
		t.Errorf("%+v", r.Deps)
	}
	snippet := Request{Language: "java", Code: "//DEPS com.example:greet:1.0\nSystem.out.println(g.Greet.hello());\n",
		Options: LanguageOptions{Install: true}}
	expectOn(t, e, snippet, want{stdout: "hello world\n"})
	files := tree("pom.xml", "<project/>", "src/main/java/Main.java", req.Code)
	if r := expectOn(t, e, Request{Files: files, Options: LanguageOptions{Install: true}}, want{stdout: "hello world\n"}); !strings.Contains(
		fmt.Sprint(r.Notes), "pom.xml is not read") {
		t.Errorf("%q", r.Notes)
	}
}

// TestJavaPackagesInVain: what can not be installed is named, and nothing stays.
func TestJavaPackagesInVain(t *testing.T) {
	s := javaRegistry(t)
	e := packageEngine(t, map[string]string{"maven": s.URL + "/"})
	for name, said := range map[string]string{
		"com.example:absent:1.0": "com.example:absent:1.0: com/example/absent/1.0/absent-1.0.pom: the registry does not have it",
		"com.example:wrong:1.0":  "com.example:wrong:1.0: com/example/wrong/1.0/wrong-1.0.pom: it is damaged or replaced",
		"com.example:ranged:1.0": "its dependency com.example.words:words has the range \"[1,2)\"",
	} {
		req := Request{Language: "java", Code: greetCode, Options: LanguageOptions{Deps: []string{name}}}
		r := expectOn(t, e, req, want{verdict: sandbox.VerdictInstallError, exit: 1, said: []string{said}})
		if r.Deps != nil || strings.Contains(string(r.Stderr.Bytes()), "registry.sandbox-run.internal") {
			t.Errorf("%+v\n%s", r.Deps, r.Stderr.Bytes())
		}
	}
	if list, err := e.opts.Layers.List(); err != nil || len(list) > 0 {
		t.Errorf("%+v, %v", list, err)
	}
	req := Request{Language: "java", Code: greetCode, Options: LanguageOptions{Deps: []string{"com.example:ranged:1.0",
		"com.example.words:words:1.2"}}}
	expectOn(t, e, req, want{stdout: "hello world\n"})
}

// TestJavaLockedPackages: from a lock the same jars are installed, without POMs, from any registry that has them.
func TestJavaLockedPackages(t *testing.T) {
	s := javaRegistry(t)
	req := Request{Language: "java", Code: greetCode, Options: LanguageOptions{Deps: []string{"com.example:greet:1.0"}}}
	e := packageEngine(t, map[string]string{"maven": s.URL + "/"})
	first := expectOn(t, e, req, want{stdout: "hello world\n"})
	text := lockText(t, e, first)
	if lock := text; strings.Contains(lock, "sandbox-run.internal") {
		t.Error(lock)
	}
	asked := len(s.Requests())
	req.Options = LanguageOptions{Lock: text, Frozen: true}
	frozen := packageEngine(t, map[string]string{"maven": s.URL + "/"})
	second := expectOn(t, frozen, req, want{stdout: "hello world\n"})
	if got := s.Requests()[asked:]; len(got) != 2 || !strings.HasSuffix(got[0], ".jar") || !strings.HasSuffix(got[1], ".jar") {
		t.Errorf("%q", got)
	}
	const file = "maven.lock"
	if a, b := lockOf(t, e, first), lockOf(t, frozen, second); fmt.Sprint(a.Packages) != fmt.Sprint(b.Packages) || a.Files[file] != b.Files[file] {
		t.Errorf("%+v", b)
	}
	req.Options.Lock = strings.ReplaceAll(text, first.Deps.Packages[0].Hash, "sha256:"+strings.Repeat("0", 64))
	expectOn(t, frozen, req, want{verdict: sandbox.VerdictInstallError, exit: 1,
		said: []string{"words-1.2.jar: it is not the file of the lock"}})
	req.Options = LanguageOptions{Deps: []string{"com.example:greet:1.0"}, Frozen: true}
	if r, err := frozen.Execute(t.Context(), req); err == nil || !strings.Contains(err.Error(), "no lock") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestJavaPackagesForTests: tests run with an installed JUnit.
func TestJavaPackagesForTests(t *testing.T) {
	console := javaJar(t, nil, "ConsoleLauncher.java", `package org.junit.platform.console;
public class ConsoleLauncher { public static void main(String[] a) throws Exception {
  System.out.println(a[1]); Class.forName("p.ATest").getMethod("f").invoke(null); } }`,
		"Test.java", "package org.junit.jupiter.api; public @interface Test {}\n")
	s := testregistry.New(t, testregistry.Maven(testregistry.Artifact{Name: "org.junit.platform:junit-platform-console-standalone:1.9.3",
		Jar: console},
		testregistry.Artifact{Name: "com.example:other:1", Jar: testregistry.Zip(nil)}))
	e := packageEngine(t, map[string]string{"maven": s.URL})
	files := tree("src/test/java/p/ATest.java",
		"package p; import org.junit.jupiter.api.Test; public class ATest { @Test public static void f() { System.out.println(\"tested\"); } }\n")
	req := Request{Language: "java", Files: files, Options: LanguageOptions{
		Test: true, Deps: []string{"org.junit.platform:junit-platform-console-standalone:1.9.3"},
	}}
	expectOn(t, e, req, want{stdout: "--scan-classpath=/tmp/build/classes\ntested\n"})
	for _, deps := range [][]string{nil, {"com.example:other:1"}} {
		req.Options.Deps, req.Options.Install = deps, true
		if r, err := e.Execute(t.Context(), req); err == nil || !strings.Contains(err.Error(), "need JUnit") {
			t.Errorf("%q: %+v, %v", deps, r, err)
		}
	}
}
