package javascript

import (
	"embed"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// nodeReporter reports the tests of Node's runner, and exitHook notes test files that exit.
var (
	//go:embed tests/node.mjs
	nodeReporter []byte
	//go:embed tests/exit.cjs
	exitHook []byte
)

// packageRunner is a test framework that is a package of the project.
type packageRunner struct {
	file         string // that is started, below node_modules
	reporter     string
	args         []string // before those of the request
	filter, bail string   // flags
}

//go:embed tests/jest.cjs tests/vitest.mjs
var packageReporters embed.FS

var packageRunners = map[string]packageRunner{
	"jest": {"jest/bin/jest.js", "jest.cjs", []string{"--ci", "--watchman=false", "--testLocationInResults", "--reporters="}, "--testNamePattern=",
		"--bail"},
	"vitest": {"vitest/vitest.mjs", "vitest.mjs", []string{"run", "--reporter="}, "--testNamePattern=", "--bail=1"},
}

// addPackageTests adds the run of a framework that is a package of the project, of its directory or of a layer.
func addPackageTests(j *language.Job, r *packageRunner) error {
	asked := j.Request.Tests
	j.Plan.Framework, j.Plan.Report = asked.Framework, language.ReportRecords
	start := j.Inside("node_modules/" + r.file)
	if language.Find(j.Files, "node_modules/"+r.file) == nil {
		start = path.Join(modulesAt, r.file)
		if j.Layer == nil {
			p, err := Packages(j)
			if err != nil {
				return err
			}
			if p == nil { // otherwise the program is planned again when they are installed
				return sandbox.Errorf(sandbox.ErrInvalid, "test", "--install, or npm install", "%s is not in node_modules of the project",
					asked.Framework)
			}
		}
	}
	text, err := packageReporters.ReadFile("tests/" + r.reporter)
	if err != nil {
		return err
	}
	reporter, err := j.AddReporter(r.reporter, text)
	if err != nil {
		return err
	}
	args := append(append([]string{j.Tool.Path}, HeapFlags(j)...), start)
	args = append(args, r.args...)
	args[len(args)-1] += reporter
	if asked.FailFast {
		args = append(args, r.bail)
	}
	if asked.Filter != "" {
		args = append(args, r.filter+asked.Filter)
	}
	if len(asked.Names) > 0 {
		args = append(args, r.filter+selectFullNames(asked.Names))
	}
	run := j.AddRun(args...)
	run.Process.Workdir = j.Dir
	run.OutOfMemory = OutOfMemory
	run.SendReport()
	return nil
}

// reportTests returns the flags with which Node's test runner writes a report, and runs the tests that the request selects.
func reportTests(j *language.Job) ([]string, error) {
	if !isAtLeast(j, [2]int{18, 17}, [2]int{19, 9}) {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "test", "Node 18.17 or newer", "the test runner of Node %s has no reporters", j.Tool.Version)
	}
	asked := j.Request.Tests
	j.Plan.Framework, j.Plan.Report = "node", language.ReportRecords
	reporter, err := j.AddReporter("node.mjs", nodeReporter)
	if err != nil {
		return nil, err
	}
	hook := language.TestsDir + "/exit.cjs"
	j.RunFiles = append(j.RunFiles, sandbox.File{Path: hook, Mode: 0o644, Data: exitHook})
	flags := []string{"--require=" + hook, "--test-reporter=" + reporter, "--test-reporter-destination=stderr"}
	if asked.Filter != "" {
		flags = append(flags, "--test-name-pattern="+asked.Filter)
	}
	if len(asked.Names) > 0 {
		flags = append(flags, "--test-name-pattern="+selectTests(asked.Names))
	}
	return flags, nil
}

// selectTests returns the pattern of the names of tests, and of those that contain them: the ids of a report are a file and names.
func selectTests(ids []string) string {
	var names []string
	for _, id := range ids {
		parts := strings.Split(id, " > ")
		for _, name := range parts[min(1, len(parts)-1):] {
			names = append(names, regexp.QuoteMeta(name))
		}
	}
	slices.Sort(names)
	return "/^(" + strings.Join(slices.Compact(names), "|") + ")$/"
}

// selectFullNames returns the pattern of the names of tests, each behind the names of its groups.
func selectFullNames(ids []string) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		_, name, _ := strings.Cut(id, " > ")
		names[i] = regexp.QuoteMeta(strings.ReplaceAll(name, " > ", " "))
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
