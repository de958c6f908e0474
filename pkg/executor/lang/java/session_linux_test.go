package java

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Without the prepared driver, here because javac can not be started, the launcher compiles it.
func TestUnpreparedSession(t *testing.T) {
	dir := t.TempDir()
	programs := map[string]string{"jshell": "/jdk/bin/jshell", "javac": dir + "/none"}
	j := &language.Job{
		Language: &Language, Dir: sandbox.WorkspaceDir, Plan: &language.Plan{}, Store: &prepared.Store{Root: dir}, WarmDir: dir,
		Tool: &toolchain.Toolchain{Name: "java", ID: "1", Version: "17.0.2", Path: "/jdk/bin/java", Programs: programs},
	}
	if err := planSession(j); err != nil {
		t.Fatal(err)
	}
	uses := func() (driver, files bool) {
		args := strings.Join(j.Plan.Phases[0].Process.Args, " ")
		shown := func(m sandbox.Mount) bool { return m.Target == javaDir }
		return strings.Contains(args, sessionJar), slices.ContainsFunc(j.Plan.Spec.Root.Add, shown)
	}
	if driver, files := uses(); !driver || !files {
		t.Fatalf("%+v", j.Plan)
	}
	release, err := j.Plan.Prepare(context.Background(), j.Plan, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if driver, files := uses(); driver || files || len(j.Store.Failures()) != 1 {
		t.Errorf("%+v %v", j.Plan, j.Store.Failures())
	}
	if args := j.Plan.Phases[0].Process.Args; !strings.HasSuffix(args[len(args)-2], "JavaSession.java") {
		t.Errorf("%q", args)
	}
}
