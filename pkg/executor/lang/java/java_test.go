package java

import (
	"errors"
	"slices"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

func TestHeapLeavesRoom(t *testing.T) {
	for _, memory := range []sandbox.Size{2 * sandbox.MiB, 64 * sandbox.MiB, 128 * sandbox.MiB, 512 * sandbox.MiB, 8 * sandbox.GiB, 1 << 50} {
		heap := javaHeap(memory)
		if heap < 8*sandbox.MiB || memory >= 64*sandbox.MiB && (heap > memory-memory/8 || heap < memory/4) {
			t.Errorf("of %s the heap gets %s", memory, heap)
		}
	}
}

// Maven and Gradle compile src/main and src/test. Other directories below src, such as examples for documents, need other libraries.
func TestSourceSets(t *testing.T) {
	const main, test, guide = "src/main/java/a/A.java", "src/test/java/a/ATest.java", "src/userguide/java/b/B.java"
	for _, c := range []struct {
		name  string
		files []string
		entry string
		test  bool
		want  []string
	}{
		{"program", []string{main, test, guide}, "", false, []string{main}},
		{"tests", []string{main, test, guide}, "", true, []string{main, test}},
		{"module", []string{"m/" + main, "m/" + guide, "n/" + guide}, "", false, []string{"m/" + main, "n/" + guide}},
		{"named", []string{main, test, guide}, guide, false, []string{main, guide}},
		{"a module's tests", []string{"src/main/java/module-info.java", main, test}, "", true, []string{main, test}},
		{"a module", []string{"src/main/java/module-info.java", main, test}, "", false, []string{"src/main/java/module-info.java", main}},
		{"no main", []string{guide, "src/A.java"}, "", false, []string{guide, "src/A.java"}},
		{"package", []string{main, "src/main/java/src/x/java/C.java"}, "", false, []string{main, "src/main/java/src/x/java/C.java"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &language.Job{Language: &Language}
			j.Request.Entry, j.Request.Options.Test = c.entry, c.test
			for _, f := range c.files {
				j.Files = append(j.Files, language.File{Path: f, Data: []byte("class X {}")})
			}
			sources, err := readJava(j)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range sources {
				got = append(got, s.path)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q instead of %q", got, c.want)
			}
		})
	}
}

// A class has the tests of the classes that it extends, in other files and packages, too.
func TestInheritedTests(t *testing.T) {
	j := &language.Job{Language: &Language}
	j.Request.Options.Test = true
	for name, text := range map[string]string{
		"a/Base":    "package a; public abstract class Base extends TestCase {}",
		"a/Middle":  "package a; public abstract class Middle<T extends Object> extends Base implements I {}",
		"b/ATest":   "package b; import a.*; public class ATest extends a.Middle<String> { public void testX() {} }",
		"b/BTest":   "package b; public class BTest\n extends ATest {}",
		"b/Helper":  "package b; public class Helper<T extends ATest> {}",
		"b/Holder":  "package b; public class Holder { static class X extends ATest {} }",
		"c/Base":    "package c; public abstract class Base {}",
		"c/Plain":   "package c; public class Plain extends Base {}",
		"c/Cycle":   "package c; public class Cycle extends Cycle2 {}",
		"c/Cycle2":  "package c; public class Cycle2 extends Cycle {}",
		"c/Foreign": "package c; public class Foreign extends Unknown {}",
	} {
		j.Files = append(j.Files, language.File{Path: "src/test/java/" + name + ".java", Data: []byte(text)})
	}
	sources, err := readJava(j)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources {
		if want := s.class() == "ATest" || s.class() == "BTest"; s.tests != want {
			t.Errorf("%s: %v", s.path, s.tests)
		}
	}
}

// JUnit can not make an object of an abstract class: its tests run in the classes that extend it.
func TestTestClasses(t *testing.T) {
	for text, want := range map[string]bool{
		"import org.junit.Test; public class XTest { @Test public void a() {} }":                                 true,
		"public class XTest extends TestCase {}":                                                                 true,
		"@Deprecated public abstract class XTest<T> { @Test public void a() {} }":                                false,
		"abstract class XTest { @Test public void a() {} }":                                                      false,
		"public class XTest { @Test public void a() {} abstract static class XTestBase {} abstract class Y {} }": true,
		"// abstract class XTest was better\npublic class XTest { @Test public void a() {} }":                    true,
		"public class XTest {}": false,
	} {
		j := &language.Job{Language: &Language, Files: []language.File{
			{Path: "src/test/java/XTest.java", Data: []byte(text)}, {Path: "junit-4.jar"},
		}}
		j.Request.Options.Test = true
		sources, err := readJava(j)
		if err != nil || len(sources) != 1 {
			t.Fatal(sources, err)
		}
		if sources[0].tests != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

// A session needs a JDK with JShell, and keeps the jars of the program's files on the class path.
func TestSessionPlan(t *testing.T) {
	plan := func(version string, programs map[string]string) (*language.Job, error) {
		j := &language.Job{
			Language: &Language, Dir: sandbox.WorkspaceDir, Plan: &language.Plan{}, Store: &prepared.Store{Root: t.TempDir()},
			Tool:  &toolchain.Toolchain{Name: "java", Version: version, Path: "/jdk/bin/java", Programs: programs},
			Files: []language.File{{Path: "lib/a.jar"}, {Path: "A.java"}},
		}
		j.Plan.Spec.Limits.Memory = 512 * sandbox.MiB
		return j, planSession(j)
	}
	complete := map[string]string{"jshell": "/jdk/bin/jshell"}
	for _, c := range []struct {
		version  string
		programs map[string]string
	}{{"11.0.2", complete}, {"17.0.2", nil}, {"", complete}} {
		if _, err := plan(c.version, c.programs); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("JDK %q with %v: %v", c.version, c.programs, err)
		}
	}
	j, err := plan("17.0.2", complete)
	if err != nil {
		t.Fatal(err)
	}
	args := j.Plan.Phases[0].Process.Args
	if i := slices.Index(args, "-cp"); i < 0 || args[i+1] != "/workspace:/workspace/lib/a.jar" || args[len(args)-1] != args[i+1] {
		t.Errorf("%q", args)
	}
	if p := &j.Plan.Phases[0]; !p.Process.DriverSocket || p.OutOfMemory == nil || !slices.Contains(args, heapFlag(javaHeap(512*sandbox.MiB))) {
		t.Errorf("%+v", p)
	}
}
