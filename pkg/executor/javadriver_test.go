package executor

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Which machines may wait for a program, by what is its own.
func TestJavaMachinesThatWait(t *testing.T) {
	const main = "public class Main { public static void main(String[] a) { %s } }"
	code := func(body string) string { return strings.Replace(main, "%s", body, 1) }
	for name, c := range map[string]struct {
		req         Request
		javac, java bool
	}{
		"an ordinary one":        {Request{Code: code("")}, true, true},
		"with arguments":         {Request{Code: code(""), Args: []string{"a"}}, true, true},
		"arguments that are bad": {Request{Code: code(""), Args: []string{"\xff"}}, true, false},
		"a variable":             {Request{Code: code(""), Env: map[string]string{"A": "b"}}, false, false},
		"another directory":      {Request{Code: code(""), Policy: Policy{Workdir: "/tmp"}}, false, false},
		"a volume": {Request{Code: code(""),
			Policy: Policy{Volumes: []sandbox.Volume{{Source: "/srv", Target: sandbox.WorkspaceDir}}}}, false, false},
		"a jar":                 {Request{Files: tree("Main.java", code(""), "x.jar", "")}, true, false},
		"no class":              {Request{Code: "void main() {}"}, true, false},
		"a main without args":   {Request{Code: "class A { public static void main() {} }"}, true, false},
		"a main that is hidden": {Request{Code: "class A { static void main(String[] a) {} }"}, true, false},
		"looks at its machine":  {Request{Code: code("java.lang.management.ManagementFactory.getRuntimeMXBean();")}, true, false},
		"looks at all stacks":   {Request{Code: code("Thread.getAllStackTraces();")}, true, false},
		"looks at a thread":     {Request{Code: code("Thread.currentThread().getStackTrace();")}, true, false},
		"looks at an exception": {Request{Code: code("new Exception().getStackTrace();")}, true, true},
		"looks at /proc":        {Request{Code: code("new java.io.File(\"/proc/self/cmdline\");")}, true, false},
		"one of several, so that": {Request{Entry: "B", Files: tree("A.java", "class A { void f() { ProcessHandle.current(); } }", "B.java",
			"class B { public static void main(String[] a) {} }")}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.Language = "java"
			j := fakeJob(t, c.req)
			j.WarmDir, j.Prestart = "/var/cache/warm", true
			plan, err := newPlan(j, bigMachine)
			if err != nil {
				t.Fatal(err)
			}
			javac, java := plan.Phases[0].Process.Warm, plan.Phases[1].Process.Warm
			if (javac != nil) != c.javac || (java != nil) != c.java {
				t.Errorf("javac waits: %v, java waits: %v", javac != nil, java != nil)
			}
			if java == nil {
				return
			}
			// What waits has the very flags of what runs, and nothing of the program.
			run := plan.Phases[1].Process.Args
			flags := run[:slices.Index(run, "-cp")+2]
			for _, f := range flags {
				if !slices.Contains(java.Args, f) {
					t.Errorf("%s is missing", f)
				}
			}
			for _, own := range append(slices.Clone(c.req.Args), "Main") {
				if slices.Contains(java.Args, own) {
					t.Errorf("it is started with %q", own)
				}
			}
		})
	}
}

// An old JDK hides nothing, and so nothing waits in it; nor does anything of an image's.
func TestJavaMachinesThatCanNotWait(t *testing.T) {
	j := fakeJob(t, Request{Language: "java", Code: javaHello})
	j.WarmDir = "/var/cache/warm"
	tool := *j.Tool
	tool.Version = "11.0.2"
	j.Tool = &tool
	plan, err := newPlan(j, bigMachine)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plan.Phases {
		if p.Process.Warm != nil {
			t.Errorf("%s waits", p.Process.Phase)
		}
	}
}
