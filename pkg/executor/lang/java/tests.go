package java

import (
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// testStart returns the command that runs a project's tests, all of them or those of the entry, with the JUnit of the project's jars or of
// the installed ones: the console launcher of JUnit 5, or the runner of JUnit 4. Both find their libraries on the class path.
func testStart(j *language.Job, sources []javaSource, installed []string) ([]string, error) {
	var console, junit4 bool
	jars := slices.Clone(installed)
	for _, f := range j.Files {
		jars = append(jars, f.Path)
	}
	for _, jar := range jars {
		base := path.Base(jar)
		if path.Ext(base) != ".jar" {
			continue
		}
		console = console || strings.HasPrefix(base, "junit-platform-console")
		junit4 = junit4 || strings.HasPrefix(base, "junit-4") || strings.HasPrefix(base, "junit4") || base == "junit.jar"
	}
	if !console && !junit4 && j.Layer == nil {
		p, err := packages(j)
		if err != nil {
			return nil, err
		}
		console = p != nil // the program is planned again when they are installed
	}
	if !console && !junit4 {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "test",
			"--deps org.junit.platform:junit-platform-console-standalone:1.10.2, or its jar in the project; --include DIR, if .gitignore names it",
			"the tests of Java need JUnit, and the project has no jar of it")
	}
	var classes []string
	for _, s := range sources {
		class := s.class()
		entry := path.Clean(j.Request.Entry)
		named := entry == class || entry == s.Qualified(class) || entry == "." || language.IsBelow(s.path, entry) || s.given == entry
		if s.tests && named {
			classes = append(classes, s.Qualified(class))
		}
	}
	if len(classes) == 0 {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "test", "methods with @Test", "there are no tests in this program")
	}
	if j.Request.Tests != nil {
		return reportedStart(j, console, classes)
	}
	if !console {
		return append([]string{"org.junit.runner.JUnitCore"}, classes...), nil
	}
	start := []string{"org.junit.platform.console.ConsoleLauncher", "--disable-banner"}
	if j.Request.Entry == "" {
		return append(start, "--scan-classpath="+classDir), nil
	}
	for _, c := range classes {
		start = append(start, "--select-class="+c)
	}
	return start, nil
}

// reportsDir is where the console launcher writes a report.
const reportsDir = language.TestsDir + "/reports"

// reportedStart returns the command that runs the tests that the request selects, and writes a report. Filters are those of classes.
func reportedStart(j *language.Job, console bool, classes []string) ([]string, error) {
	if !console {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "test", "--deps org.junit.platform:junit-platform-console-standalone:1.10.2",
			"results of tests need the console launcher of JUnit 5, which runs tests of JUnit 4 as well; the project has JUnit 4 only")
	}
	asked := j.Request.Tests
	start := []string{"org.junit.platform.console.ConsoleLauncher", "--disable-banner", "--reports-dir=" + reportsDir}
	if asked.Filter != "" {
		start = append(start, "--include-classname="+asked.Filter)
	} else {
		start = append(start, "--include-classname=.*")
	}
	if len(asked.Names) > 0 {
		classes = nil
		for _, id := range asked.Names { // class and method
			class, _, _ := strings.Cut(id, "#")
			classes = append(classes, class)
		}
		slices.Sort(classes)
		classes = slices.Compact(classes)
	} else if j.Request.Entry == "" {
		return append(start, "--scan-classpath="+classDir), nil
	}
	for _, c := range classes {
		start = append(start, "--select-class="+c)
	}
	return start, nil
}

// sendReport has a run send the report that the launcher has written when it ends.
func sendReport(j *language.Job, run *language.Phase) {
	j.Plan.Framework, j.Plan.Report = "junit", language.ReportJUnit
	const script = `"$@" 3>&- >&2
code=$?
for f in ` + reportsDir + `/*.xml; do
	[ -f "$f" ] && cat "$f"
done
exit $code`
	run.Process.Args = append([]string{"/bin/sh", "-c", script, "report"}, run.Process.Args...)
	run.Process.StackSignal = 0 // it would reach the shell
}
