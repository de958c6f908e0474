package javascript

import (
	_ "embed"
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
